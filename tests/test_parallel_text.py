"""Rows of aligned text: every pair whole beside its own source, few tokens padding, faults told by file and line."""

import dataclasses
import gzip
import json
import lzma
import random
import re

import numpy as np
import pytest
from small import get_refusal

from mlm.base import config, errors, special, types
from mlm.base.special import CLS, SEP
from mlm.data.rows import loader, pack, parallel_text
from mlm.data.text import corpus
from mlm.training.run import resolution

LENGTH, SOURCE = 24, 20


def pairs(count, seed):
    """Pairs of unlike words: a word tells its pair, its side and its place."""
    draw = random.Random(seed)
    return [
        tuple(" ".join(f"{side}{seed}p{pair}w{i}" for i in range(draw.choice([1, 2, 3, 5, 8]))) for side in "ab")
        for pair in range(count)
    ]


TRAIN, DEV, TEST = pairs(300, 0), pairs(20, 1), pairs(10, 2)


def written(folder, **splits):
    folder.mkdir(exist_ok=True)
    for name, found in splits.items():
        for side, ending in enumerate(("en", "de")):
            (folder / f"{name}.{ending}").write_text("".join(f"{pair[side]}\n" for pair in found))
    return folder


def config_of(folder, cache, length=LENGTH, **said):
    words = 5 + len({word for pair in TRAIN for side in pair for word in side.split()})
    cfg = config.Config(
        objective="causal",
        data=config.Data(
            parallel_path=str(folder),
            cache_dir=str(cache),
            parallel=config.ParallelText(**{"source": "en", "target": "de"} | said),
        ),
        tokenizer=config.Tokenizer(kind="words", vocab_size=words),
        pack=config.Pack(seq_len=length, source_len=SOURCE),
    )
    return resolution.derive_fields(cfg)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel_text")
    cfg = config_of(written(folder / "pairs", train=TRAIN, val=DEV, test=TEST), folder / "cache", test="test")
    return cfg, pack.load_dataset(cfg)


def segments(rows, row, prefix=""):
    """The ids of each segment of a row, by its number."""
    numbers = rows[f"{prefix}segments"][row]
    return {n: rows[f"{prefix}ids"][row][numbers == n].tolist() for n in range(1, numbers.max() + 1)}


def test_every_pair_stands_once_whole_beside_its_own_source(dataset):
    cfg, packed = dataset
    assert cfg.data.corpus == "parallel"
    found = []
    for row in range(len(packed.train["ids"])):
        targets, sources = segments(packed.train, row), segments(packed.train, row, "source_")
        assert targets.keys() == sources.keys()
        for n, ids in targets.items():
            assert ids[0] == CLS and ids[-1] == SEP and sources[n][-1] == SEP
            found.append((packed.tokenizer.decode(sources[n][:-1]), packed.tokenizer.decode(ids[1:-1])))
    assert sorted(found) == sorted(TRAIN)


def test_positions_begin_anew_with_each_segment_on_both_sides(dataset):
    _, packed = dataset
    for prefix in ("", "source_"):
        for ids, of, places in zip(
            *(packed.train[f"{prefix}{name}"] for name in ("ids", "segments", "positions")), strict=True
        ):
            used = int((of > 0).sum())
            assert not ids[used:].any() and not of[used:].any() and not places[used:].any()
            assert (np.diff(of[:used]) < 2).all()
            for n in range(1, of.max() + 1):
                assert np.array_equal(places[of == n], np.arange((of == n).sum()))


def test_batches_have_one_shape_of_so_many_tokens_and_bring_the_source(dataset):
    _, packed = dataset
    batch = next(loader.iterate_train_batches(packed.train, seed=0, batch_size=4, start_step=0))
    assert batch.text.ids_BxL.shape == (4, LENGTH) and batch.source.ids_BxL.shape == (4, SOURCE)
    assert batch.labels == {} and not batch.source.types_BxL.any()
    assert packed.dataset_info.source_len == SOURCE and pack.build_dataset_info(dataset[0], 9).source_len == SOURCE
    shapes = types.abstract_batch(4, packed.dataset_info)
    assert [x.shape for x in shapes.source] == [x.shape for x in batch.source]


def test_a_pair_goes_into_the_first_row_with_room_for_both_sides(monkeypatch):
    def pair(target, source):
        return parallel_text.EncodedPair([0] * target, [0] * source, False)

    def measure_rows(*sizes):
        return [
            [(len(one.target), len(one.source)) for one in row]
            for row in parallel_text.pack_pairs([pair(*size) for size in sizes], 10, 10)
        ]

    assert measure_rows((6, 3), (5, 3), (4, 3), (5, 7)) == [[(6, 3), (4, 3)], [(5, 3), (5, 7)]]
    assert measure_rows((2, 8), (2, 3), (2, 2)) == [[(2, 8), (2, 2)], [(2, 3)]]
    monkeypatch.setattr(parallel_text, "MAX_OPEN_EXAMPLES", 2)
    assert measure_rows((6, 6), (9, 9), (7, 7), (3, 3)) == [[(9, 9)], [(6, 6), (3, 3)], [(7, 7)]]


