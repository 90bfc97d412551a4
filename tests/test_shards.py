"""Packing in shards: what is packed depends on no number of processes, no order and no kill; what a start checks."""

import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mlm.base import config, errors
from mlm.cli import entry
from mlm.data.rows import columns, pack
from mlm.data.text import corpus, files, records
from tests.small import small_config

WORDS = ["ab", "cd.", "ef", "gh!", "é。", "i\tj", "kl?\r"]


def write_texts(folder, draw, *, count=8):
    """Files of documents of several lines, with blank lines between; some have line ends and bytes of other kinds."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        documents = [
            "\n".join(" ".join(draw.choices(WORDS, k=9)) for _ in range(draw.randint(1, 4))) for _ in range(40)
        ]
        text = draw.choice(["\n\n", "\r\n\r\n", "\n \n\n"]).join(documents)
        (folder / f"{number}.txt").write_bytes(text.encode() + draw.choice([b"", b"\n\n", b"\xff\n", b"\0"]))
    return str(folder)


def make_config(folder, cache, **changes):
    base = {"data__path": folder, "data__cache_dir": str(cache), "data__document_boundary": "blank_line"}
    base |= {"tokenizer__kind": "words", "tokenizer__vocab_size": 12, "pack__seq_len": 16, "pack__shard_mb": 0.003}
    return small_config(**base | changes)


def digest(packed):
    return {
        f"{split}.{name}": np.asarray(column).tobytes()
        for split in packed.splits
        for name, column in packed.get_split(split).items()
    }


@pytest.mark.exhaustive(but=("-blank_line", "1.txt-file"))
@pytest.mark.parametrize("boundary", ["blank_line", "line", "file", "ab .*"])
@pytest.mark.parametrize("held_out", ["", "1.txt"])
def test_shards_hold_each_document_once_and_in_order(tmp_path, boundary, held_out):
    draw = random.Random(7)
    for size in (100, 1000, 3000, 10**6):
        folder = write_texts(tmp_path / str(size), draw)
        data = config.Data(corpus="text", path=folder, document_boundary=boundary, validation_fraction=0.3)
        data = data.__class__(**{**vars(data), "validation_path": f"{folder}/{held_out}" if held_out else ""})
        shards = corpus.plan_shards(data, size)
        assert len(shards) >= {100: 30 if boundary != "file" else 4, 10**6: 1}.get(size, 4)
        for split in corpus.SPLITS:
            parts = [corpus.read_documents(data, split, shard) for shard in shards]
            assert list(itertools.chain.from_iterable(parts)) == list(corpus.read_documents(data, split))


def write_rows(path, draw, *, count=60):
    """JSON lines with blank lines, line ends of two kinds, lines longer than others, and text columns of later rows."""
    rows = [{"name": f"n{number}", "body": " ".join(draw.choices(WORDS, k=9))} for number in range(count)]
    rows[count // 2]["body"] *= 50
    for row in rows[1:]:
        row |= draw.choice([{}, {"text": "of another column"}, {"name": None}])
    lines = [json.dumps(row, ensure_ascii=draw.random() < 0.5) for row in rows]
    raw = "".join(line + draw.choice(["\n", "\r\n", "\n\n \n"]) for line in lines).encode()
    path.write_bytes(draw.choice([b"", b"\xef\xbb\xbf"]) + draw.choice([raw, raw.rstrip()]))


def read_parts(parts):
    return [*files.read_documents(parts, files.make_boundary("", "line"), "", "body", "name")]


def test_parts_of_a_file_of_rows_hold_each_row_once_and_in_order(tmp_path):
    draw = random.Random(11)
    for number in range(10):
        write_rows(path := tmp_path / f"{number}.jsonl", draw)
        whole = read_parts([str(path)])
        assert len(whole) == 60
        for size in (1, 90, 1000, 10**6):
            parts = files.divide_file(str(path), None, size)
            assert sum(part.num_bytes for part in parts) == path.stat().st_size
            assert len(parts) >= {1: 60, 90: 20, 1000: 4, 10**6: 1}[size]
            assert [one for part in parts for one in read_parts([part])] == whole


def test_parts_of_parquet_are_row_groups(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    draw = random.Random(13)
    texts = ["".join(draw.choices("abcdefgh.", k=900)) for _ in range(100)]
    table = pyarrow.table({"number": range(100), "body": texts, "name": ["a"] * 100})
    path = tmp_path / "a.parquet"
    for options in ({}, {"use_dictionary": False, "compression": "none"}):
        parquet.write_table(table, path, row_group_size=7, **options)
        for size, count in ((1, 15), (path.stat().st_size // 4, 4), (10**6, 1)):
            parts = files.divide_file(str(path), None, size)
            assert count - 1 <= len(parts) <= count
            assert [one.text for part in parts for one in read_parts([part])] == texts


@pytest.mark.parametrize(
    "bad", [b"{\n", b"[]\n", b'{"body": "\xff"}\n', b'{"body": "\0"}\n', b'\xef\xbb\xbf{"body": "a"}\n']
)
def test_damage_of_a_part_is_named_by_file_byte_and_line(tmp_path, bad):
    path, good = tmp_path / "a.jsonl", b'{"body": "ab", "name": "x"}\n'
    path.write_bytes(good * 5 + bad + good * 5)
    places = set()
    for size in (1, len(good), 3 * len(good), 10**6):
        for part in files.divide_file(str(path), None, size):
            is_damaged = part.start <= 5 * len(good) < part.start + part.num_bytes
            try:
                read_parts([part])
                assert not is_damaged
            except errors.ConfigError as error:
                assert is_damaged
                start, line = re.match(rf"{path}(?: from byte (\d+))?, line (\d+)", str(error)).groups()
                places.add(int(start or 0) + (int(line) - 1) * len(good))
    assert places == {5 * len(good)}


def test_parts_of_a_file_are_packed_as_files_of_the_same_bytes(tmp_path, monkeypatch):
    write_rows(path := tmp_path / "a.jsonl", random.Random(12), count=300)
    options = {"data__text_column": "body", "data__id_column": "name", "data__document_boundary": "file"}
    divided = make_config(str(path), tmp_path / "cache", **options)
    parts = files.divide_file(str(path), None, 3000)
    assert len(parts) > 5 and len(corpus.plan_shards(divided.data, 3000)) > 5
    (tmp_path / "parts").mkdir()
    for part in parts:
        (tmp_path / f"parts/{part.start:06}.jsonl").write_bytes(path.read_bytes()[part.start : part.end])
    first = pack.load_dataset(divided)
    assert "divides" in first.manifest["inputs"]
    monkeypatch.setattr(records, "is_divisible", lambda path: False)
    second = pack.load_dataset(make_config(str(tmp_path / "parts"), tmp_path / "cache", **options))
    assert "divides" not in second.manifest["inputs"]
    assert digest(first) == digest(second) and first.tokenizer.model == second.tokenizer.model


def test_what_is_packed_depends_on_no_order_and_no_kill(tmp_path, caplog):
    caplog.set_level("INFO")
    folder, draw = write_texts(tmp_path / "texts", random.Random(1)), random.Random(2)
    whole = pack.load_dataset(make_config(folder, tmp_path / "whole", pack__mode="full_sentences"))
    for mode in ("full_sentences", "doc_sentences", "segment_pair"):
        first = digest(pack.load_dataset(make_config(folder, tmp_path / mode, pack__mode=mode)))
        cfg = make_config(folder, tmp_path / f"{mode}-again", pack__mode=mode)
        (packer,) = pack.make_packers(cfg)
        numbers = list(range(len(packer.shards)))
        draw.shuffle(numbers)
        for number in numbers[: len(numbers) // 2]:
            packer.make_shards([number], 1)
        half = numbers[len(numbers) // 2]  # of which a kill left a part
        name = packer.name_shards()[half]
        (tmp_path / f"{mode}-again" / f".{name}.part-x").mkdir()
        (tmp_path / f"{mode}-again" / f".{name}.part-x" / "train.ids.bin").write_bytes(b"half")
        assert packer.list_missing_shards() == sorted(numbers[len(numbers) // 2 :])
        again = pack.load_dataset(cfg)
        assert f"{len(numbers) // 2} of {len(numbers)} shards are packed already" in caplog.text
        assert digest(again) == first and again.manifest["train"]["documents"] == whole.manifest["train"]["documents"]
        assert not [name for name in os.listdir(cfg.data.cache_dir) if "shard-" in name]


@pytest.mark.slow
def test_what_is_packed_depends_on_no_number_of_processes(tmp_path):
    folder = write_texts(tmp_path / "texts", random.Random(3))
    one, two = (
        digest(pack.load_dataset(make_config(folder, tmp_path / str(count)), processes=count)) for count in (1, 2)
    )
    assert one == two


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="reads /proc")
def test_no_process_outlives_a_command_that_is_killed(tmp_path):
    folder = write_texts(tmp_path / "texts", random.Random(9), count=32)
    words = [f"data.path={folder}", "data.document_boundary=line", "tokenizer.kind=words", "tokenizer.vocab_size=12"]
    words += ["pack.seq_len=16", "pack.shard_mb=0.001", f"data.cache_dir={tmp_path}/cache", "--processes=2"]
    command = subprocess.Popen([sys.executable, "-m", "mlm", "pack", *words])
    try:
        while not [*(tmp_path / "cache").glob("shard-*")]:
            assert command.poll() is None
            time.sleep(0.05)
        workers = list_children(command.pid)
    finally:
        command.kill()
        command.wait()
    deadline = time.monotonic() + 300
    while set(map(read_parent, workers)) - {None} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) >= 2 and set(map(read_parent, workers)) == {None}


def read_parent(pid):
    """The parent of a process; None: it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def list_children(pid):
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and read_parent(name) == pid]


