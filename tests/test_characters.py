"""Characters as tokens, rows cut from a running text, and nanoGPT's recipe."""

import gzip
import itertools
import random

import numpy as np
import pytest

from configs import nanogpt
from mlm.base import config, errors, fields
from mlm.base.special import MASK, NUM_SPECIAL, UNK
from mlm.data.rows import pack, packing
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds
from mlm.training.run import resolution

LETTERS = "abcde \n\t.é\u2028\U0001f600"


def text(seed, count):
    draw = random.Random(seed)
    return "".join(draw.choices(LETTERS, k=count)) + "  \n\n"


def resolve(folder, **changes):
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    cfg = fields.override(
        nanogpt.get_config(), {"data.path": f"{folder}/*", "data.cache_dir": f"{folder.parent}/cache"}
    )
    cfg = resolution.resolve(fields.override(cfg, {"pack.seq_len": 16} | changes))
    return cfg


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts").mkdir()
    return tmp_path / "texts"


def test_a_text_comes_back_character_by_character():
    words = kinds.train_tokenizer(config.Tokenizer("characters", 0), [text(0, 500)])
    assert sorted(words.pieces[NUM_SPECIAL:]) == sorted(LETTERS)
    for one in (text(1, 400), "\n\n a\t", "", " "):
        ids = words.encode(one)
        assert len(ids) == len(one) and words.decode(ids) == one and UNK not in ids
    assert words.encode("aX") == [words.encode("a")[0], UNK]
    assert words.encode_masked("a[MASK] b")[0][1:3] == [MASK, *words.encode(" ")] and words.encode_masked("") == (
        [],
        [],
    )
    assert [words.pieces[i] for i in np.flatnonzero(words.starts_word_V)[4:]] == [
        c for c in words.pieces[NUM_SPECIAL:] if c in " \n\t\u2028"
    ]


@pytest.mark.parametrize("length", [8, 16, 64])
def test_the_rows_of_a_stream_hold_the_text_and_nothing_else(folder, length):
    """Its last tenth is held out, wherever a line or file ends there."""
    parts = [text(seed, 700) for seed in range(3)]
    (folder / "0.txt").write_text(parts[0])
    with gzip.open(folder / "1.gz", "wt") as file:
        file.write(parts[1])
    (folder / "2.txt").write_text(parts[2])
    cfg, whole = resolve(folder, pack__seq_len=length), "".join(parts)
    packed, cut = pack.load_dataset(cfg), int(0.9 * len(whole))
    for rows, asked in ((packed.train, whole[:cut]), (packed.validation, whole[cut:])):
        there_NxL = rows["segments"] > 0
        assert packed.tokenizer.decode(rows["ids"][there_NxL]) == asked
        assert there_NxL[:-1].all() and (np.diff(there_NxL[-1].astype(int)) <= 0).all()
        assert (rows["positions"] == np.arange(length) * there_NxL).all() and np.max(rows["segments"]) == 1
    assert packed.manifest["train"]["unknown"] == 0


@pytest.mark.parametrize("own_file", [False, True])
def test_a_search_chooses_on_the_end_of_the_training_part(folder, own_file):
    (folder / "a.txt").write_text(whole := text(0, 996))
    (folder.parent / "held.txt").write_text(text(1, 100))
    held_out = {"validation_path": f"{folder.parent}/held.txt"} if own_file else {"validation_fraction": 0.1}
    data = config.Data(corpus="text", path=f"{folder}/a.txt", search_fraction=0.2, **held_out)
    train, chosen_by = ("".join(corpus.read_running_text(data, split)) for split in corpus.SPLITS)
    assert train + chosen_by == whole[: 1000 if own_file else 900] and len(train) == (800 if own_file else 720)


def test_rows_do_not_depend_on_how_the_text_is_divided():
    ids = list(range(100))
    found = []
    for bounds in ((0, 100), (0, 3, 4, 4, 50, 100)):
        parts = (
            packing.SentenceBatch(np.array(ids[first:end]), None, None) for first, end in itertools.pairwise(bounds)
        )
        filled = list(packing.pack_stream(parts, 7))
        assert np.concatenate([one.ids_T for one in filled]).tolist() == ids
        found.append(np.concatenate([one.size_P for one in filled]).tolist())
    assert found[0] == found[1] == [7] * 14 + [2]


def test_a_held_out_file_is_a_stream_of_its_own(folder):
    (folder / "a.txt").write_text("a b\n" * 40)
    (folder.parent / "held.txt").write_text(" b a \n\n")
    packed = pack.load_dataset(
        resolve(folder, data__validation_path=f"{folder.parent}/held.txt", data__validation_fraction=0.05)
    )
    assert packed.tokenizer.decode(packed.train["ids"].ravel()) == "a b\n" * 40
    assert packed.tokenizer.decode(packed.validation["ids"][packed.validation["segments"] > 0]) == " b a \n\n"


@pytest.mark.parametrize("mode", [mode for mode in packing.PACKERS if mode != "stream"])
def test_documents_have_no_unknown_character(folder, mode):
    """Line ends and tabs among them, which lie between sentences."""
    for seed in range(20):
        (folder / f"{seed}.txt").write_text("a" + ". \n".join(text(seed + i, 50) for i in range(0, 100, 20)) + "b")
    packed = pack.load_dataset(resolve(folder, pack__mode=mode, data__validation_fraction=0.4))
    assert packed.manifest["train"]["unknown"] == 0 and {*"\n\t "} < {*packed.tokenizer.pieces}


def test_a_held_out_file_is_never_trained_on(folder):
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(f"{name} a b\n" * 40)
    cfg = resolve(folder, data__validation_path=f"{folder}/b.txt", data__validation_fraction=0.05)
    with pytest.raises(errors.ConfigError, match=r"^config\.data\.path = .*, as .*b\.txt is: pack\.mode=stream"):
        pack.load_dataset(cfg)
    (folder / "c.toml").write_text('[[sources]]\nname = "one"\ncorpus = "docstrings"\nweight = 1\n')
    with pytest.raises(errors.ConfigError, match=r"c\.toml: source 'one': corpus = 'docstrings': expected text"):
        pack.load_dataset(resolve(folder, data__path="", data__sources=f"{folder}/c.toml"))


def test_the_vocabulary_is_of_the_training_part(folder):
    (folder / "a.txt").write_text("ab" * 95 + "z" * 10)
    packed = pack.load_dataset(resolve(folder))
    assert packed.tokenizer.pieces[NUM_SPECIAL:] == ["a", "b"]
    assert packed.manifest["validation"]["unknown"] == 0.5  # 10 of the last 20


def test_a_stream_without_text_in_a_split_is_refused(folder):
    (folder / "a.txt").write_text("")
    with pytest.raises(errors.ConfigError, match=r"^config\.data\.path = .*': expected text; there is not a byte"):
        pack.load_dataset(resolve(folder))
