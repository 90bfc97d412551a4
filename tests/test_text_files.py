"""Every reader of a user's text: line feeds alone end its lines, and what is no text ends in a line of error."""

import argparse
import bz2
import gzip
import json

import pytest
from small import get_refusal
from test_bad_labelled import GOOD

from mlm.base import config, text_files
from mlm.cli import floor, use
from mlm.data.tasks import splits, task_file
from mlm.data.text import corpus, files, parallel_text
from mlm.evaluation import minimal_pairs, sentence_scores
from mlm.launch.cluster import job

TEXT = "the\u2028horse\x85sleeps"  # both end a line for str.splitlines alone


def read_corpus(path, **fields):
    data = config.Data(**{"corpus": "text", "path": str(path), "document_boundary": "line", **fields})
    return [document.text for document in (corpus.open_text(data).validation or corpus.open_text(data).train)()]


def flags(path):
    return argparse.Namespace(texts=[], file=str(path), sentences=str(path), max_sentences=0)


def read_blimp(path):
    (paradigm,) = minimal_pairs.read_suite(path.parent).paradigms
    return [paradigm.phenomenon, *paradigm.sentences]


def read_labelled(form, path):
    labelled = config.Labelled(format=form, quoting="on" if form == "csv" else "off", **GOOD[form][0])
    examples = splits.READERS[form](path, labelled, lambda label, where: label)
    return [text for example in examples for text in (*example.texts, *example.words)]


CORPORA = {  # bad bytes are counted, and the rest is read
    "data.path": read_corpus,
    "data.validation_path": lambda path: read_corpus(__file__, validation_path=str(path)),
    "stream": lambda path: list(corpus.read_running_text(config.Data(validation_path=str(path)), "validation")),
    "--sentences": lambda path: sentence_scores.read_sentences(config.Data(), flags(path)),
}
PLAIN = CORPORA | {
    "--file": lambda path: use.read_texts([], str(path)),
    "mlm floor --file": lambda path: [row["what"] for row in floor.score_texts(config.Language(), flags(path))],
    "two files": lambda path: [pair.source for pair in parallel_text.read_pairs([path, path])],
}
PAIR = '{"sentence_good": "w3", "sentence_bad": "b", "linguistics_term": "x"}\n'
TOML = 'format = "csv"\ntext_column = 0\nlabel_column = 1\nprompt.pattern = "w3"\n'
DOORS = {  # name: (file, its content, in which the text is w3, and its reader)
    **{name: ("a.txt", "w3\nthe horse\n", read) for name, read in PLAIN.items()},
    **{form: (f"a.{form}", GOOD[form][1], lambda path, form=form: read_labelled(form, path)) for form in GOOD},
    "long csv": (
        "a.csv",
        "w3" + "a" * (text_files.MAX_LINE_BYTES - 90) + ",b\n",
        lambda path: read_labelled("csv", path),
    ),
    "pairs": ("a.tsv", "w3\tb\n", lambda path: [pair.source for pair in parallel_text.read_pairs([path])]),
    "blimp": ("p.jsonl", PAIR, read_blimp),
    "paradigms.tsv": ("paradigms.tsv", "UID\tlinguistics_term\np\tw3\n", read_blimp),
    "task file": ("a.toml", TOML, lambda path: [task_file.read_task_file("--task", str(path), ()).pattern]),
}


def write(door, folder, text):
    name, content, read = DOORS[door]
    (folder / "p.jsonl").write_text(PAIR)  # beside paradigms.tsv
    content = content.replace("w3" if "w3" in content else "w1", text).encode(errors="surrogateescape")
    (folder / name).write_bytes(content)
    return read, folder / name


@pytest.mark.parametrize("door", DOORS)
def test_line_feeds_alone_end_lines_and_a_byte_order_mark_is_no_text(door, tmp_path):
    read, path = write(door, tmp_path, TEXT)
    raw = path.read_bytes()
    for each in (raw, text_files.BOM + raw, raw.replace(b"\n", b"\r\n"), raw.removesuffix(b"\n")):
        for file in (path, *[path.with_suffix(".gz")] * (door in CORPORA)):
            file.write_bytes(gzip.compress(each) if file.suffix == ".gz" else each)
            assert any(text.startswith(TEXT) for text in read(file))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("text", ["w\udcffw", "w\0w", r"w\ud800w"])
def test_what_is_no_text_ends_in_a_line_that_names_the_place(door, text, tmp_path):
    read, path = write(door, tmp_path, text)
    if door in CORPORA or ("\\" in text and path.suffix not in (".jsonl", ".squad", ".toml") and "floor" not in door):
        assert any("w" in one for one in read(path))
    else:
        message = get_refusal(read, path)
        assert "floor" in door or path.name in message
        assert any(word in message for word in ("line ", "data[", "byte ", "NUL", "text 1, word 1", "TOML"))


