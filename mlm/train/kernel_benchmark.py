"""How much a hand-written path is worth on this machine: a table of what is timed, each against the plain formula.

The smallest part of a model that comes by a path takes its gradient with and without it, in turns, on small arrays. A
path is left out only where the plain formula is faster by MARGIN. Both give the same numbers to rounding, so that what
else is at work on the machine meanwhile may cost time, never a result.
"""
import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.models import attention, cpu_kernels, layers, native, recurrence, rnn
from mlm.objectives import tokens

MARGIN = 0.05                         # of the time by hand
LEAST, MOST, SECONDS = 5, 40, 0.15    # turns of a case; no more begin once so many seconds have passed
ROWS, LENGTH, WIDTH, ENTRIES = 16, 128, 128, 4096


class Case(NamedTuple):
    """A path, as it is measured."""

    kind: Callable   # (config.Config) -> what beside the dtype decides, such as the cell; None: nothing comes by it
    part: Callable   # (config.Model) -> (function of a tree of floats and more arrays, these floats, those arrays)
    there: Callable[[], bool] = lambda: True  # whether it can be had here


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def of(module, *arrays):
    """A module of tokens' states, its parameters and states, and what it takes beside them, as a Case's part."""
    x_BxLxD = drawn(ROWS, LENGTH, WIDTH)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x_BxLxD, *arrays)["params"]
    params = jax.tree.map(lambda leaf: 0.1 * drawn(*leaf.shape), shapes)
    return (lambda floats, *arrays: module.apply({"params": floats[0]}, floats[1], *arrays)), (params, x_BxLxD), arrays


def mlp(model: config.Model):
    return of(layers.MLP(model))


def attending(model: config.Model):
    keys_Bx2, visible_Bx1xLxL = np.ones((ROWS, 2), np.uint32), np.ones((ROWS, 1, LENGTH, LENGTH), bool)
    return of(attention.Attention(model), visible_Bx1xLxL, keys_Bx2)


def recurring(model: config.Model):
    return of(rnn.Layer(model), (np.ones((ROWS, LENGTH), np.int32), None), None)


def telling(model: config.Model):
    """An output layer and the nats of its targets."""
    def head(params, h_NxD):
        table_VxD, bias_V = params
        return h_NxD.astype(model.dtype), table_VxD.astype(model.dtype), bias_V

    def logits(params, h_NxD):
        h_NxD, table_VxD, bias_V = head(params, h_NxD)
        return jnp.einsum("nd,vd->nv", h_NxD, table_VxD, preferred_element_type=jnp.float32) + bias_V

    own = types.Model(("both",), WIDTH, init=None, encode=None, logits=logits,
                      head=head if cpu_kernels.takes(model, "cross_entropy") else None)
    count = ROWS * LENGTH // 8
    return (lambda floats, target_N: tokens.predict_fast(floats[1:], own, floats[0], target_N)[0],
            (drawn(count, WIDTH), drawn(ENTRIES, WIDTH), drawn(ENTRIES)), (np.arange(count, dtype=np.int32),))


def attends(cfg: config.Config) -> bool:
    return "transformer" in (cfg.model.family, cfg.model.cell)


def bends(cfg: config.Config) -> bool:
    return cfg.model.activation == "gelu" and (attends(cfg) or cfg.model.family == "feedforward")


def recurs(cfg: config.Config) -> str | None:
    return cfg.model.cell if cfg.model.cell in recurrence.CELLS else None


# In this order: each beside those before it that are worth it, and without those after it.
CASES = {
    "matmul": Case(lambda cfg: "", mlp),
    "gelu": Case(lambda cfg: "" if bends(cfg) else None, mlp),
    "attention": Case(lambda cfg: "" if attends(cfg) else None, attending),
    "recurrence": Case(recurs, recurring),
    "native": Case(recurs, recurring, lambda: native.library.target() is not None),
    "cross_entropy": Case(lambda cfg: None if objectives.seen(cfg) == "row" else "", telling),
}


def names(cfg: config.Config) -> dict[str, str]:
    """Of the paths that a config's model comes by on a CPU, what their worth there is known as."""
    if not cfg.model.fused_kernels:
        return {}
    kinds = {path: case.kind(cfg) for path, case in CASES.items() if path in cpu_kernels.PATHS["cpu"]}
    return {path: " ".join(filter(None, (path, kind, cfg.model.dtype))) for path, kind in kinds.items()
            if kind is not None}


def worth(ratio: float) -> bool:
    """Whether a path is taken, of which the plain formula takes so many times its time."""
    return ratio >= 1 - MARGIN


def measured(model: config.Model, wanted: Mapping[str, str], known: Mapping[str, float]) -> dict[str, float]:
    """How many times a path's time the plain formula takes, by name, of those that are wanted and not known; 0 of what
    cannot be had."""
    @functools.cache
    def ready(part, taken):
        return compiled(*part(small(model, [path for path in cpu_kernels.PATHS["cpu"] if path not in taken])))

    new, taken = {}, frozenset(cpu_kernels.PATHS["cpu"]).difference(wanted)
    for path, name in wanted.items():
        if name not in known:
            case = CASES[path]
            new[name] = ratio(ready(case.part, taken), ready(case.part, taken | {path})) if case.there() else 0.0
        if worth((known | new)[name]):
            taken |= {path}
    return new


def small(model: config.Model, plain: Iterable[str]) -> config.Model:
    """A layer's worth of the same cell and dtype."""
    return config.Model(family=model.family, cell=model.cell, num_layers=1, width=WIDTH, num_heads=4, context="both",
                        mlp_dim=4 * WIDTH, rnn_dim=WIDTH, dtype=model.dtype,
                        disabled_kernels=",".join(plain))


def compiled(function: Callable, floats, arrays) -> Callable[[], None]:
    """What takes the gradient of a function's sum of squares once."""
    def loss(floats, arrays):
        return jnp.square(function(floats, *arrays).astype(jnp.float32)).sum()

    given = jax.device_put((floats, arrays))
    gradient = jax.jit(jax.grad(loss)).lower(*given).compile()
    return lambda: jax.block_until_ready(gradient(*given))


def ratio(plain: Callable, by_hand: Callable) -> float:
    """The median over turns of the time that one takes over the other's."""
    for call in (plain, by_hand):
        call()
    found, began = [], time.perf_counter()
    while len(found) < LEAST or (len(found) < MOST and time.perf_counter() - began < SECONDS):
        took = {call: timed(call) for call in ((plain, by_hand) if len(found) % 2 else (by_hand, plain))}
        found.append(took[plain] / took[by_hand])
    return statistics.median(found)


def timed(call: Callable) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
