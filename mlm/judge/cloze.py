"""The log-probability of a hidden token, asked of a model one row at a time."""
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import types
from mlm.base.special import MASK, PAD
from mlm.train.step import parallel


class Cloze(NamedTuple):
    """Rows whose places from `place` up to `end` are to be hidden, and the first of them told. All int32."""

    ids_BxL: jax.Array    # [CLS] tokens [SEP], PAD; nothing is hidden yet
    place_B: jax.Array
    end_B: jax.Array


def log_prob(model: types.Model, params, cloze: Cloze, knobs=None) -> jax.Array:
    """log_prob_B, in nats, of the token that stands at `place`, among the whole vocabulary.

    params: "model", as a run keeps them. knobs: unused; all that `Parallel.per_row` compiles takes them.
    """
    ids_BxL = cloze.ids_BxL
    zero_BxL, at_Bx1 = jnp.zeros_like(ids_BxL), cloze.place_B[:, None]
    place_BxL = jnp.broadcast_to(jnp.arange(ids_BxL.shape[1], dtype=ids_BxL.dtype), ids_BxL.shape)
    hidden_BxL = (at_Bx1 <= place_BxL) & (place_BxL < cloze.end_B[:, None])
    there_BxL = ids_BxL != PAD
    shown = types.Text(jnp.where(hidden_BxL, MASK, ids_BxL), there_BxL.astype(ids_BxL.dtype),
                       jnp.where(there_BxL, place_BxL, 0), zero_BxL)
    h_BxLxD = model.hidden(params["model"], shown)[0]
    h_BxD = jnp.take_along_axis(h_BxLxD, at_Bx1[..., None], axis=1)[:, 0]
    logits_BxV = model.logits(params["model"], h_BxD)
    target_Bx1 = jnp.take_along_axis(ids_BxL, at_Bx1, axis=1)
    return jnp.take_along_axis(logits_BxV, target_Bx1, axis=1)[:, 0] - jax.nn.logsumexp(logits_BxV, axis=-1)


def scorer(model: types.Model, run: parallel.Parallel, state) -> Callable[[Cloze], np.ndarray]:
    """`log_prob` of a model's state on all devices of all processes, each of which is given the whole batch."""
    answer = run.per_row(functools.partial(log_prob, model))

    def score(cloze):
        mine = parallel.mine(len(cloze.place_B))
        return answer(state, run.put_batch(Cloze(*(x[mine] for x in cloze))), None)

    return score