def change_unseen(path):
    """Changes a byte of a file, which keeps its size and time."""
    status = path.stat()
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("shard_mb", [0.003, 1])
def test_a_file_that_changes_while_it_is_packed_is_refused(tmp_path, monkeypatch, shard_mb):
    cfg, read = make_config(write_texts(tmp_path / "texts", random.Random(0)), tmp_path, pack__shard_mb=shard_mb), []
    pack.load_tokenizer(cfg)

    def read_splits(*args, whole=corpus.read_splits):
        yield from whole(*args)
        with open(tmp_path / "texts/0.txt", "a") as file:
            file.write("\n\nab ef")
        read.append(args)

    monkeypatch.setattr(corpus, "read_splits", read_splits)
    with pytest.raises(errors.ConfigError, match=r"^config\.data\.path = .*texts': expected files that stay as"):
        pack.load_dataset(cfg)
    assert read and not [*tmp_path.glob("rows-*"), *tmp_path.glob("shard-*")]


def test_a_start_hashes_what_has_another_size_or_time_and_verify_all(tmp_path, caplog):
    folder = write_texts(tmp_path / "texts", random.Random(4))
    source, cfg = tmp_path / "texts" / "0.txt", make_config(folder, tmp_path / "cache")
    for path in (tmp_path / "texts").iterdir():
        os.utime(path, ns=(10**18, 10**18))  # long ago
    first = pack.load_dataset(cfg)
    file = first.folders[0] / "train.ids.bin"
    before = file.read_bytes()
    change_unseen(file)
    assert pack.load_dataset(cfg).folders == first.folders and file.read_bytes() != before
    os.utime(file)
    pack.load_dataset(cfg)
    assert file.read_bytes() == before and "train.ids.bin is damaged" in caplog.text
    change_unseen(file)
    pack.load_dataset(cfg, verify=True)
    assert file.read_bytes() == before
    change_unseen(source)
    assert pack.load_dataset(cfg).folders == first.folders
    os.utime(source, ns=(4 * 10**18, 4 * 10**18))  # in the future
    assert pack.load_dataset(cfg).folders != first.folders
    change_unseen(source)  # its old content, too young to be known by its time
    assert pack.load_dataset(cfg).folders == first.folders


