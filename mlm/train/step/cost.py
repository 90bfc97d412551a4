"""What a step costs by the compiler's own count: floating-point operations, and bytes of memory."""
import functools
from typing import NamedTuple

import jax

from mlm.base import config, errors, fields, types
from mlm.data.rows import pack
from mlm.train.step import collectives, parallel, program, update


def per_step(cfg: config.Config, vocab_size: int) -> float | None:
    """Floating-point operations of one update's forward and backward pass, over the whole batch; None: XLA gives none.

    Those that the run's own masking rate asks for, on average over a schedule, not its max_rate. By hand a Transformer
    of N weights in its layers takes 6 N D for D tokens, its attention 12 L W in each layer for each token of a row of L
    at width W, and its output layer 6 (W + V) W for each prediction among V entries (Kaplan et al. 2020, section 2.1;
    twice that for the backward pass); the count is within 5% of it. XLA counts a loop's body once, however often it
    runs. Layers are therefore unrolled for the count, and the loop along a row is counted with one and with two tokens
    an iteration: the difference is one token's share. A source's loop is taken to be as long as the row's,
    and rows of a task count whole, though batches of them are cut.
    """
    once, twice = (lowered(cfg, vocab_size, time_unroll=unroll) for unroll in (1, 2))
    if once is None:
        return None
    bodies = 2 + cfg.pack.seq_len % 2  # where the loop does not divide evenly, what is left over stands outside it
    return once + (cfg.pack.seq_len - 1) * (twice - once) / (bodies - 1)


def lowered(cfg: config.Config, vocab_size: int, *, time_unroll: int) -> float | None:
    """XLA's count for the gradient of one batch's loss, on abstract inputs, with layers unrolled."""
    if cfg.model.cell not in ("elman", "gru", "lstm") and cfg.finetune.head != "bilstm":
        time_unroll = 1  # no loop along a row
    changes = {"model.scan_unroll": 0, "model.rnn_unroll": time_unroll, "model.remat": False,
               "model.fused_kernels": False,  # the same on every device
               "mask.max_rate": (cfg.mask.rate + (cfg.mask.final_rate or cfg.mask.rate)) / 2, "train.steps": 1}
    return _lowered(program.unnamed(program.blank(fields.override(cfg, changes))), vocab_size)


@functools.cache
def _lowered(cfg, vocab_size):
    about = pack.shape(cfg, vocab_size)
    model, objective = program.parts(cfg, about)
    knobs, rows = program.knobs(cfg), cfg.train.batch_size * objective.views

    def loss(params, batch, key_B):
        losses = objective.loss(params, model, batch, key_B, knobs, train=True)
        return sum(x_B.sum() for x_B in losses.loss_B.values())

    key_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    with parallel.counting():
        cost = jax.jit(jax.grad(loss)).lower(abstract(cfg, vocab_size).params, types.abstract(rows, about), key_B)
        analysis = cost.cost_analysis()
    return analysis["flops"] if analysis else None


def abstract(cfg: config.Config, vocab_size: int) -> types.TrainState:
    """The shapes of a blank config's state, which are the same however a step is made and how many there are."""
    return _abstract(fields.override(program.unnamed(cfg), {"train.steps": 1, "train.batch_size": 1,
                                                            "train.grad_accum_steps": 1, "parallel.mode": "jit",
                                                            "model.remat": False, "model.fused_kernels": False,
                                                            "model.scan_unroll": 1, "model.rnn_unroll": 1,
                                                            "mask.max_rate": fields.DEFAULT["mask.max_rate"]}),
                     vocab_size)


@functools.cache
def _abstract(cfg, vocab_size):
    return jax.eval_shape(functools.partial(update.init_state, cfg, *program.parts(cfg, pack.shape(cfg, vocab_size))),
                          program.knobs(cfg))


class Compiled(NamedTuple):
    """What the compiler plans for a step."""

    memory: int              # bytes on each device
    moved: dict[str, int]    # bytes between devices in a step, by kind of collective (collectives.moved)


def memory(cfg: config.Config, vocab_size: int) -> int:
    """Bytes on one device of a step of cfg.train.batch_size rows there, its layers rolled, which changes little."""
    return compiled(cfg, vocab_size, alone=True).memory


