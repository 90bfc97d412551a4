"""What a run would cost, without training it or allocating its arrays: parameters, FLOPs, memory, hours on a device.

Nothing here uses an accelerator. Memory is estimated, or it is what XLA plans for the real step at its real size, on
abstract inputs: by the compiler of the devices themselves where it is installed (target_compiler.py), else for as many
simulated devices by the CPU's, whose plan is larger, as its kernels compute bfloat16 in float32.
"""

import contextlib
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from mlm.base import batch_warmup, config, errors, fields, phases, types
from mlm.base.types import StaticConfig
from mlm.data.rows import mixture, pack
from mlm.launch.cluster.accelerators import Accelerator
from mlm.launch.sweep import subprocess_worker, target_compiler
from mlm.models import MODELS, lm
from mlm.report.table import QUANTITY, Column, format_cell
from mlm.training.compilation import cost
from mlm.training.run import loop
from mlm.training.step import parallel, program, sharding

USABLE_MEMORY = 0.9  # share of a device's memory; the runtime and the collectives need the rest
ESTIMATE_ERROR = 1.25  # factor by which an estimate of memory may be wrong, either way

COLUMNS = (
    Column("point", "point"),
    Column("parameters", "parameters", QUANTITY),
    Column("tokens", "tokens", QUANTITY),
    Column("flops", "training FLOPs", QUANTITY),
    Column("memory", "GB per device", ".1f"),
    Column("memory_plain", "GB per device", ".1f"),
    Column("memory_remat", "with remat", ".1f"),
    Column("memory_fsdp", "with FSDP", ".1f"),
    Column("memory_fsdp_remat", "with both", ".1f"),
    Column("arguments", "GB arguments", ".2f"),
    Column("temporaries", "GB temporaries", ".2f"),
    Column("code", "MB code", ".0f"),
    Column("hours", "hours", ".3g"),
    Column("communicated", "GB communicated per step"),
    Column("attention", "attention"),
    Column("traffic", "GB traffic per step", ".1f"),
    Column("at_least", "time at least"),
    Column("step", "time per step"),
    Column("largest_batch", "largest batch", ",d"),
    Column("verdict", "verdict"),
)
# Columns in the order in which they make room on a terminal.
LEAST_NEEDED = ("memory_remat", "step", "flops", "memory_fsdp_remat", "memory_fsdp", "communicated", "tokens")
LEAST_NEEDED += ("memory_plain", "memory", "parameters")
SEED = re.compile(r"-seed\d+-[0-9a-f]{6}$")  # the end of a point's name
SWITCHES = ("parallel.mode=fsdp", "model.remat")
STEP_VARIANTS = {  # by the column of their memory on each device: which of SWITCHES are on
    "memory_plain": (False, False),
    "memory_remat": (False, True),
    "memory_fsdp": (True, False),
    "memory_fsdp_remat": (True, True),
}
REMAT_WORK = 4 / 3  # a step's work at most, relative to one that does not compute the forward pass twice
MAX_SIMULATED_DEVICES = 512
MIN_STEP_SECONDS = 1e-3  # of a step that keeps a device busy: to start its kernels takes as long


class PlanOptions(NamedTuple):
    """The devices for which points are planned, and the method."""

    accelerator: Accelerator
    count: int = 1  # of the accelerator: GPUs, hosts of GPUs, slices of TPUs
    utilisation: float = 0.4  # of the dense peak
    exact: bool = False  # take memory from the compiler's plan instead of an estimate
    target: target_compiler.Target | None = None  # exact: whose compiler plans; None: the CPU's
    finds_batch: bool = False  # look for the largest batch that fits
    as_configured: bool = False  # plan no other variant of a step than the config's own
    compile_mesh: Callable[[StaticConfig, int], cost.StepCost] | None = None
    # (static config, vocabulary size) -> cost on all devices
    measure_step: Callable[[config.Config, int, float | None], tuple[float, str]] | None = None
    # (config, vocabulary size, FLOPs of a step) -> seconds per step, and a description of how they were found

    @property
    def num_devices(self) -> int:
        """Of all accelerators."""
        return self.count * self.accelerator.num_devices


def find_vocab_size(cfg: config.Config) -> int:
    """The size of a run's vocabulary; if the corpus decides it, the vocabulary is trained to count its entries."""
    return cfg.tokenizer.vocab_size or pack.load_tokenizer(cfg).vocab_size