@pytest.mark.parametrize(("fraction", "warns"), [(0.05, True), (0.5, False)])
def test_a_corpus_of_few_documents_says_that_more_than_was_asked_is_held_out(tmp_path, caplog, fraction, warns):
    rows = [{"book": "1" if row % 4 else "18", "text": f"ab cd ef {row}"} for row in range(400)]  # 18 is held out
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    held_out = {"data__id_column": "book", "data__validation_fraction": fraction}
    pack.load_dataset(make_config(str(tmp_path / "a.jsonl"), tmp_path / "cache", **held_out))
    found = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert any("held out: " in one and "name a config.data.validation_path" in one for one in found) == warns, found


def test_a_lazy_column_is_read_as_an_array():
    draw = np.random.default_rng(5)
    plain = draw.integers(0, 9, (7, 4)).astype(np.uint16)
    lazy = columns.LazyColumn(plain.shape, np.uint16, lambda rows: plain[rows].astype(np.int64))
    keys = [2, -1, slice(1, 5), slice(None, None, -2), [3, 3, -7], np.arange(6).reshape(2, 3), plain[:, 0] > 4]
    for key in [*keys, *((key, slice(1, 3)) for key in keys), (slice(None), 2), ([1, 2], 0)]:
        np.testing.assert_array_equal(lazy[key], plain[key])
        assert lazy[key].dtype == np.uint16
    np.testing.assert_array_equal(np.asarray(lazy), plain)
    np.testing.assert_array_equal((lazy > 3) * lazy, (plain > 3) * plain)
    assert np.max(lazy) == plain.max() and len(lazy) == 7
    with pytest.raises(IndexError):
        lazy[7]


