"""Labelled files that are not as they should be: each ends in one line that names file, place, what was found and what
was expected. And configs that do not describe a task."""

import json
import re

import pytest
from small import get_refusal

from mlm.base import config, fields, text_files
from mlm.data.rows import pack
from mlm.data.tasks import conll, splits, squad
from mlm.data.tokenizers import kinds
from mlm.training.run import resolution

BY_NAME = {"text_column": "sentence", "label_column": "label"}
BY_NUMBER = {"text_column": "0", "label_column": "1"}
PAIR = BY_NAME | {"text_pair_column": "other"}
HEADED = "sentence\tlabel\n"
GOOD = {  # format: its fields and a file that is whole
    "tsv": (BY_NAME, HEADED + "w1\ta\nw2\tb\n"),
    "csv": (BY_NUMBER, '"w1, w2",a\nw3,b\n'),
    "jsonl": (BY_NAME, '{"sentence": "w1", "label": "a"}\n\n{"label": "b", "sentence": "w2", "more": []}\n'),
    "conll": (BY_NUMBER | {"scheme": "bio"}, "w1 B-X\nw2 I-X\n\nw3 O\n"),
    "conllu": (
        {"text_column": "form", "label_column": "upos"},
        "1\tw1\t_\tA" + "\t_" * 6 + "\n2\tw2\t_\tB" + "\t_" * 6 + "\n\n",
    ),
    "squad": (
        {},
        json.dumps(
            {
                "data": [
                    {
                        "paragraphs": [
                            {
                                "context": "w1 w2",
                                "qas": [{"id": "a", "question": "w3", "answers": [{"text": "w2", "answer_start": 3}]}],
                            }
                        ]
                    }
                ]
            }
        ),
    ),
}
QUESTION = {"id": "a", "question": "w3", "answers": [{"text": "w2", "answer_start": 3}]}
TAG = "1\tw1\t_\tA" + "\t_" * 6 + "\n"


def questions(*changes, **more):
    asked = [QUESTION | change for change in (changes or [{}])]
    return json.dumps({"data": [{"paragraphs": [{"context": "w1 w2", "qas": asked} | more]}]})


def answer(**changes):
    return questions({"answers": [QUESTION["answers"][0] | changes]})


