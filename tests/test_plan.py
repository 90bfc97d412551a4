"""A plan counts what the papers count by hand, sees the memory of the real step, and its remedies are remedies."""
import re

import jax
import pytest
from jax._src import xla_bridge
from small import small_config

from launch.cluster import kinds
from launch.sweep import plan
from mlm.base import config, fields
from mlm.objectives import masking
from mlm.train import recipe
from mlm.train.step import cost, program

pytestmark = pytest.mark.slow

RATES = (0.15, 0.15)


def member(**changes):
    return small_config(tokenizer__vocab_size=500, data__path="text.txt", train__batch_size=64, **changes)


def allocated() -> int:
    return sum(array.size for array in jax.live_arrays())


@pytest.mark.parametrize("rate", [0.15, 0.8])
def test_flops_of_base_are_six_n_d_and_attention(rate):
    cfg = recipe.resolve(fields.override(config.Config(), {
        "model.size": "base", "mask.rate": rate, "data.path": "text.txt", "tokenizer.vocab_size": 30_522,
        "train.steps": 1000, "train.batch_size": 16}))
    row = plan.point("base", cfg, "H200", 1, 0.5, (rate, rate))
    tokens, predictions = 1000 * 16 * 128, 1000 * 16 * masking.slots(rate, 128)
    by_hand = (6 * 12 * 12 * 768**2 * tokens + 12 * 12 * 128 * 768 * tokens
               + 6 * (768 + 30_522) * 768 * predictions)
    assert row["tokens"] == tokens and row["parameters"] == pytest.approx(110e6, rel=0.01)
    assert row["flops"] == pytest.approx(by_hand, rel=0.05)
    assert row["hours"] == pytest.approx(row["flops"] / (0.5 * 989e12) / 3600)


def test_flops_are_counted_where_a_plugin_counts_none(monkeypatch):
    """As GPUs' and TPUs' plugins do, which JAX asks by this function; what is lowered for the CPU is counted."""
    cfg = small_config(pack__length=16)
    expected = cost.per_step(cfg, 50)
    monkeypatch.setattr(xla_bridge, "using_pjrt_c_api", lambda backend=None: jax.config.jax_default_device is None)
    cost._lowered.cache_clear()
    jax.clear_caches()
    assert jax.jit(lambda x: x + 1).lower(1.0).cost_analysis() is None
    assert cost.per_step(cfg, 50) == expected > 0


def test_more_devices_take_less_time_and_memory_each():
    cfg, before = member(), allocated()
    rows = [plan.point("a", cfg, "H200", number, 0.5, RATES) for number in (1, 2)]
    assert rows[1]["hours"] == pytest.approx(rows[0]["hours"] / 2)
    state = 3 * 4 * rows[0]["parameters"]  # parameters and both moments, float32
    assert state < 1e9 * rows[1]["memory"] < 1e9 * rows[0]["memory"]
    assert plan.point("a", cfg, "v5e-8", 1, 0.5, RATES)["memory"] < rows[1]["memory"]
    assert "does not divide by 3 devices" in plan.point("a", cfg, "A100", 3, 0.5, RATES)["fits"]
    assert allocated() - before < rows[0]["parameters"]


def test_memory_between_two_rates_is_near_and_never_too_little():
    def memory(rate, rates):
        return plan.point("a", member(mask__rate=rate), "H200", 1, 0.5, rates)["memory"]

    low, middle, high = (memory(rate, (rate, rate)) for rate in (0.15, 0.5, 0.8))
    assert low < high and middle <= memory(0.5, (0.15, 0.8)) <= 1.05 * middle
    rows = plan.table({str(rate): member(mask__rate=rate) for rate in (0.15, 0.5, 0.8)}, "H200", 1, 0.5)
    assert [row.get("memory") for row in rows] == [low, pytest.approx(middle, rel=0.05), high, None]
    assert rows[-1]["flops"] == sum(row["flops"] for row in rows[:-1])


def test_what_does_not_fit_is_told_what_would_make_it_fit(monkeypatch):
    whole = 1e9 * plan.point("a", member(), "H200", 1, 0.5, RATES)["memory"]
    monkeypatch.setitem(kinds.KINDS, "small", kinds.Kind(1e12, 0.4 * whole / plan.USABLE, 1, ""))
    said = plan.point("a", member(), "small", 1, 0.5, RATES)["fits"]
    told = re.match(r"no: train.accumulate = (\d+) would .*, or --devices=(\d+)$", said)
    accumulate, devices = map(int, told.groups())
    assert plan.point("a", member(train__accumulate=accumulate), "small", 1, 0.5, RATES)["fits"] == "yes"
    assert plan.point("a", member(train__accumulate=accumulate // 2), "small", 1, 0.5, RATES)["fits"] != "yes"
    assert plan.point("a", member(), "small", devices, 0.5, RATES)["fits"] == "yes"
    monkeypatch.setitem(kinds.KINDS, "tiny", kinds.Kind(1e12, 1e4, 1, ""))
    for devices in (1, 64):  # 64: a row each from the first
        assert "nor with one row at a time" in plan.point("a", member(), "tiny", devices, 0.5, RATES)["fits"]
    monkeypatch.setitem(kinds.KINDS, "four", kinds.Kind(1e12, 0.1 * whole / plan.USABLE, 4, ""))
    devices = int(re.search(r"--devices=(\d+)$", plan.point("a", member(), "four", 1, 0.5, RATES)["fits"])[1])
    assert plan.point("a", member(), "four", devices, 0.5, RATES)["fits"] == "yes"


def test_runs_that_differ_in_traced_values_or_steps_share_what_is_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(cost, "memory", lambda cfg, entries: compiled.append(cfg) or 1)
    points = {str(seed): member(seed=seed, optim__learning_rate=0.1 * (seed + 1), train__steps=10 + seed)
              for seed in range(3)}
    plan.table(points, "H200", 1, 0.5)
    assert len(set(compiled)) == 1 and program.blank(compiled[0]) == compiled[0]
