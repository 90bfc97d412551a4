"""A plan counts what the papers count by hand, knows the memory of the real step, and its remedies are remedies."""

import contextlib
import functools
import math
import multiprocessing
import re
import signal
import time

import jax
import pytest
from small import small_config

from mlm.base import config, fields
from mlm.launch.cluster import accelerators
from mlm.launch.sweep import plan, subprocess_worker, target_compiler
from mlm.objectives import masking
from mlm.training.compilation import cost
from mlm.training.run import resolution
from mlm.training.step import program

pytestmark = pytest.mark.slow


BAG = {"family": "feedforward", "cell": "bag"}  # whose step is traced soonest


def member(**changes):
    return small_config(**{"tokenizer__vocab_size": 500, "data__path": "text.txt", "train__batch_size": 64} | changes)


def point(cfg, kind="H200", number=1, exact=False, **options) -> dict:
    return plan.plan_point("a", cfg, plan.PlanOptions(accelerators.ACCELERATORS[kind], number, 0.5, exact, **options))


def allocated() -> int:
    return sum(array.size for array in jax.live_arrays())


@pytest.fixture
def uncounted(monkeypatch):
    """Plans of memory alone: a step's FLOPs are a number, and nothing is traced for them."""
    monkeypatch.setattr(cost, "count_step_flops", lambda cfg, vocab_size: 1e9)


@pytest.mark.exhaustive(but=("0.15",))
@pytest.mark.parametrize("rate", [0.15, 0.8])
def test_flops_of_base_are_six_n_d_and_attention(rate):
    cfg = resolution.resolve(
        fields.override(
            config.Config(),
            {
                "model.size": "base",
                "mask.rate": rate,
                "data.path": "text.txt",
                "tokenizer.vocab_size": 30_522,
                "train.steps": 1000,
                "train.batch_size": 16,
            },
        )
    )
    row = point(cfg)
    tokens, predictions = 1000 * 16 * 128, 1000 * 16 * masking.count_slots(rate, 128)
    by_hand = 6 * 12 * 12 * 768**2 * tokens + 12 * 12 * 128 * 768 * tokens + 6 * (768 + 30_522) * 768 * predictions
    assert row["tokens"] == tokens and row["parameters"] == pytest.approx(110e6, rel=0.01)
    assert row["flops"] == pytest.approx(by_hand, rel=0.05)
    assert row["hours"] == pytest.approx(row["flops"] / (0.5 * 989e12) / 3600)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("uncounted")
def test_more_devices_take_less_time_and_memory_each():
    cfg, before = member(**BAG), allocated()
    rows = [point(cfg, "H200", number) for number in (1, 2)]
    assert rows[1]["hours"] == pytest.approx(rows[0]["hours"] / 2)
    state = 3 * 4 * rows[0]["parameters"]  # parameters and both moments, float32
    assert state < 1e9 * rows[1]["memory"] < 1e9 * rows[0]["memory"]
    assert point(cfg, "v5e-8", 1)["memory"] < rows[1]["memory"]
    assert "is not divisible by 3 devices" in point(cfg, "A100", 3)["verdict"]
    assert allocated() - before < rows[0]["parameters"]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(
    "member_of",
    [
        {},
        {"train__grad_accum_steps": 4},
        {"mask__rate": 0.8},
        {"family": "feedforward", "cell": "bag"},
        {"family": "rnn", "cell": "lstm"},
    ],
    ids=["transformer", "parts", "rate", "bag", "lstm"],
)
def test_the_estimate_of_memory_is_near_what_the_compiler_plans(member_of):
    """Of a step whose rows take more than its state, and whose vocabulary is large."""
    cfg = small_config(
        **{
            "tokenizer__vocab_size": 8000,
            "data__path": "text.txt",
            "train__batch_size": 64,
            "pack__seq_len": 128,
            "model__max_positions": 128,
            "model__width": 64,
            "model__mlp_dim": 256,
            "model__num_layers": 2,
        }
        | member_of
    )
    ours, theirs = point(cfg)["memory"], point(cfg, exact=True)["memory"]
    assert theirs / plan.ESTIMATE_ERROR <= ours <= theirs * plan.ESTIMATE_ERROR


