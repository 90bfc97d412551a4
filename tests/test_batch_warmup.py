"""Smaller batches at the start, and losses by token or by example: a step is that of the examples it uses."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import PLAIN, make_dataset_info, small_config, state_of
from test_step import uneven

from mlm.base import batch_warmup, config, fields, files, phases
from mlm.base.types import BatchSums
from mlm.data.rows import loader, pack
from mlm.launch.cluster import accelerators
from mlm.launch.sweep import budget, plan
from mlm.objectives import masking
from mlm.training.compilation import cost
from mlm.training.run import directory, extension, log
from mlm.training.step import program, sharding, update

PARTS = 4
WARMUP = {
    "train__steps": 8,
    "train__batch_size": 8,
    "train__grad_accum_steps": PARTS,
    "train__batch_warmup_fraction": 0.5,
    "train__initial_batch_fraction": 0.25,
}
NO_WARMUP = {"train__batch_warmup_fraction": 0.0}
NUM_USED = {0: 1, 2: 2, 3: 3, 4: 4, 7: 4}  # microbatches, by step: a quarter at first, all from half of the steps on
TINY = {"family": "feedforward", "cell": "bag", "model__num_layers": 1, "mask__rate": 0.3, "optim__clip_norm": 0.0}


def test_batches_grow_by_whole_microbatches():
    cfg = small_config(**WARMUP)
    assert {step: int(batch_warmup.count_microbatches(cfg.train, step)) for step in NUM_USED} == NUM_USED
    counts = [int(batch_warmup.count_microbatches(cfg.train, step)) for step in range(8)]
    assert counts == [1, 1, 2, 3, 4, 4, 4, 4]
    assert batch_warmup.compute_mean_fraction(cfg.train) == sum(counts) / 32
    assert batch_warmup.compute_mean_fraction(config.Train()) == 1


@functools.cache
def brute_force(cfg):
    """A compiled (params, used_B, step) -> the loss of the examples used, by its formula, with its sums and gradient."""
    built = program.build_program(cfg, make_dataset_info(cfg))
    rows = uneven(8)
    hparams = program.make_train_hparams(cfg)

    def loss_fn(params, used_B, step):
        keys = update.make_example_keys(hparams.seed, step, rows.index_B)
        parts = [
            built.objective.loss(params, built.model, rows, keys, hparams, train=True, mask_index=mask)
            for mask in range(built.objective.masks_per_example)
        ]
        nats_B, weight_B, tokens_B = (
            sum(map(get, parts)) * used_B
            for get in (lambda x: x.loss_B["mlm"], lambda x: x.weight_B["mlm"], lambda x: x.sums_B["tokens"])
        )
        losses = {
            "token": nats_B.sum() / weight_B.sum(),
            "sequence": (nats_B / jnp.maximum(weight_B, 1)).sum() / (weight_B > 0).sum(),
        }
        return losses[cfg.optim.loss_reduction], (losses, (nats_B.sum(), weight_B.sum(), tokens_B.sum()))

    return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))


@pytest.mark.exhaustive(but=("sequence",))
@pytest.mark.parametrize("reduction", ["token", "sequence"])
def test_a_step_is_that_of_the_examples_it_uses_on_any_number_of_devices(reduction):
    """With the mean by example also under two masks of each, of which some have no token."""
    two_masks = {"mask__predict_rate": 0.5} if reduction == "sequence" else {}
    cfg = small_config(**TINY, **WARMUP, **PLAIN, **two_masks, optim__loss_reduction=reduction)
    built = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:2])
    hparams = program.make_train_hparams(cfg)
    state = state_of(built.init_state.eval_shape(hparams))
    for step, num_used in NUM_USED.items():
        used_B = ((np.arange(8) - step) % PARTS < num_used).astype(np.float32)
        (loss, (losses, wanted)), grads = brute_force(cfg)(state.params, used_B, step)
        found, metrics = built.partitioner.train_step(
            built.partitioner.put_state(state._replace(step=np.int32(step))),
            built.partitioner.put_batch(uneven(8)),
            hparams,
        )
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        sums = metrics["sums"]
        counts = (sums.loss["mlm"], sums.weight["mlm"], sums.sums["tokens"])
        np.testing.assert_allclose(counts, wanted, rtol=1e-5)
        assert num_used < PARTS or abs(losses["token"] - losses["sequence"]) > 1e-3
        moments = found.opt_state[1].mu["model"]  # of the first update
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7)
        jax.tree.map(close, moments, jax.tree.map(lambda x: (1 - cfg.optim.b1) * x, grads["model"]))


def test_the_other_microbatches_are_not_computed():
    """The model's products stand in a loop whose number of turns is computed; a fixed number would be a scan."""
    cfg = small_config(**TINY, **WARMUP, **PLAIN)
    built = program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:1])
    hparams = program.make_train_hparams(cfg)
    state = built.init_state.eval_shape(hparams)
    traced = jax.make_jaxpr(functools.partial(built.train_step, sharding.Replicated(1)))(state, uneven(8), hparams)
    loops = [equation for equation in traced.eqns if equation.primitive.name == "while"]
    assert any("dot_general" in str(loop.params["body_jaxpr"]) for loop in loops)


def test_no_longer_run_shares_the_steps_of_a_warm_up():
    schedule = {"optim__schedule": "constant", "train__steps": 8}
    assert extension.count_stable_steps(small_config(**schedule)) == 8
    assert extension.count_stable_steps(small_config(**WARMUP | schedule)) == 0


