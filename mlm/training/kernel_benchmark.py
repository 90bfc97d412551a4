"""The speed of each hand-written kernel on this machine, against the plain formula.

The smallest module that uses a kernel computes its gradient with and without the kernel, in turns, on small arrays. A
kernel is disabled only if the plain formula is faster by MARGIN. Both give the same numbers up to rounding, so other
work on the machine at the same time may cost speed, but never changes a result.
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
from mlm.objectives import token_prediction

MARGIN = 0.05  # of the kernel's time
MIN_REPEATS, MAX_REPEATS, MAX_SECONDS = 5, 40, 0.15  # of a case; no repeat starts after MAX_SECONDS
BATCH_SIZE, SEQ_LEN, WIDTH, VOCAB_SIZE = 16, 128, 128, 4096


class KernelCase(NamedTuple):
    """How a kernel is measured."""

    # (config.Config) -> what the measurement depends on besides the dtype, such as the cell; None: the model does not
    # use the kernel.
    describe_variant: Callable
    build: Callable  # (config.Model) -> (function of a tree of floats and of more arrays, these floats, those arrays)
    is_available: Callable[[], bool] = lambda: True  # on this machine


def random_array(*shape: int) -> np.ndarray:
    """Normal random numbers, always the same for a shape."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def build_module_case(module, *arrays):
    """A module that maps states of tokens to states, as `KernelCase.build` returns it; arrays: its other inputs."""
    x_BxLxD = random_array(BATCH_SIZE, SEQ_LEN, WIDTH)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x_BxLxD, *arrays)["params"]
    params = jax.tree.map(lambda leaf: 0.1 * random_array(*leaf.shape), shapes)
    return (lambda floats, *arrays: module.apply({"params": floats[0]}, floats[1], *arrays)), (params, x_BxLxD), arrays


def build_mlp_case(model: config.Model):
    """A feedforward block."""
    return build_module_case(layers.MLP(model))


def build_attention_case(model: config.Model):
    """An attention block."""
    keys_Bx2, visible_Bx1xLxL = np.ones((BATCH_SIZE, 2), np.uint32), np.ones((BATCH_SIZE, 1, SEQ_LEN, SEQ_LEN), bool)
    return build_module_case(attention.Attention(model), visible_Bx1xLxL, keys_Bx2)


def build_recurrence_case(model: config.Model):
    """A recurrent layer."""
    return build_module_case(rnn.RecurrentLayer(model), (np.ones((BATCH_SIZE, SEQ_LEN), np.int32), None), None)


def build_lm_head_case(model: config.Model):
    """An output layer and the cross-entropy of its targets."""

    def head(params, h_NxD):
        table_VxD, bias_V = params
        return h_NxD.astype(model.dtype), table_VxD.astype(model.dtype), bias_V

    def logits(params, h_NxD):
        h_NxD, table_VxD, bias_V = head(params, h_NxD)
        return jnp.einsum("nd,vd->nv", h_NxD, table_VxD, preferred_element_type=jnp.float32) + bias_V

    lm_head = types.Model(
        ("bidirectional",),
        WIDTH,
        init=logits,  # which nothing calls, nor encode
        encode=logits,
        logits=logits,
        lm_head=head if cpu_kernels.uses_kernel(model, "cross_entropy") else None,
    )
    count = BATCH_SIZE * SEQ_LEN // 8
    return (
        lambda floats, target_N: token_prediction.compute_token_loss_fast(floats[1:], lm_head, floats[0], target_N)[0],
        (random_array(count, WIDTH), random_array(VOCAB_SIZE, WIDTH), random_array(VOCAB_SIZE)),
        (np.arange(count, dtype=np.int32),),
    )


def uses_attention(cfg: config.Config) -> bool:
    """Whether the model has attention."""
    return "transformer" in (cfg.model.family, cfg.model.cell)


def uses_gelu(cfg: config.Config) -> bool:
    """Whether the model has a GELU."""
    return cfg.model.activation == "gelu" and (uses_attention(cfg) or cfg.model.family == "feedforward")


def uses_recurrence(cfg: config.Config) -> str | None:
    """The recurrent cell of the model, None if it has none."""
    return cfg.model.cell if cfg.model.cell in recurrence.CELL_KERNELS else None


