"""Attention in one kernel, forward and backward, that drops weights and stores none.

FlashAttention-2 (Dao 2023, arXiv 2307.08691) in Pallas, for GPUs (Triton) and TPUs (Mosaic). Whether a weight is dropped
is a hash of its example's key, its head, query and key (`layers.is_kept`), so that each pass computes it again for the
block at hand, and drops what the plain formula drops. Which keys a query sees is an interval (`positions.Segments`): a
block of keys of which a block of queries sees none is not read.

A tile is a block of a head: on a GPU (tokens, d), on a TPU (d, tokens), which fills its 128 lanes where d is 64. A
product of two transposed tiles is the other product of them in the other order, so that one text serves both
(`Kernel.multiply`).

Letters in array names: B examples, H heads of d entries, L queries and keys, N blocks of them.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import ad_checkpoint
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

from mlm.base import config
from mlm.models import layers, platform_kernels, positions, stack

HEAD_SIZES = (32, 64, 128)
LANES = 128  # of a TPU: lengths are multiples of so many tokens
MAX_ENTRIES = 2**20  # of a head's keys, which lie in a TPU's VMEM
MASKED = -1e9  # the score of a pair of which the query does not see the key, as in the plain formula
BLOCK_SIZES = {"gpu": (64, 64), "tpu": (512, 512)}  # tokens of a program, and of a step of its loop, at most
NUM_WARPS = 4  # of a program on a GPU


def can_use_fused(model: config.Model, q_BxLxHxd) -> bool:
    """Whether the kernel computes self-attention of this shape on the devices that are traced for."""
    _, L, _, d = q_BxLxHxd.shape
    platform = platform_kernels.find_platform()  # a run that began on one may go on elsewhere
    return (
        platform_kernels.uses_kernel(model, "fused_attention")
        and (platform == "tpu" or (platform == "gpu" and model.dtype == "bfloat16"))
        and d in HEAD_SIZES
        and L % LANES == 0
        and L * d <= MAX_ENTRIES
    )


def attend(q_BxLxHxd, k_BxLxHxd, v_BxLxHxd, segments: positions.Segments, key_B, rate: float):
    """out_BxLxHxd: attention over the keys that the segments allow.

    Args:
        q_BxLxHxd: queries.
        k_BxLxHxd: keys.
        v_BxLxHxd: values.
        segments: which tokens see each other.
        key_B: the examples' keys of dropout; None: no weight is dropped.
        rate: share of the weights that are dropped.
    """
    _, L, H, d = q_BxLxHxd.shape
    platform = platform_kernels.find_platform()
    outer, inner = (math.gcd(L, size) for size in BLOCK_SIZES[platform])
    kernel = Kernel(L, H, d, 0.0 if key_B is None else rate, platform == "tpu", outer, inner)
    interval_Bx2xL = positions.find_intervals(segments)
    word_Bx2 = jnp.zeros((len(q_BxLxHxd), 2), jnp.uint32) if key_B is None else jax.random.key_data(key_B)
    qkv = (
        ad_checkpoint.checkpoint_name(x.transpose(0, 2, 3, 1) if kernel.is_transposed else x, stack.FUSED_KERNEL)
        for x in (q_BxLxHxd, k_BxLxHxd, v_BxLxHxd)
    )
    out = attend_tiles(kernel, *qkv, interval_Bx2xL, word_Bx2)
    return out.transpose(0, 3, 1, 2) if kernel.is_transposed else out


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The sizes of a kernel, and what all passes do with tiles."""

    L: int
    H: int
    d: int
    rate: float
    is_transposed: bool  # tiles (d, tokens) on a grid (B, H, N), else (tokens, d) on a grid (N, H, B)
    outer: int  # tokens of a program
    inner: int  # tokens of a step of its loop

    @property
    def query_axis(self) -> int:
        """The axis of queries in a tile of scores; the other one is that of keys."""
        return 1 if self.is_transposed else 0

    def specify(self, shape: str, *, is_whole: bool = False) -> pl.BlockSpec:
        """What a program reads or writes of an array: its own block of tokens, or all of its head.

        Args:
            shape: "matrix": a tile of each head; "row": BxHx1xL; "interval": Bx2xL.
            is_whole: whether it is all tokens of the head.
        """
        size = self.L if is_whole else self.outer
        blocks, axes = {
            "row": ((None, None, 1, size), lambda b, h, i: (b, h, 0, i)),
            "interval": ((None, 2, size), lambda b, h, i: (b, 0, i)),
            "matrix": ((None, None, self.d, size), lambda b, h, i: (b, h, 0, i))
            if self.is_transposed
            else ((None, size, None, self.d), lambda b, h, i: (b, i, h, 0)),
        }[shape]

        def index(*ids):
            b, h, i = ids if self.is_transposed else ids[::-1]
            return axes(b, h, 0 if is_whole else i)

        return pl.BlockSpec(blocks, index)

    def run(self, body, scalar_Bx1xK, inputs, specs, out_types, out_specs) -> Any:
        """The outputs of a kernel's programs, one for each block, head and example."""
        B, _, K = scalar_Bx1xK.shape
        grid = (B, self.H, self.L // self.outer)
        index = lambda *ids: (ids[0] if self.is_transposed else ids[2], 0, 0)
        memory = {"memory_space": pltpu.SMEM} if self.is_transposed else {}
        return pl.pallas_call(
            functools.partial(body, self),
            grid=grid if self.is_transposed else grid[::-1],
            in_specs=[pl.BlockSpec((None, 1, K), index, **memory), *specs],
            out_specs=out_specs,
            out_shape=out_types,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3)
            if self.is_transposed
            else pltriton.CompilerParams(num_warps=NUM_WARPS),
            name=f"fused_attention_{body.__name__}",
        )(scalar_Bx1xK, *inputs)

    def load(self, ref, start=None):
        """A tile: a program's own block, or the `inner` tokens from `start` on."""
        if start is None:
            return ref[...]
        tokens = pl.ds(pl.multiple_of(start, self.inner), self.inner)
        return ref[:, tokens] if self.is_transposed else ref[tokens, :]

    def load_row(self, ref, row: int = 0, start=None):
        """One number for each query, along the axis of queries in a tile of scores."""
        tokens = slice(None) if start is None else pl.ds(pl.multiple_of(start, self.inner), self.inner)
        return ref[row : row + 1, tokens] if self.is_transposed else ref[row, tokens][:, None]

    def count(self, axis: int, start, size: int):
        """The positions of `size` tokens from `start` on, along an axis of a tile of scores."""
        return start + jax.lax.broadcasted_iota(jnp.int32, (size, 1) if axis == 0 else (1, size), axis)

    def multiply(self, left, right, contracted: tuple[int, int]):
        """The product of two tiles over an axis of each, in float32; axes are those of tiles that are not transposed."""
        if self.is_transposed:
            left, right, contracted = right, left, (1 - contracted[1], 1 - contracted[0])
        numbers = (((contracted[0],), (contracted[1],)), ((), ()))
        return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)

    def compute_scores(self, q, k, query, key, first, last):
        """The scores of a block of queries and one of keys; query, key: positions; first, last: what a query sees."""
        scores = self.multiply(q, k, (1, 1)) * self.d**-0.5
        return jnp.where((key >= first) & (key <= last), scores, MASKED)

    def drop(self, x, scalar_ref, head, query, key):
        """Dropout of weights, or of their gradients, numbered as `layers.sample_keep_mask` does."""
        if self.rate == 0:
            return x
        word_0, word_1 = (scalar_ref[0, place].astype(jnp.uint32) for place in range(2))
        number = ((query * self.H + head) * max(self.L, layers.MIN_LAST_AXIS) + key).astype(jnp.uint32)
        return jnp.where(layers.is_kept(number, word_0, word_1, self.rate), x * (1 / (1 - self.rate)), 0)

    def locate(self, scalar_ref):
        """(head, first token, range of steps) of a program; the range is what `make_scalars` says of its block."""
        head, block = pl.program_id(1), pl.program_id(2 if self.is_transposed else 0)
        bounds = (scalar_ref[0, 2 + end * (self.L // self.outer) + block] for end in range(2))
        return head, block * self.outer, tuple(bounds)


def attend_forward(kernel: Kernel, scalar_ref, interval_ref, q_ref, k_ref, v_ref, out_ref, log_sum_ref):
    """The output of a block of queries, and the logarithm of the sum of the exponentials of its scores."""
    head, start, bounds = kernel.locate(scalar_ref)
    q, first, last = kernel.load(q_ref), *(kernel.load_row(interval_ref, row) for row in range(2))
    query = kernel.count(kernel.query_axis, start, kernel.outer)
    key_axis = 1 - kernel.query_axis

    def step(block, carry):
        max_, sum_, out = carry
        k, v = (kernel.load(ref, block * kernel.inner) for ref in (k_ref, v_ref))
        key = kernel.count(key_axis, block * kernel.inner, kernel.inner)
        scores = kernel.compute_scores(q, k, query, key, first, last)
        new_max = jnp.maximum(max_, scores.max(key_axis, keepdims=True))
        exp, shrink = jnp.exp(scores - new_max), jnp.exp(max_ - new_max)
        kept = kernel.drop(exp, scalar_ref, head, query, key).astype(v.dtype)
        sum_ = sum_ * shrink + exp.sum(key_axis, keepdims=True)
        return new_max, sum_, out * shrink + kernel.multiply(kept, v, (1, 0))

    row = jnp.zeros(first.shape, jnp.float32)
    max_, sum_, out = jax.lax.fori_loop(*bounds, step, (row + MASKED, row, jnp.zeros(q.shape, jnp.float32)))
    out_ref[...] = (out / sum_).astype(out_ref.dtype)
    log_sum_ref[...] = (max_ + jnp.log(sum_)).reshape(log_sum_ref.shape)


def attend_backward_queries(
    kernel: Kernel, scalar_ref, interval_ref, log_sum_ref, mean_ref, d_out_ref, q_ref, k_ref, v_ref, d_q_ref
):
    """The gradient of a block of queries."""
    head, start, bounds = kernel.locate(scalar_ref)
    q, d_out, first, last = (
        kernel.load(q_ref),
        kernel.load(d_out_ref),
        *(kernel.load_row(interval_ref, row) for row in range(2)),
    )
    log_sum, mean = kernel.load_row(log_sum_ref), kernel.load_row(mean_ref)
    query = kernel.count(kernel.query_axis, start, kernel.outer)

    def step(block, d_q):
        k, v = (kernel.load(ref, block * kernel.inner) for ref in (k_ref, v_ref))
        key = kernel.count(1 - kernel.query_axis, block * kernel.inner, kernel.inner)
        weights = jnp.exp(kernel.compute_scores(q, k, query, key, first, last) - log_sum)
        d_weights = kernel.drop(kernel.multiply(d_out, v, (1, 1)), scalar_ref, head, query, key)
        return d_q + kernel.multiply((weights * (d_weights - mean)).astype(k.dtype), k, (1, 0))

    d_q = jax.lax.fori_loop(*bounds, step, jnp.zeros(q.shape, jnp.float32))
    d_q_ref[...] = (d_q * kernel.d**-0.5).astype(d_q_ref.dtype)


def attend_backward_keys(
    kernel: Kernel, scalar_ref, interval_ref, log_sum_ref, mean_ref, d_out_ref, q_ref, k_ref, v_ref, d_k_ref, d_v_ref
):
    """The gradients of a block of keys and of its values."""
    head, start, bounds = kernel.locate(scalar_ref)
    k, v = kernel.load(k_ref), kernel.load(v_ref)
    key = kernel.count(1 - kernel.query_axis, start, kernel.outer)

    def step(block, carry):
        d_k, d_v = carry
        first_query = block * kernel.inner
        q, d_out = (kernel.load(ref, first_query) for ref in (q_ref, d_out_ref))
        first, last = (kernel.load_row(interval_ref, row, first_query) for row in range(2))
        log_sum, mean = (kernel.load_row(ref, 0, first_query) for ref in (log_sum_ref, mean_ref))
        query = kernel.count(kernel.query_axis, first_query, kernel.inner)
        weights = jnp.exp(kernel.compute_scores(q, k, query, key, first, last) - log_sum)
        kept = kernel.drop(weights, scalar_ref, head, query, key).astype(v.dtype)
        d_weights = kernel.drop(kernel.multiply(d_out, v, (1, 1)), scalar_ref, head, query, key)
        d_scores = (weights * (d_weights - mean)).astype(q.dtype)
        return d_k + kernel.multiply(d_scores, q, (0, 0)), d_v + kernel.multiply(kept, d_out, (0, 0))

    zeros = jnp.zeros(k.shape, jnp.float32)
    d_k, d_v = jax.lax.fori_loop(*bounds, step, (zeros, zeros))
    d_k_ref[...] = (d_k * kernel.d**-0.5).astype(d_k_ref.dtype)
    d_v_ref[...] = d_v.astype(d_v_ref.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_tiles(kernel: Kernel, q, k, v, interval_Bx2xL, word_Bx2):
    """The output for matrices that `Kernel.specify` describes; word_Bx2: of the keys of dropout."""
    return attend_tiles_fwd(kernel, q, k, v, interval_Bx2xL, word_Bx2)[0]


def attend_tiles_fwd(kernel: Kernel, q, k, v, interval_Bx2xL, word_Bx2):
    """(output, what `attend_tiles_bwd` needs)."""
    own, whole = kernel.specify("matrix"), kernel.specify("matrix", is_whole=True)
    first_BxL, last_BxL = interval_Bx2xL[:, 0], interval_Bx2xL[:, 1]
    first_BxN, last_BxN = (x_BxL.reshape(len(q), -1, kernel.outer) for x_BxL in (first_BxL, last_BxL))
    scalar_Bx1xK = make_scalars(kernel, word_Bx2, first_BxN.min(-1), last_BxN.max(-1) + 1)
    out_types = [
        jax.ShapeDtypeStruct(q.shape, q.dtype),
        jax.ShapeDtypeStruct((len(q), kernel.H, 1, kernel.L), jnp.float32),
    ]
    inputs, specs = (interval_Bx2xL, q, k, v), (kernel.specify("interval"), own, whole, whole)
    outputs = kernel.run(attend_forward, scalar_Bx1xK, inputs, specs, out_types, (own, kernel.specify("row")))
    out, log_sum_BxHx1xL = (ad_checkpoint.checkpoint_name(x, stack.FUSED_KERNEL) for x in outputs)
    return out, (q, k, v, interval_Bx2xL, word_Bx2, scalar_Bx1xK, out, log_sum_BxHx1xL)


def attend_tiles_bwd(kernel: Kernel, residuals, d_out):
    """The gradients; the weighted mean of the weights' gradients is d_out * out (Dao et al. 2022, appendix B.2)."""
    q, k, v, interval_Bx2xL, word_Bx2, scalar_Bx1xK, out, log_sum_BxHx1xL = residuals
    product = d_out.astype(jnp.float32) * out.astype(jnp.float32)
    mean_BxHx1xL = product.sum(2, keepdims=True) if kernel.is_transposed else product.sum(-1).swapaxes(1, 2)[:, :, None]
    inputs = interval_Bx2xL, log_sum_BxHx1xL, mean_BxHx1xL, d_out, q, k, v
    own, whole, row = kernel.specify("matrix"), kernel.specify("matrix", is_whole=True), kernel.specify("row")
    type_ = jax.ShapeDtypeStruct(q.shape, q.dtype)
    specs = kernel.specify("interval"), row, row, own, own, whole, whole
    d_q = kernel.run(attend_backward_queries, scalar_Bx1xK, inputs, specs, type_, own)
    start_N = jnp.arange(0, kernel.L, kernel.outer)
    first_BxL, last_BxL = interval_Bx2xL[:, 0], interval_Bx2xL[:, 1]
    # Both ends of the intervals grow with the query.
    first_BxN = (last_BxL[:, None] < start_N[:, None]).sum(-1)
    end_BxN = (first_BxL[:, None] < start_N[:, None] + kernel.outer).sum(-1)
    scalar_Bx1xK = make_scalars(kernel, word_Bx2, first_BxN, end_BxN)
    row = kernel.specify("row", is_whole=True)
    specs = kernel.specify("interval", is_whole=True), row, row, whole, whole, own, own
    d_k, d_v = kernel.run(attend_backward_keys, scalar_Bx1xK, inputs, specs, (type_, type_), (own, own))
    return d_q, d_k, d_v, None, None


attend_tiles.defvjp(attend_tiles_fwd, attend_tiles_bwd)


def make_scalars(kernel: Kernel, word_Bx2, first_BxN, end_BxN):
    """scalar_Bx1xK: the words of an example's key, and the range of steps of each block's loop, from two positions."""
    word_Bx2 = jax.lax.bitcast_convert_type(word_Bx2, jnp.int32)
    ranges = first_BxN // kernel.inner, -(-end_BxN // kernel.inner)
    return jnp.concatenate([word_Bx2, *(x_BxN.astype(jnp.int32) for x_BxN in ranges)], 1)[:, None]
