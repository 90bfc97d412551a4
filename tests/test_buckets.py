"""Runs on buckets: the parts, on fsspec's own file system in memory, called gs:// here. tests/test_emulated.py has a
whole run.
"""

import json
import random
import time

import numpy as np
import pytest
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from hub_folders import make_head_folder
from small import get_refusal

from mlm.base import buckets, config, errors, fields, files, lease, storage
from mlm.cli import use
from mlm.data.rows import pack, store, text_rows
from mlm.data.tasks import table_task
from mlm.data.text import files as text_files
from mlm.data.text import parallel_text, remote_files
from mlm.training.run import log, resolution
from mlm.training.run.directory import CHECKPOINT_SCHEMES, RunDirectory


class Memory(MemoryFileSystem):
    """gs:// in memory; `fails`: what the next requests raise."""

    protocol = ("gcs", "gs")
    store, pseudo_dirs, fails = {}, [""], []

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("gs://"))

    def cat_file(self, path, **more):
        if self.fails:
            raise self.fails.pop()
        return super().cat_file(path, **more)

    def rm_file(self, path):
        if self.fails:
            raise self.fails.pop()
        super().rm_file(path)


@pytest.fixture
def root(monkeypatch):
    """A folder on an empty bucket."""
    monkeypatch.setitem(_registry, "gcs", Memory)
    cached = (buckets.get_filesystem, buckets._probe, backend._FileSystemSpecBackend._get_filesystem)
    for each in cached:
        each.cache_clear()
    Memory.store.clear()
    Memory.fails.clear()
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.01)
    yield files.make_path("gs://lab/runs")
    for mine in list(lease.HELD_LEASES.values()):
        mine.close()
    for each in cached:
        each.cache_clear()


def test_a_file_is_written_whole_or_not_at_all(root):
    path = root / "a.json"
    files.write_json_with_digest(path, {"a": 1})
    with pytest.raises(ZeroDivisionError), files.atomic_write(path) as aside:
        aside.write_text("half")
        raise ZeroDivisionError
    assert files.read_json_with_digest(path) == {"a": 1} and storage.BUCKET.list(root) == ["a.json"]
    assert files.read_json_with_digest(root / "none.json") is None
    storage.BUCKET.write(path, b'{"a": 2}')
    with pytest.raises(files.DamagedFile, match=r"gs://lab/runs/a\.json lacks its digest"):
        files.read_json_with_digest(path)


def test_a_name_is_changed_by_a_copy_and_then_a_removal(root):
    path = root / "result.json"
    files.write_text(path, "first")
    Memory.fails.append(ZeroDivisionError())
    with pytest.raises(buckets.BucketError):
        files.rename_with_suffix(path, "10")  # killed between the two
    assert storage.BUCKET.list(root) == ["result-10.json", "result.json"]
    files.rename_with_suffix(path, "10")
    files.rename_with_suffix(path, "10")
    assert storage.BUCKET.list(root) == ["result-10.json"] and files.read_bytes(root / "result-10.json") == b"first"


def test_metrics_are_those_of_a_disk(root, tmp_path):
    """Written, killed, and written on from a checkpoint, of which what was put in its last moment is all there."""
    for workdir in (tmp_path, root):
        writer = log.MetricsWriter(RunDirectory(workdir), config.Config(), 0)
        for step in (1, 2, 3, 4):
            writer.write(step, {"loss": 1.0 / step}, step == 3)
        if workdir == tmp_path:
            writer.close()
        assert [record["step"] for record in files.read_records(RunDirectory(workdir).metrics)] == (
            [1, 2, 3, 4] if workdir == tmp_path else [1, 2, 3]
        )
        writer = log.MetricsWriter(RunDirectory(workdir), config.Config(), 2)
        for step in (3, 4):
            writer.write(step, {"loss": 1.0 / step})
        writer.close()
        assert [record["step"] for record in files.read_records(RunDirectory(workdir).metrics)] == [1, 2, 3, 4]
    assert files.read_bytes(RunDirectory(root).metrics) == RunDirectory(tmp_path).metrics.read_bytes()
    assert storage.BUCKET.list(RunDirectory(root).tensorboard)  # one file for each second in which one was begun


def test_a_bucket_out_of_reach_is_not_damaged(root):
    """What was written there is neither left out nor made again."""
    files.write_json_with_digest(root / "a.json", {"a": 1})
    for read in (files.read_json_with_digest, files.read_complete_lines):
        Memory.fails.append(OSError("no route"))
        with pytest.raises(buckets.BucketError, match=r"^gs://lab/runs/a.json: no route; the same command continues"):
            read(root / "a.json")


def stale(number, **owner):
    """A lease as another process left it."""
    record = {"machine": "another", "pid": 1, "host": "there", "expires": time.time() + 60}
    storage.BUCKET.write(lease.make_lease_path("gs://lab/runs", number), json.dumps({**record, **owner}).encode())


