"""What a run would cost, without training it or allocating its arrays: parameters, FLOPs, memory, hours on a device.

Nothing here uses an accelerator. Memory is estimated, or what XLA plans for the real step at its real size, on abstract
inputs, as compiled where the plan is made, for as many devices, simulated: on a CPU that is more than an accelerator
takes, as its kernels compute bfloat16 in float32.
"""
import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from mlm.base import config, errors, fields, types
from mlm.data.rows import pack
from mlm.data.text import corpus
from mlm.launch.cluster.accelerators import Kind
from mlm.launch.sweep import subprocess_worker
from mlm.models import lm
from mlm.report.table import Column, text
from mlm.train.step import cost, fsdp, program

USABLE = 0.9   # of a device's memory: the runtime and the collectives need the rest
ERROR = 1.25   # by which an estimate of memory may be wrong, either way

COLUMNS = (Column("point", "point"), Column("parameters", "parameters", ",d"), Column("tokens", "tokens", ".3g"),
           Column("flops", "training FLOPs", ".2e"), Column("whole", "GB a device", ".1f"),
           Column("remat", "with remat", ".1f"), Column("split", "sharded", ".1f"), Column("both", "both", ".1f"),
           Column("hours", "hours", ".3g"), Column("moved", "GB moved a step"), Column("step", "a step"),
           Column("fits", "fits"))
WAYS = {  # of a step, by the column of what it takes on each device
    "whole": {"parallel.mode": "jit", "model.remat": False}, "remat": {"parallel.mode": "jit", "model.remat": True},
    "split": {"parallel.mode": "sharded", "model.remat": False},
    "both": {"parallel.mode": "sharded", "model.remat": True}}
AGAIN = 4 / 3    # times the work of a step, at most, where the forward pass is made twice
SIMULATED = 512  # devices at most


class Plan(NamedTuple):
    """What points are planned for, and how."""

    kind: Kind
    number: int = 1            # how many of the kind
    utilisation: float = 0.4   # of their dense peak
    exact: bool = False        # memory as the compiler plans it, not as estimated
    mesh: Callable | None = None       # (blank cfg, entries) -> cost.Compiled, for all of them
    measured: Callable | None = None   # (cfg, entries, FLOPs of a step) -> seconds a step, and how that is known


def vocab_size(cfg: config.Config) -> int:
    """The entries of a run's vocabulary; where the corpus decides, the vocabulary is learnt to count them."""
    return cfg.tokenizer.vocab_size or pack.vocabulary(cfg, corpus.fingerprint(cfg.data)).vocab_size


def rows(points: dict[str, config.Config], plan: Plan) -> Iterator[dict]:
    """A row for each of the points, by name, as soon as it is known, and at last their sum. What cannot be planned of a
    point is said in its row."""
    total = dict.fromkeys(("tokens", "flops", "hours"), 0.0)
    with contextlib.ExitStack() as stack:
        if plan.exact and 1 < plan.number * plan.kind.chips <= SIMULATED:
            plan = plan._replace(mesh=stack.enter_context(simulated(plan.number * plan.kind.chips)))
        for name, cfg in points.items():
            try:
                row = point(name, cfg, plan)
            except (errors.ConfigError, subprocess_worker.Ended) as error:
                row = {"point": name, "fits": f"cannot be planned: {error}"}
            total = {key: total[key] + (row.get(key) or 0) for key in total}
            yield row
    yield {"point": f"{len(points)} points", **total}


@contextlib.contextmanager
def simulated(devices: int):
    """cost.compiled for so many devices, in a process that has them of this machine's CPU; it allocates no arrays."""
    with contextlib.closing(subprocess_worker.Process("cpu")) as process:
        process.ask(simulate, devices)
        yield functools.cache(lambda cfg, entries: process.ask(compiled, (cfg, entries)))


