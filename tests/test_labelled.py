"""Labelled rows: from a task's files to columns, labels and what predictions are written from."""

import itertools
import json
import math
import pathlib
import random

import numpy as np
import pytest
from small import make_task_fields

from mlm.base import config, fields
from mlm.base.special import CLS, PAD, SEP, UNK
from mlm.data.rows import labelled, loader, pack
from mlm.data.tasks import examples, splits, tasks
from mlm.data.tokenizers import kinds
from mlm.training.run import resolution

SHARED = pathlib.Path(__file__).parents[2] / "shared" / "data"
WORDS = [f"w{i}" for i in range(40)]


def make_config(folder, tokenizer, **changes):
    named = {"train": "train", "dev": "dev"} | {name: one for name, one in changes.items() if "__" not in name}
    other = {name.strip("_").replace("__", "."): value for name, value in changes.items() if "__" in name}
    base = make_task_fields(folder, tokenizer, **named) | {"pack.seq_len": 16}
    cfg = resolution.derive_fields(fields.override(config.Config(), base | other))
    pack.check(cfg)
    return cfg


def write(folder, name, *lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


def text(draw, longest=8):
    return " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))


def tokens(rows):
    return [[i for i in row.tolist() if i != PAD] for row in rows["ids"]]


def test_a_pair_is_a_row_whose_texts_see_each_other(tmp_path, tokenizer):
    draw = random.Random(0)
    pairs = [(text(draw, 20), text(draw, 20), draw.choice(["no", "yes"])) for _ in range(60)]
    for name, part in (("train", pairs), ("dev", pairs[:5]), ("test", pairs[5:9])):
        write(tmp_path, name, "a\tlabel\tb", *(f"{a}\t{label}\t{b}" for a, b, label in part))
    cfg = make_config(
        tmp_path, tokenizer, format="tsv", text_column="a", text_pair_column="b", label_column="label", test="test"
    )
    packed = pack.load_dataset(cfg)
    assert packed.dataset_info.label_names == ("label_B",) and packed.dataset_info.classes == ("no", "yes")
    known = kinds.load_tokenizer_folder("", tokenizer)
    truncated = 0
    for at, (a, b, label) in enumerate(pairs):
        a, b = known.encode(a), known.encode(b)
        truncated += len(a) + len(b) > 13
        while len(a) + len(b) > 13:  # the longer one loses its last token
            (a if len(a) > len(b) else b).pop()
        row = [CLS, *a, SEP, *b, SEP]
        assert tokens(packed.train)[at] == row
        assert packed.train["segments"][at].tolist() == [1] * len(row) + [0] * (16 - len(row))
        assert packed.train["positions"][at, : len(row)].tolist() == list(range(len(row)))
        assert packed.train["types"][at].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (16 - len(row))
        assert packed.train["label"][at] == ("no", "yes").index(label)
    said = packed.manifest
    assert said["classes"] == ["no", "yes"] and said["train"]["truncated"] == truncated > 0
    assert said["counts"] == {name: sum(label == name for *_, label in pairs) for name in ("no", "yes")}
    assert said["train"]["rows"] == 60 and said["train"]["tokens"] == sum(map(len, tokens(packed.train)))
    counted_V = np.bincount(packed.train["ids"].ravel(), minlength=known.vocab_size)
    counted_V[PAD] = 0
    assert np.array_equal(np.frombuffer(packed.dataset_info.unigram_counts, np.int64), counted_V)
    for split, part in (("train", pairs), ("validation", pairs[:5]), ("test", pairs[5:9])):
        kept = labelled.read_examples(packed, split)
        assert [(*one["texts"], one["label"]) for one in kept] == part
        assert [(one["id"], one["row"], one["rows"]) for one in kept] == [(str(i), i, 1) for i in range(len(part))]
    assert len(packed.validation["ids"]) == 5 and len(packed.other_splits["test"]["ids"]) == 4
    plain = {"unigram_counts": b"", "class_counts": b""}
    assert pack.build_dataset_info(cfg, known.vocab_size)._replace(**plain) == packed.dataset_info._replace(**plain)
    assert np.frombuffer(packed.dataset_info.class_counts, np.int64).tolist() == [
        said["counts"][name] for name in ("no", "yes")
    ]


@pytest.mark.parametrize(("kind", "size", "stride"), [("wordpiece", 17, 0), ("bpe", 265, 3)])
def test_each_word_has_its_tag_once_at_its_first_piece_where_it_has_most_context(tmp_path, kind, size, stride):
    folder, draw = tmp_path / "pieces", random.Random(3)
    folder.mkdir()
    kinds.train_tokenizer(config.Tokenizer(kind, size), ["abcab cabca bca"] * 50).save(folder)
    words = ["".join(draw.choices("abc", k=draw.randint(1, 9))) for _ in range(60)]
    long = [(draw.choice([*words, "\u200b"]), draw.choice("XY")) for _ in range(50)]
    sentences = [
        [("abc", "X"), ("cab", "Y")],
        long,
        [*long[:9], ("ab" * 40, "Y")],  # ends with a word that no window holds
        [("bc" * 40, "X"), *long[9:12]],
    ]
    for name in ("train", "dev"):
        lines = ("\n".join(f"{word} {tag}" for word, tag in one) + "\n" for one in sentences)
        write(tmp_path, name, "-DOCSTART- O", *lines)
    packed = pack.load_dataset(
        make_config(tmp_path, str(folder), format="conll", text_column="0", label_column="1", doc_stride=stride)
    )
    known, lost = packed.tokenizer, 0
    for sentence, record in zip(sentences, labelled.read_examples(packed, "train"), strict=True):
        pieces = [known.encode(f" {word}") or [UNK] for word, _ in sentence]
        start_W, whole = list(itertools.accumulate(map(len, pieces), initial=0)), [i for part in pieces for i in part]
        rows, windows, found = range(record["row"], record["row"] + record["rows"]), [], {}
        for row in rows:
            inside = tokens(packed.train)[row][1:-1]
            later = [at for at in start_W if not windows or at > windows[-1][0]]
            start = next(at for at in later if whole[at : at + len(inside)] == inside)
            windows.append((start, min(at for at in start_W if at >= start + len(inside))))  # whole words
            for at in np.flatnonzero(packed.train["tag"][row] >= 0).tolist():
                assert start_W.index(start + at - 1) not in found
                found[start_W.index(start + at - 1)] = row, "XY"[packed.train["tag"][row, at]]
        assert windows[0][0] == 0 and all(b <= a_end for (_, a_end), (b, _) in itertools.pairwise(windows))
        assert {word: tag for word, (_, tag) in found.items()} == dict(enumerate(tag for _, tag in sentence))
        assert list(found) == sorted(found)
        for word, (row, _) in found.items():
            a, b = start_W[word], start_W[word + 1]
            contexts = [min(a - s, e - b) if s <= a < e else -math.inf for s, e in windows]
            assert contexts[row - rows[0]] == max(contexts)
        lost += sum(max(0, len(part) - 14) for part in pieces)
        full = next((at for at in start_W if len(whole) - at <= 14), 0)  # the last window is as long as can be
        assert windows[-1][0] == min(full, start_W[-2])
    assert record["rows"] > 1 and record["row"] + record["rows"] == len(packed.train["ids"])
    assert lost and packed.manifest["train"]["lost"] == lost and packed.manifest["train"]["truncated"] == 2
    assert packed.dataset_info.label_names == ("tag_BxL",)
    assert [one["words"] for one in labelled.read_examples(packed, "train")] == [[w for w, _ in s] for s in sentences]
    batch = next(loader.iterate_eval_batches(packed.train, batch_size=64))
    assert (batch.labels["tag_BxL"][len(packed.train["ids"]) :] == -1).all()
    assert batch.labels["tag_BxL"].dtype == np.int32


def test_words_of_conllu_are_those_of_the_syntax(tmp_path, tokenizer):
    rest = "\t_" * 6
    lines = [
        "# sent_id = first",
        f"1-2\tw1w2\t_\t_{rest}",
        f"1\tw1\t_\tA{rest}",
        f"2\tw2\t_\tB{rest}",
        f"2.1\tw9\t_\tC{rest}",
        f"3\tw3\t_\tA{rest}",
        "",
        "# of no name",
        f"1\tw4\t_\tB{rest}",
    ]
    for name in ("train", "dev"):
        write(tmp_path, name, *lines)
    packed = pack.load_dataset(
        make_config(tmp_path, tokenizer, format="conllu", text_column="form", label_column="upos")
    )
    kept = labelled.read_examples(packed, "validation")
    assert [(one["id"], " ".join(one["words"]), "".join(one["label"])) for one in kept] == [
        ("first", "w1 w2 w3", "ABA"),
        ("1", "w4", "B"),
    ]


def squad(folder, passages):
    """Files of passages [(passage, [(question, [(text, start), ...]), ...])]."""
    numbers = itertools.count()
    data = [
        {
            "paragraphs": [
                {
                    "context": passage,
                    "qas": [
                        {
                            "id": f"q{next(numbers)}",
                            "question": question,
                            "is_impossible": not answers,
                            "answers": [{"text": text, "answer_start": start} for text, start in answers],
                        }
                        for question, answers in asked
                    ],
                }
            ]
        }
        for passage, asked in passages
    ]
    for name in ("train", "dev"):
        (folder / name).write_text(json.dumps({"data": data}))


def test_windows_cover_a_passage_and_say_where_its_answer_stands(tmp_path, tokenizer):
    draw, passages = random.Random(1), []
    for length in (1, 40, 77, 78, 79, 80, 200):
        words = draw.choices(WORDS, k=length)
        passage = "  ".join(words)
        first = draw.randrange(length)
        last = min(length, first + 4)
        answer = "  ".join(words[first:last])
        start = len("  ".join(words[:first])) + 2 * (first > 0)
        passages.append((passage, [(text(draw), [(answer, start)]), (" ".join(WORDS * 2), []), (text(draw), [])]))
    squad(tmp_path, passages)
    cfg = make_config(tmp_path, tokenizer, format="squad", pack__seq_len=96, **{"doc_stride": 20})
    packed = pack.load_dataset(cfg)
    rows, kept = packed.train, labelled.read_examples(packed, "train")
    assert packed.dataset_info.label_names == ("start_B", "end_B", "example_B", "passage_B", "first_B")
    assert packed.manifest["train"]["truncated"] == len(passages)  # the long questions
    assert np.frombuffer(packed.dataset_info.class_counts, np.int64).tolist() == [len(passages), 2 * len(passages)]
    assert sum(one["rows"] for one in kept) == len(rows["ids"]) and len(kept) == 3 * len(passages)
    for number, one in enumerate(kept):
        question, passage = (packed.tokenizer.encode(part) for part in one["texts"])
        question, seen = question[:64], set()
        room, windows = 93 - len(question), []
        for row in range(one["row"], one["row"] + one["rows"]):
            at, first = int(rows["passage"][row]), int(rows["first"][row])
            window = passage[first : first + room]
            windows.append(first)
            assert tokens(rows)[row] == [CLS, *question, SEP, *window, SEP] and rows["example"][row] == number
            assert at == len(question) + 2 and rows["types"][row].tolist()[at - 1 : at + len(window) + 2] == [
                0,
                *[1] * (len(window) + 1),
                *[0] * (at + len(window) + 1 < 96),
            ]
            seen |= set(range(first, first + len(window)))
            start, end = int(rows["start"][row]), int(rows["end"][row])
            wanted = one["label"][0] if one["label"] else None
            if start:
                spans = one["spans"]
                said = one["texts"][1][spans[first + start - at][0] : spans[first + end - at][1]]
                assert [said, spans[first + start - at][0]] == wanted
            elif wanted:
                inside = [
                    i for i, (a, b) in enumerate(one["spans"]) if a >= wanted[1] and b <= wanted[1] + len(wanted[0])
                ]
                assert not first <= inside[0] <= inside[-1] < first + len(window)
        assert seen == set(range(len(passage)))
        assert windows == list(range(0, len(windows) * 20, 20))
        assert len(windows) == 1 or windows[-2] + room < len(passage)  # the last but one does not reach the end
        assert not one["label"] or any(rows["start"][one["row"] : one["row"] + one["rows"]])


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 20), ("bpe", 265)])
def test_an_answer_beside_a_bracket_is_its_own_tokens(tmp_path, kind, size):
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    kinds.train_tokenizer(config.Tokenizer(kind, size), ["abcab (cabca) bca"] * 50).save(pieces)
    squad(tmp_path, [("a (bc) a", [("a", [("bc", 3)]), ("b", [("(bc)", 2)]), ("c", [("c", 4), ("a", 0)])])])
    packed = pack.load_dataset(make_config(tmp_path, str(pieces), format="squad", pack__seq_len=96, doc_stride=20))
    for row, one in enumerate(labelled.read_examples(packed, "train")):
        start, end = (int(packed.train[name][row]) for name in ("start", "end"))
        said = packed.tokenizer.decode(packed.train["ids"][row, start : end + 1]).replace(" ", "").replace("##", "")
        assert said == one["label"][0][0]


