"""The cost of a step by the compiler's own count: floating-point operations, and bytes of memory."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import functools
from typing import Any, NamedTuple

import jax

from mlm.base import batch_warmup, config, errors, fields, phases, types
from mlm.data.rows import pack
from mlm.models import layers, platform_kernels
from mlm.training.compilation import data_movement
from mlm.training.step import parallel, program, trainable, update
from mlm.training.step.optimizers import OPTIMIZERS
from mlm.training.step.sharding import is_stacked

PLAIN_STEP = {  # runs that differ in these share a count and an abstract state, the same on every device
    "train.steps": 1,
    "train.grad_accum_steps": 1,
    "train.batch_warmup_fraction": 0.0,
    "parallel.mode": "data_parallel",
    "model.remat": False,
    "model.kernels": "reference",
}


def count_step_flops(cfg: config.Config, vocab_size: int) -> float | None:
    """Floating-point operations of one update (forward and backward pass) over the whole batch; None: XLA gives none.

    The count is for the run's own masking rate and batch size, averaged over their schedules. It includes what the
    usual estimate (Kaplan et al. 2020, section 2.1) leaves out, such as norms and softmax: it is 5 to 12% above it at
    width 64 (size micro), up to 5% at 128 and up to 3% from 256 on.

    XLA counts a loop's body once, however often it runs. Layers are therefore unrolled, and the loop over tokens is
    counted with one and with two tokens per iteration: the difference is the cost of one token. The loop over a source
    is counted as long as the example's. Examples of a task count at full length, though their batches are cut. Frozen
    parameters have no gradient, and the backward pass ends where only they are below. With phases it is their mean.
    """
    total = 0.0
    for share, phase in zip(cfg.phases.shares or (1.0,), phases.average_rates(cfg), strict=True):
        flops_1, flops_2 = (count_lowered_flops(phase.cfg, vocab_size, rnn_unroll=unroll) for unroll in (1, 2))
        if flops_1 is None or flops_2 is None:
            return None
        seq_len = phase.cfg.pack.seq_len
        num_bodies = 2 + seq_len % 2  # where two do not divide the loop evenly, the remainder stands outside it
        flops = flops_1 + (seq_len - 1) * (flops_2 - flops_1) / (num_bodies - 1)
        steps = range(phase.first_step, phase.end_step)
        total += share * flops * batch_warmup.compute_mean_fraction(cfg.train, steps)
    return total


def count_lowered_flops(cfg: config.Config, vocab_size: int, *, rnn_unroll: int) -> float | None:
    """XLA's count for the gradient of one batch's loss, on abstract inputs, with layers unrolled."""
    if cfg.model.cell not in ("elman", "gru", "lstm") and cfg.finetune.head != "bilstm":
        rnn_unroll = 1  # no loop over tokens
    changes = {"model.scan_unroll": 0, "model.rnn_unroll": rnn_unroll, "mask.max_rate": cfg.mask.rate, **PLAIN_STEP}
    static_cfg = program.clear_paths(program.make_static_config(fields.override(cfg, changes)))
    num_layers = layers.count_unique_layers(cfg.model)
    if not 0 < cfg.finetune.trainable_layers < num_layers:
        return _count_lowered_flops(static_cfg, vocab_size)
    # JAX leaves out a gradient of frozen layers where all of a stack are frozen. Each layer takes as much as the other,
    # but an encoder's gradient passes through its decoder's frozen layers, too.
    share = cfg.finetune.trainable_layers / num_layers
    static_cfg = fields.override(static_cfg, {"finetune.trainable_layers": num_layers})
    model_params = make_abstract_state(static_cfg, vocab_size).params["model"]
    stacks = {path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(model_params) if is_stacked(path)}
    counts: list[Any] = [
        _count_lowered_flops(static_cfg, vocab_size, frozen)
        for frozen in (frozenset(stacks), frozenset(), *(frozenset(stacks - {stack}) for stack in stacks))
    ]
    if None in counts:
        return None
    none, every, *single = counts
    passed_through = sum(single) - every - (len(stacks) - 1) * none
    return none + share * (every - none) + (1 - share) * passed_through


@functools.cache
def _count_lowered_flops(cfg: types.StaticConfig, vocab_size: int, frozen_stacks: frozenset[str] = frozenset()):
    dataset_info = pack.build_dataset_info(cfg, vocab_size)
    model, objective = program.build_model_and_objective(cfg, dataset_info)
    hparams, num_examples = program.make_placeholder_hparams(cfg), cfg.train.batch_size * objective.masks_per_example
    base_rule = trainable.make_freeze_rule(cfg, objective)

    def freeze_rule(path: trainable.Path) -> int:
        is_frozen = is_stacked(path) and path[0].key == "model" and path[1].key in frozen_stacks
        return trainable.WHOLE_LEAF if is_frozen else base_rule(path)

    def loss_fn(trainable_params: types.Params, params: types.Params, batch: types.Batch, key_B: types.Array):
        merged = trainable.merge_params(params, trainable_params, freeze_rule)
        losses = objective.loss(merged, model, batch, key_B, hparams, train=True)
        return sum(x_B.sum() for x_B in losses.loss_B.values())

    params, batch = make_abstract_state(cfg, vocab_size).params, types.abstract_batch(num_examples, dataset_info)
    trainable_params = jax.eval_shape(lambda params: trainable.select_trainable(params, freeze_rule), params)
    key_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num_examples))
    with parallel.use_cpu_backend():
        analysis = jax.jit(jax.grad(loss_fn)).lower(trainable_params, params, batch, key_B).cost_analysis()
    return analysis["flops"] if analysis else None


def make_abstract_state(cfg: types.StaticConfig, vocab_size: int) -> types.TrainState:
    """The shapes of the state of a static config: the same however a step is made and however many there are."""
    max_rate = fields.DEFAULT["mask.max_rate"]
    changes = {"train.batch_size": 1, "model.scan_unroll": 1, "model.rnn_unroll": 1, "mask.max_rate": max_rate}
    return _make_abstract_state(fields.override(program.clear_paths(cfg), changes | PLAIN_STEP), vocab_size)


@functools.cache
def _make_abstract_state(cfg: types.StaticConfig, vocab_size: int):
    model, objective = program.build_model_and_objective(cfg, pack.build_dataset_info(cfg, vocab_size))
    init_state = functools.partial(update.init_state, cfg, model, objective)
    return jax.eval_shape(init_state, program.make_placeholder_hparams(cfg))


SIZE_FIELDS = (  # on which the memory of a step depends
    *(f"model.{name}" for name in ("num_layers", "width", "mlp_dim", "rnn_dim", "window")),
    *("tokenizer.vocab_size", "pack.seq_len", "train.batch_size", "eval.batch_size"),
)


# What a compiled program calls the kernels of self-attention.
ATTENTION_CALLS = {
    "cudnn_attention": "dot_product_attention_fwd",
    "splash_attention": "splash_mha_fwd",
    "fused_attention": "fused_attention_compute_output",
}


class StepCost(NamedTuple):
    """The compiler's plan for a step."""

    memory: float  # bytes on each device: arguments, results that do not share their memory, and temporaries
    collective_bytes: dict[str, int]  # bytes between devices in a step, by kind of collective (data_movement.py)
    arguments: float = 0.0  # bytes of the state and the batch
    temporaries: float = 0.0  # bytes
    code: float = 0.0  # bytes of machine code, on a TPU in its memory
    transfers: tuple[data_movement.Collective, ...] = ()
    traffic: float | None = None  # bytes read from and written to the device's main memory (data_movement.py)
    attention: str = ""  # its kernels, with commas; "": the plain formula, or there is no attention


