"""Packed rows: what a row may hold in each mode, and that they are made once and whole."""

import dataclasses
import json
import os
import pathlib
import random

import numpy as np
import pytest

from mlm.base import config, special
from mlm.base.special import CLS, PAD, SEP
from mlm.data.rows import columns, pack, packing
from mlm.data.text import corpus

LENGTH = 16
MODES = [mode for mode in packing.PACKERS if mode != "stream"]  # in which [CLS] and [SEP] stand around


def texts(count=60, longest=9):
    """Documents of unlike words, so that a word tells its document and its place in it."""
    draw = random.Random(0)
    found = []
    for document in range(count):
        words = iter(f"d{document}w{i}" for i in range(10_000))
        sizes = [draw.choice([1, 3, 5, 8, 40]) for _ in range(draw.randint(1, longest))]
        found.append("\n".join(" ".join(next(words) for _ in range(size)) for size in sizes))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for i, text in enumerate(texts()):
        (folder / f"{i:03}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def size(folder):
    """Entries for every word of the training split."""
    data = config.Data(corpus="text", path=f"{folder}/*.txt", validation_fraction=0.2)
    return special.NUM_SPECIAL + len({w for text in corpus.read_documents(data, "train") for w in text.split()})


@pytest.fixture
def knobs(folder, size, tmp_path):
    return config.Config(
        data=config.Data(
            corpus="text", path=f"{folder}/*.txt", validation_fraction=0.2, cache_dir=str(tmp_path / "cache")
        ),
        tokenizer=config.Tokenizer(kind="words", vocab_size=size),
        pack=config.Pack(mode="full_sentences", seq_len=LENGTH),
    )


def change_pack(knobs, **changes):
    return dataclasses.replace(knobs, pack=dataclasses.replace(knobs.pack, **changes))


def real(row):
    return [int(i) for i in row if i >= special.NUM_SPECIAL]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("isolate", [True, False])
def test_padding_segments_and_positions_agree(knobs, mode, isolate):
    rows = pack.load_dataset(change_pack(knobs, mode=mode, isolate_documents=isolate))
    assert rows.train["ids"].dtype == np.uint16
    for ids, segments, positions in zip(*(rows.train[name] for name in ("ids", "segments", "positions")), strict=True):
        used = int((ids != PAD).sum())
        assert used >= 3 and not ids[used:].any() and not segments[used:].any() and not positions[used:].any()
        assert ids[0] == CLS and ids[used - 1] == SEP
        if isolate and mode == "full_sentences":
            assert segments[0] == 1 and set(np.diff(segments[:used].astype(int))) <= {0, 1}
            for segment in range(1, segments.max() + 1):
                place = np.flatnonzero(segments == segment)
                assert np.array_equal(positions[place], np.arange(len(place)))
                assert list(np.flatnonzero(ids[place] == SEP)) == [len(place) - 1]
        else:
            assert (segments[:used] == 1).all() and np.array_equal(positions[:used], np.arange(used))


@pytest.mark.parametrize("longest", [9, 2])  # 2: most documents have nothing to follow A
def test_pairs_are_the_next_segment_in_half_of_the_rows(longest):
    words = [t.split("\n") for t in texts(400, longest)]
    number = {w: i for i, w in enumerate((w for t in words for s in t for w in s.split()), special.NUM_SPECIAL)}
    document = {i: w.partition("w")[0] for w, i in number.items()}
    documents = [[[number[w] for w in s.split()] for s in t] for t in words]
    rows = list(packing.sample_segment_pairs(iter(documents), LENGTH))
    assert 0.44 < np.mean([row.label for row in rows]) < 0.56
    for row in rows:
        assert len(row.ids) <= LENGTH
        assert row.ids[0] == CLS
        assert [i for i, x in enumerate(row.ids) if x == SEP] == [row.second_start - 1, len(row.ids) - 1]
        a, b = row.ids[1 : row.second_start - 1], row.ids[row.second_start : -1]
        assert a and b and np.all(np.diff(a) == 1) and np.all(np.diff(b) == 1)
        assert len({document[i] for i in a}) == len({document[i] for i in b}) == 1
        assert (document[a[0]] == document[b[0]]) == row.label
        assert not row.label or b[0] > a[-1]
    assert np.mean([len(row.ids) for row in rows]) > 0.8 * LENGTH
    assert [r.ids for r in packing.sample_segment_pairs(iter(documents), LENGTH)] == [r.ids for r in rows]


def test_pairs_leave_out_little_of_the_text():
    documents = [[[n * 1000 + i * 5 + j for j in range(5, 10)] for i in range(30)] for n in range(50)]
    rows = list(packing.sample_segment_pairs(iter(documents), LENGTH))
    seen = {i for row in rows for i in (row.ids if row.label else row.ids[: row.second_start])}
    assert len(seen - {CLS, SEP}) > 0.8 * 50 * 30 * 5  # what is cut off to fit is lost, as BERT loses it


def test_pairs_are_drawn_among_documents_read_together(monkeypatch):
    monkeypatch.setattr(packing, "WINDOW_TOKENS", 500)
    documents = [[[n * 1000 + i * 10 + j for j in range(5, 10)] for i in range(8)] for n in range(200)]
    rows = list(packing.sample_segment_pairs(iter(documents), LENGTH))
    away = [abs(row.ids[1] // 1000 - row.ids[row.second_start] // 1000) for row in rows if not row.label]
    assert min(away) > 0 and max(away) < 40


def test_a_lone_document_still_gives_pairs():
    rows = list(packing.sample_segment_pairs(iter([[[i, i + 1, i + 2] for i in range(5, 200, 3)]]), LENGTH))
    assert {row.label for row in rows} == {0, 1}


def test_sentence_kinds_mark_the_second_segment(knobs):
    rows = pack.load_dataset(change_pack(knobs, mode="segment_pair"))
    for ids, types in zip(rows.train["ids"], rows.train["types"], strict=True):
        first, last = np.flatnonzero(ids == SEP)
        assert not types[: first + 1].any() and types[first + 1 : last + 1].all() and not types[last + 1 :].any()
    assert set(rows.train["next"].tolist()) == {0, 1} and rows.dataset_info.label_names == ("next_B",)
    plain = pack.load_dataset(knobs)
    assert plain.train.keys() == {"ids", "segments", "positions"} and plain.dataset_info.label_names == ()


def test_unigram_counts_are_those_of_the_training_rows(knobs):
    packed = pack.load_dataset(knobs)
    train, validation = packed.train, packed.validation
    counts_V = np.bincount(train["ids"].ravel(), minlength=packed.dataset_info.vocab_size)
    counts_V[PAD] = 0
    assert np.array_equal(np.frombuffer(packed.dataset_info.unigram_counts, np.int64), counts_V)
    assert len(validation["ids"]) and not set(map(bytes, train["ids"])) & set(map(bytes, validation["ids"]))


def test_a_large_vocabulary_takes_wider_rows(tmp_path):
    count = 70_000
    with open(tmp_path / "a.txt", "w") as file:
        file.writelines(f"w{i}{' ' if i % 50 else chr(10)}" for i in range(count))
    (tmp_path / "b.txt").write_text("w1 w2")
    rows = pack.load_dataset(
        config.Config(
            data=config.Data(
                corpus="text", path=f"{tmp_path}/a.txt", validation_path=f"{tmp_path}/b.txt", cache_dir=str(tmp_path)
            ),
            tokenizer=config.Tokenizer(kind="words", vocab_size=count + 5),
            pack=config.Pack(mode="full_sentences", seq_len=64),
        )
    )
    assert rows.train["ids"].dtype == np.uint32 and rows.train["ids"].max() == count + 4
    assert sorted(real(rows.train["ids"].ravel())) == list(range(5, count + 5))


def test_sentences_lose_white_space_only():
    text = "One . Two! Three?  Four\nfive\n\n 日本語。中国語。 3.14 e.g."
    found = list(corpus.split_sentences(text))
    assert found == ["One .", "Two!", "Three?", "Four", "five", "日本語。", "中国語。", "3.14 e.g."]
    assert "".join("".join(found).split()) == "".join(text.split())


def test_rows_are_made_once_and_for_each_choice(knobs, monkeypatch):
    first = pack.load_dataset(knobs)
    monkeypatch.setattr(columns, "SplitWriter", None)  # a second making would fail
    assert np.array_equal(pack.load_dataset(knobs).train["ids"], first.train["ids"])
    with pytest.raises(TypeError):
        pack.load_dataset(change_pack(knobs, length=LENGTH + 1))


def test_changed_text_is_packed_anew(knobs, tmp_path):
    (tmp_path / "more.txt").write_text("d0w0 d0w1 d0w0")
    before = pack.load_dataset(knobs)
    data = dataclasses.replace(knobs.data, path=f"{knobs.data.path},{tmp_path}/more.txt")
    words = dataclasses.replace(knobs.tokenizer, vocab_size=100)
    after = [pack.load_dataset(dataclasses.replace(knobs, data=d, tokenizer=words)) for d in (knobs.data, data)]
    assert len({r.manifest["inputs"]["corpus"] for r in (before, *after)}) == 2
    assert len({json.dumps(r.manifest["inputs"]) for r in (before, *after)}) == 3


@pytest.mark.exhaustive(
    but=("flip-rows-train.ids.bin", "cut-rows-unigram.bin", "remove-rows-manifest.json", "flip-tokenizer-words.txt")
)
@pytest.mark.parametrize(
    "noun, name",
    [("rows", "train.ids.bin"), ("rows", "unigram.bin"), ("rows", "manifest.json"), ("tokenizer", "words.txt")],
)
@pytest.mark.parametrize("change", ["flip", "cut", "remove"])
def test_a_changed_file_is_noticed_and_made_again(knobs, caplog, noun, name, change):
    before = pack.load_dataset(knobs)
    copy = before.train["ids"].copy()
    path = next(pathlib.Path(knobs.data.cache_dir).glob(f"{noun}-*")) / name
    whole = path.read_bytes()
    half = len(whole) // 2
    path.unlink()  # the rows already mapped stay as they were
    if change != "remove":
        path.write_bytes(whole[:half] + (bytes([whole[half] ^ 1]) + whole[half + 1 :] if change == "flip" else b""))
    after = pack.load_dataset(knobs)
    assert np.array_equal(after.train["ids"], copy) and after.dataset_info == before.dataset_info
    assert name == "manifest.json" or path.read_bytes() == whole  # which has the times of the others
    assert "making it again" in caplog.text


def test_failing_half_way_leaves_nothing_behind(knobs, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(np, "bincount", fail)  # called after the first block of rows
        pack.load_dataset(knobs)
    assert [name for name in os.listdir(knobs.data.cache_dir) if "rows" in name and not name.endswith(".lock")] == []
    assert len(pack.load_dataset(knobs).train["ids"])