OBJECT = b'{"text": "the horse", "id": 1}'
NOT_PLAIN = {  # file: its content
    "empty.txt": b"",
    "a.txt": OBJECT + b"\n" + OBJECT,
    "b.txt": b'{"text": "' + b"the horse " * 10_000 + b'"}\n' + OBJECT,
    "c.txt": json.dumps([{"text": "the"}] * 9000, indent=1).encode(),
    "d.txt": b"PAR1\x15\x04\x15" + b"the horse" * 99,
    "f.txt": bz2.compress(b"the horse"),
    "g.txt": gzip.compress(b"the horse " * 999),
    "h.txt": text_files.BOM + b'<?xml version="1.0"?><p>the horse</p>',
    "a.gz": gzip.compress(OBJECT + b"\n" + OBJECT + b"\n"),
    "b.gz": gzip.compress(b"a.txt" + bytes(252) + b"ustar" + bytes(250) + b"the horse " * 999),
    **{f"a.{name}": b"the horse" for name in ("jsonl", "JSON", "parquet", "arrow", "csv", "zst", "jsonl.gz", "csv.gz")},
    "cp1251.gz": gzip.compress("текст другой кодировки".encode("cp1251")),
}


NEVER_READ = ("empty.txt", "h.txt", "b.gz", "cp1251.gz")  # by any door; a corpus may be of most others
UNPACKED = ("f.txt", "g.txt", "a.zst")  # by the doors that take compressed texts, whatever their names are


def list_refused(door):
    if door.startswith("data."):
        return NEVER_READ
    return [name for name in NOT_PLAIN if name not in UNPACKED or door in ("--file", "mlm floor --file")]


@pytest.mark.parametrize(("door", "name"), [(door, name) for door in PLAIN for name in list_refused(door)])
def test_another_format_ends_in_a_line_that_says_which(door, name, tmp_path):
    (tmp_path / name).write_bytes(NOT_PLAIN[name])
    message = get_refusal(PLAIN[door], tmp_path / name)
    assert str(tmp_path / name) in message
    assert name == "empty.txt" or "expected plain text in UTF-8; this is " in message


@pytest.mark.parametrize("text", ["{ the horse", "[MASK] sleeps\n[1]", '{"a": 1}\nthe horse', "PAR1 BZh", "<b>", '{"a'])
def test_text_that_begins_like_another_format_is_text(text, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    assert read_corpus(tmp_path / "a.txt") == PLAIN["--file"](tmp_path / "a.txt") == text.split("\n")


def test_a_path_is_taken_as_it_stands_before_it_is_a_glob_or_a_list(tmp_path):
    names = ["a[1].txt", "b,c.txt", "d, e,f.txt", "g*.txt", "[h]/i.txt", "j,k/l.txt", "plain.txt"]
    for name in [*names, "a1.txt", "gg.txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("the horse")
    paths = [str(tmp_path / name) for name in names]
    for path in paths:
        assert files.find_files("data.path", path) == text_files.split_paths(path) == [path]
    cfg = config.Config(data=config.Data(corpus="text", path=",".join(paths)))
    assert [path for _, path in job.find_data_paths([cfg])] == paths
    assert files.find_files("data.path", cfg.data.path) == sorted(paths)
    for beside in ("", f"{tmp_path}/b,c.txt, ", f"{tmp_path}/g*.txt,"):
        for name in ("j,k", "j,k/*.txt", "j,k/l.txt"):
            assert str(tmp_path / "j,k/l.txt") in files.find_files("data.path", f"{beside}{tmp_path}/{name}", "text")
    again = [f"{tmp_path}/./plain.txt", f"{tmp_path}//plain.txt", f"{tmp_path}/j,k/../plain.txt"]
    assert len(files.find_files("data.path", ",".join([*paths, *again]))) == len(paths)
    globs = f"{tmp_path}/[h]/*.txt, {tmp_path}/a[0-9].txt"
    assert files.find_files("data.path", globs) == [str(tmp_path / "[h]/i.txt"), str(tmp_path / "a1.txt")]


@pytest.mark.parametrize("labels", ["cafe\u0301,1,10000000000000000", ""])
def test_labels_of_one_value_are_one_class(labels, tmp_path):
    labelled = config.Labelled(format="jsonl", train="a", dev="a", labels=labels, **GOOD["jsonl"][0])
    data = config.Data(corpus="task", task="own", task_path=str(tmp_path), labelled=labelled)
    line = '{{"sentence": "w", "label": {}}}\n'.format
    values = ['"caf\u00e9"', '"cafe\u0301"', 1, 1.0, "1e0", 1e16, 10**16]
    (tmp_path / "a").write_text("".join(map(line, values)))
    task = splits.open_task(config.Config(objective="classification", data=data))
    assert {example.label for example in task["train"]()} == {"1", "1" + "0" * 16, "caf\u00e9"}
    for value in ("NaN", "-Infinity", "1e999", r'"\ud800"'):
        (tmp_path / "a").write_text(line(1) + line(value))
        assert "a, line 2: label" in get_refusal(lambda: list(task["train"]()))