def simulate(devices: int) -> None:
    """Makes so many devices of this process's CPU, which it has not used yet."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"


def compiled(asked: tuple[config.Config, int]) -> cost.Compiled:
    return cost.compiled(*asked)


def lines(points: dict[str, config.Config], plan: Plan) -> Iterator[str]:
    """The plan as the lines of a Markdown table, each as soon as it is known."""
    several = plan.number * plan.kind.chips > 1
    shown = {"split": several, "both": several, "moved": several and plan.exact, "step": plan.measured}
    columns = [column for column in COLUMNS if shown.get(column.name, True)]
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
    seconds, how = flops and flops * (AGAIN if cfg.model.remat else 1) / (
        plan.kind.flops * plan.utilisation * devices), ""
    if plan.measured:
        seconds, how = plan.measured(cfg, entries, flops)
    row = {"point": name, **lm.count(cost.abstract(program.blank(cfg), entries).params["model"]),
           "tokens": steps and float(steps * batch * cfg.pack.seq_len), "flops": flops and steps and flops * steps,
           "hours": seconds and steps and seconds * steps / 3600, "step": how}
    if batch % (devices * cfg.train.grad_accum_steps):
        return row | {"fits": f"no: batch_size = {batch} does not divide by {devices} devices"
                              f" x accumulate = {cfg.train.grad_accum_steps}"}

    def step(way, accumulate=cfg.train.grad_accum_steps):
        changes = WAYS[way] | {"train.steps": 1, "train.grad_accum_steps": accumulate}
        if plan.mesh:
            return plan.mesh(program.blank(fields.override(cfg, changes)), entries)
        own = program.blank(fields.override(cfg, changes | {"train.batch_size": batch // devices}))
        memory = cost.memory(own, entries) if exact(way) else estimated(own, entries, devices)
        return cost.Compiled(memory, {})

    def exact(way):  # without a mesh, one device is compiled for
        return plan.exact and (plan.mesh or devices == 1 or WAYS[way]["parallel.mode"] == "jit")

    said = {"parallel.mode": "sharded" if cfg.parallel.mode == "sharded" and devices > 1 else "jit",
            "model.remat": cfg.model.remat}
    own = next(way for way, changes in WAYS.items() if changes == said)
    found = {way: step(way) for way, changes in WAYS.items() if devices > 1 or changes["parallel.mode"] == "jit"}
    now, room, error = found[own].memory, plan.kind.memory * USABLE, 1.0 if exact(own) else ERROR
    row |= {way: one.memory / 1e9 for way, one in found.items()} | {
        "memory": now / 1e9,
        "moved": ", ".join(f"{kind} {number / 1e9:.3g}" for kind, number in found[own].moved.items() if number)}
    if now * error <= room:
        return row | {"fits": "yes"}
    if now <= room * error and not exact(own):
        return row | {"fits": "perhaps: --exact compiles it to know"}
    memory = {way: one.memory * (1.0 if exact(way) else ERROR) for way, one in found.items()}
    return row | {"fits": _remedy(cfg, batch // devices, own, memory, room, plan.number,
                                  lambda *asked: step(*asked).memory * (1.0 if exact(asked[0]) else ERROR))}


@functools.cache
def estimated(cfg: config.Config, entries: int, devices: int = 1) -> float:
    """Bytes on one of the devices, of a step of a blank config with cfg.train.batch_size rows there; compiles nothing.

    The state, a gradient (two where parts are added up), what the forward pass keeps for the backward pass, and once
    more the largest of that, or a layer that is computed again; where the state is split, a device's part of it, and
    the whole gradient of what stands outside the layers. Within ERROR of what the compiler plans in float32, for steps
    that take gigabytes; a third too little where recurrent layers are computed again.
    """
    state, split = cost.abstract(cfg, entries), devices if cfg.parallel.mode == "sharded" else 1
    own, objective = fsdp.parts(state, split), program.parts(cfg, pack.shape(cfg, entries))[1]
    parts = cfg.train.grad_accum_steps * objective.views
    kept = keeps(cfg, entries, split)
    largest = max(kept)
    if cfg.model.remat:
        every = keeps(fields.override(cfg, {"model.remat": False}), entries, split)
        largest = max(largest, (sum(every) - sum(kept)) / cfg.model.num_layers)
    gradient = sum(map(size, jax.tree.leaves(own.params)))
    outside = sum(size(x) for path, x in jax.tree_util.tree_leaves_with_path(state.params) if not fsdp.stacked(path))
    return (sum(map(size, jax.tree.leaves(own))) + gradient * (1 + (parts > 1)) + sum(kept) + largest
            + (outside if split > 1 else 0))


@functools.cache
def keeps(cfg: config.Config, entries: int, split: int) -> list[int]:
    """Bytes of each array that the forward pass of a part of a step keeps on a device for the backward pass."""
    cfg = fields.override(cfg, {"model.scan_unroll": 1, "model.fused_kernels": False})
    about = pack.shape(cfg, entries)
    model, objective = program.parts(cfg, about)
    params, knobs = cost.abstract(cfg, entries).params, program.knobs(cfg)
    rows = cfg.train.batch_size // cfg.train.grad_accum_steps

    def backward(whole, params, batch, key_B):
        def loss(params):
            losses = objective.loss(whole(params), model, batch, key_B, knobs, train=True)
            return sum(x_B.sum() for x_B in losses.loss_B.values())

        return jax.vjp(loss, params)[1]

    key_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    _, found = jax.make_jaxpr(fsdp.reading(backward, params, split), axis_env=[("data", split)], return_shape=True)(
        fsdp.parts(params, split), types.abstract(rows, about), key_B)
    return [size(leaf) for leaf in jax.tree.leaves(found)]


def size(array) -> int:
    return array.size * array.dtype.itemsize


def _remedy(cfg, rows, own, found, room, number, memory) -> str:
    """What would make a step of `rows` a device fit: other ways to make it, or parts of a size that is then confirmed.

    found: by the way, what it takes as it is, at most; memory: (way, parts) -> the same of as many parts.
    """
    def more(way):
        changed = [name for name, value in WAYS[way].items() if value != WAYS[own][name]]
        return " and ".join("model.remat" if name == "model.remat" else "parallel.mode=sharded" for name in changed)

    others = [way for way in found if way != own and all(
        value == WAYS[own][name] or value in (True, "sharded") for name, value in WAYS[way].items())]
    said = [f"{more(way)} would ({found[way] / 1e9:.1f} GB)" for way in others if found[way] <= room]
    for way in (own, *(() if said else reversed(others))):
        accumulate, needs = _parts(cfg, rows, found[way], room, functools.partial(memory, way))
        if accumulate:
            said.append(f"train.grad_accum_steps = {accumulate}{f' beside {more(way)}' if way != own else ''} would "
                        f"({needs / 1e9:.1f} GB)")
            said += [f"--devices={-(-number * accumulate // cfg.train.grad_accum_steps)}"] if way == own else []
            break
    if said:
        return f"no: {', or '.join(said)}"
    return f"no, nor with one row at a time ({needs / 1e9:.1f} GB): a smaller model or a device with more memory"


def _parts(cfg, rows, now, room, memory) -> tuple[int, float]:
    """The fewest parts in which `rows` fit, 0 for none, and what they then take."""
    needs = now
    for accumulate in range(cfg.train.grad_accum_steps + 1, rows + 1):
        share = cfg.train.grad_accum_steps / accumulate
        if rows % accumulate or (now * share > room and accumulate < rows):  # less than this share it cannot take
            continue
        needs = memory(accumulate)
        if needs <= room:
            return accumulate, needs
    return 0, needs
