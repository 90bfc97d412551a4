"""Positions inside self-attention: rotary embeddings, position biases, embeddings of distances, and local windows."""

import dataclasses
import functools
import math
import operator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config
from mlm.models import layers, platform_kernels

NUM_BUCKETS = 32  # of relative positions, half of them on each side
MAX_DISTANCE = 128  # tokens that are further apart share the last bucket


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["ids_BxL", "is_local", "left_B"], meta_fields=["is_causal", "window"]
)
@dataclasses.dataclass(frozen=True)
class Segments:
    """Which tokens see each other, without an array of all pairs: those whose segment has the same number."""

    ids_BxL: jax.Array
    is_causal: bool = False  # a token sees no later one
    window: int = 0  # tokens that it sees in a local layer, half of them on each side
    is_local: Any = False  # whether the layer is local; may be traced
    left_B: jax.Array | None = None  # examples in which a token sees no later one


class AttentionContext(NamedTuple):
    """What self-attention reads beside the states, the same for all layers; with a cache keys outnumber queries."""

    visible_Bx1xLxS: jax.Array  # the keys that a query sees in a global layer
    local_Bx1xLxS: jax.Array | None = None  # in a local layer; None: no layer is local
    bias_BxHxLxS: jax.Array | None = None  # added to the scores
    relative_RxD: jax.Array | None = None  # embeddings of distances that queries and keys meet; None: they meet none
    row_BxLxS: jax.Array | None = None  # the row of relative_RxD for each query and key
    position_BxL: jax.Array | None = None  # of the queries and the new keys in their sequences; None: from 0
    segments: Segments | None = None  # what visible_Bx1xLxS and local_Bx1xLxS say; None: they cannot be said so


def compute_visible(model: config.Model, segments_BxL, left_B=None):
    """visible_BxLxL: the tokens of its segment that each token sees; left_B: examples that see the left side only."""
    visible_BxLxL = segments_BxL[:, :, None] == segments_BxL[:, None, :]
    causal_LxL = jnp.tri(segments_BxL.shape[1], dtype=bool)
    if model.directionality == "causal":
        return visible_BxLxL & causal_LxL
    return visible_BxLxL if left_B is None else visible_BxLxL & (causal_LxL | ~left_B[:, None, None])


def declare_table(module: nn.Module):
    """What a stack learns of distances; None with most values of model.positions.

    With "relative" or model.relative_bias these are biases by bucket and head (table_KxH), with "disentangled"
    embeddings after a norm (table_RxD).
    """
    model, init = module.model, layers.initializer(module.model)
    if model.positions == "relative" or model.relative_bias:
        return module.param("relative_bias", init, (NUM_BUCKETS, model.num_heads))
    if model.positions == "disentangled":
        table_RxD = module.param("relative_embedding", init, (2 * model.position_buckets, model.width))
        return layers.norm(model, "relative_norm")(table_RxD)
    return None


def read_table(model: config.Model, params):
    """What `declare_table` gives, from the parameters of its module."""
    if model.positions == "disentangled":
        return layers.norm(model).apply({"params": params["relative_norm"]}, params["relative_embedding"])
    return params.get("relative_bias")


def make_context(
    model: config.Model, visible_Bx1xLxS, table=None, query_BxL=None, segments: Segments | None = None
) -> AttentionContext:
    """The context of a stack's self-attention; a key's position is its index, as is a query's unless query_BxL says it.

    table: of `declare_table`; segments: what visible_Bx1xLxS says, None where it cannot be said so.
    """
    L, S = visible_Bx1xLxS.shape[2:]
    if segments is not None:
        segments = dataclasses.replace(segments, window=model.local_window)
    context = AttentionContext(visible_Bx1xLxS, position_BxL=query_BxL, segments=segments)
    # Otherwise the compiled program needs no distances.
    if not model.local_window and model.positions not in BIASES and table is None:
        return context
    query_BxL = jnp.arange(L)[None] if query_BxL is None else query_BxL
    distance_BxLxS = jnp.arange(S) - query_BxL[:, :, None]
    if model.local_window:
        is_near_BxLxS = abs(distance_BxLxS) <= model.local_window // 2
        context = context._replace(local_Bx1xLxS=visible_Bx1xLxS & is_near_BxLxS[:, None])
    if model.positions in BIASES:
        context = context._replace(bias_BxHxLxS=BIASES[model.positions](model.num_heads, distance_BxLxS))
    if model.positions == "disentangled":
        row_BxLxS = compute_rows(model.position_buckets, model.max_positions, -distance_BxLxS)
        context = context._replace(relative_RxD=table, row_BxLxS=row_BxLxS)
    elif table is not None:
        bias_BxHxLxS = jnp.moveaxis(jnp.take(table, compute_buckets(distance_BxLxS), axis=0), -1, 1)
        bias_BxHxLxS = bias_BxHxLxS if context.bias_BxHxLxS is None else context.bias_BxHxLxS + bias_BxHxLxS
        context = context._replace(bias_BxHxLxS=bias_BxHxLxS)
    return context


