"""Budgets, by which the points of a sweep are compared at other than equal numbers of steps.

The budget is what the first point spends in its train.steps; every other point gets the steps that spend the same.
"""

import math
import operator
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlm import objectives
from mlm.base import batch_warmup, config, fields, files, phases, types
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.base.storage import get_storage
from mlm.data.rows import loader, pack
from mlm.launch.sweep import local_timing, plan, subprocess_worker
from mlm.training.compilation import cost
from mlm.training.step import program

WARMUP_STEPS, TIMED_STEPS = 3, 15
UNKNOWN_STEPS = 0  # train.steps of a point whose step was not measured yet


def apply_budget(
    points: Sequence[config.Config], budget: str, folder: Path, measure: bool = True
) -> list[config.Config]:
    """The points with train.steps set by a budget, a key of BUDGETS, and all that follows the share of the steps made.

    measure: whether to measure step times that `folder` has not. If not, such a point has UNKNOWN_STEPS; so have all
    points if it is the first.
    """
    by_point = [phases.average_rates(cfg) for cfg in points]
    phase_costs = iter(BUDGETS[budget]([phase.cfg for own in by_point for phase in own], folder, measure))
    step_costs = []  # each the mean of its phases'
    for cfg, own in zip(points, by_point, strict=True):
        costs, whole = [next(phase_costs) for _ in own], batch_warmup.compute_mean_fraction(cfg.train)
        shares = [
            share * batch_warmup.compute_mean_fraction(cfg.train, range(phase.first_step, phase.end_step)) / whole
            for share, phase in zip(cfg.phases.shares or (1.0,), own, strict=True)
        ]
        step_costs.append(None if None in costs else sum(map(operator.mul, costs, shares)))
    if step_costs[0] is None:
        return [fields.override(cfg, {"train.steps": UNKNOWN_STEPS}) for cfg in points]
    total = step_costs[0] * points[0].train.steps
    return [
        fields.override(cfg, {"train.steps": UNKNOWN_STEPS if step_cost is None else max(1, round(total / step_cost))})
        for cfg, step_cost in zip(points, step_costs, strict=True)
    ]


def count_predictions(points, folder, measure) -> list[float]:
    """Predictions of a step, averaged over the run: shares of the possible targets, counted if these differ."""
    differ = len({(cfg.data, cfg.tokenizer, cfg.pack, cfg.objective, cfg.hybrid, cfg.mask.mask_unk) for cfg in points})
    rates = lambda cfg: objectives.OBJECTIVES[cfg.objective].prediction_rates(cfg)
    return [
        cfg.train.batch_size
        * batch_warmup.compute_mean_fraction(cfg.train)
        * float(np.dot(rates(cfg), count_targets(cfg) if differ > 1 else (1,) * 4))
        for cfg in points
    ]


def count_targets(cfg: config.Config) -> types.PredictionRates:
    """What the rates of `types.PredictionRates` are of: how many a training example has of each, in the mean.

    Segments are those of 2**15 to 2**16 examples, evenly spaced, if there are more: an error of less than 0.2% of
    pack.seq_len, since their number has at most a quarter of that as its standard deviation.
    """
    rows = pack.load_dataset(cfg)
    counts_V, num_rows = np.frombuffer(rows.dataset_info.unigram_counts, np.int64), len(rows.train["ids"])
    words = int(counts_V[NUM_SPECIAL:].sum() + cfg.mask.mask_unk * counts_V[UNK]) / num_rows
    tokens = int(counts_V.sum()) / num_rows
    segments_NxL = np.asarray(rows.train["segments"][:: 1 + num_rows // 2**16])
    return types.PredictionRates(words, tokens - float(segments_NxL.max(1).mean()), tokens, 1.0)


def compute_step_flops(cfg: config.Config) -> float:
    """The FLOPs of a point's step; called in a process of its own, on the CPU."""
    flops = cost.count_step_flops(cfg, plan.find_vocab_size(cfg))
    assert flops is not None, "XLA counts them on the CPU"
    return flops


def measure_seconds(points, folder, measure) -> list[float | None]:
    """Seconds of a step on this machine's devices, measured once and saved in folder/step_seconds.json.

    A call during another call's measurements waits, and uses its times, which decide the lengths of the points. Without
    `measure` it creates no file and waits for nobody. Raises DamagedFile if the saved times are damaged.
    """
    path = folder / "step_seconds.json"
    step_times = read_step_times(path)
    if measure and any(program_key(cfg) not in step_times for cfg in points):
        with get_storage(folder).lock(folder):
            step_times = read_step_times(path)
            new = {program_key(cfg): cfg for cfg in points if program_key(cfg) not in step_times}
            if new:
                print(f"measuring the step time of {len(new)} programs, to be saved in {path}", flush=True)
            measured = subprocess_worker.map_in_subprocess(time_step, list(new.values()))
            for key, seconds in zip(new, measured, strict=True):
                step_times[key] = seconds
                files.write_json_with_digest(path, step_times)
    times = [step_times.get(program_key(cfg)) for cfg in points]
    fractions = [batch_warmup.compute_mean_fraction(cfg.train) for cfg in points]
    return [seconds and seconds * fraction for seconds, fraction in zip(times, fractions, strict=True)]


def read_step_times(path: Path) -> dict[str, float]:
    """The measured seconds per step of each point. Raises DamagedFile with the way out."""
    try:
        return files.read_json_with_digest(path) or {}
    except files.DamagedFile as damaged:
        raise files.DamagedFile(
            f"{damaged}; it decides how long each point is trained: remove it to measure again, "
            "for points of other lengths"
        ) from None


def program_key(cfg: config.Config) -> str:
    """Identifies all that the time of a step with a full batch depends on."""
    static_cfg = local_timing.make_full_batch_config(cfg)
    return f"{fields.fingerprint(program.fill_hidden_fields(static_cfg))}-{static_cfg.mask.max_rate:g}"


def time_step(cfg: config.Config) -> float:
    """The median seconds of a step with its input, on all of this process's devices, with the kernels of a run."""
    cfg = fields.override(cfg, {"train.batch_warmup_fraction": 0.0})
    rows = pack.load_dataset(cfg)
    built, hparams = program.build_program(cfg, rows.dataset_info), program.make_train_hparams(cfg)
    batches = loader.iterate_train_batches(rows.train, seed=cfg.seed, batch_size=cfg.train.batch_size, start_step=0)
    return local_timing.time_steps(built, hparams, batches, WARMUP_STEPS, TIMED_STEPS, math.inf)


BUDGETS = {
    "predictions": count_predictions,
    "flops": lambda points, *_: subprocess_worker.map_in_subprocess(compute_step_flops, points, platform="cpu"),
    "seconds": measure_seconds,
}
