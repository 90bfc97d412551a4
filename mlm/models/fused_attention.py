"""Attention in one kernel, forward and backward, that drops weights and stores none.

FlashAttention-2 (Dao 2023, arXiv 2307.08691) in Pallas, for GPUs (Triton) and TPUs (Mosaic). Whether a weight is
dropped is a hash of its example's key, its head, query and key (`layers.is_kept`), so that each pass computes it again
for the tile at hand, and drops what the plain formula drops. A query sees an interval of keys
(`positions.find_intervals`): a block of queries does not read blocks of keys of which it sees none.

A tile is a block of tokens of a head: (tokens, d) on a GPU, (d, tokens) on a TPU, whose 128 lanes it fills where d is
64. The product of two transposed tiles is their product in the other order, transposed, so that one text serves both
(`Kernel.multiply`).

Letters in array names: B examples, H heads of d entries, L queries and keys, N blocks of them.
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
from mlm.models import layers, platform_kernels, positions

HEAD_SIZES = (32, 64, 128)
LANES = 128  # of a TPU: lengths are multiples of so many tokens
MAX_ENTRIES = 2**20  # of a head's keys, which lie in a TPU's VMEM
MASKED = -1e9  # the score of a pair of which the query does not see the key, as in the plain formula
BLOCK_SIZES = {"gpu": (64, 64), "tpu": (512, 512)}  # tokens of a program, and of a step of its loop, at most
NUM_WARPS = 4  # of a program on a GPU


def can_use_fused(model: config.Model, length: int, d: int) -> bool:
    """Whether the kernel computes self-attention of so many tokens and entries on the devices that are traced for."""
    platform = platform_kernels.find_platform()
    return (
        platform_kernels.uses_kernel(model, "fused_attention")
        and (platform == "tpu" or (platform == "gpu" and model.dtype == "bfloat16"))  # a run may go on elsewhere
        and d in HEAD_SIZES
        and length % LANES == 0
        and length * d <= MAX_ENTRIES
    )


def attend(q_BxLxHxd, k_BxLxHxd, v_BxLxHxd, segments: positions.Segments, key_B, rate: float):
    """out_BxLxHxd: attention over the keys that the segments allow.

    Args:
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
        platform_kernels.mark_saved(x.transpose(0, 2, 3, 1) if kernel.is_transposed else x)
        for x in (q_BxLxHxd, k_BxLxHxd, v_BxLxHxd)
    )
    out: Any = attend_tiles(kernel, *qkv, interval_Bx2xL, word_Bx2)
    return out.transpose(0, 3, 1, 2) if kernel.is_transposed else out


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The sizes of a kernel, and what all passes do with tiles."""

    L: int
    H: int
    d: int
    rate: float  # of dropout
    is_transposed: bool  # whether tiles are (d, tokens)
    outer: int  # tokens of a program
    inner: int  # tokens of a step of its loop

    @property
    def query_axis(self) -> int:
        """The axis of queries in a tile of scores; the other one is that of keys."""
        return 1 if self.is_transposed else 0

    def specify(self, array: str, *, is_whole: bool = False) -> pl.BlockSpec:
        """What a program reads or writes of an array: its own block of tokens, or all tokens of its head.

        Args:
            array: "matrix" of q, k, v, the output, or a gradient of one; "row" of BxHx1xL; "interval" of Bx2xL.
            is_whole: whether it is all tokens of the head.
        """
        size = self.L if is_whole else self.outer

        def index(program):
            b, h, i = self.split(program)
            i = 0 if is_whole else i
            return (b, 0, i) if array == "interval" else (b, i, h, 0) if has_rows else (b, h, 0, i)

        has_rows = array == "matrix" and not self.is_transposed
        shapes = {"interval": (None, 2, size), "row": (None, None, 1, size), "matrix": (None, None, self.d, size)}
        return pl.BlockSpec((None, size, None, self.d) if has_rows else shapes[array], index)

    def split(self, program):
        """(example, head, block) of a program's number. Programs of one head follow one another and read its keys."""
        N = self.L // self.outer
        head = jax.lax.div(program, jnp.int32(N))
        return (
            jax.lax.div(head, jnp.int32(self.H)),
            jax.lax.rem(head, jnp.int32(self.H)),
            jax.lax.rem(program, jnp.int32(N)),
        )

    def run(self, body, scalar_Bx1xK, inputs, specs, out_types, out_specs) -> Any:
        """The outputs of a kernel's programs, one for each block of each head."""
        B, _, K = scalar_Bx1xK.shape
        index = lambda program: (self.split(program)[0], 0, 0)
        scalar_spec = pl.BlockSpec((None, 1, K), index, memory_space=pltpu.SMEM if self.is_transposed else None)
        tpu = pltpu.CompilerParams(dimension_semantics=("parallel",))
        return pl.pallas_call(
            functools.partial(body, self),
            grid=(B * self.H * (self.L // self.outer),),
            in_specs=[scalar_spec, *specs],
            out_specs=out_specs,
            out_shape=out_types,
            compiler_params=tpu if self.is_transposed else pltriton.CompilerParams(num_warps=NUM_WARPS),
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
        """The product of two tiles over an axis of each, in float32; the axes are those of (tokens, d) and (q, k)."""
        if self.is_transposed:
            left, right, contracted = right, left, (1 - contracted[1], 1 - contracted[0])
        numbers = (((contracted[0],), (contracted[1],)), ((), ()))
        return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)

    def compute_scores(self, q, k, query, key, first, last):
        """The scores of a block of queries and one of keys; query, key: positions; first, last: what a query sees."""
        scores = self.multiply(q, k, (1, 1)) * self.d**-0.5
        return jnp.where((key >= first) & (key <= last), scores, MASKED)

    def select_kept(self, scalar_ref, head, query, key):
        """Which weights are kept, numbered as `layers.sample_keep_mask` does; None: all."""
        if self.rate == 0:
            return None
        word_0, word_1 = (scalar_ref[0, place].astype(jnp.uint32) for place in range(2))
        number = ((query * self.H + head) * max(self.L, layers.MIN_LAST_AXIS) + key).astype(jnp.uint32)
        return layers.is_kept(number, word_0, word_1, self.rate)

    def drop(self, x, is_kept):
        """Dropout of weights, or of their gradients."""
        return x if is_kept is None else jnp.where(is_kept, x * (1 / (1 - self.rate)), 0)

    def locate(self, scalar_ref):
        """(head, first token, first step, the one after the last) of a program, as `make_scalars` says of its block."""
        _, head, block = self.split(pl.program_id(0))
        first, end = (scalar_ref[0, 2 + place * (self.L // self.outer) + block] for place in range(2))
        return head, block * self.outer, first, end


def compute_output(kernel: Kernel, scalar_ref, interval_ref, q_ref, k_ref, v_ref, out_ref, log_sum_ref):
    """The output of a block of queries, and the logarithm of the sum of the exponentials of its scores."""
    head, start, first_step, end = kernel.locate(scalar_ref)
    q = kernel.load(q_ref)
    first, last = (kernel.load_row(interval_ref, row) for row in range(2))
    query = kernel.count(kernel.query_axis, start, kernel.outer)
    key_axis = 1 - kernel.query_axis

    def step(block, carry):
        max_, sum_, out = carry
        k, v = (kernel.load(ref, block * kernel.inner) for ref in (k_ref, v_ref))
        key = kernel.count(key_axis, block * kernel.inner, kernel.inner)
        scores = kernel.compute_scores(q, k, query, key, first, last)
        new_max = jnp.maximum(max_, scores.max(key_axis, keepdims=True))
        exp, shrink = jnp.exp(scores - new_max), jnp.exp(max_ - new_max)
        kept = kernel.drop(exp, kernel.select_kept(scalar_ref, head, query, key)).astype(v.dtype)
        sum_ = sum_ * shrink + exp.sum(key_axis, keepdims=True)
        return new_max, sum_, out * shrink + kernel.multiply(kept, v, (1, 0))

    row = jnp.zeros(first.shape, jnp.float32)
    max_, sum_, out = jax.lax.fori_loop(first_step, end, step, (row + MASKED, row, jnp.zeros(q.shape, jnp.float32)))
    out_ref[...] = (out / sum_).astype(out_ref.dtype)
    log_sum_ref[...] = (max_ + jnp.log(sum_)).reshape(log_sum_ref.shape)


def compute_query_gradient(
    kernel: Kernel, scalar_ref, interval_ref, log_sum_ref, mean_ref, d_out_ref, q_ref, k_ref, v_ref, d_q_ref
):
    """The gradient of a block of queries."""
    head, start, first_step, end = kernel.locate(scalar_ref)
    q, d_out = kernel.load(q_ref), kernel.load(d_out_ref)
    first, last = (kernel.load_row(interval_ref, row) for row in range(2))
    log_sum, mean = kernel.load_row(log_sum_ref), kernel.load_row(mean_ref)
    query = kernel.count(kernel.query_axis, start, kernel.outer)

    def step(block, d_q):
        k, v = (kernel.load(ref, block * kernel.inner) for ref in (k_ref, v_ref))
        key = kernel.count(1 - kernel.query_axis, block * kernel.inner, kernel.inner)
        weights = jnp.exp(kernel.compute_scores(q, k, query, key, first, last) - log_sum)
        is_kept = kernel.select_kept(scalar_ref, head, query, key)
        d_weights = kernel.drop(kernel.multiply(d_out, v, (1, 1)), is_kept)
        return d_q + kernel.multiply((weights * (d_weights - mean)).astype(k.dtype), k, (1, 0))

    d_q = jax.lax.fori_loop(first_step, end, step, jnp.zeros(q.shape, jnp.float32))
    d_q_ref[...] = (d_q * kernel.d**-0.5).astype(d_q_ref.dtype)


def compute_key_gradients(
    kernel: Kernel, scalar_ref, interval_ref, log_sum_ref, mean_ref, d_out_ref, q_ref, k_ref, v_ref, d_k_ref, d_v_ref
):
    """The gradients of a block of keys and of its values."""
    head, start, first_step, end = kernel.locate(scalar_ref)
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
        is_kept = kernel.select_kept(scalar_ref, head, query, key)
        kept = kernel.drop(weights, is_kept).astype(v.dtype)
        d_weights = kernel.drop(kernel.multiply(d_out, v, (1, 1)), is_kept)
        d_scores = (weights * (d_weights - mean)).astype(q.dtype)
        return d_k + kernel.multiply(d_scores, q, (0, 0)), d_v + kernel.multiply(kept, d_out, (0, 0))

    zeros = jnp.zeros(k.shape, jnp.float32)
    d_k, d_v = jax.lax.fori_loop(first_step, end, step, (zeros, zeros))
    d_k_ref[...] = (d_k * kernel.d**-0.5).astype(d_k_ref.dtype)
    d_v_ref[...] = d_v.astype(d_v_ref.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_tiles(kernel: Kernel, q, k, v, interval_Bx2xL, word_Bx2):
    """The output for matrices that `Kernel.specify` describes; word_Bx2: of the keys of dropout."""
    return attend_tiles_fwd(kernel, q, k, v, interval_Bx2xL, word_Bx2)[0]


def attend_tiles_fwd(kernel: Kernel, q, k, v, interval_Bx2xL, word_Bx2):
    """(output, what `attend_tiles_bwd` needs)."""
    own, whole = kernel.specify("matrix"), kernel.specify("matrix", is_whole=True)
    scalar_Bx1xK = make_scalars(word_Bx2, find_key_blocks(kernel, interval_Bx2xL))
    out_types = [
        jax.ShapeDtypeStruct(q.shape, q.dtype),
        jax.ShapeDtypeStruct((len(q), kernel.H, 1, kernel.L), jnp.float32),
    ]
    inputs, specs = (interval_Bx2xL, q, k, v), (kernel.specify("interval"), own, whole, whole)
    outputs = kernel.run(compute_output, scalar_Bx1xK, inputs, specs, out_types, (own, kernel.specify("row")))
    out, log_sum_BxHx1xL = map(platform_kernels.mark_saved, outputs)
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
    d_q = kernel.run(compute_query_gradient, scalar_Bx1xK, inputs, specs, type_, own)
    scalar_Bx1xK = make_scalars(word_Bx2, find_query_blocks(kernel, interval_Bx2xL))
    row = kernel.specify("row", is_whole=True)
    specs = kernel.specify("interval", is_whole=True), row, row, whole, whole, own, own
    d_k, d_v = kernel.run(compute_key_gradients, scalar_Bx1xK, inputs, specs, (type_, type_), (own, own))
    return d_q, d_k, d_v, None, None


attend_tiles.defvjp(attend_tiles_fwd, attend_tiles_bwd)


def make_scalars(word_Bx2, block_Bx2xN):
    """scalar_Bx1xK: the words of an example's key, and the range of steps of the loop of each of its programs."""
    words = jax.lax.bitcast_convert_type(word_Bx2, jnp.int32)
    return jnp.concatenate([words, block_Bx2xN.reshape(len(words), -1)], 1)[:, None]


def find_key_blocks(kernel: Kernel, interval_Bx2xL):
    """block_Bx2xN: the first block of keys that a program's queries see, and the one after the last."""
    first_BxN, last_BxN = (interval_Bx2xL[:, end].reshape(len(interval_Bx2xL), -1, kernel.outer) for end in range(2))
    return jnp.stack([first_BxN.min(-1) // kernel.inner, last_BxN.max(-1) // kernel.inner + 1], 1)


def find_query_blocks(kernel: Kernel, interval_Bx2xL):
    """block_Bx2xN: the first block of queries that see a program's keys, and the one after the last."""
    first_Bx1xL, last_Bx1xL = interval_Bx2xL[:, :1], interval_Bx2xL[:, 1:]
    key_Nx1 = jnp.arange(0, kernel.L, kernel.outer)[:, None]
    # Both ends of the intervals grow with the query.
    num_before_BxN = (last_Bx1xL < key_Nx1).sum(-1, dtype=jnp.int32)
    end_BxN = (first_Bx1xL < key_Nx1 + kernel.outer).sum(-1, dtype=jnp.int32)
    return jnp.stack([num_before_BxN // kernel.inner, (end_BxN - 1) // kernel.inner + 1], 1)