def declare_context(module: nn.Module, segments_BxL, left_B=None) -> AttentionContext:
    """The context of a stack's self-attention over whole examples, with what the stack learns of distances."""
    model = module.model
    visible_Bx1xLxL = compute_visible(model, segments_BxL, left_B)[:, None]
    segments = Segments(segments_BxL, model.directionality == "causal", left_B=left_B)
    return make_context(model, visible_Bx1xLxL, declare_table(module), segments=segments)


def is_local(model: config.Model, number):
    """Whether layer `number`, counted from 1, sees the nearest tokens alone; may be traced."""
    if model.global_layers:
        return functools.reduce(operator.and_, (number != layer for layer in model.global_layers))
    return (number - 1) % model.global_every != 0 if model.global_every else True


def select_visible(model: config.Model, context: AttentionContext, number) -> jax.Array:
    """The keys that each query sees in layer `number`."""
    if context.local_Bx1xLxS is None:
        return context.visible_Bx1xLxS
    return jnp.where(is_local(model, number), context.local_Bx1xLxS, context.visible_Bx1xLxS)


def select_segments(model: config.Model, context: AttentionContext, number) -> Segments | None:
    """What `select_visible` gives, as segments; None: it cannot be said so."""
    if context.segments is None:
        return None
    # Not what it was before the loop over layers, which traces it.
    return dataclasses.replace(context.segments, is_local=is_local(model, number) if model.local_window else False)


def find_intervals(segments: Segments):
    """interval_Bx2xL: the first and the last key that each query sees, of segments whose tokens follow one another."""
    ids_BxL = segments.ids_BxL
    query_BxL = jnp.broadcast_to(jnp.arange(ids_BxL.shape[1], dtype=jnp.int32), ids_BxL.shape)
    is_end_BxL = jnp.pad(ids_BxL[:, 1:] != ids_BxL[:, :-1], ((0, 0), (0, 1)), constant_values=True)
    is_start_BxL = jnp.roll(is_end_BxL, 1, 1)
    first_BxL = jax.lax.cummax(jnp.where(is_start_BxL, query_BxL, 0), 1)
    last_BxL = jax.lax.cummin(jnp.where(is_end_BxL, query_BxL, ids_BxL.shape[1]), 1, reverse=True)
    if segments.is_causal:
        last_BxL = query_BxL
    if segments.left_B is not None:
        last_BxL = jnp.where(segments.left_B[:, None], query_BxL, last_BxL)
    if segments.is_local is not False:
        half = jnp.where(segments.is_local, segments.window // 2, ids_BxL.shape[1])
        first_BxL, last_BxL = jnp.maximum(first_BxL, query_BxL - half), jnp.minimum(last_BxL, query_BxL + half)
    return jnp.stack([first_BxL, last_BxL], 1)


def select_rope_theta(model: config.Model, number):
    """The base of the rotary angles of layer `number`."""
    if not (model.local_window and model.local_rope_theta):
        return model.rope_theta
    return jnp.where(is_local(model, number), model.local_rope_theta, model.rope_theta)


def select_scaling(model: config.Model, number, half: int):
    """(stretch_h, size) of the rotary angles of layer `number`: factors of their periods, and of sine and cosine.

    None without model.rope_scaling; 1 in a local layer.
    """
    if not model.rope_scaling:
        return None
    stretch_h, size = compute_scaling(model, half)
    if not model.local_window:
        return stretch_h, size
    is_near = is_local(model, number)
    return jnp.where(is_near, 1.0, stretch_h), jnp.where(is_near, 1.0, size)


def compute_scaling(model: config.Model, half: int):
    """`select_scaling` of a layer that sees all tokens.

    linear: Chen et al. 2023 (arXiv 2306.15595, section 2.3); ntk and yarn: Peng et al. 2023 (arXiv 2309.00071, sections
    3.1 to 3.4), with their bounds of 1 and 32 turns within model.rope_original_len, which their code rounds to entries.
    """
    factor, entry_h = model.rope_factor, np.arange(half, dtype=np.float32)
    if model.rope_scaling == "linear":
        return np.full_like(entry_h, factor), 1.0
    if model.rope_scaling == "ntk":
        return factor ** (entry_h / (half - 1)), 1.0  # theta times factor^(half / (half - 1)), to the power of i / half
    low, high = (half * math.log(model.rope_original_len / (2 * math.pi * n), model.rope_theta) for n in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * half - 1)
    divided_h = np.clip((entry_h - low) / (high - low or 1e-3), 0, 1)  # the share that is as in linear
    return 1 / (divided_h / factor + 1 - divided_h), 0.1 * math.log(factor) + 1


def rotate(x_BxLxHxd, position_BxL, theta, scaling=None):
    """Rotary position embeddings (RoPE, Su et al. 2021, section 3.2.2); positions count from 0 if None.

    scaling: of `select_scaling`.
    """
    half = x_BxLxHxd.shape[-1] // 2
    position_BxL = jnp.arange(x_BxLxHxd.shape[1])[None] if position_BxL is None else position_BxL
    angle_BxLx1xh = position_BxL[..., None, None] / theta ** (jnp.arange(half) / half)
    if scaling is not None:
        stretch_h, size = scaling
        angle_BxLx1xh /= stretch_h
        x_BxLxHxd = size * x_BxLxHxd
    sin, cos = jnp.sin(angle_BxLx1xh).astype(x_BxLxHxd.dtype), jnp.cos(angle_BxLx1xh).astype(x_BxLxHxd.dtype)
    if platform_kernels.find_platform() == "tpu":  # its compiler copies the parts of what is split, and what is joined
        x_BxLxHx2xh = x_BxLxHxd.reshape(*x_BxLxHxd.shape[:-1], 2, half)
        sin_BxLx1x2xh = jnp.stack([-sin, sin], -2)
        turned_BxLxHx2xh = x_BxLxHx2xh * cos[..., None, :] + x_BxLxHx2xh[..., ::-1, :] * sin_BxLx1x2xh
        return turned_BxLxHx2xh.reshape(x_BxLxHxd.shape)
    first, second = x_BxLxHxd[..., :half], x_BxLxHxd[..., half:]
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1)