def test_the_command_packs_shares_and_joins_them(tmp_path, capsys):
    folder = write_texts(tmp_path / "texts", random.Random(6))
    base = [
        f"data.path={folder}",
        "data.document_boundary=blank_line",
        "tokenizer.kind=words",
        "tokenizer.vocab_size=12",
    ]
    words = ["pack", *base, "pack.seq_len=16", "pack.shard_mb=0.003", "--processes=1"]
    entry.run_command([*words, f"data.cache_dir={tmp_path}/a"])
    alone = capsys.readouterr().out
    entry.run_command([*words, f"data.cache_dir={tmp_path}/b", "--tasks=2", "--task=2"])
    assert re.search(r"^\d+ of \d+ shards are missing", capsys.readouterr().out)
    entry.run_command([*words, f"data.cache_dir={tmp_path}/b", "--tasks=2", "--task=1"])
    shared = capsys.readouterr().out
    facts = r"\d+ documents, [\d,]+ examples of \d+ tokens, [\d,]+ tokens, [\d.]+% padding, [\d.]+% unknown"
    assert re.findall(facts, alone) == re.findall(facts, shared) and len(re.findall(facts, alone)) == 2
    for tasks in (2, 99):  # of which many have no shard
        entry.run_command([*words, f"data.cache_dir={tmp_path}/b", f"--tasks={tasks}", "--task=2", "--processes=2"])
        assert "missing" not in capsys.readouterr().out and not [*(tmp_path / "b").glob("shard-*")]
    other = write_texts(tmp_path / "more", random.Random(7))
    (tmp_path / "corpus.toml").write_text(
        "".join(
            f'[[sources]]\nname = "{name}"\nweight = 1\npath = "{path}"\ndocument_boundary = "blank_line"\n'
            for name, path in {"x": folder, "y": other}.items()
        )
    )
    mixed = ["pack", f"data.sources={tmp_path}/corpus.toml", *words[3:], f"data.cache_dir={tmp_path}/d"]
    mixed += ["phases.shares=0.5,0.5", "phases.seq_len=8,16"]
    for task, is_last in ((2, False), (1, True)):
        entry.run_command([*mixed, "--tasks=2", f"--task={task}"])
        out = capsys.readouterr().out
        assert ("missing" not in out) == is_last
    assert re.findall(r"examples of (\d+) tokens", out) == ["8", "8", "16", "16"]
    whole = [word for word in words if "shard" not in word]
    for more in ("--task=1", "--cluster=slurm"):
        with pytest.raises(errors.ConfigError, match=r"config\.pack\.shard_mb"):
            entry.run_command([*whole, f"data.cache_dir={tmp_path}/c", "--tasks=2", more])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--task=1"], "--tasks = 0: expected the number of tasks"),
        (["--cluster=slurm"], "--tasks = 0: expected the number of tasks"),
        (["--tasks=2"], "--task = 0: expected a number from 1 to --tasks=2"),
        (["--tasks=2", "--task=3"], "--task = 3: expected a number from 1 to --tasks=2"),
        (["--tasks=2", "--task=1", "--cluster=slurm"], "--task = 1: expected .* --cluster in its place"),
        (["--tasks=2", "--cluster=tpu"], "--cluster = 'tpu': expected one of slurm, kubernetes"),
        (["--dry_run"], "--dry_run = True: expected --cluster with it"),
        (["--hours=3"], "--hours = 3.0: expected --cluster with it"),
        (["--tasks=2", "--task=1", "--option=a=b"], r"--option = \['a=b'\]: expected --cluster with it"),
    ],
)
def test_flags_of_tasks_that_do_not_go_together_are_refused(words, expected):
    with pytest.raises(errors.ConfigError, match=f"^{expected}"):
        entry.run_command(["pack", *words])


