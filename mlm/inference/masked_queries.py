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


def text(ids_BxL) -> types.Tokens:
    """Rows of one segment: what is not PAD."""
    there_BxL = ids_BxL != PAD
    place_BxL = jnp.broadcast_to(jnp.arange(ids_BxL.shape[1], dtype=ids_BxL.dtype), ids_BxL.shape)
    return types.Tokens(ids_BxL, there_BxL.astype(ids_BxL.dtype), jnp.where(there_BxL, place_BxL, 0),
                      jnp.zeros_like(ids_BxL))


def log_probs(model: types.Model, params, cloze: Cloze) -> jax.Array:
    """log_prob_BxV, in nats, of each entry of the vocabulary at `place`. params: "model", as a run keeps them."""
    ids_BxL, at_Bx1 = cloze.ids_BxL, cloze.place_B[:, None]
    place_BxL = jnp.broadcast_to(jnp.arange(ids_BxL.shape[1], dtype=ids_BxL.dtype), ids_BxL.shape)
    hidden_BxL = (at_Bx1 <= place_BxL) & (place_BxL < cloze.end_B[:, None])
    shown = text(ids_BxL)._replace(ids_BxL=jnp.where(hidden_BxL, MASK, ids_BxL))
    h_BxLxD = model.encode(params["model"], shown)[0]
    h_BxD = jnp.take_along_axis(h_BxLxD, at_Bx1[..., None], axis=1)[:, 0]
    return jax.nn.log_softmax(model.logits(params["model"], h_BxD), axis=-1)


def log_prob(model: types.Model, params, cloze: Cloze, knobs=None) -> jax.Array:
    """log_prob_B of the token at `place`. knobs: unused; all that `Parallel.per_row` compiles takes them."""
    target_Bx1 = jnp.take_along_axis(cloze.ids_BxL, cloze.place_B[:, None], axis=1)
    return jnp.take_along_axis(log_probs(model, params, cloze), target_Bx1, axis=1)[:, 0]


def scorer(model: types.Model, run: parallel.Parallel, state) -> Callable[[Cloze], np.ndarray]:
    """`log_prob` of a model's state on all devices of all processes, each of which is given the whole batch."""
    answer = run.per_row(functools.partial(log_prob, model))

    def score(cloze):
        mine = parallel.is_local(len(cloze.place_B))
        return answer(state, run.put_batch(Cloze(*(x[mine] for x in cloze))), None)

    return score