def compute_alibi(num_heads: int, distance_BxLxS):
    """Attention with linear biases (Press et al. 2022, arXiv 2108.12409), the same on both sides.

    The slopes of a power of two of heads are 2^(-8/n), 2^(-16/n), ...; further heads get the slopes between those of
    twice as many heads, as in the paper's code.
    """
    n = 2 ** int(math.log2(num_heads))
    slope_H = 2.0 ** np.concatenate([-8 / n * np.arange(1, n + 1), -4 / n * np.arange(1, 2 * n, 2)])[:num_heads]
    return -jnp.asarray(slope_H, jnp.float32)[:, None, None] * abs(distance_BxLxS)[:, None]


BIASES = {"alibi": compute_alibi}  # bias_BxHxLxS by model.positions


def compute_buckets(distance_BxLxS):
    """The number of the bucket of each distance (T5, Raffel et al. 2020, arXiv 1910.10683, section 2.1).

    Each side has half of the buckets. Half of these are for one distance each, from 0 on; the others grow with the
    logarithm of the distance up to MAX_DISTANCE.
    """
    side, exact = NUM_BUCKETS // 2, NUM_BUCKETS // 4
    size_BxLxS = abs(distance_BxLxS)
    scale = (side - exact) / math.log(MAX_DISTANCE / exact)
    log_BxLxS = exact + (jnp.log(jnp.maximum(size_BxLxS, exact) / exact) * scale).astype(jnp.int32)
    bucket_BxLxS = jnp.where(size_BxLxS < exact, size_BxLxS, jnp.minimum(log_BxLxS, side - 1))
    return bucket_BxLxS + side * (distance_BxLxS > 0)


def compute_rows(num_buckets: int, max_positions: int, offset_BxLxS):
    """The row of the embeddings of distances for a query so many tokens after a key (DeBERTaV2, as its code has it).

    There are num_buckets rows for each side. Half of these are for one distance each; the others grow with the
    logarithm of the distance up to max_positions.
    """
    exact, size_BxLxS = num_buckets // 2, abs(offset_BxLxS)
    log_BxLxS = jnp.log(jnp.maximum(size_BxLxS, exact) / exact) / np.log(np.float32((max_positions - 1) / exact))
    bucket_BxLxS = exact + jnp.ceil(log_BxLxS * (exact - 1)).astype(jnp.int32)
    bucket_BxLxS = jnp.sign(offset_BxLxS) * jnp.where(size_BxLxS <= exact, size_BxLxS, bucket_BxLxS)
    return jnp.clip(num_buckets + bucket_BxLxS, 0, 2 * num_buckets - 1)


def compute_disentangled_bias(row_BxLxS, q_RxHxd, k_RxHxd, q_BxLxHxd, k_BxSxHxd):
    """bias_BxHxLxS: content to position and position to content (He et al. 2021, arXiv 2006.03654, equation 4).

    q_RxHxd, k_RxHxd: of the embeddings of distances, which have no dropout. As in the authors' code both terms read the
    row of the query's distance from the key, where the paper's second term has that of the key from the query.
    """
    einsum, row_Bx1xLxS = functools.partial(jnp.einsum, preferred_element_type=jnp.float32), row_BxLxS[:, None]
    to_position_BxHxLxR = einsum("blhd,rhd->bhlr", q_BxLxHxd, k_RxHxd.astype(q_BxLxHxd.dtype))
    to_content_BxHxSxR = einsum("bshd,rhd->bhsr", k_BxSxHxd, q_RxHxd.astype(k_BxSxHxd.dtype))
    bias_BxHxLxS = jnp.take_along_axis(to_position_BxHxLxR, row_Bx1xLxS, 3)
    bias_BxHxLxS += jnp.take_along_axis(to_content_BxHxSxR, row_Bx1xLxS.swapaxes(2, 3), 3).swapaxes(2, 3)
    return bias_BxHxLxS / q_BxLxHxd.shape[-1] ** 0.5