def test_one_process_holds_a_folder(root):
    with storage.BUCKET.lock(root, "taken"):
        assert storage.BUCKET.is_locked(root)
        files.write_text(root / "a" / "b.txt", "mine")
    assert not storage.BUCKET.is_locked(root)
    with storage.BUCKET.lock(root, "taken") as again:  # given back: at once
        assert again.number == 2


def test_a_second_process_is_told(root, monkeypatch):
    """By its renewal that the first is alive, and it does not wait longer for that."""
    stale(1)
    seen = lease.read_newest
    beats = iter(range(1, 10))

    def watch_renewal(*where):
        found = seen(*where)
        stale(1, expires=time.time() + 60 + next(beats))
        return found

    monkeypatch.setattr(lease, "read_newest", watch_renewal)
    with pytest.raises(lease.FolderInUse, match="taken"):
        lease.Lease(storage.BUCKET, root, "taken")
    assert next(beats) < 5


def test_of_two_that_come_at_once_one_holds_it(root, monkeypatch):
    stale(1, expires=0.0)
    write = storage.BUCKET.write

    def other_comes(place, content, *, exclusive=False):
        if exclusive:
            write(place, b'{"machine": "another"}')
        write(place, content, exclusive=exclusive)

    monkeypatch.setattr(storage.BUCKET, "write", other_comes)
    with pytest.raises(lease.FolderInUse):
        lease.Lease(storage.BUCKET, root, "taken")
    assert lease.read_newest(storage.BUCKET, root) == (2, {"machine": "another"})


def test_an_old_lease_is_taken_over_and_its_holder_writes_no_more(root, monkeypatch):
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 0.3)
    first = lease.Lease(storage.BUCKET, root, "taken")
    files.write_text(root / "a.txt", "first")
    monkeypatch.setattr(lease, "machine_id", lambda: "another")
    began = time.monotonic()
    second = lease.Lease(storage.BUCKET, root, "taken")
    assert time.monotonic() - began > 0.2 and second.number == 2
    lease.HELD_LEASES[str(root)] = first
    with pytest.raises(lease.FolderInUse, match="another process has taken over; this one stops"):
        files.write_text(root / "a.txt", "late")
    with pytest.raises(lease.FolderInUse):
        files.rename_with_suffix(root / "a.txt", "1")
    assert files.read_bytes(root / "a.txt") == b"first"
    first.close()
    number, record = lease.read_newest(storage.BUCKET, root)
    assert number == 2 and record["expires"]
    second.close()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("gcs://lab/x", "expected a folder on a disk or gs://BUCKET/FOLDER; did you mean 'gs://lab/x'"),
        ("gs:/lab/x", "did you mean 'gs://lab/x'"),
        ("gs://", "expected a folder on a disk or gs://BUCKET/FOLDER$"),
        ("s3://lab/x", "gs://BUCKET"),
        ("hdfs://lab/x", r"config.workdir = 'hdfs://lab/x': expected a folder"),
        ("gs://lab/x", r'expected the package no_such_library: pip install "mlm\[gs\]"'),
    ],
)
def test_what_cannot_be_reached_is_said_at_once(place, said, monkeypatch):
    monkeypatch.setitem(buckets.LIBRARIES, "gs", "no_such_library")
    with pytest.raises(errors.ConfigError, match=said):
        files.check_folder("config.workdir", place, schemes=CHECKPOINT_SCHEMES)


def make_folder(cache, calls):
    def make(folder):
        calls.append(folder)
        (folder / "rows.bin").write_bytes(b"rows")
        return {"rows": 1}

    return store.get_or_make_folder(cache, "rows", {"of": "these"}, make)


def test_rows_are_made_once_and_fetched_by_other_machines(root, tmp_path, monkeypatch, caplog):
    """A machine is a home of its own. What is spoilt on the bucket is said and made again."""
    monkeypatch.setitem(buckets.LIBRARIES, "gs", "json")
    storage.BUCKET.write("gs://lab/.keep", b"")
    calls, manifests = [], []
    for machine in ("one", "one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        folder, manifest = make_folder("gs://lab/cache", calls)
        manifests.append(manifest)
        assert folder.is_relative_to(tmp_path / machine) and (folder / "rows.bin").read_bytes() == b"rows"
    assert len(calls) == 1 and manifests[0] == manifests[1] == manifests[2] and manifests[0]["rows"] == 1
    spoilt = next(name for name in Memory.store if name.endswith("-rows.bin"))
    storage.BUCKET.write(f"gs:/{spoilt}", b"rowz")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "three"))
    make_folder("gs://lab/cache", calls)
    assert len(calls) == 2 and "rows.bin is damaged: it is not what was written; making it again" in caplog.text
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "four"))
    assert make_folder("gs://lab/cache", calls)[1] == manifests[0] and len(calls) == 2