# Format, fields beside those of GOOD, objective ("" as it follows), the dev file, what the line says after its name.
BAD = {
    "a label only dev has": (
        "tsv",
        {},
        "",
        HEADED + "w1\ta\nw2\tc\n",
        r", line 3: label = 'c': expected a label of the train split: a, b",
    ),
    "a label near one": (
        "tsv",
        {"labels": "yes,no"},
        "",
        HEADED + "w1\tye\n",
        r", line 2: label = 'ye': expected a label of config\.data\.labelled\.labels: yes, no; did you" " mean 'yes'",
    ),
    "no label": ("tsv", {}, "", HEADED + "w1\t \n", r", line 2: label = ' ?': expected a label"),
    "too few columns": (
        "tsv",
        BY_NUMBER,
        "",
        "w1\ta\nw2\n",
        ", line 2: columns = 1: expected at least 2, separated by tabs",
    ),
    "other columns than the header": (
        "tsv",
        {},
        "",
        HEADED + "w1\tw2\ta\n",
        ", line 2: columns = 3: expected 2, as the",
    ),
    "an unknown column": (
        "tsv",
        {},
        "",
        "sentense\tlabel\nw1\ta\n",
        ", line 1: no column 'sentence', expected one of .*; did you mean 'sentense'",
    ),
    "a column twice": (
        "tsv",
        {},
        "",
        "sentence\tlabel\tlabel\nw1\ta\tb\n",
        ", line 1: column = 'label': expected a name",
    ),
    "a header where none is expected": (
        "tsv",
        BY_NUMBER,
        "",
        HEADED + "w1\ta\n",
        ", line 1: label = 'label': expected a label; where the first line is",
    ),
    "no header": ("tsv", {}, "", "w1\ta\n", ", line 1: no column 'sentence', expected one of w1, a"),
    "a blank text": ("tsv", {}, "", HEADED + " \ta\n", ", line 2: sentence = ' ': expected a text that is not blank"),
    "a blank second text": (
        "tsv",
        PAIR,
        "",
        "sentence\tother\tlabel\nw1\t\ta\n",
        ", line 2: other = '': expected a text",
    ),
    "a score that is none": (
        "tsv",
        {},
        "regression",
        HEADED + "w1\thigh\n",
        ", line 2: label = 'high': expected a finite",
    ),
    "a score that is nan": (
        "tsv",
        {},
        "regression",
        HEADED + "w1\tnan\n",
        ", line 2: label = 'nan': expected a finite",
    ),
    "an infinite score": (
        "tsv",
        {},
        "regression",
        HEADED + "w1\t-inf\n",
        ", line 2: label = '-inf': expected a finite",
    ),
    "a score past float32": (
        "jsonl",
        {},
        "regression",
        '{"sentence": "w1", "label": 1e39}',
        r", line 1: label = '1e\+39': expected a finite",
    ),
    "digits in groups": ("tsv", {}, "regression", HEADED + "w1\t1_0\n", ", line 2: label = '1_0': expected a finite"),
    "an empty file": ("tsv", {}, "", "", ", line 1 = '': expected an example; the file is empty"),
    "a header alone": ("tsv", {}, "", HEADED, ", line 1 = '': expected an example; the file has none"),
    "a line without end": (
        "jsonl",
        {},
        "",
        "x" * (text_files.MAX_LINE_BYTES + 2),
        ", line 1 = b'x+': expected a line of at most",
    ),
    "an open quote": ("csv", {}, "", 'w1,a\n"w2,a\nw3,b\n', ", line 2: unexpected end of data; expected fields quoted"),
    "a quote in a field": ("csv", {}, "", '"w1"w2,a\n', ", line 1: .*; expected fields quoted"),
    "bad JSON": ("jsonl", {}, "", '\n{"sentence": "w1", label: "a"}\n', ", line 2, column 20: Expecting property name"),
    "JSON that is no object": ("jsonl", {}, "", '["w1", "a"]\n', r", line 1 = \['w1', 'a'\]: expected a JSON object"),
    "a key that is missing": (
        "jsonl",
        {},
        "",
        '{"sentence": "w1", "lable": "a"}',
        ", line 1: no key 'label', expected one of .*; did you mean 'lable'",
    ),
    "a text that is none": (
        "jsonl",
        {},
        "",
        '{"sentence": 7, "label": "a"}',
        ", line 1: sentence = 7: expected a text",
    ),
    "a label that is none": (
        "jsonl",
        {},
        "",
        '{"sentence": "w1", "label": null}',
        ", line 1: label = None: expected a",
    ),
    "JSON that is deep": ("jsonl", {}, "", "[" * 100_000 + "\n", ", line 1: .*; expected JSON that is not so deep"),
    "a tag that is missing": (
        "conll",
        {},
        "",
        "w1 O\nw2\n",
        ", line 2: columns = 1: expected at least 2, separated by",
    ),
    "a tag not of the scheme": ("conll", {}, "", "w1 O\nw2 X\n", ", line 2: tag = 'X': expected O, B-KIND or I-KIND"),
    "an I- that continues none": (
        "conll",
        {},
        "",
        "w1 O\nw2 I-X\n",
        r", line 2: tag = 'I-X': expected B-X, since it continues no X \(config",
    ),
    "a tag only dev has": ("conll", {}, "", "w1 B-Y\n", ", line 1: tag = 'B-Y': expected a label of the train split"),
    "a sentence without end": (
        "conll",
        {},
        "",
        "w1 O\n" * (conll.MAX_SENTENCE_WORDS + 1),
        f", line {conll.MAX_SENTENCE_WORDS + 1} = 'w1 O': expect",
    ),
    "columns that are not CoNLL-U's": ("conllu", {}, "", "1\tw1\tA\n", ", line 1: columns = 3: expected 10, separated"),
    "a word's number that is none": (
        "conllu",
        {},
        "",
        TAG + TAG.replace("1", "x", 1),
        ", line 2: id = 'x': expected a wor",
    ),
    "a word left out": (
        "conllu",
        {},
        "",
        TAG + TAG.replace("1", "3", 1),
        ", line 2: id = '3': expected 2, the next word",
    ),
    "an answer not at its offset": (
        "squad",
        {},
        "",
        answer(answer_start=2),
        r", data\[0\].paragraphs\[0\].qas\[0\].answers\[0\].answer_start = 2: expected "
        "where the passage has 'w2', such as 3; there it has ' w'",
    ),
    "an answer that is nowhere": (
        "squad",
        {},
        "",
        answer(text="w9"),
        ".*answer_start = 3: expected .*; it does not have",
    ),
    "an answer before the passage": ("squad", {}, "", answer(answer_start=-2), ".*answer_start = -2: expected where"),
    "an offset that is none": ("squad", {}, "", answer(answer_start=3.0), ".*answer_start = 3.0: expected an integer"),
    "no answer": (
        "squad",
        {},
        "",
        questions({"answers": []}),
        r".*qas\[0\].answers = \[\]: expected one or more, or is_",
    ),
    "an answer where none is": (
        "squad",
        {},
        "",
        questions({"is_impossible": True}),
        ".*: expected none, since is_imposs",
    ),
    "an id twice": (
        "squad",
        {},
        "",
        questions({}, {}),
        r".*qas\[1\].id = 'a': expected an id that no other question has",
    ),
    "no questions": ("squad", {}, "", questions(qas={}), r".*paragraphs\[0\].qas = {}: expected a list"),
    "SQuAD's bad JSON": ("squad", {}, "", '{"data":\n [}', ", line 2, column 3: Expecting value; expected JSON"),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    kinds.train_tokenizer(config.Tokenizer("words", 0), ["w1 w2 w3"]).save(folder)
    return str(folder)


def load(folder, tokenizer, form, objective="", **said):
    changes = {
        "data.task": "own",
        "data.task_path": str(folder),
        "data.cache_dir": str(folder / "cache"),
        "tokenizer.path": tokenizer,
        "pack.seq_len": 256,
        "data.labelled.format": form,
    }
    changes |= {"objective": objective} if objective else {}
    said = {"train": "train.txt", "dev": "dev.txt"} | GOOD[form][0] | said
    changes |= {f"data.labelled.{name}": value for name, value in said.items()}
    cfg = resolution.derive_fields(fields.override(config.Config(), changes))
    fields.check_values(cfg)
    pack.check(cfg)
    return pack.load_dataset(cfg)


def write(folder, name, text):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_ends_in_one_line(case, tmp_path, tokenizer):
    form, said, objective, text, words = BAD[case]
    train = GOOD[form][1]
    if objective:
        train = train.replace('"a"', "1").replace('"b"', "2").replace("\ta", "\t1").replace("\tb", "\t2")
    if said == BY_NUMBER:
        train = train.removeprefix(HEADED)
    if "text_pair_column" in said:
        train = "sentence\tother\tlabel\nw1\tw2\ta\nw2\tw1\tb\n"
    if "labels" in said:
        train = HEADED + "w1\tyes\nw2\tno\n"
    write(tmp_path, "train.txt", train)
    write(tmp_path, "dev.txt", text)
    line = get_refusal(load, tmp_path, tokenizer, form, objective, **said)
    assert re.match(re.escape(str(tmp_path / "dev.txt")) + words, line), line
    assert not list((tmp_path / "cache").glob("rows-*"))  # nothing half-made


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"dev": "dve.txt"}, "dev = 'dve.txt': expected a file in .*; did you mean 'dev.txt'"),
        ({"train": "cache"}, "train = 'cache': expected a file in"),
        ({"format": "tvs"}, "format = 'tvs': expected one of tsv, csv, jsonl, tfds; did you mean 'tsv'"),
        ({"label_column": "1"}, "label_column = '1': expected a column's name"),
        ({"text_column": "0"}, "label_column = 'label': expected a column's number"),
        ({"quoting": "yes"}, "quoting = 'yes': expected one of on, off"),
        ({"labels": "a,a"}, "labels = 'a,a': expected two or more different labels"),
        ({"label_column": ""}, "label_column = '': expected to be set"),
    ],
)
def test_a_config_that_does_not_describe_its_task(said, words, tmp_path, tokenizer):
    for name in ("train", "dev"):
        write(tmp_path, f"{name}.txt", GOOD["tsv"][1])
    (tmp_path / "cache").mkdir()
    line = get_refusal(load, tmp_path, tokenizer, "tsv", **said)
    assert re.match(f"config.data.labelled.{words}", line), line