def read_cost(compiled: jax.stages.Compiled) -> StepCost:
    """The cost of a compiled step."""
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None and text is not None
    found = data_movement.read_collectives(text)
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return StepCost(
        memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes,
        data_movement.sum_bytes(found),
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        tuple(found),
        data_movement.count_bytes(text),
        ",".join(kernel for kernel, call in ATTENTION_CALLS.items() if call in text),
    )


@functools.cache
def compile_step(cfg: types.StaticConfig, vocab_size: int, *, single_device: bool = False) -> StepCost:
    """The cost of a step that `lower_step` lowers for devices here; allocates no array."""
    lowered = lower_step(cfg, vocab_size, single_device=single_device)
    # How well the machine code of a CPU is optimized does not change the planned memory.
    options: Any = {"xla_backend_optimization_level": 0}
    return read_cost(lowered.compile(options))


def lower_step(
    cfg: types.StaticConfig, vocab_size: int, *, single_device: bool = False, devices: tuple[Any, ...] | None = None
) -> jax.stages.Lowered:
    """A step of a static config on a full batch, lowered.

    It is lowered for one device here (single_device), for the given ones, which need not be here, or for all. Kernels
    of this machine's CPU would not be those of the devices that it stands for, and its layers are rolled: devices that
    are given have their own kernels, and run what a run on them would.
    """
    # The loop of a growing batch does not say how often it runs, and so not what it moves between devices.
    changes = {"train.batch_warmup_fraction": 0.0, "model.kernels": platform_kernels.REFERENCE, "model.scan_unroll": 1}
    if devices:
        kernels = platform_kernels.resolve_kernels(cfg.model.kernels, devices[0].platform)
        changes |= {"model.kernels": kernels, "model.scan_unroll": cfg.model.scan_unroll}
    cfg = fields.override(cfg, changes)
    dataset_info = pack.build_dataset_info(cfg, vocab_size)
    train_step = functools.partial(update.train_step, cfg, *program.build_model_and_objective(cfg, dataset_info))
    mode = parallel.MODES["data_parallel" if single_device else cfg.parallel.mode]
    build = mode.build if not single_device else lambda step, *_: parallel.build_single_device(step)
    partitioner = build(train_step, devices, cfg.parallel)
    state, batch = make_abstract_state(cfg, vocab_size), types.abstract_batch(cfg.train.batch_size, dataset_info)
    return partitioner.train_step.lower(
        partitioner.make_restore_target(state) if mode.shards_params else state,
        batch,
        program.make_placeholder_hparams(cfg),
    )