def test_held_out_pairs_stand_as_they_are_and_what_is_too_long_is_cut_at_its_end(dataset, tmp_path, caplog):
    cfg, packed = dataset
    assert [(pair["source"], pair["target"]) for pair in pack.read_examples(cfg, packed, "test")] == TEST
    assert pack.read_examples(cfg, packed, "train") == []
    short = config_of(cfg.data.parallel_path, tmp_path / "cache", length=8)
    rows = pack.load_dataset(dataclasses.replace(short, tokenizer=cfg.tokenizer))
    long = [pair for pair in TRAIN if len(pair[1].split()) > 6]
    assert rows.manifest["train"]["cut"] == len(long) > 0
    assert f"train: {len(long)} of {len(TRAIN)} pairs do not fit config.pack.seq_len = 8" in caplog.text
    held = {
        rows.tokenizer.decode(ids[1:-1])
        for row in range(len(rows.train["ids"]))
        for ids in segments(rows.train, row).values()
    }
    assert held == {" ".join(target.split()[:6]) for _, target in TRAIN}


def test_a_table_of_two_columns_gives_the_same_pairs(dataset, tmp_path):
    _, packed = dataset
    for name, found in (("train.tsv", TRAIN), ("val.tsv", DEV)):
        (tmp_path / name).write_text("".join("\t".join(pair) + "\n" for pair in found))
    rows = pack.load_dataset(
        config_of(tmp_path, tmp_path / "cache", source="", target="", train="train.tsv", dev="val.tsv")
    )
    for name, column in rows.train.items():
        assert np.array_equal(column, packed.train[name])


def test_pairs_in_rows_or_compressed_are_the_same_pairs(dataset, tmp_path):
    """In each kind of file, the columns by their names in whatever order; the other way round they are another corpus."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    _, packed = dataset
    rows = {
        "train": [{"n": n, "de": b, "en": a} for n, (a, b) in enumerate(TRAIN)],
        "val": [{"n": n, "de": b, "en": a} for n, (a, b) in enumerate(DEV)],
    }
    line = lambda values: ",".join(f'"{value}"' for value in values)
    write = {
        "jsonl.gz": lambda found: gzip.compress("".join(f"{json.dumps(row)}\n" for row in found).encode()),
        "csv": lambda found: "".join(f"{line(one)}\n" for one in [found[0], *(row.values() for row in found)]).encode(),
        "tsv": lambda found: "".join(
            "\t".join(map(str, one)) + "\n" for one in [found[0], *map(dict.values, found)]
        ).encode(),
    }
    for ending, to_bytes in write.items():
        for name, found in rows.items():
            (tmp_path / f"{name}.{ending}").write_bytes(to_bytes(found))
    for name, found in rows.items():
        parquet.write_table(pyarrow.Table.from_pylist(found), tmp_path / f"{name}.parquet")
        for side in ("en", "de"):
            text = "".join(f"{row[side]}\n" for row in found)
            (tmp_path / f"{name}.{side}.xz").write_bytes(lzma.compress(text.encode()))
    digests = {}
    for ending in (*write, "parquet", ""):
        said = (
            {"train": f"train.{ending}", "dev": f"val.{ending}"} if ending else {"source": "en.xz", "target": "de.xz"}
        )
        cfg = config_of(tmp_path, tmp_path / "cache", **said)
        for name, column in pack.load_dataset(cfg).train.items():
            assert np.array_equal(column, packed.train[name])
        digests[ending] = corpus.compute_fingerprint(cfg.data)
    turned = config_of(tmp_path, tmp_path / "cache", train="train.csv", dev="val.csv", source="de", target="en")
    assert corpus.compute_fingerprint(turned.data) != digests["csv"]
    with pytest.raises(
        errors.ConfigError, match=r"train\.csv: config\.data\.parallel\.target = 'dee'.*did you mean 'de'"
    ):
        pack.load_dataset(config_of(tmp_path, tmp_path / "cache", train="train.csv", dev="val.csv", target="dee"))
    (tmp_path / "none.csv").write_text("en,de\n")
    with pytest.raises(errors.ConfigError, match=r"none\.csv, row 1 = '': expected a pair of texts; the file has none"):
        pack.load_dataset(config_of(tmp_path, tmp_path / "cache", train="train.csv", dev="none.csv"))
    (tmp_path / "bad.jsonl").write_text('{"en": "a", "de": "b"}\n{"en": "a", "de": null}\n')
    with pytest.raises(errors.ConfigError, match=r"bad\.jsonl, line 2: de = None: expected a text that is not blank"):
        pack.load_dataset(config_of(tmp_path, tmp_path / "cache", train="bad.jsonl", dev="val.csv"))


@pytest.mark.parametrize(
    "side, line, said",
    [
        ("de", None, r"train\.en, line 300: expected none, since .*train\.de has 299 lines"),
        ("en", None, r"train\.de, line 300: expected none, since .*train\.en has 299 lines"),
        ("de", b"  \n", r"train\.de, line 300 = '  ': expected a text that is not blank"),
    ],
)
def test_a_bad_line_is_told_by_file_and_line(tmp_path, side, line, said):
    folder = written(tmp_path / "pairs", train=TRAIN, val=DEV)
    path = folder / f"train.{side}"
    path.write_bytes(b"".join([*path.read_bytes().splitlines(keepends=True)[:-1], line or b""]))
    assert re.search(said, get_refusal(pack.load_dataset, config_of(folder, tmp_path / "cache")))


def test_one_vocabulary_is_learnt_from_both_sides_of_the_train_split(dataset):
    _, packed = dataset
    words = {word for pair in TRAIN for side in pair for word in side.split()}
    assert set(packed.tokenizer.pieces[special.NUM_SPECIAL :]) == words
    assert packed.manifest["test"]["unknown"] == 1.0