def list_shortfalls(configs: Iterable[config.Config]) -> list[str]:
    """What `loop.explain_low_masking_rate` says of the points whose masks are of words; packs their text."""
    word_configs = [cfg for cfg in configs if cfg.mask.unit != "token"]
    return sorted({loop.explain_low_masking_rate(cfg, pack.load_dataset(cfg)) for cfg in word_configs} - {""})


def list_repetitions(configs: Iterable[config.Config]) -> list[str]:
    """The share and the epochs of each source of each point's corpus file; packs their text."""
    lines = []
    for cfg in configs:
        if cfg.data.sources and cfg.train.steps:
            segments = pack.list_segments(cfg, pack.load_dataset(cfg))
            each = mixture.describe_sources(segments, cfg.train.steps).items()
            shares = ", ".join(f"{name} {x['share']:.1%} of examples, {x['epochs']:.3g} epochs" for name, x in each)
            lines.append(f"{Path(cfg.workdir).name}: {shares}")
    return lines


def plan_points(points: dict[str, config.Config], options: PlanOptions) -> Iterator[dict]:
    """A row for each point, as soon as it is known, and last their sum; that of one that cannot be planned says why."""
    totals: dict[str, float] = dict.fromkeys(("tokens", "flops", "hours"), 0.0)
    with contextlib.ExitStack() as stack:
        if options.exact and options.target:
            options = options._replace(compile_mesh=stack.enter_context(target_compiler.open_compiler(options.target)))
        elif options.exact and 1 < options.num_devices <= MAX_SIMULATED_DEVICES:
            options = options._replace(compile_mesh=stack.enter_context(simulate_devices(options.num_devices)))
        row: dict[str, Any]
        for name, phase in list_phase_points(points):
            try:
                row = plan_point(name, phase.cfg, options, range(phase.first_step, phase.end_step))
            except (errors.ConfigError, subprocess_worker.WorkerEnded) as error:
                row = {"point": name, "verdict": f"cannot be planned: {error}"}
            totals = {key: totals[key] + (row.get(key) or 0) for key in totals}
            yield row
    yield {"point": f"{len(points)} points", **totals}


def list_phase_points(points: dict[str, config.Config]) -> Iterator[tuple[str, phases.Phase]]:
    """The points, each phase of one with phases as a point of its own: a step of each has to fit."""
    for name, cfg in points.items():
        for phase in phases.average_rates(cfg):
            if phase.end_step > phase.first_step or not cfg.train.steps:
                yield f"{name}, phase {phase.number + 1}" if cfg.phases.shares else name, phase


@contextlib.contextmanager
def simulate_devices(num_devices: int):
    """cost.compile_step for so many devices, in a subprocess that simulates them on the CPU; it allocates no arrays."""
    setup = functools.partial(set_device_count, num_devices)
    with contextlib.closing(subprocess_worker.SubprocessWorker("cpu", setup)) as worker:
        yield functools.cache(lambda cfg, vocab_size: worker.call(cost.compile_step, cfg, vocab_size))


