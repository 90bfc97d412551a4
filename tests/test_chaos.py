"""A short chaos test: a killed run ends as an undisturbed one; and the tests' own parts find phases and errors."""

import contextlib
import os
import random
import struct
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboardX.proto.event_pb2 import Event

from mlm.base import config, files
from mlm.cli import command
from mlm.training.run import checkpoint, log
from mlm.training.run.directory import RunDirectory
from tests.chaos import digests, experiment, fake_slurm, kills, phases, workloads, workspace
from tests.chaos.processes import CommandSession

SHORT = {
    "train.steps": 6,
    "train.checkpoint_every": 2,
    "train.eval_every": 0,
    "data.cache_dir": workloads.CACHE,
    "workdir": f"{workloads.RUNS}/run",
}


@pytest.mark.slow
def test_a_run_that_is_killed_ends_as_one_that_nobody_disturbed(tmp_path):
    there = workspace.Workspace(tmp_path)
    (tmp_path / workspace.SHARED_CACHE).symlink_to(os.environ["JAX_COMPILATION_CACHE_DIR"])
    flags = workloads.format_flags(experiment.SMALL | experiment.TEXT | SHORT)
    what = workloads.Workload("short", (("-m", "mlm", "train", *flags),))
    seed = time.time_ns()
    print(f"seed {seed}")
    expected, seen = kills.run_undisturbed(there, what)
    assert {"compiling", "saving", "evaluating"} <= seen.keys()
    for number in range(5):  # a moment that is drawn may be past the run's end, as short as it is
        one = kills.run_trial(there, what, ["evaluating"], expected, seen, random.Random(seed + number))
        assert one["problems"] == [], one
        if one["kills"]:
            break
    assert len(one["kills"]) == 1, one
    run = there.folder / SHORT["workdir"]
    assert [start["step"] > 0 for start in RunDirectory(run).read_provenance()] == [False, True]  # from a checkpoint
    (rows,) = (there.folder / workloads.CACHE).glob("rows-*/manifest.json")
    files.write_json_with_digest(rows, {"rows": 0})
    assert digests.list_differences(digests.collect_digests(there.folder), expected) == [f"rows: {rows.parent.name}"]


def test_phases_are_told_by_what_is_new_in_a_folder(tmp_path):
    run, now = tmp_path / workloads.RUNS / "run", {"step": 0, "time": "now"}
    (tmp_path / workloads.CACHE / ".rows-1.part-old").mkdir(parents=True)
    look = phases.PhaseObserver(tmp_path, ("-m", "mlm", "train"))

    def log_records(*records):
        files.write_records(RunDirectory(run).metrics, records)

    assert look.find_phase() == "starting"
    (tmp_path / workloads.CACHE / ".tokenizer-1.part-new").mkdir()
    assert look.find_phase() == "vocabulary"
    (tmp_path / workloads.CACHE / ".tokenizer-1.part-new").rmdir()
    run.mkdir(parents=True)
    for name, value in (("config.json", {"a": 1}), ("provenance.json", {"starts": [now]})):
        files.write_json_with_digest(run / name, value)
    assert look.find_phase() == "compiling"
    log_records({"step": 1, "loss": 1.0})
    assert look.find_phase() == "training"
    log_records({"step": 6, "loss": 1.0})
    assert look.find_phase() == "evaluating"
    log_records({"step": 6, "loss": 1.0}, {"step": 6, "eval_loss": 1.0})
    assert look.find_phase() == "training"
    log_records({"step": 12, "eval_loss": 1.0})
    assert look.find_phase() == "results"
    (RunDirectory(run).checkpoints / "6.orbax-checkpoint-tmp").mkdir(parents=True)
    assert look.find_phase() == "saving"
    tuned = RunDirectory(run).tasks / "sst2"
    tuned.mkdir(parents=True)
    for name, value in (("config.json", {"a": 1}), ("provenance.json", {"starts": [now]})):
        files.write_json_with_digest(tuned / name, value)
    assert look.find_phase() == "fine-tuning"


