"""Hooks of a run: what reaches them, and when."""

import json

import jax
import numpy as np
import pytest
from small import SOURCED, batch, make_dataset_info, small_config, small_program

from mlm.base import config, fields
from mlm.base.types import BatchSums
from mlm.training.run import checkpoint, log, loop
from mlm.training.run.hooks import Hook, PlateauWarning, Profile
from mlm.training.step import program


class Record(Hook):
    """Notes each call; due every `every` steps."""

    def __init__(self, name, every, calls):
        self.name, self.every, self.calls = name, every, calls

    def is_due(self, step):
        return step % self.every == 0

    def on_metrics(self, step, metrics, pause):
        self.calls.append((self.name, "metrics", step, metrics, pause))

    def on_pause(self, step, state, due, stop):
        self.calls.append((self.name, "pause", step, state, due, stop))

    def get_totals(self):
        return {self.name: len(self.calls)}


def run_steps(last, stop_at=None, every=3):
    """The calls of two hooks, and those that asked for metrics and state, in steps 1 to `last`."""
    calls = []
    run = object.__new__(loop.TrainingRun)
    run.hooks, run.get_pending = [Record("a", every, calls), Record("b", 100, calls)], None

    def ask(what, step):
        calls.append((what, step))
        return f"{what} {step}"

    for step in range(1, last + 1):
        calls.append(("step", step))
        loop.run_hooks(
            run, step, lambda step=step: ask("metrics", step), lambda step=step: ask("state", step), step == stop_at
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
        ("a", "pause", 3, "state 3", True, False),
        ("b", "pause", 3, "state 3", False, False),
        ("step", 4),
    ]


def test_a_run_that_stops_pauses_where_no_hook_is_due():
    calls = run_steps(2, stop_at=2)
    assert calls[-2:] == [("a", "pause", 2, "state 2", False, True), ("b", "pause", 2, "state 2", False, True)]
    assert [call[1] for call in calls if call[0] == "metrics"] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "evaluated", "saved"),
    [
        ({}, [20], [20]),
        ({"train.eval_every": 8}, [8, 16, 20], [20]),
        ({"train.checkpoint_every": 7}, [20], [7, 14, 20]),
        ({"optim.schedule": "wsd", "optim.decay_fraction": 0.25}, [20], [16, 20]),
    ],
)
def test_when_hooks_are_due(changes, evaluated, saved):
    defaults = {"train.steps": 20, "train.eval_every": 0, "train.checkpoint_every": 100}
    cfg = fields.override(config.Config(), defaults | changes)
    for kind, expected in ((loop.Evaluate, evaluated), (checkpoint.Checkpoint, saved)):
        hook = object.__new__(kind)
        hook.cfg = cfg
        assert [step for step in range(1, 21) if hook.is_due(step)] == expected


@pytest.mark.parametrize(
    ("excess", "steps", "objective", "changes", "check", "warns"),
    [
        (0.0, 1000, "mlm", {}, 100, True),
        (0.0, 1000, "causal", {}, 100, True),
        (0.0, 1000, "mlm", {"optim__warmup_fraction": 0.2}, 200, True),
        (-0.2, 1000, "mlm", {}, 100, False),
        (0.0, 100, "mlm", {}, 10, False),
        (0.0, 1000, "causal", {"optim__label_smoothing": 0.1}, 100, False),
    ],
)
def test_a_loss_that_stays_at_the_unigram_s_is_named_once(excess, steps, objective, changes, check, warns):
    """The loss rises; its mean over the last 50 steps before the check is as far above the unigram's as `excess`."""
    cfg = small_config(**{"optim__warmup_fraction": 0.06} | changes, train__steps=steps, objective=objective)
    dataset, lines = make_dataset_info(cfg), []
    counts_V = np.r_[
        [1, 3] * (objective == "causal"), 5:50
    ]  # entries 0 to 4 are special; [UNK] and [SEP] are predicted
    share_V = counts_V / counts_V.sum()
    loss = -(share_V * np.log(share_V)).sum() + excess
    scores = small_program(cfg).objective
    hook = PlateauWarning(cfg, scores, dataset, lines.append, {})
    for step in range(1, steps + 1):
        if step in (80, 150):  # the run is killed here, and continued from its checkpoint
            totals = json.loads(json.dumps(hook.get_totals()))
            hook = PlateauWarning(cfg, scores, dataset, lines.append, totals)
        sums = BatchSums({objective: (loss + 0.01 * (step - check + 24.5)) * 7}, {objective: 7}, {})
        hook.on_metrics(step, {"sums": sums}, False)
    start = f"token frequencies alone give a loss of {loss - excess:.3f}"
    assert lines[0] == start and lines.count(start) == 1 + sum(step <= steps for step in (80, 150))
    lines = [line for line in lines if line != start]
    assert len(lines) == warns
    if warns:
        assert f"step {check}: the training loss, {loss:.2f}," in lines[0]
        advice = "another optim.learning_rate, a longer optim.warmup_fraction, model.init_std=0.08, or model.positions="
        assert lines[0].endswith(f"try {advice}rotary")
        assert hook.summarize()["plateau"]["step"] == check
        assert hook.summarize()["plateau"]["loss"] == pytest.approx(loss)
        assert hook.summarize().items() <= hook.get_totals().items()
    else:
        assert hook.summarize() == {}


@pytest.mark.parametrize("objective", ["mlm", "nsp", "causal", "hybrid", "diffusion", "denoising"])
def test_the_plateau_is_looked_for_in_what_the_steps_of_an_objective_count(objective):
    member = ("encoder_decoder", "gru") if objective in SOURCED else ("transformer", "")
    cfg = small_config(*member, objective=objective, optim__warmup_fraction=0.06, train__steps=1000)
    dataset = make_dataset_info(cfg)
    model, built = program.build_model_and_objective(cfg, dataset)
    hparams, key_B = program.make_train_hparams(cfg), jax.random.split(jax.random.key(0), 3)

    def compute_losses():
        params = {"model": model.init(key_B[0]), "objective": built.init(key_B[1], model)}
        return built.loss(params, model, batch(labels=True), key_B, hparams, train=True)

    losses = jax.eval_shape(compute_losses)
    hook, sums = PlateauWarning(cfg, built, dataset, print, {}), BatchSums(*jax.tree.map(lambda _: 1.0, tuple(losses)))
    for step in range(1, 101):
        hook.on_metrics(step, {"sums": sums}, False)
    assert hook.sums == [50, 50]


def test_some_steps_are_traced_and_the_run_says_where(tmp_path):
    cfg, lines = small_config(workdir=str(tmp_path), train__profile="3:2", train__steps=9), []
    hook = Profile(cfg.train.profile, tmp_path / "profile", lines.append)
    assert [step for step in range(1, 10) if hook.is_due(step)] == [2, 4]
    for step in range(1, 6):
        jax.jit(lambda x: x + 1)(step).block_until_ready()
        hook.on_pause(step, None, hook.is_due(step), False)
        assert (hook.folder is not None) == (step in (2, 3))
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert b"PjitFunction" in trace.read_bytes() and [str(tmp_path / "profile") in line for line in lines] == [True]


def test_the_time_left_counts_from_the_end_of_the_first_step(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: clock[0])
    bar = log.Progress(0, 11, "a")
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