def test_a_plan_compiles_nothing_and_a_point_that_cannot_be_planned_hides_no_other(monkeypatch):
    monkeypatch.setattr(cost, "compile_step", None)
    points = {"a": member(**BAG, seed=1), "bad": member(**BAG), "b": member(**BAG, train__steps=7)}
    monkeypatch.setattr(
        plan, "find_vocab_size", lambda cfg: plan.errors.require(cfg != points["bad"], "x", 1, "2") or 500
    )
    lines = plan.format_plan(points, plan.PlanOptions(accelerators.ACCELERATORS["H200"]))
    assert next(lines).split()[1] == "point" and set(next(lines)) == set("|-")
    said = list(lines)
    assert [line.split()[1:3] for line in said[:3]] == [["bad", "|"], ["2", "points"], ["3", "points"]]
    assert "cannot be planned: x = 1: expected 2" in said[0] and "< 1 minute" in said[1] and " fit;" in said[1]


def test_on_a_terminal_seeds_are_one_row_and_no_line_is_longer(monkeypatch):
    names = [f"window-{size}-seed{seed}-0d92e{seed}" for size in ("micro", "tiny") for seed in range(3)]
    cells = {"tokens": 4.1e6, "flops": 2.86e12, "memory_plain": 0.1, "hours": 0.05, "verdict": "fits (22.7 GB free)"}
    rows = [cells | {"point": name, "parameters": 1000 * len(name)} for name in names]
    monkeypatch.setattr(plan, "plan_points", lambda *_: iter([*rows, {"point": "6 points", "hours": 0.3}]))
    options = plan.PlanOptions(accelerators.ACCELERATORS["H200"])
    for width in (80, 100, 200):
        lines = list(plan.format_plan(dict.fromkeys(names), options, width))
        assert max(map(len, lines)) <= width
        shown = ["window-micro (each of 3 seeds)", "window-tiny (each of 3 seeds)", "6 points"]
        assert [line.partition("  ")[0] for line in lines[2:5]] == shown and "22.7 GB" in lines[2]
        assert ("FLOPs" in lines[0]) == (width == 200) != any("training FLOPs" in line for line in lines[5:])


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(
    ("family", "attention", "shown"),
    [("transformer", "fused_attention", "fused_attention"), ("transformer", "", "plain"), ("feedforward", "", "")],
)
def test_a_compiled_plan_names_attention_and_traffic(family, attention, shown):
    """The configured layers, unrolled or not, are what the compiler gets."""
    unrolled = []

    def compile_mesh(cfg, vocab_size):
        unrolled.append(cfg.model.scan_unroll)
        return cost.StepCost(1e9, {}, arguments=1e9, traffic=33.5e9, attention=attention)

    kind = accelerators.ACCELERATORS["H100"]
    target = target_compiler.make_target("H100", kind, 1)
    cfg = member(family=family, cell="bag" if family == "feedforward" else "", model__scan_unroll=2)
    row = point(cfg, "H100", exact=True, target=target, compile_mesh=compile_mesh, as_configured=True)
    assert (row["attention"], row["traffic"], set(unrolled)) == (shown, 33.5, {2})
    assert row["at_least"].startswith("9.99 ms")  # of 33.5 GB