def test_each_phase_is_aimed_at_where_fewest_died_so_far():
    seen = dict.fromkeys(("training", "saving", "results"), kills.PhaseStats(1, 1.0))
    for seed in range(9):
        assert kills.choose_targets({"training": 3, "results": 2}, seen, random.Random(seed))[0] == "saving"
    counts = Counter()
    for seed in range(200):
        counts.update(kills.choose_targets(counts, seen, random.Random(seed)))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_killed_session_leaves_nobody_even_of_another_group(tmp_path):
    command = ["bash", "-c", "set -m; sleep 60 & sleep 60 & wait"]
    started = CommandSession(command, tmp_path, os.environ, tmp_path / "log")
    until = time.monotonic() + 20
    while len(groups := {os.getpgid(pid) for pid in started.list_pids()}) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(groups) == 3
    started.kill()
    assert started.list_pids() == [] and started.wait() < 0


@pytest.mark.parametrize(
    ("code", "said"), [(0, "done"), (1, ""), (-9, "error: a"), (1, "Traceback (most recent call last):\nValueError: a")]
)
def test_what_ends_without_a_line_is_not_named(code, said):
    with pytest.raises(ValueError):
        workspace.find_error_line(code, said)
    assert workspace.find_error_line(1, "step 3\nerror: the disk is full\n") == "error: the disk is full"


def test_a_job_that_is_queued_twice_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("a", "echo --points=a"), ("b", "echo --points=a"), ("a-table", "echo table")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.sh").write_text(text)

    def fill_queue(*names):
        Path(fake_slurm.QUEUE_FILE).write_text("".join(f"{tmp_path / name}/job.sh\n" for name in names))
        fake_slurm.run_queue()

    fill_queue("a", "a-table")
    for twice in (("a", "a", "a-table"), ("a", "b", "a-table"), ("a", "a-table", "a-table")):
        with pytest.raises(SystemExit):
            fill_queue(*twice)


def test_a_clock_that_stands_still_is_named_before_a_checkpoint_waits_for_it(monkeypatch):
    checkpoint.check_clock()
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    with pytest.raises(OSError) as stands:
        checkpoint.save(None, None, None, None)
    assert command.describe_machine_failure(stands.value) == (
        1,
        "error: the clock of this machine stands still; once it runs, the same command continues",
    )


def test_what_threads_say_of_a_checkpoint_that_failed_is_not_shown(tmp_path, monkeypatch):
    """They call into an event loop that Orbax has closed; that the disk is full is told by us."""
    told = []
    monkeypatch.setattr(sys, "__unraisablehook__", told.append)
    monkeypatch.setattr(sys, "unraisablehook", None)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before = warnings.filters[:]
        with contextlib.closing(checkpoint.open_manager(tmp_path)):
            assert sys.unraisablehook is None and warnings.filters == before  # the command alone hides them
        command.hide_orbax_threads()
        for error in (RuntimeError("Event loop is closed"), ValueError("something else")):
            sys.unraisablehook(SimpleNamespace(exc_value=error))
        for text in ("coroutine 'save' was never awaited", "another"):
            warnings.warn(text, RuntimeWarning, stacklevel=1)
    assert [str(one.exc_value) for one in told] == ["something else"]
    assert [str(one.message) for one in shown if one.category is RuntimeWarning] == ["another"]


def test_a_checkpoint_that_orbax_waited_for_in_vain_is_named():
    """As it does where the clock is set ahead, by which it waits."""
    error = TimeoutError("ChainedFuture completed 3/4 futures but timed out after 86390.1 seconds.")
    code, said = command.describe_machine_failure(error)
    assert code == 1 and "the clock of this machine was set meanwhile; the same command continues" in said


def test_what_is_logged_needs_no_thread_that_a_full_disk_could_end(tmp_path):
    before = {*threading.enumerate()}
    for step, first in ((0, 1), (2, 3)):
        time.sleep(1.1 * bool(step))  # a file is named by the second
        with contextlib.closing(log.MetricsWriter(config.Config(workdir=str(tmp_path)), step)) as writer:
            for number in range(first, first + 3):
                writer.write(number, {"loss": number / 8, "name": "text", **{f"more{i}": i for i in range(20)}})
            assert {*threading.enumerate()} <= before
    found = [
        Event.FromString(record)
        for path in sorted(RunDirectory(tmp_path).tensorboard.iterdir())
        for record in records(path.read_bytes())
    ]
    assert [
        (event.step, value.simple_value) for event in found for value in event.summary.value if value.tag == "loss"
    ] == [(number, number / 8) for number in (1, 2, 3, 3, 4, 5)]
    assert [event.step for event in found if event.HasField("session_log")] == [1, 3]


def records(content: bytes):
    """Of a file of TensorBoard's: each has its length before it, with a checksum, and a checksum behind."""
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        yield content[12 : 12 + size]
        content = content[16 + size :]