def set_device_count(num_devices: int) -> None:
    """Splits this process's CPU, before its first use, into so many devices."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={num_devices}"


def format_plan(points: dict[str, config.Config], options: PlanOptions, width: int | None = None) -> Iterator[str]:
    """The plan as lines of a table, each as soon as it is known: points, short ones as one, and their sum.

    width: characters of a terminal, on which columns that have no room are left out; None: all columns, in Markdown.
    """
    several, every_variant = options.num_devices > 1, not options.as_configured
    shown = {
        "memory": options.as_configured,
        "memory_plain": every_variant,
        "memory_remat": every_variant,
        "memory_fsdp": every_variant and several,
        "memory_fsdp_remat": every_variant and several,
        **dict.fromkeys(("arguments", "temporaries", "code", "attention", "traffic", "at_least"), options.target),
        "communicated": several and options.exact,
        "step": options.measure_step,
        "largest_batch": options.finds_batch,
    }
    columns = [column for column in COLUMNS if shown.get(column.name, True)]
    widths = {column.name: max(len(column.title), 12 if width is None else 10) for column in columns}
    widths["point"] = max(len(SEED.sub(" (each of 9 seeds)", name)) for name in points)
    widths["verdict"] = len("fits (99.9 GB free)")
    for name in LEAST_NEEDED:
        if name in widths and sum(widths.values()) + 2 * len(widths) - 2 > (width or math.inf):
            del widths[name]
    left_out = ", ".join(column.title for column in columns if column.name not in widths)
    columns = [column for column in columns if column.name in widths]

    def format_line(cells):
        padded = (
            cell.rjust(widths[column.name]) if column.format else cell.ljust(widths[column.name])
            for cell, column in zip(cells, columns, strict=True)
        )
        return f"| {' | '.join(padded)} |" if width is None else "  ".join(padded).rstrip()

    yield format_line([column.title for column in columns])
    rule = [("-" if width is None else "─") * size for size in widths.values()]
    yield f"|-{'-|-'.join(rule)}-|" if width is None else "──".join(rule)
    short, num_small = list[dict](), 0

    def list_rows() -> Iterator[dict]:
        nonlocal num_small
        for row in plan_points(points, options):
            num_small += (row.get("step_seconds") or MIN_STEP_SECONDS) < MIN_STEP_SECONDS
            hours = row.get("hours")
            cells = row | {"hours": hours and ("< 1 minute" if hours < 1 / 60 else format(hours, ".3g"))}
            if hours and hours < 1 / 60 and str(row.get("verdict")).startswith("fits ("):
                short.append(cells)
                continue
            if "verdict" not in row and short:  # the sum comes next
                yield fold_rows(short)
            yield cells

    for row in fold_seeds(list_rows()):
        yield format_line([format_cell(row.get(column.name), column.format) for column in columns])
    if left_out:
        yield f"\nNo room here for: {left_out}."
    if num_small and not options.measure_step:
        yield (
            f"\n{num_small} of {len(points)} points would make a step in less than {MIN_STEP_SECONDS * 1e3:g} ms: they "
            "are too small to keep such a device busy, and take longer than the table says."
        )


def fold_seeds(rows: Iterable[dict]) -> Iterator[dict]:
    """The rows, those that follow each other and differ in their seed alone as one."""
    for (name, _), same in itertools.groupby(rows, lambda row: (SEED.sub("", row["point"]), row | {"point": ""})):
        first, *others = same
        yield first | {"point": f"{name} (each of {1 + len(others)} seeds)"} if others else first


def fold_rows(rows: Sequence[dict]) -> dict:
    """One row for several points: their number, sums of tokens and FLOPs, the largest of other numbers."""
    if len(rows) == 1:
        return rows[0]
    folded: dict[str, Any] = {
        "point": f"{len(rows)} points",
        "hours": "< 1 minute",
        "verdict": "fit; each takes less than a minute",
    }
    for column in COLUMNS:
        values = [row[column.name] for row in rows if isinstance(row.get(column.name), int | float)]
        if values and column.name != "hours":
            folded[column.name] = sum(values) if column.name in ("tokens", "flops") else max(values)
    return folded


def plan_point(name: str, cfg: config.Config, options: PlanOptions, steps: range | None = None) -> dict:
    """A row of the plan, of these steps, counted from 0; None: of all.

    Tokens include padding; train.steps = 0 means an unknown number of steps.
    """
    vocab_size, num_devices = find_vocab_size(cfg), options.num_devices
    steps = range(cfg.train.steps) if steps is None else steps
    num_steps, fraction = len(steps) or None, batch_warmup.compute_mean_fraction(cfg.train, steps)
    full_cfg = fields.override(cfg, {"train.batch_warmup_fraction": 0.0})
    flops = cost.count_step_flops(full_cfg, vocab_size)
    batch_size, accum_steps = cfg.train.batch_size, cfg.train.grad_accum_steps
    work = (flops or 0) * (REMAT_WORK if cfg.model.remat else 1)
    seconds, description = work / (options.accelerator.flops * options.utilisation * num_devices) or None, ""
    if options.measure_step:
        seconds, description = options.measure_step(full_cfg, vocab_size, flops)
    abstract_state = cost.make_abstract_state(program.make_static_config(cfg), vocab_size)
    seq_len = pack.build_dataset_info(cfg, vocab_size).seq_len  # of all choices of multiple_choice
    row = {
        "point": name,
        **lm.count_parameters(abstract_state.params["model"]),
        "tokens": num_steps and num_steps * fraction * batch_size * seq_len,
        "flops": flops and num_steps and num_steps * fraction * flops,
        "hours": seconds and num_steps and num_steps * fraction * seconds / 3600,
        "step_seconds": seconds and seconds * fraction,
        "step": description,
    }
    if batch_size % (num_devices * accum_steps):
        return row | {
            "verdict": f"no: train.batch_size = {batch_size} is not divisible by {num_devices} devices"
            f" x train.grad_accum_steps = {accum_steps}"
        }
    planner = StepPlanner(cfg, options, vocab_size)
    chosen, limit = planner.chosen, planner.limit
    costs = {variant: planner.compute_cost(variant, accum_steps, batch_size) for variant in planner.list_variants()}
    max_memory = {variant: planner.compute_memory(variant, accum_steps, batch_size) for variant in costs}
    memory = costs[chosen].memory
    row |= {variant: step_cost.memory / 1e9 for variant, step_cost in costs.items()} | {
        "memory": memory / 1e9,
        "communicated": describe_collectives(costs[chosen]),
    }
    if options.target and costs[chosen].arguments:
        row |= {name: getattr(costs[chosen], name) / 1e9 for name in ("arguments", "temporaries")}
        row["code"] = costs[chosen].code / 1e6
        has_attention = "attention_dropout" in MODELS[cfg.model.family].conditional_fields
        row["attention"] = costs[chosen].attention or ("plain" if has_attention else "")
        traffic = costs[chosen].traffic
        row["traffic"] = traffic and traffic / 1e9
        bound = target_compiler.bound_step(costs[chosen], work, options.accelerator, num_devices)
        row |= {"at_least": target_compiler.describe_roofline(bound)} if bound else {}
    if options.finds_batch:
        unit = num_devices * accum_steps
        compute_memory = lambda size: planner.compute_memory(chosen, accum_steps, size * unit)
        row["largest_batch"] = unit * find_largest(compute_memory, limit, batch_size // unit)
    if max_memory[chosen] <= limit:
        return row | {"verdict": f"fits ({(limit - memory) / 1e9:.1f} GB free)"}
    if memory <= limit * ESTIMATE_ERROR and not planner.is_exact(chosen):
        return row | {"verdict": "perhaps: --compile compiles it to know"}
    return row | {"verdict": suggest_remedy(planner, max_memory)}


class StepPlanner(NamedTuple):
    """What the variants of a config's step need on the devices of a plan."""

    cfg: config.Config
    options: PlanOptions
    vocab_size: int

    @property
    def limit(self) -> float:
        """Bytes that a step may need on each device."""
        target = self.options.target
        return target.memory if target else self.options.accelerator.memory * USABLE_MEMORY

    @property
    def chosen(self) -> str:
        """The variant that the config itself has."""
        is_fsdp = self.cfg.parallel.mode == "fsdp" and self.options.num_devices > 1
        return next(name for name, on in STEP_VARIANTS.items() if on == (is_fsdp, self.cfg.model.remat))

    def list_variants(self) -> list[str]:
        """The variants to plan."""
        if self.options.as_configured:
            return [self.chosen]
        return [name for name, (is_fsdp, _) in STEP_VARIANTS.items() if self.options.num_devices > 1 or not is_fsdp]

    def is_exact(self, variant: str) -> bool:
        """Whether a variant's memory is the compiler's; without a mesh, one device is compiled for."""
        is_local = self.options.num_devices == 1 or not STEP_VARIANTS[variant][0]
        return self.options.exact and bool(self.options.compile_mesh or is_local)

    def compute_cost(self, variant: str, accum_steps: int, batch_size: int) -> cost.StepCost:
        """The cost of a step of a variant; batch_size: on all devices."""
        num_slices = self.cfg.parallel.num_slices or (self.options.count if self.options.accelerator.tpu else 1)
        is_fsdp, has_remat = STEP_VARIANTS[variant]
        changes = {"parallel.mode": "fsdp" if is_fsdp else "data_parallel", "model.remat": has_remat}
        changes |= {"train.steps": 1, "train.grad_accum_steps": accum_steps}
        if self.options.compile_mesh:
            changes |= {"train.batch_size": batch_size, "parallel.num_slices": num_slices}
            static_cfg = program.make_static_config(fields.override(self.cfg, changes))
            return self.options.compile_mesh(static_cfg, self.vocab_size)
        changes |= {"train.batch_size": batch_size // self.options.num_devices}
        local = program.make_static_config(fields.override(self.cfg, changes))
        if self.is_exact(variant):
            return cost.StepCost(cost.compile_step(local, self.vocab_size, single_device=True).memory, {})
        return cost.StepCost(estimate_memory(local, self.vocab_size, self.options.num_devices // num_slices), {})

    def compute_memory(self, variant: str, accum_steps: int, batch_size: int) -> float:
        """Bytes of a step on each device, at most."""
        memory = self.compute_cost(variant, accum_steps, batch_size).memory
        return memory * (1.0 if self.is_exact(variant) else ESTIMATE_ERROR)


def describe_collectives(step_cost: cost.StepCost) -> str:
    """GB of each kind of collective, and how many of them other work hides."""
    parts = []
    for kind, size in step_cost.collective_bytes.items():
        hidden = sum(one.size * one.times for one in step_cost.transfers if one.kind == kind and one.is_overlapped)
        if size:
            parts.append(f"{kind} {size / 1e9:.3g}" + (f" ({hidden / 1e9:.3g} beside compute)" if hidden else ""))
    return ", ".join(parts)


def find_largest(compute_memory: Callable[[int], float], limit: float, start: int) -> int:
    """The largest size whose memory is within the limit, to a part in 32; 0 if size 1 is not.

    Bisection, whose next size is where a line through the last two meets the limit: memory grows almost linearly.
    """
    failure, fit, tried = math.inf, 0, dict[int, float]()  # the smallest that does not fit, the largest that does
    size = start
    while failure - fit > max(1, fit // 32):
        tried[size] = compute_memory(size)
        failure, fit = (failure, max(fit, size)) if tried[size] <= limit else (min(failure, size), fit)
        gap = (16 * fit if failure == math.inf else int(failure)) - fit
        guess = fit + gap // 2
        finite = (size for size in tried if tried[size] < math.inf)
        known = sorted(finite, key=lambda size: abs(tried[size] - limit))[:2]
        if len(known) == 2 and (slope := (tried[known[0]] - tried[known[1]]) / (known[0] - known[1])) > 0:
            guess = known[0] + int((limit - tried[known[0]]) / slope)
        size = max(fit + 1 + gap // 10, min(guess, fit + gap - 1 - gap // 10))
    return fit


@functools.cache
def estimate_memory(cfg: StaticConfig, vocab_size: int, num_devices: int = 1) -> float:
    """Bytes on one of the devices, of a step of a static config with cfg.train.batch_size examples there.

    Compiles nothing. The sum of: the state; a gradient (two with gradient accumulation); what the forward pass saves
    for the backward pass; once more the largest array of that, or a rematerialized layer; with FSDP a device's share of
    the state, and the whole gradient of parameters outside the layers. Within ESTIMATE_ERROR of the compiler's plan in
    float32, for steps that take gigabytes; a third too little for rematerialized recurrent layers.
    """
    state = cost.make_abstract_state(cfg, vocab_size)
    num_shards = num_devices if parallel.MODES[cfg.parallel.mode].shards_params else 1
    local = sharding.compute_shard_shapes(state, num_shards)
    objective = program.build_model_and_objective(cfg, pack.build_dataset_info(cfg, vocab_size))[1]
    num_parts = cfg.train.grad_accum_steps * objective.masks_per_example
    residuals = list_residual_bytes(cfg, vocab_size, num_shards)
    largest = max(residuals)
    if cfg.model.remat:
        without_remat = list_residual_bytes(fields.override(cfg, {"model.remat": False}), vocab_size, num_shards)
        largest = max(largest, (sum(without_remat) - sum(residuals)) / cfg.model.num_layers)
    gradient = sum(map(count_bytes, jax.tree.leaves(local.params)))
    outside_layers = sum(
        count_bytes(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)
        if not sharding.is_stacked(path)
    )
    return (
        sum(map(count_bytes, jax.tree.leaves(local)))
        + gradient * (1 + (num_parts > 1))
        + sum(residuals)
        + largest
        + (outside_layers if num_shards > 1 else 0)
    )


def list_residual_bytes(cfg: StaticConfig, vocab_size: int, num_shards: int) -> list[int]:
    """Bytes of each array that a part of a step's forward pass saves on a device for the backward pass."""
    changes = {
        "model.scan_unroll": 1,
        "model.kernels": "reference",
        "train.batch_size": cfg.train.batch_size // cfg.train.grad_accum_steps,
        "train.grad_accum_steps": 1,
        "parallel.mode": "data_parallel",  # what a device holds of the layers follows from num_shards alone
    }
    return _trace_residual_bytes(fields.override(cfg, changes), vocab_size, num_shards)


@functools.cache
def _trace_residual_bytes(cfg: StaticConfig, vocab_size: int, num_shards: int) -> list[int]:
    about = pack.build_dataset_info(cfg, vocab_size)
    model, objective = program.build_model_and_objective(cfg, about)
    params, hparams = cost.make_abstract_state(cfg, vocab_size).params, program.make_placeholder_hparams(cfg)
    num_examples = cfg.train.batch_size

    sharding_strategy = sharding.FSDP(jax.sharding.AbstractMesh((num_shards,), ("data",)), params)

    def backward(params, batch, key_B):
        def loss(params):
            losses = objective.loss(sharding_strategy.gather_params(params), model, batch, key_B, hparams, train=True)
            return sum(x_B.sum() for x_B in losses.loss_B.values())

        return jax.vjp(loss, params)[1]

    key_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num_examples))
    _, residuals = jax.make_jaxpr(backward, axis_env=[("data", num_shards)], return_shape=True)(
        sharding.compute_shard_shapes(params, num_shards), types.abstract_batch(num_examples, about), key_B
    )
    return [count_bytes(leaf) for leaf in jax.tree.leaves(residuals)]


def count_bytes(array) -> int:
    """The bytes of an array, abstract or not."""
    return array.size * array.dtype.itemsize


def suggest_remedy(planner: StepPlanner, max_memory: dict[str, float]) -> str:
    """What would make a step fit: another variant, or gradient accumulation. max_memory: bytes of each, at most."""
    chosen, limit, accum_steps = planner.chosen, planner.limit, planner.cfg.train.grad_accum_steps
    changed = {}  # by variant: what must be switched on
    for variant in max_memory:
        switches = list(zip(SWITCHES, STEP_VARIANTS[variant], STEP_VARIANTS[chosen], strict=True))
        if variant != chosen and all(is_on >= was_on for _, is_on, was_on in switches):
            changed[variant] = [switch for switch, is_on, was_on in switches if is_on > was_on]
    remedies = [
        f"fits with {' and '.join(changes)} ({max_memory[variant] / 1e9:.1f} GB)"
        for variant, changes in changed.items()
        if max_memory[variant] <= limit
    ]
    memory = max_memory[chosen]
    for variant in (chosen, *(() if remedies else reversed(changed))):
        needed_steps, memory = find_accum_steps(planner, variant, max_memory[variant])
        if needed_steps:
            addition = f" and {' and '.join(changed[variant])}" if variant != chosen else ""
            remedies.append(f"fits with train.grad_accum_steps = {needed_steps}{addition} ({memory / 1e9:.1f} GB)")
            if variant == chosen:
                remedies.append(f"--count={-(-planner.options.count * needed_steps // accum_steps)}")
            break
    return ", or ".join(remedies) or (
        f"does not fit, nor with one example at a time ({memory / 1e9:.1f} GB): a smaller model or a device with more "
        "memory"
    )


def find_accum_steps(planner: StepPlanner, variant: str, memory: float) -> tuple[int, float]:
    """The smallest number of accumulation steps with which a step fits, 0 for none, and the memory then."""
    fewest, batch_size = planner.cfg.train.grad_accum_steps, planner.cfg.train.batch_size
    num_examples, needed = batch_size // planner.options.num_devices, memory
    for accum_steps in range(fewest + 1, num_examples + 1):
        min_share = fewest / accum_steps  # of the memory, which cannot fall below it
        if num_examples % accum_steps or (memory * min_share > planner.limit and accum_steps < num_examples):
            continue
        needed = planner.compute_memory(variant, accum_steps, batch_size)
        if needed <= planner.limit:
            return accum_steps, needed
    return 0, needed