def predicts_tokens(cfg: config.Config) -> bool:
    """Whether the objective has a loss over the vocabulary."""
    return objectives.get_visibility(cfg) != types.Visibility.FULL


# In this order: each is measured with the worthwhile kernels before it, and without those after it.
CASES = {
    "matmul": KernelCase(lambda cfg: "", build_mlp_case),
    "gelu": KernelCase(lambda cfg: "" if uses_gelu(cfg) else None, build_mlp_case),
    "attention": KernelCase(lambda cfg: "" if uses_attention(cfg) else None, build_attention_case),
    "recurrence": KernelCase(uses_recurrence, build_recurrence_case),
    "native": KernelCase(uses_recurrence, build_recurrence_case, lambda: native.library.get_ffi_target() is not None),
    "cross_entropy": KernelCase(lambda cfg: "" if predicts_tokens(cfg) else None, build_lm_head_case),
}


def name_cases(cfg: config.Config) -> dict[str, str]:
    """The kernels that a config's model uses on a CPU, each with the name of its measurement."""
    if not cfg.model.fused_kernels:
        return {}
    variants = {
        kernel: case.describe_variant(cfg) for kernel, case in CASES.items() if kernel in cpu_kernels.KERNELS["cpu"]
    }
    return {
        kernel: " ".join(filter(None, (kernel, variant, cfg.model.dtype)))
        for kernel, variant in variants.items()
        if variant is not None
    }


def is_worthwhile(ratio: float) -> bool:
    """Whether a kernel is used; ratio: the plain formula's time over the kernel's."""
    return ratio >= 1 - MARGIN


def measure_ratios(
    model: config.Model, names: Mapping[str, str], known_ratios: Mapping[str, float]
) -> dict[str, float]:
    """The plain formula's time over each kernel's, by the names that are not known yet; 0 for an unavailable kernel."""
    kernels = cpu_kernels.KERNELS["cpu"]

    @functools.cache
    def compile_case(build, enabled):
        return compile_gradient(*build(make_small_model(model, [name for name in kernels if name not in enabled])))

    ratios, enabled = {}, frozenset(kernels).difference(names)
    for kernel, name in names.items():
        if name not in known_ratios:
            case = CASES[kernel]
            ratios[name] = (
                measure_ratio(compile_case(case.build, enabled), compile_case(case.build, enabled | {kernel}))
                if case.is_available()
                else 0.0
            )
        if is_worthwhile({**known_ratios, **ratios}[name]):
            enabled |= {kernel}
    return ratios


def make_small_model(model: config.Model, disabled_kernels: Iterable[str]) -> config.Model:
    """A model of one layer with the same cell and dtype."""
    return config.Model(
        family=model.family,
        cell=model.cell,
        num_layers=1,
        width=WIDTH,
        num_heads=4,
        context="bidirectional",
        mlp_dim=4 * WIDTH,
        rnn_dim=WIDTH,
        dtype=model.dtype,
        disabled_kernels=",".join(disabled_kernels),
    )


def compile_gradient(function: Callable, floats, arrays) -> Callable[[], None]:
    """A function that computes the gradient of `function`'s sum of squares once."""

    def loss_fn(floats, arrays):
        return jnp.square(function(floats, *arrays).astype(jnp.float32)).sum()

    inputs = jax.device_put((floats, arrays))
    gradient = jax.jit(jax.grad(loss_fn)).lower(*inputs).compile()
    return lambda: jax.block_until_ready(gradient(*inputs))


def measure_ratio(plain: Callable, kernel: Callable) -> float:
    """The median over repeats of the plain call's time over the kernel call's."""
    for call in (plain, kernel):
        call()
    ratios, start = [], time.perf_counter()
    while len(ratios) < MIN_REPEATS or (len(ratios) < MAX_REPEATS and time.perf_counter() - start < MAX_SECONDS):
        seconds = {call: time_call(call) for call in ((plain, kernel) if len(ratios) % 2 else (kernel, plain))}
        ratios.append(seconds[plain] / seconds[kernel])
    return statistics.median(ratios)


def time_call(call: Callable) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
