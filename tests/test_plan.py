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
from jax._src import xla_bridge
from small import small_config

from mlm.base import config, fields
from mlm.cli import sweep, sweep_plan
from mlm.launch.cluster import accelerators
from mlm.launch.sweep import local_timing, plan, subprocess_worker
from mlm.objectives import masking
from mlm.training.compilation import cost
from mlm.training.run import resolution
from mlm.training.step import program

pytestmark = pytest.mark.slow


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


def test_flops_are_counted_where_a_plugin_counts_none(monkeypatch):
    """As GPUs' and TPUs' plugins do, which JAX asks by this function; what is lowered for the CPU is counted."""
    cfg = small_config(pack__seq_len=16)
    expected = cost.count_step_flops(cfg, 50)
    monkeypatch.setattr(xla_bridge, "using_pjrt_c_api", lambda backend=None: jax.config.jax_default_device is None)
    cost._count_lowered_flops.cache_clear()
    jax.clear_caches()
    assert jax.jit(lambda x: x + 1).lower(1.0).cost_analysis() is None
    assert cost.count_step_flops(cfg, 50) == expected > 0


def test_more_devices_take_less_time_and_memory_each():
    cfg, before = member(), allocated()
    rows = [point(cfg, "H200", number) for number in (1, 2)]
    assert rows[1]["hours"] == pytest.approx(rows[0]["hours"] / 2)
    state = 3 * 4 * rows[0]["parameters"]  # parameters and both moments, float32
    assert state < 1e9 * rows[1]["memory"] < 1e9 * rows[0]["memory"]
    assert point(cfg, "v5e-8", 1)["memory"] < rows[1]["memory"]
    assert "is not divisible by 3 devices" in point(cfg, "A100", 3)["verdict"]
    assert allocated() - before < rows[0]["parameters"]


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
            "model__num_layers": 4,
        }
        | member_of
    )
    ours, theirs = point(cfg)["memory"], point(cfg, exact=True)["memory"]
    assert theirs / plan.ESTIMATE_ERROR <= ours <= theirs * plan.ESTIMATE_ERROR


@pytest.mark.usefixtures("uncounted")
def test_near_the_edge_only_the_compiler_tells(monkeypatch):
    needs = 1e9 * point(member())["memory"] / plan.USABLE_MEMORY
    for share, fits in ((1.3, "fits"), (1.1, "perhaps: --compile compiles it to know"), (0.9, "perhaps")):
        monkeypatch.setitem(accelerators.ACCELERATORS, "near", accelerators.Accelerator(1e12, share * needs, 1, ""))
        assert point(member(), "near")["verdict"].startswith(fits)
        assert point(member(), "near", exact=True)["verdict"].split(" ")[0] in ("fits", "does")


def test_a_plan_compiles_nothing_and_a_point_that_cannot_be_planned_hides_no_other(monkeypatch):
    monkeypatch.setattr(cost, "measure_step_memory", None)
    points = {"a": member(seed=1), "bad": member(), "b": member(train__steps=7)}
    monkeypatch.setattr(
        plan, "find_vocab_size", lambda cfg: plan.errors.require(cfg != points["bad"], "x", 1, "2") or 500
    )
    lines = plan.format_plan(points, plan.PlanOptions(accelerators.ACCELERATORS["H200"]))
    assert next(lines).split()[1] == "point" and set(next(lines)) == set("|-")
    said = list(lines)
    assert [line.split()[1] for line in said[:4]] == ["a", "bad", "b", "3"]
    assert "cannot be planned: x = 1: expected 2" in said[1] and " fits (" in said[2]