def test_flops_and_budgets_follow_the_microbatches_of_each_phase(tmp_path, monkeypatch):
    """Of a step with as many FLOPs as tokens, in a run whose batch grows in the shorter examples of its first phase."""
    sizes = {"phases__shares": (0.5, 0.5), "phases__seq_len": (16, 64), "pack__seq_len": 64, "model__max_positions": 64}
    whole, grown = (small_config(**WARMUP | sizes | {"train__steps": 80, **changes}) for changes in (NO_WARMUP, {}))
    count_tokens = lambda cfg, vocab_size, rnn_unroll: float(cfg.train.batch_size * cfg.pack.seq_len)
    monkeypatch.setattr(cost, "count_lowered_flops", count_tokens)
    used = batch_warmup.count_microbatches(grown.train, np.arange(80)) / PARTS * 8 * np.repeat((16, 64), 40)
    assert cost.count_step_flops(grown, 50) == pytest.approx(used.mean())
    count = lambda points, folder, measure: [cost.count_step_flops(cfg, 50) for cfg in points]
    monkeypatch.setitem(budget.BUDGETS, "flops", count)
    _, longer = budget.apply_budget([whole, grown], "flops", tmp_path)
    assert longer.train.steps == round(80 * cost.count_step_flops(whole, 50) / used.mean())
    monkeypatch.setattr(plan, "estimate_memory", lambda cfg, vocab_size, num_devices: 1e9)
    options = plan.PlanOptions(accelerators.ACCELERATORS["H200"], 1, 0.5, False)
    found = [[row["tokens"], row["flops"]] for row in plan.plan_points({"a": grown}, options)]
    expected = np.repeat([[used[:40].sum()], [used[40:].sum()], [used.sum()]], 2, axis=1)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_mean_masking_rate_and_a_budget_of_predictions_are_of_the_tokens_that_steps_use(tmp_path, schedule):
    """Of batches that grow, and are smaller in the first phase, while the rate falls."""
    falls = {"mask__schedule": schedule, "mask__rate": 0.5, "mask__final_rate": 0.1}
    changes = {"train__steps": 800, "train__batch_warmup_fraction": 1.0, "train__batch_size": 16}
    changes |= {"phases__shares": (0.5, 0.5), "phases__batch_size": (8, 16)}
    cfg = small_config(**WARMUP | changes | falls)
    used = batch_warmup.count_microbatches(cfg.train, np.arange(800)) / PARTS * np.repeat((8, 16), 400)
    hparams, progress = program.make_train_hparams(cfg), np.arange(800) / 800
    masked = used * np.asarray(masking.schedule_rate(hparams, progress).objective["rate"])
    assert phases.compute_mean_rate(cfg) == pytest.approx(masked.sum() / used.sum(), rel=2e-3)
    plain = small_config(mask__rate=0.25, train__steps=800, train__batch_size=8)
    _, longer = budget.apply_budget([plain, cfg], "predictions", tmp_path)
    assert longer.train.steps == pytest.approx(800 * 0.25 * 8 / masked.mean(), rel=5e-3)


@pytest.mark.parametrize(
    ("share", "first", "num_parts"), [(0.5, 0.25, 4), (1.0, 0.05, 8), (0.3, 1.0, 2), (0.0, 0.25, 4)]
)
def test_time_left_and_utilisation_follow_the_microbatches_of_each_step(
    share, first, num_parts, tmp_path, capsys, monkeypatch
):
    """A microbatch takes a second and has as many FLOPs as the peak: all estimates are exact, at every step."""
    steps = 40
    cfg = small_config(**TINY, train__steps=steps, train__batch_size=2 * num_parts, train__grad_accum_steps=num_parts)
    warmup = {"train.batch_warmup_fraction": share, "train.initial_batch_fraction": first}
    cfg = fields.override(cfg, warmup | {"workdir": str(tmp_path), "train.log_every": 3, "train.trackers": ""})
    seconds = [int(batch_warmup.count_microbatches(cfg.train, step)) if share else num_parts for step in range(steps)]
    monkeypatch.setattr(log.machine, "find_peak_flops", lambda kind: 1 / jax.device_count())
    counted = types.SimpleNamespace(count_step_flops=lambda cfg, vocab_size: sum(seconds) / steps)
    monkeypatch.setattr(log, "cost", counted)
    clock = [100.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: clock[0])
    built = program.build_program(cfg, make_dataset_info(cfg))
    source = loader.Source("", num_train=99, num_validation=0, parts=(1,))
    packed = types.SimpleNamespace(sources=(source,), dataset_info=make_dataset_info(cfg))
    segments = pack.list_segments(cfg, packed)
    writer = log.Log(directory.RunDirectory(cfg.workdir), cfg, built.objective, 0, {}, segments)
    for step in range(1, steps + 1):
        clock[0] += seconds[step - 1]
        tokens = 16.0 * seconds[step - 1]
        sums = BatchSums(
            {"mlm": 7.0}, {"mlm": 7.0}, dict.fromkeys(("tokens", "eligible", "corrupted", "correct"), tokens)
        )
        numbers = dict.fromkeys(("loss", "gradient_norm", "parameter_norm", "learning_rate"), 1.0)
        writer.on_metrics(step, numbers | {"sums": sums}, False)
        if step > 1 and step % 3 == 0:
            left = sum(seconds[step:])
            assert f", {left // 60}:{left % 60:02d} left" in capsys.readouterr().out
    summary = writer.summarize()
    writer.on_pause(steps, None, due=True, stop=False)
    clock[0] += 1000
    writer.on_metrics(steps + 1, numbers | {"sums": sums}, False)
    assert writer.totals["timed_seconds"] == sum(seconds[1:])  # neither what compiles nor a pause
    writer.close()
    records = files.read_records(tmp_path / "metrics.jsonl")
    assert [record["mfu"] for record in records] + [summary["mfu"]] == pytest.approx([1.0] * (len(records) + 1))