def test_rows_are_made_again_only_for_other_content(tmp_path, tokenizer, monkeypatch):
    for name in ("train", "dev"):
        write(tmp_path, name, "w1,a", "w2,b", '"w3, ""w4""\nw5",a')
    cfg = make_config(tmp_path, tokenizer, format="csv", text_column="0", label_column="1")
    first = pack.load_dataset(cfg)
    assert labelled.read_examples(first, "train")[2]["texts"] == ['w3, "w4"\nw5']
    with monkeypatch.context() as patch:
        patch.setattr(labelled, "_write_split", None)  # a second making would fail
        (tmp_path / "moved").mkdir()
        for name in ("train", "dev", "cache"):
            (tmp_path / name).rename(tmp_path / "moved" / name)
        again = pack.load_dataset(
            make_config(
                tmp_path / "moved", tokenizer, format="csv", text_column="0", label_column="1", scores="matthews"
            )
        )
        assert again.manifest == first.manifest and np.array_equal(again.train["ids"], first.train["ids"])
    write(tmp_path / "moved", "dev", "w1,b", "w2,b")
    other = pack.load_dataset(
        make_config(tmp_path / "moved", tokenizer, format="csv", text_column="0", label_column="1")
    )
    assert other.manifest["inputs"]["corpus"] != first.manifest["inputs"]["corpus"]
    ordered = pack.load_dataset(
        make_config(tmp_path / "moved", tokenizer, format="csv", text_column="0", label_column="1", labels="b, a")
    )
    assert ordered.dataset_info.classes == ("b", "a") and ordered.train["label"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_row_of_tasks_is_whole(name):
    row = tasks.TASKS[name]
    cfg = resolution.derive_fields(
        fields.override(
            config.Config(), {"data.task": name, "data.task_path": "a", "tokenizer.path": "b", "pack.seq_len": 384}
        )
    )
    pack.check(cfg)
    assert row.source and cfg.objective == row.objective and cfg.data.labelled.scores == row.labelled["scores"]
    other = fields.override(config.Config(), {"data.task": name, "data.labelled.dev": "mine"})
    assert resolution.derive_fields(other).data.labelled.dev == "mine"  # what is set wins


@pytest.mark.parametrize(
    ("name", "count"),
    [("sst2", 872), ("cola", 1043), ("rte", 277), ("mrpc", 500), ("stsb", 1500), ("wnut17", 1009), ("ud_ewt", 2001)],
)
def test_the_published_files_are_read(name, count):
    if not (SHARED / name).is_dir():
        pytest.skip("the data set is not here")
    cfg = resolution.derive_fields(
        fields.override(config.Config(), {"data.task": name, "data.task_path": str(SHARED / name)})
    )
    read = splits.READERS[cfg.data.labelled.format]
    path = splits.find_files(cfg.data)["validation"]
    found = list(read(path, cfg.data.labelled, examples.parse_number if name == "stsb" else lambda label, where: label))
    assert len(found) == count