@pytest.mark.exhaustive
@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("exact", [False, True], ids=["estimated", "compiled"])
def test_what_does_not_fit_is_told_what_would_make_it_fit(monkeypatch, exact):
    point = functools.partial(globals()["point"], exact=exact)
    whole = 1e9 * point(member(**BAG), "H200", 1)["memory"]
    monkeypatch.setitem(
        accelerators.ACCELERATORS, "small", accelerators.Accelerator(1e12, 0.4 * whole / plan.USABLE_MEMORY, 1, "")
    )
    said = point(member(**BAG), "small", 1)["verdict"]
    told = re.match(r"fits with train.grad_accum_steps = (\d+) .*, or --count=(\d+)$", said)
    accumulate, devices = map(int, told.groups())
    assert point(member(**BAG, train__grad_accum_steps=accumulate), "small", 1)["verdict"].startswith("fits (")
    assert (
        point(member(**BAG, train__grad_accum_steps=accumulate // 2), "small", 1)["verdict"].startswith("fits (")
        is False
    )
    assert point(member(**BAG), "small", devices)["verdict"].startswith("fits (")
    if exact:
        return  # the rest is told by the same lines, a minute of compiling later
    monkeypatch.setitem(accelerators.ACCELERATORS, "tiny", accelerators.Accelerator(1e12, 1e4, 1, ""))
    for devices in (1, 64):  # 64: a row each from the first
        assert "nor with one example at a time" in point(member(**BAG), "tiny", devices)["verdict"]
    monkeypatch.setitem(
        accelerators.ACCELERATORS, "four", accelerators.Accelerator(1e12, 0.15 * whole / plan.USABLE_MEMORY, 4, "")
    )
    devices = int(re.search(r"--count=(\d+)$", point(member(**BAG), "four", 1)["verdict"])[1])
    assert point(member(**BAG), "four", devices)["verdict"].startswith("fits (")


def test_runs_that_differ_in_traced_values_or_steps_share_what_is_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(cost, "compile_step", lambda cfg, *_, **__: compiled.append(cfg) or cost.StepCost(1, {}))
    points = {
        str(seed): member(**BAG, seed=seed, optim__learning_rate=0.1 * (seed + 1), train__steps=10 + seed)
        for seed in range(3)
    }
    rows = list(plan.plan_points(points, plan.PlanOptions(accelerators.ACCELERATORS["H200"], exact=True)))
    assert (
        len(set(compiled)) == 2 and program.make_static_config(compiled[0]) == compiled[0]
    )  # with and without model.remat
    assert rows[-1]["flops"] == sum(row["flops"] for row in rows[:-1])


def test_another_process_answers_one_after_the_other_and_ends_with_its_reader():
    answers = subprocess_worker.map_in_subprocess(math.sqrt, [4, 9, -1])
    assert [next(answers), next(answers)] == [2, 3]
    with pytest.raises(subprocess_worker.WorkerEnded, match="ValueError"):
        next(answers)
    answers = subprocess_worker.map_in_subprocess(time.sleep, [0, 600])
    next(answers)
    (child,) = multiprocessing.active_children()
    answers.close()
    assert not child.is_alive() and multiprocessing.active_children() == []
    with (
        contextlib.closing(subprocess_worker.SubprocessWorker()) as process,
        pytest.raises(subprocess_worker.WorkerEnded, match="longer than 1 s"),
    ):
        process.call(time.sleep, 600, timeout=1)
    with pytest.raises(subprocess_worker.WorkerEnded, match="was ended by SIGKILL"):
        list(subprocess_worker.map_in_subprocess(signal.raise_signal, [signal.SIGKILL]))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("uncounted")
def test_split_or_computed_again_a_step_takes_less_and_what_would_fit_is_said(monkeypatch):
    cfg = member(model__num_layers=8, model__width=64, model__mlp_dim=256)
    row = point(cfg, "H200", 4)
    one_of_both = row["memory_fsdp"], row["memory_remat"]
    assert row["memory_fsdp_remat"] < min(one_of_both) <= max(one_of_both) < row["memory_plain"]
    assert row["memory"] == row["memory_plain"] and "memory_fsdp" not in point(cfg, "H200", 1)
    own = point(fields.override(cfg, {"parallel.mode": "fsdp"}), "H200", 4, as_configured=True)
    assert own["memory"] == own["memory_fsdp"] == row["memory_fsdp"]
    assert not plan.STEP_VARIANTS.keys() - {"memory_fsdp"} & own.keys()
    room = 1.01 * plan.ESTIMATE_ERROR * 1e9 * row["memory_fsdp_remat"] / plan.USABLE_MEMORY
    monkeypatch.setitem(accelerators.ACCELERATORS, "between", accelerators.Accelerator(1e12, room, 1, ""))
    alone = point(cfg, "between", 4)
    assert re.match(r"fits with parallel\.mode=fsdp and model\.remat \([\d.]+ GB\)", alone["verdict"])
    both = point(fields.override(cfg, {"parallel.mode": "fsdp", "model.remat": True}), "between", 4)
    assert both["verdict"].startswith("fits (") and both["memory"] == row["memory_fsdp_remat"]
    assert both["hours"] > alone["hours"]


@pytest.mark.exhaustive
def test_a_policy_of_rematerialization_saves_what_it_says():
    """Of two layers, and of the heads, which are no part of one."""
    sizes = {"pack__seq_len": 40, "model__max_positions": 40, "train__batch_size": 4, "model__num_layers": 2}
    cfg = program.make_static_config(member(**sizes, model__attention_dropout=0.1, model__dropout=0.1))

    def residuals(**changes):
        changes = {f"model.{name}": value for name, value in changes.items()}
        return plan.list_residual_bytes(fields.override(cfg, changes), 500, 1)

    scores = 4 * 2 * cfg.model.num_heads * 4 * 40 * 40  # bytes of both layers, float32
    plain, everything = residuals(), residuals(remat=True)
    dots, attention = (residuals(remat=True, remat_policy=name) for name in ("dots", "attention"))
    assert scores in plain and not {scores} & {*everything, *dots, *attention}
    assert sum(everything) < sum(dots) < sum(plain) and sum(everything) < sum(attention) < sum(plain)
    hidden = 4 * 2 * cfg.model.mlp_dim * 4 * 40
    assert hidden in dots and hidden in attention and hidden not in everything