@functools.cache
def compiled(cfg: config.Config, vocab_size: int, *, alone: bool = False) -> Compiled:
    """A step of a blank config on all devices there are, or on one alone, its layers rolled; no array is allocated."""
    cfg = fields.override(cfg, {"model.scan_unroll": 1, "model.fused_kernels": False})  # the fast paths are this CPU's
    about = pack.shape(cfg, vocab_size)
    train_step = functools.partial(update.train_step, cfg, *program.parts(cfg, about))
    split = cfg.parallel.mode == "sharded" and not alone
    run = parallel.one_device(train_step) if alone else parallel.MODES["sharded" if split else "jit"](train_step)
    state, batch = abstract(cfg, vocab_size), types.abstract(cfg.train.batch_size, about)
    # How well its machine code is optimised changes nothing in what memory is planned.
    made = run.train_step.lower(run.like(state) if split else state, batch, program.knobs(cfg)).compile(
        compiler_options={"xla_backend_optimization_level": 0})
    used = made.memory_analysis()
    return Compiled(used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
                    + used.temp_size_in_bytes, {} if alone else collectives.moved(made.as_text()))


def check_room(cfg: config.Config) -> None:
    """Raises ConfigError where a run's arrays certainly cannot fit a device here; allocates and compiles nothing."""
    room = parallel.device_memory()
    if at_most(cfg) > room and (need := least(cfg)) > room:
        model = cfg.model
        shape = ", ".join(f"{name} = {value}" for name, value in (("num_layers", model.num_layers), ("width",
                                                                                                     model.width),
                                                                  ("mlp_dim", model.mlp_dim), ("rnn_dim",
                                                                                               model.rnn_dim),
                                                                  ("window", model.window), ("vocab_size",
                                                                                             cfg.tokenizer.vocab_size),
                                                                  ("seq_len", cfg.pack.seq_len), ("batch_size",
                                                                                                  cfg.train.batch_size),
                                                                  ("eval.batch_size", cfg.eval.batch_size)) if value)
        raise errors.ConfigError(f"config.model and its batches ({shape}): {need / 1e9:,.0f} GB are needed at least, " f"and a device here has {room / 1e9:,.0f} GB; python -m mlm.launch.sweep plan says what " "a step takes")


def least(cfg: config.Config) -> int:
    """Bytes that a device needs for a run, at the least: what no compiler could do without.

    Its part of the parameters, their gradient and Adam's two moments, beside `rows`.
    """
    model = cfg.model
    certain = _part(
        cfg, 16 * 2 * model.num_layers * model.width * max(model.mlp_dim, model.rnn_dim)
    )  # whatever the architecture
    if certain > parallel.device_memory():
        return certain

    def parameters(**shape):  # linear in both, so that nothing is traced a million times
        changed = fields.override(cfg, {f"model.{name}": value for name, value in shape.items()} |
                                  {"model.scan_unroll": 1})
        return sum(leaf.size for leaf in jax.tree.leaves(abstract(program.blank(changed), 6).params))

    window = min(model.window, 1)
    one = parameters(num_layers=1, window=window)
    every = one + (model.num_layers - 1) * (parameters(num_layers=2, window=window) - one)
    if model.window > 1:
        every += (model.window - 1) * (parameters(num_layers=1, window=2) - one)
    return _part(cfg, 16 * (every + max(cfg.tokenizer.vocab_size - 6, 0) * (model.width + 1))) + rows(cfg)


def _part(cfg, state):
    return state // parallel.describe()["devices"] if cfg.parallel.mode == "sharded" else state


def at_most(cfg: config.Config) -> int:
    """More than `least` for any architecture, without tracing one."""
    model = cfg.model
    tables = (cfg.tokenizer.vocab_size + model.max_positions + 10) * (model.width + 1)
    return 16 * (
        tables
        + 16 * (model.num_layers + 1) * (model.width + max(model.mlp_dim, model.rnn_dim)) ** 2 * max(model.window, 1)
    ) + rows(cfg)


def rows(cfg: config.Config) -> int:
    """Bytes of a step's rows: each layer's input, which the backward pass reads, and one layer's attention; or those of
    an evaluation's embeddings.
    """
    model, devices = cfg.model, parallel.describe()["devices"]
    size = 2 if model.dtype == "bfloat16" else 4
    tokens = cfg.train.batch_size // (cfg.train.grad_accum_steps * devices) * cfg.pack.seq_len
    step = tokens * (model.width * model.num_layers + cfg.pack.seq_len * model.num_heads) * size
    return max(step, cfg.eval.batch_size // devices * cfg.pack.seq_len * model.width * size)
