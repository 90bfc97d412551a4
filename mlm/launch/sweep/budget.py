"""What the points of a sweep have in common when they are compared at other than equal steps.

A budget is what the first point spends in its train.steps; every other point gets the steps that spend the same.
"""
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from mlm import objectives
from mlm.base import config, fields, files, lease
from mlm.base.special import NUM_SPECIAL
from mlm.data.rows import loader, pack
from mlm.launch import kernel_choice
from mlm.launch.sweep import plan, subprocess_worker
from mlm.train.step import cost, program

WARM, TIMED = 3, 15  # steps before the clock starts, and under it
UNKNOWN = 0          # train.steps of a point whose step was not measured yet


def rewrite(points: Sequence[config.Config], budget: str, folder: Path, measure: bool = True) -> list[config.Config]:
    """The points with train.steps set by a budget, one of BUDGETS; folder: of the sweep, which keeps step times.

    Everything that follows the share of the steps made, such as the learning rate, follows the new steps. measure:
    whether what is not kept is measured; where not, such a point has UNKNOWN steps, and all have where it is the first.
    """
    costs = BUDGETS[budget](points, folder, measure)
    if costs[0] is None:
        return [fields.override(cfg, {"train.steps": UNKNOWN}) for cfg in points]
    total = costs[0] * points[0].train.steps
    return [fields.override(cfg, {"train.steps": UNKNOWN if each is None else max(1, round(total / each))})
            for cfg, each in zip(points, costs, strict=True)]


def predictions(points, folder, measure) -> list[float]:
    """Of a step, on average over the run: a share of the tokens that may be masked, counted where rows differ."""
    differ = len({(cfg.data, cfg.tokenizer, cfg.pack) for cfg in points}) > 1
    return [cfg.train.batch_size * objectives.predicted(cfg) * (words(cfg) if differ else 1) for cfg in points]


def words(cfg: config.Config) -> float:
    """Tokens of a training row that are not special, on average."""
    rows = pack.load(cfg)
    return int(np.frombuffer(rows.about.unigram, np.int64)[NUM_SPECIAL:].sum()) / len(rows.train["ids"])


def training_flops(points, folder, measure) -> list[float]:
    return list(subprocess_worker.each(step_flops, points, platform="cpu"))


def step_flops(cfg: config.Config) -> float:
    return cost.per_step(cfg, plan.vocab_size(cfg))


def seconds(points, folder, measure) -> list[float | None]:
    """Of a step on this machine's devices, measured once and kept in folder/step_seconds.json.

    Whoever comes while another call measures waits, and takes its times: they decide which points these are. Not to
    measure makes no file and waits for nobody. Raises Damaged where what is kept is.
    """
    path = folder / "step_seconds.json"
    kept = times(path)
    if measure and any(name(cfg) not in kept for cfg in points):
        with lease.alone(folder):
            kept = times(path)
            unknown = {name(cfg): cfg for cfg in points if name(cfg) not in kept}
            if unknown:
                print(f"measuring the step time of {len(unknown)} programs, kept in {path}", flush=True)
            for key, took in zip(unknown, subprocess_worker.each(step_seconds, list(unknown.values())), strict=True):
                kept[key] = took
                files.write_sealed(path, kept)
    return [kept.get(name(cfg)) for cfg in points]


def times(path: Path) -> dict[str, float]:
    try:
        return files.read_sealed(path) or {}
    except files.Damaged as damaged:
        raise files.Damaged(f"{damaged}; it decides how long each point is trained: remove it to measure again, for "
                            "points of other lengths") from None


def name(cfg: config.Config) -> str:
    """What a step's time follows from."""
    alike = program.blank(fields.override(cfg, {"train.steps": 1}))
    return f"{fields.fingerprint(alike)}-{alike.mask.max_rate:g}"


def step_seconds(cfg: config.Config) -> float:
    """The median time of a step with its input, on all of this process's devices, by the paths that a run takes."""
    cfg = kernel_choice.settled(cfg)
    rows = pack.load(cfg)
    made, knobs = program.build(cfg, rows.about), program.knobs(cfg)
    state, times = made.run.put_state(jax.device_get(made.initial(knobs))), []
    batches = loader.train_batches(rows.train, seed=cfg.seed, batch_size=cfg.train.batch_size, start_step=0)
    for _ in range(WARM + TIMED):
        start = time.perf_counter()
        state, new = made.run.train_step(state, made.run.put_batch(next(batches)), knobs)
        np.asarray(made.run.get_metrics(new)["loss"])
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM:])


BUDGETS = {"predictions": predictions, "flops": training_flops, "seconds": seconds}
