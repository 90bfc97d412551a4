"""Labelled rows of TensorFlow Datasets: of a data set that is written here, as nothing is downloaded."""

import json
import re

import numpy as np
import pytest
from small import get_refusal, make_task_fields

from mlm.base import config, fields
from mlm.data.rows import labelled, pack
from mlm.data.tokenizers import kinds
from mlm.training.run import resolution

pytest.importorskip("tensorflow_datasets")
NAMES = ("right", "also_right", "absent")  # sorted they would stand otherwise
ROWS = [
    {
        "name": f"e{at}",
        "one": f"w{at}",
        "other": f"w1 w{at % 3}",
        "label": at % 2,
        "tag": "ab"[at % 2],
        "score": at / 4,
        "pair": np.array([at, 1]),
    }
    for at in range(12)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a tokenizer, the cache and the data set "toy", of which each split has its own rows."""
    import tensorflow_datasets as tfds

    class Toy(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.2.0")

        def _info(self):
            text = tfds.features.Text()
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(
                    {
                        "name": text,
                        "one": text,
                        "other": text,
                        "tag": text,
                        "score": np.float32,
                        "label": tfds.features.ClassLabel(names=NAMES),
                        "pair": tfds.features.Tensor(shape=(2,), dtype=np.int64),
                    }
                ),
            )

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in ("train", "validation", "test", "bad")}

        def _generate_examples(self, split):
            change = {"test": {"label": -1}, "bad": {"one": b"w1 \xff"}}.get(split, {})
            for at, row in enumerate(ROWS if split == "train" else ROWS[:5]):
                yield at, row | change

    made = tmp_path_factory.mktemp("tfds")
    Toy.name = "toy"
    Toy(data_dir=str(made)).download_and_prepare(file_format="array_record")
    kinds.train_tokenizer(config.Tokenizer("words", 0), [" ".join(f"w{at}" for at in range(12))]).save(made)
    return made


def load(folder, objective="classification", path="toy", **said):
    said = {
        "format": "tfds",
        "train": "train",
        "dev": "validation",
        "text_column": "one",
        "label_column": "label",
    } | said
    base = make_task_fields(folder, folder, **said) | {
        "data.task_path": path,
        "objective": objective,
        "pack.seq_len": 16,
    }
    base["data.tfds_dir"] = str(folder) if said["format"] == "tfds" else ""
    return pack.load_dataset(resolution.resolve(fields.override(config.Config(), base)))


def test_a_data_set_is_read_as_its_table_would_be(folder):
    table = folder / "table"
    table.mkdir()
    for name, rows in (("train", ROWS), ("dev", ROWS[:5])):
        (table / name).write_text(
            "".join(
                json.dumps({key: value for key, value in row.items() if key != "pair"} | {"label": NAMES[row["label"]]})
                + "\n"
                for row in rows
            )
        )
    for objective, said in (
        ("classification", {"text_pair_column": "other", "id_column": "name", "labels": ",".join(NAMES)}),
        ("classification", {"label_column": "tag"}),
        ("regression", {"label_column": "score", "text_pair_column": "other"}),
        ("multiple_choice", {"choice_columns": "one,other", "text_column": "other", "labels": "right,also_right"}),
    ):
        one = load(folder, objective, **said)
        two = load(folder, objective, str(table), **said | {"format": "jsonl", "train": "train", "dev": "dev"})
        order, other = (np.lexsort(packed.train["ids"].T) for packed in (one, two))  # TFDS shuffles what it writes
        assert one.train.keys() == two.train.keys()
        for column, value in one.train.items():
            np.testing.assert_array_equal(value[order], two.train[column][other], column)
        assert one.dataset_info.classes == two.dataset_info.classes and len(one.validation["ids"]) == 5
    assert labelled.read_examples(load(folder, id_column="name"), "train")[0]["id"].startswith("e")


def test_classes_stand_in_the_feature_s_own_order(folder):
    packed = load(folder)
    assert packed.dataset_info.classes == NAMES and packed.manifest["counts"] == {
        "right": 6,
        "also_right": 6,
        "absent": 0,
    }
    for one, label in zip(labelled.read_examples(packed, "train"), packed.train["label"], strict=True):
        assert one["label"] == NAMES[int(one["texts"][0][1:]) % 2] == NAMES[label]


def test_a_slice_of_a_split_is_rows_of_its_own(folder):
    whole = load(folder)
    parts = load(folder, train="train[:75%]", dev="train[75%:]")
    ids = [part["ids"].tolist() for part in (parts.train, parts.validation, whole.train)]
    assert len(ids[0]) == 9 and ids[0] + ids[1] == ids[2]
    half = load(folder, train="train[:50%]", dev="train[75%:]")
    assert len(half.train["ids"]) == 6 and half.manifest["inputs"]["corpus"] != parts.manifest["inputs"]["corpus"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"path": "imdb_reviewz"}, "config.data.task_path = 'imdb_reviewz': expected .*; did you mean 'imdb_reviews'"),
        (
            {"dev": "validatoin"},
            "config.data.labelled.dev = 'validatoin': expected one of .*; did you mean 'validation'",
        ),
        ({"dev": "bad"}, r"toy/1.2.0, split bad, record 0: one: byte 4 = b'\\xff': expected UTF-8"),
    ],
)
def test_what_is_not_there_ends_in_one_line(folder, said, words):
    assert re.match(words, get_refusal(load, folder, **said))