@pytest.mark.parametrize(("speed", "is_small"), [(1e15, True), (1e6, False)])
def test_a_plan_says_where_an_estimate_is_no_time(monkeypatch, speed, is_small):
    monkeypatch.setitem(accelerators.ACCELERATORS, "any", accelerators.Accelerator(speed, 1e12, 1, ""))
    points = {"a": member(), "b": member(seed=1)}
    _, _, *rows, last = plan.format_plan(points, plan.PlanOptions(accelerators.ACCELERATORS["any"]))
    assert all(("< 1 minute" in row) == is_small for row in rows)
    assert last.startswith("\n2 of 2 points would make a step in less than 1 ms") == is_small


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("exact", [False, True], ids=["estimated", "compiled"])
def test_what_does_not_fit_is_told_what_would_make_it_fit(monkeypatch, exact):
    point = functools.partial(globals()["point"], exact=exact)
    whole = 1e9 * point(member(), "H200", 1)["memory"]
    monkeypatch.setitem(
        accelerators.ACCELERATORS, "small", accelerators.Accelerator(1e12, 0.4 * whole / plan.USABLE_MEMORY, 1, "")
    )
    said = point(member(), "small", 1)["verdict"]
    told = re.match(r"fits with train.grad_accum_steps = (\d+) .*, or --count=(\d+)$", said)
    accumulate, devices = map(int, told.groups())
    assert point(member(train__grad_accum_steps=accumulate), "small", 1)["verdict"].startswith("fits (")
    assert point(member(train__grad_accum_steps=accumulate // 2), "small", 1)["verdict"].startswith("fits (") is False
    assert point(member(), "small", devices)["verdict"].startswith("fits (")
    if exact:
        return  # the rest is told by the same lines, a minute of compiling later
    monkeypatch.setitem(accelerators.ACCELERATORS, "tiny", accelerators.Accelerator(1e12, 1e4, 1, ""))
    for devices in (1, 64):  # 64: a row each from the first
        assert "nor with one example at a time" in point(member(), "tiny", devices)["verdict"]
    monkeypatch.setitem(
        accelerators.ACCELERATORS, "four", accelerators.Accelerator(1e12, 0.15 * whole / plan.USABLE_MEMORY, 4, "")
    )
    devices = int(re.search(r"--count=(\d+)$", point(member(), "four", 1)["verdict"])[1])
    assert point(member(), "four", devices)["verdict"].startswith("fits (")


def test_runs_that_differ_in_traced_values_or_steps_share_what_is_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(cost, "measure_step_memory", lambda cfg, entries: compiled.append(cfg) or 1)
    points = {
        str(seed): member(seed=seed, optim__learning_rate=0.1 * (seed + 1), train__steps=10 + seed) for seed in range(3)
    }
    rows = list(plan.plan_points(points, plan.PlanOptions(accelerators.ACCELERATORS["H200"], exact=True)))
    assert (
        len(set(compiled)) == 2 and program.make_static_config(compiled[0]) == compiled[0]
    )  # with and without model.remat
    assert rows[-1]["flops"] == sum(row["flops"] for row in rows[:-1])


def test_this_machine_is_measured_by_steps_of_each_program_and_of_large_batches_by_some_rows(monkeypatch):
    """In this process: what is measured is what another would."""
    measured, real = [], local_timing.subprocess_worker.SubprocessWorker

    class Process:
        def call(self, function, item, timeout=None):
            if function is local_timing.measure_machine:
                return local_timing.MachineSpeed("a machine", 2, 1e9, {"float32": 1e9})
            measured.append(item)
            return 0.25

    monkeypatch.setattr(local_timing.subprocess_worker, "SubprocessWorker", Process)
    found = local_timing.LocalMachine({"float32"}, 0.5)
    small, large = member(train__batch_size=8), member(train__batch_size=4096, train__grad_accum_steps=2)
    entries = 500
    assert found.measure_step(small, entries, 1e8) == (0.25, "0.25 s")  # it would take 0.1 s
    again = fields.override(small, {"seed": 5, "train.steps": 77, "workdir": "elsewhere"})
    assert found.measure_step(again, entries, 1e8) == (0.25, "0.25 s") and len(measured) == 1
    assert found.measure_step(large, entries, 1e11) == (64, "64 s, from 16 of 4096 examples")  # else 250 s
    monkeypatch.setattr(local_timing.subprocess_worker, "SubprocessWorker", real)
    monkeypatch.setattr(local_timing, "PROGRAM_TIMEOUT", 0)
    found.worker = real()
    with contextlib.closing(found):
        assert (
            found.measure_step(member(model__num_layers=3), entries, 1e8)[1]
            == "0.1 s from its FLOPs: it took longer than 0 s"
        )
    assert local_timing.time_step((program.make_static_config(member(train__batch_size=8)), entries, 4)) > 0
    assert local_timing.measure_peak_flops("float32") > 1e8


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


@pytest.mark.usefixtures("uncounted")
def test_split_or_computed_again_a_step_takes_less_and_what_would_fit_is_said(monkeypatch):
    cfg = member(model__num_layers=8, model__width=64, model__mlp_dim=256)
    row = point(cfg, "H200", 4)
    one_of_both = row["memory_fsdp"], row["memory_remat"]
    assert row["memory_fsdp_remat"] < min(one_of_both) <= max(one_of_both) < row["memory_plain"]
    assert row["memory"] == row["memory_plain"] and "memory_fsdp" not in point(cfg, "H200", 1)
    own = point(fields.override(cfg, {"parallel.mode": "fsdp"}), "H200", 4, as_configured=True)
    assert (
        own["memory"] == own["memory_fsdp"] == row["memory_fsdp"]
        and not plan.STEP_VARIANTS.keys() - {"memory_fsdp"} & own.keys()
    )
    room = 1.01 * plan.ESTIMATE_ERROR * 1e9 * row["memory_fsdp_remat"] / plan.USABLE_MEMORY
    monkeypatch.setitem(accelerators.ACCELERATORS, "between", accelerators.Accelerator(1e12, room, 1, ""))
    alone = point(cfg, "between", 4)
    assert re.match(r"fits with parallel\.mode=fsdp and model\.remat \([\d.]+ GB\)", alone["verdict"])
    both = point(fields.override(cfg, {"parallel.mode": "fsdp", "model.remat": True}), "between", 4)
    assert (
        both["verdict"].startswith("fits (")
        and both["memory"] == row["memory_fsdp_remat"]
        and both["hours"] > alone["hours"]
    )


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


def test_several_devices_are_compiled_for_in_a_process_that_simulates_them(monkeypatch):
    asked = []

    class Process:
        def __init__(self, platform):
            assert platform == "cpu"

        def call(self, function, item):
            asked.append((function, item))
            if function is plan.compile_step:
                cfg, entries = item
                assert cfg.train.batch_size == 64 and entries == 500
                size = 2e9 if cfg.parallel.mode == "fsdp" else 5e9
                return cost.StepCost(size / (1 + cfg.model.remat), {"all-gather": 3 * 10**8, "all-to-all": 0})

        def close(self):
            asked.append("closed")

    monkeypatch.setattr(plan.subprocess_worker, "SubprocessWorker", Process)
    lines = list(
        plan.format_plan(
            {"a": member(parallel__mode="fsdp"), "b": member(parallel__mode="fsdp", seed=3)},
            plan.PlanOptions(accelerators.ACCELERATORS["v5e-8"], 2, exact=True),
        )
    )
    assert asked[0] == (plan.set_device_count, 16) and asked[-1] == "closed" and len(asked) == 2 + 4
    assert re.search(r"\| +5\.0 \| +2\.5 \| +2\.0 \| +1\.0 \|.*\| all-gather 0\.3 +\| fits", lines[2])
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    plan.set_device_count(16)
    assert plan.os.environ["XLA_FLAGS"].split()[-1] == "--xla_force_host_platform_device_count=16"


@pytest.mark.parametrize(
    ("size", "vocab", "above"), [("micro", 1000, 0.12), ("tiny", 1000, 0.05), ("mini", 30_522, 0.03)]
)
def test_the_count_is_above_the_usual_estimate_by_as_much_as_it_says(size, vocab, above):
    changes = {"data.path": "t.txt", "tokenizer.vocab_size": vocab, "model.size": size, "train.batch_size": 8}
    cfg = resolution.resolve(fields.override(config.Config(), changes | {"pack.seq_len": 128}))
    width, layers, tokens = cfg.model.width, cfg.model.num_layers, 8 * 128
    weights = layers * (4 * width**2 + 2 * width * cfg.model.mlp_dim)
    predictions = 8 * masking.count_slots(cfg.mask.rate, 128)
    estimate = 6 * weights * tokens + 12 * layers * 128 * width * tokens + 6 * (width + vocab) * width * predictions
    assert 1 < cost.count_step_flops(cfg, vocab) / estimate < 1 + above


def test_a_plan_says_first_which_device_it_assumes_unless_one_is_named(capsys):
    for flags, first in (
        (["--count=2"], "This plan is for 2 x H200; --accelerator=local measures"),
        (["--accelerator=A100"], "|"),
    ):
        sweep_plan.print_plan([], sweep.make_parser("plan").parse_words(["a.py", *flags]))
        assert capsys.readouterr().out.startswith(first)