def test_source_files_on_a_bucket_are_read_and_fetched_again_when_they_change(root, tmp_path, monkeypatch):
    monkeypatch.setitem(buckets.LIBRARIES, "gs", "json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "c.txt").write_text("three")
    for name, text in (("a.jsonl", '{"text": "one"}\n{"text": "two"}\n'), ("b/d.txt", "four"), ("b/notes.md", "# no")):
        storage.BUCKET.write(f"gs://lab/texts/{name}", text.encode())

    def read(pattern):
        remote_files.fetch_files.cache_clear()
        found = text_files.find_files("config.data.path", f"{pattern},{tmp_path}/c.txt", "text")
        documents = text_files.read_documents(found, text_files.make_boundary("", "file"), "", "text")
        return sorted(one.text for one in documents)

    assert read("gs://lab/texts/*.jsonl") == ["one", "three", "two"]
    assert read("gs://lab/texts") == ["four", "one", "three", "two"]
    storage.BUCKET.write("gs://lab/texts/b/d.txt", b"five")
    assert read("gs://lab/texts/b/*.txt") == ["five", "three"]
    with pytest.raises(errors.ConfigError, match=r"config\.data\.path = 'gs://lab/texts/\*\.csv': expected files"):
        read("gs://lab/texts/*.csv")
    for name in ("train.tsv", "val.tsv"):
        storage.BUCKET.write(f"gs://lab/pairs/{name}", b"one\ttwo\n")
    named = config.ParallelText(train="train.tsv", dev="val.tsv")
    there = parallel_text.open_pairs(config.Data(corpus="parallel", parallel_path="gs://lab/pairs", parallel=named))
    assert [*there.splits["train"]()] == [("one", "two")]


def test_a_table_on_a_bucket_is_the_one_on_a_disk(root, plain, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(buckets.LIBRARIES, "gs", "json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = "text,label\n" + "".join(f"the old horse {'sleeps ' * n},{'ab'[n % 2]}\n" for n in range(40))
    (tmp_path / "new.csv").write_text(table)
    storage.BUCKET.write("gs://lab/tables/new.csv", table.encode())
    storage.BUCKET.write("gs://lab/tables/other.csv", table.encode())
    columns = {"text": "", "text_pair": "", "negative": "", "label": "label"}
    folder, tasks, printed = str(make_head_folder(plain, tmp_path, "bert-classify")), [], []
    for path in (f"{tmp_path}/new.csv", "gs://lab/tables/new.csv"):
        tasks.append(table_task.write_task(path, tmp_path, columns, 0.3, 0))
        use.main(["predict", folder, path, "--json"])
        printed.append(capsys.readouterr().out)
    assert tasks[0] == tasks[1] and printed[0] == printed[1] and len(printed[0].splitlines()) == 40
    for path in ("gs://lab/tables/*.csv", "gs://lab/tables/nwe.csv"):
        assert path in get_refusal(table_task.write_task, path, tmp_path, columns, 0.3, 0)
        assert path in get_refusal(use.main, ["predict", folder, path])


def test_machines_pack_shards_of_a_corpus_to_a_bucket_and_a_third_joins_them(root, tmp_path, monkeypatch):
    monkeypatch.setitem(buckets.LIBRARIES, "gs", "json")
    storage.BUCKET.write("gs://lab/.keep", b"")
    (tmp_path / "texts").mkdir()
    for number in range(4):
        lines = (" ".join(random.Random(number * 90 + n).choices("abcdefgh", k=12)) for n in range(90))
        (tmp_path / f"texts/{number}.txt").write_text("\n".join(lines))
    options = {"data.path": str(tmp_path / "texts"), "data.document_boundary": "line", "pack.shard_mb": 0.001}
    options |= {"tokenizer.kind": "words", "tokenizer.vocab_size": 13, "pack.seq_len": 16}
    cfg = resolution.resolve(config.Config(), options | {"data.cache_dir": str(tmp_path / "disk")})
    on_disk, cfg = pack.load_dataset(cfg), fields.override(cfg, {"data.cache_dir": "gs://lab/cache"})
    shards = range(len(pack.make_packers(cfg)[0].shards))
    for machine, missing in (("one", shards), ("two", shards[1::2])):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        (packer,) = pack.make_packers(cfg)
        assert packer.list_missing_shards() == [*missing] and len(shards) > 3
        packer.make_shards(missing[::2] if machine == "one" else missing, 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "three"))
    monkeypatch.setattr(text_rows.Packer, "write_splits", lambda *_, **__: pytest.fail("packed again"))
    joined = pack.load_dataset(cfg)
    for split in joined.splits:
        for name, column in joined.get_split(split).items():
            assert np.array_equal(column[:], on_disk.get_split(split)[name][:])
    assert pack.make_packers(cfg)[0].list_missing_shards() == []
