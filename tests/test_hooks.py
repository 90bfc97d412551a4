"""Hooks of a run: what reaches them, and when."""

import json
import types

import numpy as np
import pytest
from small import make_dataset_info, small_config, small_program

from mlm.base import config, fields
from mlm.base.types import BatchSums
from mlm.training.run import checkpoint, evaluations, plateau, progress, training_run
from mlm.training.run.hook import Hook


class Record(Hook):
    """Notes each call; due every `every` steps."""

    def __init__(self, name, every, calls):
        self.name, self.every, self.calls = name, every, calls

    def is_due(self, step):
        return step % self.every == 0

    def on_metrics(self, step, metrics, pause):
        self.calls.append((self.name, "metrics", step, metrics, pause))

    def on_pause(self, step, state, stop):
        self.calls.append((self.name, "pause", step, state, stop))


def run_steps(last, stop_at=None, every=3):
    """The calls of two hooks, and those that asked for metrics and state, in steps 1 to `last`."""
    calls = []
    run = object.__new__(training_run.TrainingRun)
    run.hooks, run.get_pending = [Record("a", every, calls), Record("b", 100, calls)], None

    def ask(what, step):
        calls.append((what, step))
        return f"{what} {step}"

    for step in range(1, last + 1):
        calls.append(("step", step))
        run.run_hooks(
            step, lambda step=step: ask("metrics", step), lambda step=step: ask("state", step), step == stop_at
        )
    return calls


def test_metrics_come_one_step_late_and_the_state_at_a_pause():
    assert run_steps(4) == [
        ("step", 1),
        ("step", 2),
        ("metrics", 1),
        ("a", "metrics", 1, "metrics 1", False),
        ("b", "metrics", 1, "metrics 1", False),
        ("step", 3),
        ("metrics", 2),
        ("a", "metrics", 2, "metrics 2", False),
        ("b", "metrics", 2, "metrics 2", False),
        ("metrics", 3),
        ("a", "metrics", 3, "metrics 3", True),
        ("b", "metrics", 3, "metrics 3", True),
        ("state", 3),
        ("a", "pause", 3, "state 3", False),
        ("b", "pause", 3, "state 3", False),
        ("step", 4),
    ]


def test_a_run_that_stops_pauses_where_no_hook_is_due():
    calls = run_steps(2, stop_at=2)
    assert calls[-2:] == [("a", "pause", 2, "state 2", True), ("b", "pause", 2, "state 2", True)]
    assert [call[1] for call in calls if call[0] == "metrics"] == [1, 2]


def test_a_hook_that_raises_leaves_no_metrics_behind():
    calls = []
    run = object.__new__(training_run.TrainingRun)
    run.hooks, run.get_pending = [Record("a", 1, calls)], None
    run.hooks[0].on_metrics = lambda *_: (_ for _ in ()).throw(ValueError)
    with pytest.raises(ValueError):
        run.run_hooks(1, lambda: {}, lambda: None, False)
    assert run.get_pending is None


@pytest.mark.parametrize(
    ("changes", "evaluated", "saved"),
    [
        ({}, [20], [20]),
        ({"train.eval_every": 8}, [8, 16, 20], [20]),
        ({"train.checkpoint_every": 7}, [20], [7, 14, 20]),
        (
            {"train.checkpoint_every": 50, "train.spike_threshold": 2.0, "train.spike_rewind_steps": 6},
            [20],
            [6, 12, 18, 20],
        ),
        ({"optim.schedule": "wsd", "optim.decay_fraction": 0.25}, [20], [16, 20]),
    ],
)
def test_when_hooks_are_due(changes, evaluated, saved):
    defaults = {"train.steps": 20, "train.eval_every": 0, "train.checkpoint_every": 100}
    cfg = fields.override(config.Config(), defaults | changes)
    for kind, expected in ((evaluations.Evaluate, evaluated), (checkpoint.Checkpoint, saved)):
        hook = object.__new__(kind)
        hook.cfg = cfg
        assert [step for step in range(1, 21) if hook.is_due(step)] == expected


@pytest.mark.parametrize(("excess", "steps", "warns"), [(0.0, 1000, True), (-0.2, 1000, False), (0.0, 100, False)])
def test_a_loss_that_stays_at_the_unigram_s_is_named_once(excess, steps, warns):
    cfg = small_config(train__steps=steps)
    dataset, lines = make_dataset_info(cfg), []
    share_V = np.arange(5, 50) / np.arange(5, 50).sum()  # entries 0 to 4 are special
    loss = -(share_V * np.log(share_V)).sum() + excess
    hook = plateau.PlateauWarning(
        cfg, small_program(cfg).objective, dataset, types.SimpleNamespace(write_message=lines.append), {}
    )
    for step in range(1, steps + 1):
        if step in (80, 150):  # the run is killed here, and continued from its checkpoint
            hook = plateau.PlateauWarning(
                cfg, small_program(cfg).objective, dataset, hook.log, json.loads(json.dumps(hook.get_totals()))
            )
        sums = BatchSums({"mlm": (loss + 0.01 * (step - 75.5)) * 7}, {"mlm": 7}, {})
        hook.on_metrics(step, {"sums": sums}, False)
    assert len(lines) == warns
    if warns:
        assert f"step {steps // 10}: the training loss, {loss:.2f}," in lines[0]
        assert hook.summarize()["plateau"]["step"] == steps // 10
        assert hook.summarize()["plateau"]["loss"] == pytest.approx(loss)
        assert hook.summarize().items() <= hook.get_totals().items()
    else:
        assert hook.summarize() == {}


def test_the_time_left_counts_from_the_end_of_the_first_step(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    bar = progress.Progress(0, 11, "a")
    for step, seconds in ((1, 60), (2, 61), (3, 62)):  # the first step compiles for a minute
        clock[0] = seconds
        bar.advance(step)
        if bar.is_stale():
            bar.log({"loss": 1.0})
    clock[0], bar.last_shown = 100, 60
    assert bar.is_stale()
    clock[0] = 62
    bar.show("x")
    assert capsys.readouterr().out.splitlines() == ["a: step 1/11, loss 1.000", "a: step 3/11, x, 0:08 left"]
