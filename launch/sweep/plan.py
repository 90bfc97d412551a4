"""What a run would cost, without training it or allocating its arrays: parameters, FLOPs, memory, hours on a device.

Nothing here uses an accelerator. Memory is estimated, or what XLA plans for the real step at its real size, on abstract
inputs, as compiled where the plan is made: on a CPU that is more than an accelerator takes, as its kernels compute
bfloat16 in float32.
"""
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from launch.cluster.kinds import Kind
from mlm.base import config, errors, fields, types
from mlm.data.rows import pack
from mlm.data.text import corpus
from mlm.models import lm
from mlm.report.table import Column, text
from mlm.train.step import cost, program

USABLE = 0.9   # of a device's memory: the runtime and the collectives need the rest
ERROR = 1.25   # by which an estimate of memory may be wrong, either way

COLUMNS = (Column("point", "point"), Column("parameters", "parameters", ",d"), Column("tokens", "tokens", ".3g"),
           Column("flops", "training FLOPs", ".2e"), Column("memory", "GB a device", ".1f"),
           Column("hours", "hours", ".3g"), Column("fits", "fits"))
STEP = Column("step", "a step")  # beside them, where steps are measured


class Plan(NamedTuple):
    """What points are planned for, and how."""

    kind: Kind
    number: int = 1            # how many of the kind
    utilisation: float = 0.4   # of their dense peak
    exact: bool = False        # memory as the compiler plans it, not as estimated
    measured: Callable | None = None   # (cfg, entries, FLOPs of a step) -> seconds a step, and how that is known


def vocab_size(cfg: config.Config) -> int:
    """The entries of a run's vocabulary; where the corpus decides, the vocabulary is learnt to count them."""
    return cfg.tokenizer.vocab_size or pack.vocabulary(cfg, corpus.fingerprint(cfg.data)).vocab_size


def rows(points: dict[str, config.Config], plan: Plan) -> Iterator[dict]:
    """A row for each of the points, by name, as soon as it is known, and at last their sum. What cannot be planned of a
    point is said in its row."""
    total = dict.fromkeys(("tokens", "flops", "hours"), 0.0)
    for name, cfg in points.items():
        try:
            row = point(name, cfg, plan)
        except errors.ConfigError as error:
            row = {"point": name, "fits": f"cannot be planned: {error}"}
        total = {key: total[key] + (row.get(key) or 0) for key in total}
        yield row
    yield {"point": f"{len(points)} points", **total}


def lines(points: dict[str, config.Config], plan: Plan) -> Iterator[str]:
    """The plan as the lines of a Markdown table, each as soon as it is known."""
    columns = [*COLUMNS[:-1], *([STEP] if plan.measured else []), COLUMNS[-1]]
    widths = [max(len(column.title), 12) for column in columns]
    widths[0] = max(map(len, (*points, f"{len(points)} points")))

    def line(cells):
        each = (cell.rjust(width) if column.form else cell.ljust(width)
                for cell, width, column in zip(cells, widths, columns, strict=True))
        return f"| {' | '.join(each)} |"

    yield line([column.title for column in columns])
    yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    for row in rows(points, plan):
        yield line([text(row.get(column.name), column.form) for column in columns])


def point(name: str, cfg: config.Config, plan: Plan) -> dict:
    """A row of the plan. Tokens count padding, too; train.steps = 0 are steps that are not known."""
    entries = vocab_size(cfg)
    devices = plan.number * plan.kind.chips
    flops = cost.per_step(cfg, entries)
    steps, batch = cfg.train.steps or None, cfg.train.batch_size
    seconds, how = flops and flops / (plan.kind.flops * plan.utilisation * devices), ""
    if plan.measured:
        seconds, how = plan.measured(cfg, entries, flops)
    row = {"point": name, **lm.count(cost.abstract(program.blank(cfg), entries).params["model"]),
           "tokens": steps and float(steps * batch * cfg.pack.length), "flops": flops and steps and flops * steps,
           "hours": seconds and steps and seconds * steps / 3600, STEP.name: how}
    if batch % (devices * cfg.train.accumulate):
        return row | {"fits": f"no: batch_size = {batch} does not divide by {devices} devices"
                              f" x accumulate = {cfg.train.accumulate}"}

    def memory(accumulate):
        one_step = {"train.batch_size": batch // devices, "train.steps": 1, "train.accumulate": accumulate}
        return (cost.memory if plan.exact else estimated)(program.blank(fields.override(cfg, one_step)), entries)

    now, room, error = memory(cfg.train.accumulate), plan.kind.memory * USABLE, 1.0 if plan.exact else ERROR
    row["memory"] = now / 1e9
    if now * error <= room:
        return row | {"fits": "yes"}
    if now <= room * error and not plan.exact:
        return row | {"fits": "perhaps: --exact compiles it to know"}
    return row | {"fits": _remedy(cfg, batch // devices, memory, now, room / error, plan.number)}


@functools.cache
def estimated(cfg: config.Config, entries: int) -> float:
    """Bytes on one device of a step of cfg.train.batch_size rows there, of a blank config, without compiling it.

    The state, a gradient (two where parts are added up), what the forward pass keeps for the backward pass, and once
    more the largest of that. Within ERROR of what the compiler plans in float32, for steps that take gigabytes.
    """
    cfg = fields.override(cfg, {"model.unroll": 1, "model.fast": False})
    about = pack.shape(cfg, entries)
    model, objective = program.parts(cfg, about)
    state, knobs, parts = cost.abstract(cfg, entries), program.knobs(cfg), cfg.train.accumulate * objective.views
    rows = cfg.train.batch_size // cfg.train.accumulate

    def backward(params, batch, key_B):
        def loss(params):
            losses = objective.loss(params, model, batch, key_B, knobs, train=True)
            return sum(x_B.sum() for x_B in losses.loss_B.values())

        return jax.vjp(loss, params)[1]

    key_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    kept = [size(leaf) for leaf in jax.tree.leaves(
        jax.eval_shape(backward, state.params, types.abstract(rows, about), key_B))]
    gradient = sum(map(size, jax.tree.leaves(state.params)))
    return sum(map(size, jax.tree.leaves(state))) + gradient * (1 + (parts > 1)) + sum(kept) + max(kept)


def size(array) -> int:
    return array.size * array.dtype.itemsize


def _remedy(cfg, rows, memory, now, room, number) -> str:
    """What would make a step of `rows` a device fit: parts of a size that is then confirmed."""
    needs = now
    for accumulate in range(cfg.train.accumulate + 1, rows + 1):
        share = cfg.train.accumulate / accumulate
        if rows % accumulate or (now * share > room and accumulate < rows):  # less than this share it cannot take
            continue
        needs = memory(accumulate)
        if needs <= room:
            return (f"no: train.accumulate = {accumulate} would ({needs / 1e9:.1f} GB), or "
                    f"--devices={-(-number * accumulate // cfg.train.accumulate)}")
    return f"no, nor with one row at a time ({needs / 1e9:.1f} GB): a smaller model or a device with more memory"
