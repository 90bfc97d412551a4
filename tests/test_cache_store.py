"""Folders of derived files: whole or not there, whoever else makes them at once and whoever is killed."""

import multiprocessing
import os
import pathlib
import time

import pytest

from mlm.base import errors
from mlm.data.rows import store


def slow(path, log, die, folder):
    with open(log, "a") as file:
        file.write("made\n")
    (folder / "a.bin").write_bytes(b"half")
    time.sleep(0.5)
    if die:
        os._exit(9)
    (folder / "a.bin").write_bytes(b"whole")
    return {"count": 1}


def ask(cache, log, die=False):
    folder, manifest = store.get_or_make_folder(cache, "thing", {"x": 1}, lambda folder: slow(cache, log, die, folder))
    assert (folder / "a.bin").read_bytes() == b"whole" and manifest["count"] == 1


def run(*calls):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=ask, args=call) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def test_two_processes_at_once_end_with_one_good_copy(tmp_path):
    cache, log = str(tmp_path / "cache"), str(tmp_path / "log")
    assert run((cache, log), (cache, log)) == [0, 0]
    assert pathlib.Path(log).read_text() == "made\n"
    assert [name for name in os.listdir(cache) if not name.endswith(".lock")] == [
        store.get_or_make_folder(cache, "thing", {"x": 1}, None)[0].name
    ]


def test_without_locks_two_processes_still_end_with_one_good_copy(tmp_path, monkeypatch):
    def other_comes_first(folder):
        with monkeypatch.context() as patch:
            patch.setattr(store.tempfile, "mkdtemp", lambda **_: os.makedirs(tmp_path / "x") or str(tmp_path / "x"))
            store.get_or_make_folder(
                tmp_path, "thing", {"x": 1}, lambda f: (f / "a").write_text("first") and {"by": "other"}
            )
        (folder / "a").write_text("first")
        return {"by": "me"}

    def no_lock(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(store.fcntl, "flock", no_lock)
    folder, manifest = store.get_or_make_folder(tmp_path, "thing", {"x": 1}, other_comes_first)
    assert manifest["by"] == "other" and (folder / "a").read_text() == "first"
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".lock")] == [folder.name]


def test_a_killed_making_is_not_mistaken_for_whole(tmp_path):
    cache, log = str(tmp_path / "cache"), str(tmp_path / "log")
    assert run((cache, log, True)) == [9]
    assert run((cache, log)) == [0]
    assert not [name for name in os.listdir(cache) if ".part-" in name]


def test_a_cache_that_cannot_be_written_serves_what_is_whole_and_refuses_the_rest(tmp_path, monkeypatch):
    folder, manifest = store.get_or_make_folder(
        tmp_path, "thing", {"x": 1}, lambda f: (f / "a").write_text("b") and {"count": 1}
    )

    def read_only(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(store, "_hold_lock", read_only)
    assert store.get_or_make_folder(tmp_path, "thing", {"x": 1}, None) == (folder, manifest)
    for inputs in ({"x": 2}, {"x": 1}):
        (folder / "a").write_text("c")
        with pytest.raises(errors.ConfigError, match=r"^config\.data\.cache_dir = .*Permission denied.*thing-\w{16}"):
            store.get_or_make_folder(tmp_path, "thing", inputs, None)
