"""Training FLOPs by the compiler's own count."""
import functools

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, fields, types
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES, masking
from mlm.train.step import program


def per_step(cfg: config.Config, vocab_size: int) -> float | None:
    """Floating-point operations of one update's forward and backward pass, over the whole batch; None: XLA gives none.

    Those that the run's own masking rate asks for, on average over a schedule, not its max_rate. By hand a Transformer
    of N weights in its layers takes 6 N D for D tokens, its attention 12 L W in each layer for each token of a row of L
    at width W, and its output layer 6 (W + V) W for each prediction among V entries (Kaplan et al. 2020, section 2.1;
    twice that for the backward pass); the count is within 5% of it. XLA counts a loop's body once, however often it
    runs. Layers are therefore unrolled for the count, and the loop along a row is counted with one and with two tokens
    an iteration: the difference is one token's share.
    """
    once, twice = (lowered(cfg, vocab_size, time_unroll=unroll) for unroll in (1, 2))
    if once is None:
        return None
    bodies = 2 + cfg.pack.length % 2  # where the loop does not divide evenly, what is left over stands outside it
    return once + (cfg.pack.length - 1) * (twice - once) / (bodies - 1)


def lowered(cfg: config.Config, vocab_size: int, *, time_unroll: int) -> float | None:
    """XLA's count for the gradient of one batch's loss, on abstract inputs, with layers unrolled."""
    if cfg.model.family != "rnn":
        time_unroll = 1  # no loop along a row
    changes = {"model.unroll": 0, "model.time_unroll": time_unroll, "model.fast": False,  # the same on every device
               "mask.max_rate": (cfg.mask.rate + (cfg.mask.final_rate or cfg.mask.rate)) / 2, "train.steps": 1}
    return _lowered(program.blank(fields.override(cfg, changes)), vocab_size)


@functools.cache
def _lowered(cfg, vocab_size):
    model = MODELS[cfg.model.family](cfg.model, vocab_size)
    objective = OBJECTIVES[cfg.objective](cfg.mask, masking.slots(cfg.mask.max_rate, cfg.pack.length),
                                          np.ones(vocab_size, np.int64))
    knobs, rows, length = program.training_knobs(cfg), cfg.train.batch_size * cfg.mask.views, cfg.pack.length

    def loss(params, batch, key_B):
        losses = objective.loss(params, model, batch, key_B, knobs, train=True)
        return sum(x_B.sum() for x_B in losses.loss_B.values())

    def init(key):
        return {"model": model.init(key), "objective": objective.init(key, cfg.model.width)}

    int_BxL, int_B = (jax.ShapeDtypeStruct(s, jnp.int32) for s in ((rows, length), (rows,)))
    batch = types.Batch(int_BxL, int_BxL, int_BxL, int_BxL, int_B, int_B)
    key_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    params = jax.eval_shape(init, jax.random.key(0))
    cost = jax.jit(jax.grad(loss)).lower(params, batch, key_B).cost_analysis()
    return cost["flops"] if cost else None
