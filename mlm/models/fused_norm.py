"""A residual sum, its dropout and its norm in one pass over memory each way, as kernels for GPUs and TPUs.

A compiler takes a pass for the sum, for the statistics and for the norm, and five for the gradients. Here a program has
whole rows on chip: it reads each once, computes the statistics again in the backward pass, and adds up the gradients of
scale and bias over its rows. The dropped entries are those of `layers.dropout`.

Letters in array names: N rows of D entries, those of B examples of L tokens; P programs.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

from mlm.base import config
from mlm.models import layers, platform_kernels

ROWS = {"gpu": 32, "tpu": 256}  # of a program, at most
TILE_ENTRIES = {"gpu": 4096, "tpu": 2**17}  # of a step of its loop
MAX_WIDTH = 4096
NORMS = ("layernorm", "rmsnorm")  # of config.model.norm
NUM_WARPS = 4  # of a program on a GPU


def can_use_fused(model: config.Model, x_BxLxD) -> bool:
    """Whether the kernel computes a norm of this shape on the devices that are traced for."""
    *_, L, D = x_BxLxD.shape
    return (
        platform_kernels.uses_kernel(model, "fused_norm")
        and x_BxLxD.ndim == 3  # not a token of each example, as generation has
        and platform_kernels.find_platform() in ROWS  # a run may go on elsewhere
        and model.norm in NORMS
        and L % 16 == 0  # not so where two tokens create the parameters
        and D % 128 == 0
        and D <= MAX_WIDTH
    )


def normalize(model: config.Model, params, x_BxLxD, y_BxLxD=None, key_B=None):
    """The norm of x_BxLxD, or of its sum with y_BxLxD after dropout.

    Args:
        y_BxLxD: the output of a sublayer, or None.
        key_B: the examples' keys of dropout; None: nothing is dropped.
    """
    (B, L, D), platform = x_BxLxD.shape, platform_kernels.find_platform()
    rate = 0.0 if key_B is None else model.dropout
    tile = math.gcd(L, max(1, TILE_ENTRIES[platform] // pl.next_power_of_2(D)))
    rows = math.gcd(L, max(ROWS[platform], tile))
    kernel = Kernel(L, D, rows, tile, model.norm == "layernorm", model.norm_eps, rate, platform == "tpu")
    scale_1xD = params["scale"][None]
    bias_1xD = params["bias"][None] if "bias" in params else jnp.zeros_like(scale_1xD)
    word_Bx2 = jnp.zeros((B, 2), jnp.uint32) if key_B is None else jax.random.key_data(key_B)
    word_Bx1x2 = jax.lax.bitcast_convert_type(word_Bx2, jnp.int32)[:, None]
    rows_NxD = (None if x is None else x.reshape(-1, D) for x in (x_BxLxD, y_BxLxD))
    out_NxD: Any = normalize_rows(kernel, word_Bx1x2, scale_1xD, bias_1xD, *rows_NxD)
    return out_NxD.reshape(x_BxLxD.shape)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The sizes of a kernel, and what both passes do with tiles."""

    L: int
    D: int
    rows: int  # of a program
    tile: int  # rows of a step of its loop
    is_centered: bool  # layer norm; else RMS norm
    eps: float
    rate: float  # of dropout
    is_tpu: bool

    @property
    def width(self) -> int:
        """Of a tile: Triton's are powers of two."""
        return self.D if self.is_tpu else pl.next_power_of_2(self.D)

    def run(self, body, inputs, outputs) -> Any:
        """The outputs of the programs; inputs: (word_Bx1x2, scale_1xD, further arrays); outputs: types."""
        word_Bx1x2, *arrays = inputs
        num_programs = len(word_Bx1x2) * self.L // self.rows

        def specify(array):
            if len(array.shape) == 3:  # a row for each program
                return pl.BlockSpec((None, 1, self.width), lambda program: (program, 0, 0))
            rows = 1 if array.shape[0] == 1 else self.rows
            return pl.BlockSpec((rows, self.width), lambda program: (0 if rows == 1 else program, 0))

        index = lambda program: (jax.lax.div(program, jnp.int32(self.L // self.rows)), 0, 0)
        words = pl.BlockSpec((None, 1, 2), index, memory_space=pltpu.SMEM if self.is_tpu else None)
        tpu = pltpu.CompilerParams(dimension_semantics=("parallel",))
        return pl.pallas_call(
            functools.partial(body, self),
            grid=(num_programs,),
            in_specs=[words, *map(specify, arrays)],
            out_specs=[specify(output) for output in outputs],
            out_shape=outputs,
            compiler_params=tpu if self.is_tpu else pltriton.CompilerParams(num_warps=NUM_WARPS),
            name=f"fused_norm_{body.__name__}",
        )(*inputs)

    def load(self, ref, start=None):
        """`tile` rows from `start` on, in float32; None: the only row."""
        rows = pl.ds(0, 1) if start is None else pl.ds(pl.multiple_of(start, self.tile), self.tile)
        if self.is_tpu:
            return ref[rows, :].astype(jnp.float32)
        is_entry = self.find_entries(1 if start is None else self.tile)
        return pltriton.load(ref.at[rows, :], mask=is_entry, other=0).astype(jnp.float32)

    def store(self, ref, x, start=None):
        """Writes what `load` reads."""
        rows = pl.ds(0, 1) if start is None else pl.ds(pl.multiple_of(start, self.tile), self.tile)
        if self.is_tpu:
            ref[rows, :] = x.astype(ref.dtype)
        else:
            pltriton.store(ref.at[rows, :], x.astype(ref.dtype), mask=self.find_entries(len(x)))

    def find_entries(self, num_rows: int):
        """Which entries of a tile are a row's: it may be wider."""
        return jax.lax.broadcasted_iota(jnp.int32, (num_rows, self.width), 1) < self.D

    def average(self, x):
        """The mean of each row, of which entries beyond its end are 0."""
        return x.sum(1, keepdims=True) * (1 / self.D)

    def standardize(self, x):
        """(standardized rows, the inverse of their deviation)."""
        if self.is_centered:
            x = jnp.where(self.find_entries(len(x)), x - self.average(x), 0)
        inverse = jax.lax.rsqrt(self.average(x * x) + self.eps)
        return x * inverse, inverse

    def find_token(self):
        """The number of a program's first row in its example."""
        return jax.lax.rem(pl.program_id(0), jnp.int32(self.L // self.rows)) * self.rows

    def drop(self, x, word_ref, first):
        """Dropout of the rows from token `first` on, as `layers.sample_keep_mask` numbers their entries."""
        if self.rate == 0:
            return x
        row, column = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in range(2))
        number = ((first + row) * max(self.D, layers.MIN_LAST_AXIS) + column).astype(jnp.uint32)
        first_word, second_word = (word_ref[0, place].astype(jnp.uint32) for place in range(2))
        return jnp.where(layers.is_kept(number, first_word, second_word, self.rate), x * (1 / (1 - self.rate)), 0)


def compute_output(kernel: Kernel, word_ref, scale_ref, bias_ref, x_ref, *refs):
    """The norms of a program's rows; with a second input also the sums."""
    y_ref, out_ref, sum_ref = refs if len(refs) == 3 else (None, *refs, None)
    scale, bias, token = kernel.load(scale_ref), kernel.load(bias_ref), kernel.find_token()

    def step(number, _):
        start = number * kernel.tile
        x = kernel.load(x_ref, start)
        if y_ref is not None:
            sum_ = x + kernel.drop(kernel.load(y_ref, start), word_ref, token + start)
            kernel.store(sum_ref, sum_, start)
            x = sum_.astype(x_ref.dtype).astype(jnp.float32)  # what the backward pass will read
        kernel.store(out_ref, kernel.standardize(x)[0] * scale + bias, start)
        return 0

    jax.lax.fori_loop(0, kernel.rows // kernel.tile, step, 0)


def compute_gradients(kernel: Kernel, word_ref, scale_ref, d_out_ref, x_ref, d_scale_ref, d_bias_ref, d_x_ref, *refs):
    """The gradients of a program's rows, and its terms of those of scale and bias."""
    scale, token = kernel.load(scale_ref), kernel.find_token()

    def step(number, carry):
        d_scale, d_bias = carry
        start = number * kernel.tile
        d_out, (x, inverse) = kernel.load(d_out_ref, start), kernel.standardize(kernel.load(x_ref, start))
        product, d_standard = d_out * x, d_out * scale
        d_x = d_standard - x * kernel.average(product * scale)
        d_x = inverse * (d_x - kernel.average(d_standard) if kernel.is_centered else d_x)
        kernel.store(d_x_ref, d_x, start)
        for d_y_ref in refs:
            kernel.store(d_y_ref, kernel.drop(d_x, word_ref, token + start), start)
        return d_scale + product.sum(0, keepdims=True), d_bias + d_out.sum(0, keepdims=True)

    zero = jnp.zeros((1, kernel.width), jnp.float32)
    d_scale, d_bias = jax.lax.fori_loop(0, kernel.rows // kernel.tile, step, (zero, zero))
    kernel.store(d_scale_ref, d_scale)
    kernel.store(d_bias_ref, d_bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def normalize_rows(kernel: Kernel, word_Bx1x2, scale_1xD, bias_1xD, x_NxD, y_NxD):
    """The norms of the rows of x_NxD, or of their sum with y_NxD after dropout; word_Bx1x2: of the keys of dropout."""
    return normalize_rows_fwd(kernel, word_Bx1x2, scale_1xD, bias_1xD, x_NxD, y_NxD)[0]


def normalize_rows_fwd(kernel: Kernel, word_Bx1x2, scale_1xD, bias_1xD, x_NxD, y_NxD):
    """(norms, what `normalize_rows_bwd` needs)."""
    type_, addends = jax.ShapeDtypeStruct(x_NxD.shape, x_NxD.dtype), [x for x in (x_NxD, y_NxD) if x is not None]
    inputs = word_Bx1x2, scale_1xD, bias_1xD, *addends
    outputs = kernel.run(compute_output, inputs, [type_] * len(addends))
    out_NxD, *sums = map(platform_kernels.mark_saved, outputs)
    return out_NxD, (word_Bx1x2, scale_1xD, sums[0] if sums else x_NxD, bool(sums))


def normalize_rows_bwd(kernel: Kernel, residuals, d_out_NxD):
    """The gradients."""
    word_Bx1x2, scale_1xD, x_NxD, has_sum = residuals
    num_programs = len(x_NxD) // kernel.rows
    term = jax.ShapeDtypeStruct((num_programs, 1, kernel.D), jnp.float32)
    type_ = jax.ShapeDtypeStruct(x_NxD.shape, x_NxD.dtype)
    types = [term, term, type_, *([type_] if has_sum and kernel.rate else [])]
    d_scale, d_bias, *d_rows = kernel.run(compute_gradients, (word_Bx1x2, scale_1xD, d_out_NxD, x_NxD), types)
    return None, d_scale.sum(0), d_bias.sum(0), d_rows[0], d_rows[-1] if has_sum else None


normalize_rows.defvjp(normalize_rows_fwd, normalize_rows_bwd)