def test_a_file_of_which_no_line_starts_a_document_stays_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a line\n" * 1000)
    assert files.divide_file(str(path), files.make_boundary("", "Title .*"), 500) == [files.FilePart(str(path))]


def test_the_command_says_where_processes_have_no_shard_and_what_makes_more(tmp_path, capsys):
    folder = write_texts(tmp_path / "texts", random.Random(8), count=16)
    table = f'[[sources]]\nname = "x"\nweight = 1\npath = "{folder}"\ndocument_boundary = "line"\n'
    (tmp_path / "corpus.toml").write_text(table)
    alone = {"data.path": folder, "data.document_boundary": "line"}
    for fields_ in (alone, {"data.sources": f"{tmp_path}/corpus.toml"}):
        fields_ |= {"tokenizer.kind": "words", "tokenizer.vocab_size": 12, "pack.seq_len": 16}
        words = ["pack", *itertools.starmap("{}={}".format, fields_.items()), f"data.cache_dir={tmp_path}/cache"]
        entry.run_command(words)
        assert "can work" not in capsys.readouterr().err  # nobody asked for processes
        entry.run_command([*words, "--processes=3"])
        (size,) = re.findall(r"--processes=3: 1 can work.*config\.pack\.shard_mb=([\d.e-]+),", capsys.readouterr().err)
        cfg = small_config(
            **{name.replace(".", "__"): value for name, value in fields_.items()}, pack__shard_mb=float(size)
        )
        pack.warn_of_few_shards(cfg, "--processes", 3)
        assert "can work" not in capsys.readouterr().err
    with pytest.raises(errors.ConfigError, match=r"corpus\.toml: source 'x': path"):
        (tmp_path / "corpus.toml").write_text(table.replace(folder, "absent"))
        entry.run_command(["pack", f"data.sources={tmp_path}/corpus.toml", "--processes=3"])
