"""One token after the other, the likeliest or a drawn one, as one loop over anything that tells the next token.

Letters in array names: T tokens after a row.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlm.base.special import PAD, SEP


class Followed(NamedTuple):
    ids_BxT: jax.Array        # SEP is the last where the text ended, PAD stands behind it
    length_B: jax.Array       # tokens, SEP among them
    log_prob_B: jax.Array     # the sum of the model's log P of them, in nats


class _Rows(NamedTuple):
    step: jax.Array
    cache: Any
    last_B: jax.Array
    followed: Followed
    open_B: jax.Array


def follow(following: Callable, cache, last_B, choose: Callable, *, steps: int, most_B=None, end: int = SEP,
           never: tuple[int, ...] = ()) -> Followed:
    """Texts of at most `steps` tokens behind each row, by choose: (logits_BxV, step) -> ids_B, such as `likeliest`.

    following, cache, last_B, most_B, never: as beam.search has them.
    """
    most_B = jnp.full(len(last_B), steps) if most_B is None else most_B

    def step(rows: _Rows) -> _Rows:
        t, open_B, before = rows.step, rows.open_B, rows.followed
        logits_BxV, cache = following(rows.cache, rows.last_B)
        logits_BxV = without(logits_BxV.astype(jnp.float32), never)
        id_B = choose(logits_BxV, t).astype(jnp.int32)
        log_prob_B = jnp.take_along_axis(logits_BxV, id_B[:, None], 1)[:, 0] - jax.nn.logsumexp(logits_BxV, -1)
        id_B = jnp.where(open_B, id_B, PAD)
        followed = Followed(before.ids_BxT.at[:, t].set(id_B), before.length_B + open_B,
                            before.log_prob_B + jnp.where(open_B, log_prob_B, 0))
        return _Rows(t + 1, cache, id_B, followed, open_B & (id_B != end) & (t + 1 < most_B))

    B = len(last_B)
    nothing = Followed(jnp.full((B, steps), PAD, jnp.int32), jnp.zeros(B, jnp.int32), jnp.zeros(B))
    first = _Rows(jnp.int32(0), cache, last_B, nothing, most_B > 0)
    return jax.lax.while_loop(lambda rows: (rows.step < steps) & rows.open_B.any(), step, first).followed


def without(logits_NxV, never: tuple[int, ...]):
    """-inf for some entries."""
    taken_V = jnp.ones(logits_NxV.shape[-1], bool).at[jnp.array(never, int)].set(False)
    return jnp.where(taken_V, logits_NxV, -jnp.inf)


def likeliest(logits_BxV, step):
    """The first of those of which none is likelier."""
    return logits_BxV.argmax(-1)


def drawn(key_B, temperature, top_k, top_p) -> Callable:
    """`choose` that draws each row's tokens by its own key, whatever the batch.

    From softmax(logits / temperature): of the top_k likeliest (0: of all), and of those, of the fewest likeliest that
    have a share of at least top_p together (nucleus, Holtzman et al. 2020, arXiv 1904.09751, section 3.1; 1: of all).
    All three are traced; entries as likely as the last taken are taken too.
    """
    def choose(logits_BxV, step):
        share_BxV = jax.nn.softmax(logits_BxV / temperature)
        count = jnp.where(top_k > 0, top_k, logits_BxV.shape[-1])
        share_BxV = _most(share_BxV, jnp.ones_like(share_BxV), count)
        share_BxV = _most(share_BxV, share_BxV, top_p * share_BxV.sum(-1))
        upto_BxV = share_BxV.cumsum(-1)
        key_B_now = jax.vmap(jax.random.fold_in, (0, None))(key_B, step)
        point_B = jax.vmap(jax.random.uniform)(key_B_now) * upto_BxV[:, -1]
        at_B = (upto_BxV <= point_B[:, None]).sum(-1)
        last_B = jnp.where(share_BxV > 0, jnp.arange(share_BxV.shape[-1]), 0).max(-1)
        return jnp.minimum(at_B, last_B)  # the draw may be rounded up to the sum

    return choose


def _most(share_BxV, weight_BxV, enough_B):
    """share where it is as large as the largest bound above which weights add up to `enough`; 0 elsewhere.

    Found by halving: shares are positive floats, which are in the order of their bits.
    """
    enough_B = jnp.broadcast_to(enough_B, share_BxV.shape[:1])

    def halve(_, bounds):
        low_B, high_B = bounds
        middle_B = low_B + (high_B - low_B) // 2
        above_BxV = share_BxV >= jax.lax.bitcast_convert_type(middle_B, jnp.float32)[:, None]
        holds_B = jnp.where(above_BxV, weight_BxV, 0).sum(-1) >= enough_B
        return jnp.where(holds_B, middle_B, low_B), jnp.where(holds_B, high_B, middle_B)

    zero_B = jnp.zeros(len(share_BxV), jnp.int32)
    one_B = zero_B + jax.lax.bitcast_convert_type(jnp.float32(2), jnp.int32)
    low_B, _ = jax.lax.fori_loop(0, 31, halve, (zero_B, one_B))
    return jnp.where(share_BxV >= jax.lax.bitcast_convert_type(low_B, jnp.float32)[:, None], share_BxV, 0)
