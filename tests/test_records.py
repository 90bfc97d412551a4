"""Corpora in files of records: the same documents in every format, compressed or not, give the same examples."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random

import numpy as np
import pytest
from small import small_config

from mlm.base import config, errors
from mlm.data.rows import pack, store
from mlm.data.tasks import table_task
from mlm.data.text import corpus, files, records
from mlm.data.tokenizers import kinds

pyarrow = pytest.importorskip("pyarrow", reason="the extra data is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

WORDS = ["the", "horse", "sleeps.", "naïve", "日本", "a,b", 'say "x"', "\t", "\u2028", "{", "[1]"]


def write_json(documents, **more):
    return "".join(json.dumps({"id": i, "text": text} | more) + "\n" for i, text in enumerate(documents)).encode()


def write_delimited(documents, delimiter):
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerows([("id", "text"), *enumerate(documents)])
    return out.getvalue().encode()


def to_table(documents):
    return (
        documents
        if isinstance(documents, pyarrow.Table)
        else pyarrow.table({"id": list(range(len(documents))), "text": documents})
    )


def write_parquet(documents):
    out = io.BytesIO()
    parquet.write_table(to_table(documents), out, row_group_size=7)
    return out.getvalue()


def write_arrow(documents, new):
    out = io.BytesIO()
    with new(out, to_table(documents).schema) as writer:
        writer.write_table(to_table(documents), 7)
    return out.getvalue()


FORMATS = {
    "jsonl": write_json,
    "json": lambda documents: json.dumps([{"text": text} for text in documents]).encode(),
    "csv": lambda documents: write_delimited(documents, ","),
    "tsv": lambda documents: write_delimited(documents, "\t"),
    "parquet": write_parquet,
    "arrow": lambda documents: write_arrow(documents, pyarrow.ipc.new_file),
    "stream.arrow": lambda documents: write_arrow(documents, pyarrow.ipc.new_stream),
}
COMPRESSORS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
LINES = files.make_boundary("", "line")


def draw(count=40, seed=0):
    rng = random.Random(seed)
    return [("A " + " ".join(rng.choices(WORDS, k=rng.randint(1, 30)))).strip() for _ in range(count)]


def compress_to_zstd(raw):
    return pyarrow.compress(raw, codec="zstd", asbytes=True)


def read(pattern, column="text"):
    found = files.find_files("config.data.path", str(pattern), column)
    return [one.text for one in files.read_documents(found, LINES, "", column)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_holds_the_documents_as_they_are(tmp_path, name):
    for seed in range(5):
        documents = [text.replace("{", "{\n  ").strip() for text in draw(seed=seed)]
        raw = FORMATS[name](documents)
        (tmp_path / f"a.{name}").write_bytes(raw)
        assert read(tmp_path / f"a.{name}") == documents
    if name not in ("parquet", "arrow"):
        for ending, compress in COMPRESSORS.items():
            (tmp_path / f"a.{name}.{ending}").write_bytes(compress(raw))
            assert read(tmp_path / f"a.{name}.{ending}") == documents


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_text_is_read_whatever_compresses_it(tmp_path, ending):
    (tmp_path / f"a.txt.{ending}").write_bytes(COMPRESSORS[ending]("\n".join(draw()).encode()))
    assert read(tmp_path / f"a.txt.{ending}") == draw()


def test_zstandard_is_read(tmp_path):
    """In several frames, too, and with some to skip, as pzstd writes them."""
    lines = write_json(draw()).splitlines(keepends=True)
    skipped = b"\x5a\x2a\x4d\x18" + bytes([4, 0, 0, 0]) + b"\xff\0\xfe\xfd"
    for between in (b"", skipped):
        parts = (between + compress_to_zstd(b"".join(lines[i : i + 10])) for i in range(0, len(lines), 10))
        (tmp_path / "a.jsonl.zst").write_bytes(b"".join(parts))
        assert read(tmp_path / "a.jsonl.zst") == draw()


def test_content_decides_where_a_name_says_something_else(tmp_path):
    for wrong, name in (("txt", "jsonl"), ("txt", "parquet"), ("jsonl", "arrow"), ("csv", "json")):
        (tmp_path / f"{name}.{wrong}").write_bytes(FORMATS[name](draw()))
        assert read(tmp_path / f"{name}.{wrong}") == draw()


def test_a_carriage_return_ends_a_row_of_a_table(tmp_path):
    (tmp_path / "a.csv").write_bytes(write_delimited([*draw(), "two,\rlines"], ",").replace(b"\n", b"\r"))
    assert read(tmp_path / "a.csv") == [*draw(), "two,\rlines"]


def test_a_task_has_the_same_examples_in_every_format(tmp_path):
    documents, packed = draw(), {}
    kinds.train_tokenizer(config.Tokenizer("words", 0), documents).save(tmp_path)
    for name in ("csv", "tsv", "jsonl", "parquet", "arrow", "csv.gz", "jsonl.csv", "parquet.csv", "arrow.jsonl"):
        form, _, ending = name.partition(".")  # content decides where a name and the format say something else
        raw = FORMATS[form](documents)
        (tmp_path / f"a.{name}").write_bytes(gzip.compress(raw) if ending == "gz" else raw)
        said = {"format": ending if ending in FORMATS else form, "text_column": "text", "label_column": "id"}
        said |= dict.fromkeys(("train", "dev"), f"a.{name}")
        said |= {"quoting": "on"} if form == "tsv" else {}
        cfg = small_config(
            data__task="own",
            data__task_path=str(tmp_path),
            data__cache_dir=str(tmp_path / name),
            tokenizer__path=str(tmp_path),
            objective="regression",
            **{f"data__labelled__{field}": value for field, value in said.items()},
        )
        packed[name] = pack.load_dataset(cfg).train
    for columns in packed.values():
        for column, values in columns.items():
            np.testing.assert_array_equal(values, packed["csv"][column])


def test_a_folder_is_read_with_all_below_it(tmp_path):
    (tmp_path / "below").mkdir()
    documents = draw(30)
    (tmp_path / "a.parquet").write_bytes(write_parquet(documents[:10]))
    (tmp_path / "below" / "b.jsonl.gz").write_bytes(gzip.compress(write_json(documents[10:20])))
    (tmp_path / "below" / "c.txt").write_text("\n".join(documents[20:]))
    (tmp_path / "README.md").write_text("not a document")
    for hidden in ("._c.txt", ".checkpoints/c.txt", "below/.d/e/c.txt"):
        (tmp_path / hidden).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / hidden).write_bytes(b"hidden" if "/" in hidden else bytes(99))
    (tmp_path / "dataset_infos.json").write_text('{"default": {"features": {}}}')
    assert read(tmp_path) == documents


def test_a_cache_in_the_folder_of_a_corpus_is_no_text_of_it(tmp_path, caplog):
    documents, cache = draw(), tmp_path / "below" / "cache"
    path, words = tmp_path / "rows-0.jsonl", {"tokenizer__kind": "words", "tokenizer__vocab_size": 16}
    path.write_bytes(write_json(documents))
    pack.load_dataset(small_config(data__corpus="text", data__path=str(tmp_path), data__cache_dir=str(cache), **words))
    table_task.write_task(str(path), cache, {"text": "text", "text_pair": "", "negative": "", "label": "id"}, 0.2, 0)
    names = [store.make_name(prefix, {}) for prefix in ("floor", "ngrams", "optimum", "parts")]
    for name in ("compiled_steps", *names):
        files.base_files.write_text(cache / name / "manifest.json", "{}")
    with caplog.at_level("INFO", "absl"):
        assert read(tmp_path) == documents
    count = sum(".lock" not in path.name and records.has_known_ending(path.name) for path in cache.rglob("*"))
    assert count > 9 and f"files of a cache of mlm left out: {count}" in caplog.text


def test_a_folder_that_datasets_saved_is_read_in_its_order(tmp_path):
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    for name, part in zip(names, (draw()[:20], draw()[20:]), strict=True):
        (tmp_path / name).write_bytes(write_arrow(part, pyarrow.ipc.new_stream))
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    assert sorted(read(tmp_path)) == sorted(draw())
    for damaged in ("", "[1]", '{"_data_files": [{"filename": "gone.arrow"}]}', '{"_data_files": 3}'):
        (tmp_path / "state.json").write_text(damaged)
        with pytest.raises(errors.ConfigError, match=r"state\.json"):
            read(tmp_path)
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "dataset_dict.json").write_text("{}")
    with pytest.raises(errors.ConfigError, match="expected one split of it"):
        read(tmp_path / "whole")


def test_the_column_is_the_one_named_or_the_only_one_of_texts(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "body": "x"}\n{"n": 2, "body": "y"}\n')
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "a.jsonl", "body") == ["x", "y"]
    (tmp_path / "b.jsonl").write_text('{"title": "t", "body": "x"}\n')
    with pytest.raises(errors.ConfigError, match=r"config.data.text_column = 'text': .*which has title, body"):
        read(tmp_path / "b.jsonl")
    with pytest.raises(errors.ConfigError, match=r"did you mean 'body'\?"):
        read(tmp_path / "b.jsonl", "bodi")
    parquet.write_table(pyarrow.table({"text": [["a"], ["b"]]}), tmp_path / "c.parquet")
    with pytest.raises(errors.ConfigError, match=r"config\.data\.text_column = 'text': expected a column of texts"):
        read(tmp_path / "c.parquet")


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_the_quoted_name_of_the_only_column_may_hold_the_delimiter(tmp_path, ending, delimiter):
    name, texts, path = f"title{delimiter}text;", ["a,b", "c;d\te", "f"], tmp_path / f"a.{ending}"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([[name], *([text] for text in texts)])
    assert read(path) == read(path, name) == texts


def test_rows_of_one_id_are_held_out_together_and_messages_name_them(tmp_path, caplog):
    """Chapters of books in rows: no book is on both sides, whatever other books there are, and however it is divided."""
    chapters = [(f"book {i % 50}", f"Chapter {i} of it.") for i in range(400)]

    def split(rows, number, **more):
        (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps({"book": b, "text": t}) + "\n" for b, t in rows))
        data = config.Data(corpus="text", path=str(tmp_path / f"{number}.jsonl"), id_column="book", **more)
        sides = [corpus.read_documents(data, name) for name in corpus.SPLITS]
        return [{int(text.split()[1]) % 50 for text in side} for side in sides]

    train, held_out = split(chapters, 0, validation_fraction=0.3)
    assert train | held_out == {*range(50)} and not train & held_out and 5 < len(held_out) < 30
    some_train, some_held_out = split(chapters[:15], 1, validation_fraction=0.3)
    assert some_train <= train and some_held_out <= held_out
    searched, search = split(chapters, 2, validation_fraction=0.3, search_fraction=0.3)
    assert searched | search == train and not searched & search and search

    (tmp_path / "a.jsonl").write_text('{"id": 7, "text": null}\n{"text": "y"}\n')
    found = [*files.read_documents([str(tmp_path / "a.jsonl")], LINES, "", "text", "id")]
    assert found == [files.Document("y", "")] and "a.jsonl, line 1 (id 7)" in caplog.text
    with pytest.raises(errors.ConfigError, match=r"config\.data\.id_column = 'bok'.*did you mean 'book'\?"):
        list(files.read_documents([str(tmp_path / "0.jsonl")], LINES, "", "text", "bok"))
    (tmp_path / "index.csv").write_text(",text\n0,x\n1,y\n")
    assert [*files.read_documents([str(tmp_path / "index.csv")], LINES, "", "text")] == [("x", ""), ("y", "")]
    (tmp_path / "a.txt").write_text("no rows")
    with pytest.raises(errors.ConfigError, match=r"config\.data\.id_column = 'id': expected a file of rows"):
        corpus.compute_fingerprint(config.Data(corpus="text", path=str(tmp_path / "a.txt"), id_column="id"))


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_every_type_of_text_is_read(tmp_path, kind, ending):
    texts, path = pyarrow.array([*draw(), None]), tmp_path / f"a.{ending}"
    texts = texts.dictionary_encode() if kind == "dictionary" else texts.cast(getattr(pyarrow, kind)())
    table = pyarrow.table({"text": texts})
    if ending == "parquet":
        parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    assert read(path) == draw()


TWICE = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], ["text", "text"])
AMBIGUOUS = {  # by file: its content, which readers take in several ways, or whose parts are out of reach
    "a.csv": b"text,text\na,b\n",
    "b.csv": b"text;label\na;b\n",
    "c.csv": b"text\tlabel\na\tb\n",
    "d.tsv": b"text,label\na,b\n",
    "e.parquet": write_parquet(TWICE),
    "f.arrow": write_arrow(TWICE, pyarrow.ipc.new_file),
    "g.arrow": write_arrow(TWICE, pyarrow.ipc.new_stream),
    "h.parquet.gz": gzip.compress(write_parquet(["a"])),
    "i.arrow.gz": gzip.compress(write_arrow(["a"], pyarrow.ipc.new_file)),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_ambiguous_table_is_refused_in_a_line(tmp_path, name):
    (tmp_path / name).write_bytes(AMBIGUOUS[name])
    with pytest.raises(
        errors.ConfigError, match=rf"{name}.*: expected (a name that one|the names of|.* not compressed)"
    ):
        read(tmp_path / name)


def test_rows_without_text_are_counted(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": null}\n{"text": "  "}\n{"other": "z"}\n{"text": "y"}\n')
    assert read(tmp_path / "a.jsonl") == ["x", "y"]
    assert "3 rows without text" in caplog.text and "a.jsonl, line 2" in caplog.text


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_ends_in_one_line_that_names_it_and_a_row(tmp_path, name):
    """Cut at any place, a file gives an error, or the documents before the cut."""
    documents, rng = draw(100), random.Random(0)
    raw = FORMATS[name](documents)
    for _ in range(30):
        cut = rng.randrange(10, len(raw) - 1)
        (tmp_path / f"a.{name}").write_bytes(raw[:cut])
        try:
            assert len(read(tmp_path / f"a.{name}")) <= 100
        except errors.ConfigError as error:
            assert str(tmp_path / f"a.{name}") in str(error) and "\n" not in str(error)


def test_a_damaged_row_group_and_a_nested_column_are_named(tmp_path):
    path, whole = tmp_path / "a.parquet", write_parquet(draw(40))
    metadata = parquet.read_metadata(io.BytesIO(whole))
    for number in range(metadata.num_row_groups):
        place, damaged = metadata.row_group(number).column(1).dictionary_page_offset, bytearray(whole)
        damaged[place : place + 20] = b"\xff" * 20
        path.write_bytes(damaged)
        where = rf"a\.parquet, row {7 * number + 1}: row group {number + 1} of 6: "
        with pytest.raises(errors.ConfigError, match=where):
            read(path)
    nested = pyarrow.table({"text": [["a"], ["b", "c"]], "title": ["x", "y"]})
    for raw, kind in ((write_parquet(nested), "list<.*string>"), (b'{"text": ["a"], "title": "x"}\n', "list")):
        path.write_bytes(raw)
        with pytest.raises(errors.ConfigError, match=f"which has title; this one has the type {kind}$"):
            read(path)


def test_a_data_set_of_the_hub_is_read_from_its_cache(tmp_path, monkeypatch):
    """As huggingface_hub lays its cache out: a revision's names are links to files by their digests."""
    constants = pytest.importorskip("huggingface_hub.constants")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    store, documents = tmp_path / "datasets--org--name", draw(30)
    for folder in ("blobs", "refs", "snapshots/abc/data"):
        (store / folder).mkdir(parents=True)
    (store / "refs" / "main").write_text("abc")
    contents = {
        "0.parquet": write_parquet(documents[:20]),
        "1.jsonl": write_json(documents[20:]),
        "README.md": b"# name",
    }
    for number, (name, raw) in enumerate(contents.items()):
        (store / "blobs" / str(number)).write_bytes(raw)
        (store / "snapshots" / "abc" / "data" / name).symlink_to(f"../../../blobs/{number}")
    assert read("hf:datasets/org/name") == documents == read("hf:datasets/org/name@main/data")
    assert read("hf:datasets/org/name/data/*.jsonl") == documents[20:]
    for path, message in (
        ("hf:datasets/org/none", "cannot be downloaded"),
        ("hf:datasets/org", "expected hf:datasets/ORG"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            read(path)
