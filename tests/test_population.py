"""Runs trained side by side are what they are alone: in numbers and directories, when stopped and when one diverges."""

import json
import os
import signal
from pathlib import Path

import pytest
from small import make_letters_config, train_config

from mlm.base import errors, fields, files
from mlm.launch.sweep import worker
from mlm.training.run import hooks, vmapped_runs
from mlm.training.run.directory import RunDirectory

pytestmark = pytest.mark.slow

STEPS = 30
MEMBERS = {"a": {}, "b": {"seed": 1, "optim.learning_rate": 3e-3}, "c": {"seed": 2, "mask.rate": 0.4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("population")


def member(folder, way, name, **changes):
    every = {"train__checkpoint_every": 10, "train__eval_every": 20, "eval__batch_size": 20, "eval__max_examples": 20}
    cfg = make_letters_config(
        folder, f"{way}/{name}", mask__max_rate=0.4, train__steps=STEPS, train__batch_size=8, **every
    )
    return fields.override(cfg, MEMBERS[name] | {field.replace("__", "."): value for field, value in changes.items()})


@pytest.fixture(scope="module")
def alone(folder):
    for name in MEMBERS:
        train_config(member(folder, "alone", name))
    return folder / "alone"


def assert_same(ours: Path, theirs: Path):
    one, other = (
        {record["step"]: record for record in files.read_records(path / "metrics.jsonl") if "loss" in record}
        for path in (ours, theirs)
    )
    assert list(one) == list(other) == list(range(1, STEPS + 1))
    for step in one:
        assert one[step]["loss"] == pytest.approx(other[step]["loss"], rel=1e-5)
        assert one[step]["predictions"] == other[step]["predictions"]
    one, other = (json.loads((path / "result.json").read_text()) for path in (ours, theirs))
    assert one.keys() == other.keys()
    assert one["evaluation"] == pytest.approx(other["evaluation"], rel=1e-5)
    for name in ("fingerprint", "data", "flops", "tokens", "predictions"):
        assert one[name] == other[name]
    assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
    assert max(int(path.name) for path in (ours / "checkpoints").iterdir()) == STEPS


def test_each_member_is_its_single_run(folder, alone):
    outcomes = vmapped_runs.train_vmapped([member(folder, "together", name) for name in MEMBERS])
    for name in MEMBERS:
        assert outcomes[str(folder / "together" / name)]["steps"] == STEPS
        assert_same(folder / "together" / name, alone / name)


def test_members_stop_and_continue_from_where_each_is(folder, alone, monkeypatch):
    """Stopped together at step 17; one goes on alone; then all continue, the one ahead waiting for the others."""
    asked = hooks.Preemption.is_requested

    def request_stop_at(step):
        def now(self, checkpoints, number):
            if number == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return asked(self, checkpoints, number)

        monkeypatch.setattr(hooks.Preemption, "is_requested", now)

    configs = {name: member(folder, "stopped", name) for name in MEMBERS}
    for step, way in (
        (17, lambda: vmapped_runs.train_vmapped(list(configs.values()))),
        (24, lambda: train_config(configs["b"])),
    ):
        request_stop_at(step)
        with pytest.raises(errors.RunStopped):
            way()
    saved = {
        name: max(int(path.name) for path in (folder / "stopped" / name / "checkpoints").iterdir()) for name in MEMBERS
    }
    assert saved == {"a": 17, "b": 24, "c": 17}
    monkeypatch.undo()
    vmapped_runs.train_vmapped(list(configs.values()))
    for name in MEMBERS:
        assert_same(folder / "stopped" / name, alone / name)


@pytest.mark.exhaustive
def test_one_that_waits_goes_on_when_those_behind_have_diverged(folder, alone, monkeypatch):
    ahead, bad = member(folder, "behind", "a"), member(folder, "behind", "b", optim__learning_rate=1e30)
    monkeypatch.setattr(hooks.Preemption, "is_requested", lambda self, checkpoints, number: number == 20)
    with pytest.raises(errors.RunStopped):
        train_config(ahead)
    monkeypatch.undo()
    assert isinstance(vmapped_runs.train_vmapped([ahead, bad])[bad.workdir], hooks.DivergenceError)
    assert_same(folder / "behind" / "a", alone / "a")


def test_one_that_diverges_stops_no_other_and_one_that_is_taken_is_left_out(folder, alone):
    bad = member(folder, "mixed", "b", optim__learning_rate=1e30)
    elsewhere = member(folder, "mixed-elsewhere", "c")
    with RunDirectory(elsewhere.workdir).lock():
        outcomes = vmapped_runs.train_vmapped(
            [member(folder, "mixed", "a"), bad, member(folder, "mixed", "c"), elsewhere]
        )
    assert isinstance(outcomes.pop(bad.workdir), hooks.DivergenceError)
    assert list(outcomes) == [str(folder / "mixed" / name) for name in "ac"]
    for name in "ac":
        assert_same(folder / "mixed" / name, alone / name)
    assert not Path(bad.workdir, "result.json").exists() and not Path(elsewhere.workdir, "config.json").exists()


def test_where_one_spoils_the_others_each_gets_its_own_turn(folder):
    """A directory that belongs to another config fails all that are trained side by side, and then itself alone."""
    good, spoilt = (member(folder, "spoilt", name) for name in "ab")
    Path(spoilt.workdir).mkdir(parents=True)
    files.write_json_with_digest(Path(spoilt.workdir, "config.json"), fields.build_identity(good, {}))
    said = worker.train_points([good, spoilt])
    assert said[good.workdir] == "" and Path(good.workdir, "result.json").exists()
    assert said[spoilt.workdir].startswith("ConfigError") and "seed = 1, there 0" in said[spoilt.workdir]
