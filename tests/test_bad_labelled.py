"""Labelled files that are not as they should be: each ends in one line that names file, place, what was found and what
was expected. And configs that do not describe a task."""

import json
import re

import pytest
from small import get_refusal

from mlm.base import config, fields
from mlm.data.rows import pack
from mlm.data.tokenizers import kinds
from mlm.training.run import resolution

BY_NAME = {"text_column": "sentence", "label_column": "label"}
BY_NUMBER = {"text_column": "0", "label_column": "1"}
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
    "a blank text": ("tsv", {}, "", HEADED + " \ta\n", ", line 2: sentence = ' ': expected a text that is not blank"),
    "a score that is nan": (
        "tsv",
        {},
        "regression",
        HEADED + "w1\tnan\n",
        ", line 2: label = 'nan': expected a finite",
    ),
    "an empty file": ("tsv", {}, "", "", ", line 1 = '': expected an example; the file is empty"),
    "an open quote": ("csv", {}, "", 'w1,a\n"w2,a\nw3,b\n', ", line 2: unexpected end of data; expected fields quoted"),
    "bad JSON": ("jsonl", {}, "", '\n{"sentence": "w1", label: "a"}\n', ", line 2, column 20: Expecting property name"),
    "a key that is missing": (
        "jsonl",
        {},
        "",
        '{"sentence": "w1", "lable": "a"}',
        ", line 1: no key 'label', expected one of .*; did you mean 'lable'",
    ),
    "JSON that is deep": ("jsonl", {}, "", "[" * 100_000 + "\n", ", line 1: .*; expected JSON that is not so deep"),
    "a tag not of the scheme": ("conll", {}, "", "w1 O\nw2 X\n", ", line 2: tag = 'X': expected O, B-KIND or I-KIND"),
    "an I- that continues none": (
        "conll",
        {},
        "",
        "w1 O\nw2 I-X\n",
        r", line 2: tag = 'I-X': expected B-X, since it continues no X \(config",
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
        "where the passage has 'w2', such as 3",
    ),
    "no answer": (
        "squad",
        {},
        "",
        questions({"answers": []}),
        r".*qas\[0\].answers = \[\]: expected one or more, or is_",
    ),
    "an id twice": (
        "squad",
        {},
        "",
        questions({}, {}),
        r".*qas\[1\].id = 'a': expected an id that no other question has",
    ),
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
        ({"format": "tvs"}, "format = 'tvs': expected one of tsv, csv, jsonl, tfds; did you mean 'tsv'"),
        ({"text_column": "0"}, "label_column = 'label': expected a column's number"),
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
