"""Texts that a model goes on with, token by token: the likeliest, the best of a beam, or drawn ones."""
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlm.base import types
from mlm.base.special import CLS, MASK, PAD, UNK
from mlm.inference import beam_search, sampling
from mlm.inference.masked_queries import text

NEVER = (PAD, UNK, CLS, MASK)  # what no text holds


class Begun(NamedTuple):
    """Rows that were read up to their last token."""

    following: object         # (cache, ids_B) -> (logits_BxV, cache)
    cache: object
    last_B: jax.Array
    most_B: jax.Array         # tokens for which there is room behind each


def begin(model: types.Model, params, prompt: types.Tokens, source: types.Tokens | None, room: int, upto=None) -> Begun:
    """Rows of one segment, read from the left but for their last token, of which there is at least one.

    params: "model", as a run keeps them. room: tokens in all, the prompt's among them, for which memory is kept; upto:
    as many as are wanted, traced; None: `room`.
    """
    length_B = (prompt.segments_BxL > 0).sum(-1)
    last_B = jnp.take_along_axis(prompt.ids_BxL, length_B[:, None] - 1, 1)[:, 0]
    before_BxL = jnp.arange(prompt.ids_BxL.shape[1]) < length_B[:, None] - 1
    read = types.Tokens(*(jnp.where(before_BxL, x_BxL, 0) for x_BxL in prompt))
    cache = model.init_cache(params["model"], read, source, room)
    return Begun(lambda cache, ids_B: model.decode_step(params["model"], cache, ids_B), cache, last_B,
                 (room if upto is None else upto) - length_B)


def greedy(model: types.Model, params, prompt: types.Tokens, source: types.Tokens | None = None, *, room: int,
           upto=None, never=NEVER) -> sampling.Followed:
    """The likeliest token after the other, up to [SEP] or to `upto` tokens in all; never: what is not taken."""
    begun = begin(model, params, prompt, source, room, upto)
    return sampling.follow(*begun[:3], sampling.likeliest, steps=room - 1, most_B=begun.most_B, never=never)


def drawn(
    model: types.Model,
    params,
    prompt: types.Tokens,
    source: types.Tokens | None,
    key_B,
    temperature,
    top_k,
    top_p,
    *,
    room: int,
    upto=None,
    never=NEVER,
) -> sampling.Followed:
    """As `greedy`, of tokens drawn as sample.drawn says."""
    begun = begin(model, params, prompt, source, room, upto)
    choose = sampling.drawn(key_B, temperature, top_k, top_p)
    return sampling.follow(*begun[:3], choose, steps=room - 1, most_B=begun.most_B, never=never)


def beams(model: types.Model, params, prompt: types.Tokens, source: types.Tokens | None = None, alpha=0.6, *, room: int,
          width: int, normalise: str = "mean", stop: str = "bound", upto=None, never=NEVER) -> beam_search.Found:
    """The best texts as beam.search finds them; with a beam of 1 what `greedy` finds."""
    begun = begin(model, params, prompt, source, room, upto)
    return beam_search.search(*begun[:3], width=width, steps=room - 1, most_B=begun.most_B, normalise=normalise,
                              alpha=alpha, stop="first" if width == 1 else stop, never=never)


def translate(model: types.Model, params, source: types.Tokens, alpha=0.6, *, room: int, width: int = 1,
              normalise: str = "mean", stop: str = "bound") -> beam_search.Found:
    """The best texts beside a source, from [CLS] on, of at most `room` tokens, [CLS] among them."""
    prompt = text(jnp.full((len(source.ids_BxL), 1), CLS, jnp.int32))
    return beams(model, params, prompt, source, alpha, room=room, width=width, normalise=normalise, stop=stop)
