"""Training FLOPs by the compiler's own count."""
import dataclasses

import jax
import jax.numpy as jnp

from mlm import config, types
from mlm.models import MODELS


def per_step(cfg: config.Config, vocab_size: int, objective: types.Objective, knobs: types.Knobs) -> float:
    """Floating-point operations of one update's forward and backward pass, over the whole batch.

    XLA counts a loop's body once, however often it runs. Layers are therefore unrolled for the count, and the loop
    along a row is counted with one and with two tokens an iteration: the difference is one token's share.
    """
    rows, length = cfg.train.batch_size, cfg.pack.length

    def bodies(unroll):  # a scan that does not divide evenly leaves the rest outside its loop
        return unroll + length % unroll

    def count(unroll):
        shape = dataclasses.replace(cfg.model, unroll=0, time_unroll=unroll)
        model = MODELS[shape.family](shape, vocab_size)

        def loss(params, batch, key_B):
            losses = objective.loss(params, model, batch, key_B, knobs, train=True)
            return sum(x_B.sum() for x_B in losses.loss_B.values())

        def init(key):
            return {"model": model.init(key), "objective": objective.init(key, shape.width)}

        int_BxL, int_B = (jax.ShapeDtypeStruct(s, jnp.int32) for s in ((rows, length), (rows,)))
        batch = types.Batch(int_BxL, int_BxL, int_BxL, int_BxL, int_B, int_B)
        key_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
        lowered = jax.jit(jax.grad(loss)).lower(jax.eval_shape(init, jax.random.key(0)), batch, key_B)
        return lowered.cost_analysis()["flops"]

    once = count(1)
    return once + (length - 1) * (count(2) - once) / (bodies(2) - bodies(1))