def test_what_a_task_needs_beside_its_files(tmp_path, tokenizer):
    base = {"data.task": "sst2", "data.task_path": str(tmp_path), "tokenizer.path": tokenizer}
    for change, words in (
        ({"data.task": "sst"}, "config.data.task = 'sst': expected one of .*; did you mean 'sst2'"),
        ({"data.task_path": ""}, "config.data.task_path = '': expected the folder"),
        ({"tokenizer.path": ""}, "config.tokenizer.path = '': expected the folder of a tokenizer"),
        ({"objective": "tagging"}, "config.objective = 'tagging': expected classification, since config.data.task"),
        (
            {"data.task": "squad", "data.labelled.doc_stride": 128},
            r"config.data.labelled.doc_stride = 128: expected 1 <= value <= 61, so that .* config.pack.seq_len = 128",
        ),
        ({"data.task": "squad", "pack.seq_len": 67}, "config.pack.seq_len = 67: expected at least 68: 64 tokens"),
    ):
        cfg = resolution.derive_fields(fields.override(config.Config(), base | change))
        assert re.match(words, get_refusal(pack.check, cfg))


@pytest.mark.parametrize(("seq_len", "stride"), [(68, 1), (128, 30), (384, 128)])
def test_windows_of_a_passage_follow_from_the_row(seq_len, stride, tmp_path, tokenizer):
    base = {"data.task": "squad", "data.task_path": str(tmp_path), "tokenizer.path": tokenizer}
    cfg = resolution.derive_fields(fields.override(config.Config(), base | {"pack.seq_len": seq_len}))
    assert cfg.data.labelled.doc_stride == stride
    pack.check(cfg)


def test_a_file_too_large_to_be_read_at_once(tmp_path, tokenizer, monkeypatch):
    for name in ("train", "dev"):
        write(tmp_path, f"{name}.txt", GOOD["squad"][1])
    monkeypatch.setattr(squad, "MAX_FILE_BYTES", 99)
    assert "at most 99 bytes" in get_refusal(load, tmp_path, tokenizer, "squad")


def test_a_column_of_texts_is_no_column_of_labels(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(splits, "MAX_LABELS", 2)
    for name in ("train", "dev"):
        write(tmp_path, f"{name}.txt", HEADED + "w1\ta\nw1\tb\nw2\tc\n")
    assert "a column of at most 2 different labels" in get_refusal(load, tmp_path, tokenizer, "tsv")


def test_a_label_of_two_lines_is_told_in_one(tmp_path, tokenizer):
    write(tmp_path, "train.txt", 'w1,"a\nb"\nw2,c\n')
    write(tmp_path, "dev.txt", "w1,d\n")
    assert "the train split: a b, c" in get_refusal(load, tmp_path, tokenizer, "csv")