def check_memory(cfg: config.Config) -> None:
    """Raises ConfigError where a run's arrays certainly do not fit a device here; traces and compiles nothing."""
    min_memory, device_memory = compute_min_memory(cfg), parallel.device_memory()
    if min_memory > device_memory:
        flat = fields.flatten(cfg)
        shape = ", ".join(f"{name} = {flat[name]}" for name in SIZE_FIELDS if flat[name])
        raise errors.ConfigError(
            f"config.model and its batches ({shape}): a device needs at least "
            f"{min_memory / 1e9:,.0f} GB, and a device here has {device_memory / 1e9:,.0f} GB; "
            "mlm sweep plan says what a step takes"
        )


def compute_min_memory(cfg: config.Config) -> int:
    """Bytes that a device needs at the least: `compute_activation_memory`, and the largest parameters of its model.

    With these come their gradients and moments. Every architecture has so many parameters; most have some more.
    """
    model = cfg.model
    num_rows = cfg.tokenizer.vocab_size + (model.max_positions if model.positions == "learned" else 0)
    params = num_rows * (model.embedding_dim or model.width)
    params += 2 * layers.count_unique_layers(model) * model.width * max(model.mlp_dim, model.rnn_dim)
    params += model.window * model.width**2 if model.cell == "window" else 0
    size = 4 * (2 + OPTIMIZERS[cfg.optim.optimizer].num_moments) * params
    if parallel.MODES[cfg.parallel.mode].shards_params:
        size //= parallel.describe_devices()["devices"]
    return size + compute_activation_memory(cfg)


def compute_activation_memory(cfg: config.Config) -> int:
    """Bytes of each layer's input and one layer's attention, or of an evaluation's embeddings where those are more."""
    model, num_devices = cfg.model, parallel.describe_devices()["devices"]
    size = 2 if model.dtype == "bfloat16" else 4
    tokens = cfg.train.batch_size // (cfg.train.grad_accum_steps * num_devices) * cfg.pack.seq_len
    step = tokens * (model.width * model.num_layers + cfg.pack.seq_len * model.num_heads) * size
    return max(step, cfg.eval.batch_size // num_devices * cfg.pack.seq_len * model.width * size)
