"""Labelled files that are not as they should be: each ends in one line that names file, place, what was found and what
was expected. And configs that do not describe a task."""

import json
import re

import pytest
from small import get_refusal, make_task_fields

from mlm.base import config, fields
from mlm.data.rows import pack
from mlm.data.tasks import examples
from mlm.training.run import resolution

BY_NAME = {"text_column": "sentence", "label_column": "label"}
BY_NUMBER = {"text_column": "0", "label_column": "1"}
HEADED = "sentence\tlabel\n"
QUESTION = {"id": "a", "question": "w3", "answers": [{"text": "w2", "answer_start": 3}]}


def questions(*changes):
    """A file of one passage with a question for each change."""
    asked = [QUESTION | change for change in (changes or [{}])]
    return json.dumps({"data": [{"paragraphs": [{"context": "w1 w2", "qas": asked}]}]})


GOOD = {  # format: its fields and a file that is whole
    "tsv": (BY_NAME, HEADED + "w1\ta\nw2\tb\n"),
    "csv": (BY_NUMBER, '"w1, w2",a\nw3,b\n'),
    "jsonl": (BY_NAME, '{"sentence": "w1", "label": "a"}\n\n{"label": "b", "sentence": "w2", "more": []}\n'),
    "conll": (BY_NUMBER | {"scheme": "bio"}, "w1 B-X\nw2 I-X\n\nw3 O\n"),
    "conllu": (
        {"text_column": "form", "label_column": "upos"},
        "1\tw1\t_\tA" + "\t_" * 6 + "\n2\tw2\t_\tB" + "\t_" * 6 + "\n\n",
    ),
    "squad": ({}, questions()),
}
TAG = "1\tw1\t_\tA" + "\t_" * 6 + "\n"


# Format, the dev file, and what the line says after its name.
BAD = {
    "a label only dev has": (
        "tsv",
        HEADED + "w1\ta\nw2\tc\n",
        r", line 3: label = 'c': expected a label of the train split: a, b",
    ),
    "an unknown column": (
        "tsv",
        "sentense\tlabel\nw1\ta\n",
        ": no column 'sentence', expected one of .*; did you mean 'sentense'",
    ),
    "a blank text": ("tsv", HEADED + " \ta\n", ", line 2: sentence = ' ': expected a text that is not blank"),
    "an empty file": ("tsv", "", ", line 1 = '': expected an example; the file has none"),
    "an open quote": ("csv", 'w1,a\n"w2,a\nw3,b\n', ", line 2: unexpected end of data; expected fields quoted"),
    "bad JSON": ("jsonl", '\n{"sentence": "w1", label: "a"}\n', ", line 2, column 20: Expecting property name"),
    "JSON that is deep": ("jsonl", "[" * 100_000 + "\n", ", line 1: .*; expected JSON that is not so deep"),
    "a tag not of the scheme": ("conll", "w1 O\nw2 X\n", ", line 2: tag = 'X': expected O, B-KIND or I-KIND"),
    "an I- that continues none": (
        "conll",
        "w1 O\nw2 I-X\n",
        r", line 2: tag = 'I-X': expected B-X, since it continues no X \(config",
    ),
    "a word left out": ("conllu", TAG + TAG.replace("1", "3", 1), ", line 2: id = '3': expected 2, the next word"),
    "an answer not at its offset": (
        "squad",
        questions({"answers": [QUESTION["answers"][0] | {"answer_start": 2}]}),
        r", data\[0\].paragraphs\[0\].qas\[0\].answers\[0\].answer_start = 2: expected "
        "where the passage has 'w2', such as 3",
    ),
    "an id twice": ("squad", questions({}, {}), r".*qas\[1\].id = 'a': expected an id that no other question has"),
}


def load(folder, tokenizer, form, **said):
    said = {"format": form, "train": "train.txt", "dev": "dev.txt"} | GOOD[form][0] | said
    changes = make_task_fields(folder, tokenizer, **said) | {"pack.seq_len": 256}
    cfg = resolution.derive_fields(fields.override(config.Config(), changes))
    fields.check_values(cfg)
    pack.check(cfg)
    return pack.load_dataset(cfg)


def write(folder, name, text):
    (folder / name).write_bytes(text.encode())


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_ends_in_one_line(case, tmp_path, tokenizer):
    form, text, words = BAD[case]
    write(tmp_path, "train.txt", GOOD[form][1])
    write(tmp_path, "dev.txt", text)
    line = get_refusal(load, tmp_path, tokenizer, form)
    assert re.match(re.escape(str(tmp_path / "dev.txt")) + words, line), line
    assert not list((tmp_path / "cache").glob("rows-*"))  # nothing half-made


@pytest.mark.parametrize("text", ["nan", "-inf", "1e999", "one", ""])
def test_a_score_is_a_finite_number(text):
    assert get_refusal(examples.parse_number, text, "line 2").startswith(f"line 2 = {text!r}: expected a")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"dev": "dve.txt"}, "dev = 'dve.txt': expected a file in .*; did you mean 'dev.txt'"),
        (
            {"format": "tvs"},
            "format = 'tvs': expected one of tsv, csv, jsonl, parquet, arrow, tfds; did you mean 'tsv'",
        ),
        ({"label_column": ""}, "label_column = '': expected to be set"),
    ],
)
def test_a_config_that_does_not_describe_its_task(said, words, tmp_path, tokenizer):
    for name in ("train", "dev"):
        write(tmp_path, f"{name}.txt", GOOD["tsv"][1])
    (tmp_path / "cache").mkdir()
    line = get_refusal(load, tmp_path, tokenizer, "tsv", **said)
    assert re.match(f"config.data.labelled.{words}", line), line


@pytest.mark.parametrize(("seq_len", "stride"), [(68, 1), (128, 30), (384, 128)])
def test_windows_of_a_passage_follow_from_the_row(seq_len, stride, tmp_path, tokenizer):
    base = {"data.task": "squad", "data.task_path": str(tmp_path), "tokenizer.path": tokenizer}
    cfg = resolution.derive_fields(fields.override(config.Config(), base | {"pack.seq_len": seq_len}))
    assert cfg.data.labelled.doc_stride == stride
    pack.check(cfg)
