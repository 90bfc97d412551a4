"""The cloze procedure: how many deleted words of a passage a model fills in exactly (Taylor 1953, "Cloze procedure": a
new tool for measuring readability, Journalism Quarterly 30(4)).

Letters in array names: P passages.
"""
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import errors, types
from mlm.base.special import CLS, MASK, SEP, UNK
from mlm.inference import batching, masked_queries, pseudo_likelihood
from mlm.inference.language_model import LanguageModel

EVERY = 5
WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")


class Passage(NamedTuple):
    """What a model made of a passage."""

    text: str
    words: int            # each deleted once
    exact: int            # of them filled in exactly

    @property
    def share(self) -> float:
        """Taylor's cloze score: the higher, the more readable to whom was asked."""
        return self.exact / self.words


def passages(model: LanguageModel, texts: Sequence[str], every: int = EVERY) -> list[Passage]:
    """The cloze score of each text.

    Of every `every` words one is deleted, all such of a text at once, punctuation left; in as many versions of the text
    as it takes to delete each word once. The model is told of how many tokens a deleted word was, and fills in the
    likeliest of each; exact is a word all of whose tokens are right. A text longer than a row is asked in parts. Raises
    ConfigError for a text of fewer than `every` words, and for a model that was trained to fill nothing in.
    """
    errors.require(not pseudo_likelihood.can(model.cfg) and model.output, "cloze", model.cfg.objective,
                  "a run that was trained to tell what is hidden (such as mlm)")
    errors.require_at_least(2, "every", every)
    shown, of = [], []  # rows with words hidden; the number of the text, the row itself and its words
    for number, text in enumerate(texts):
        spans = [word.span() for word in WORD.finditer(text)]
        errors.require(len(spans) >= every, "text", text, f"a passage of {every} words or more")
        ids, words = _placed(model.tokenizer, text, spans)
        for version in range(every):
            for row, mine in _parts(model.tokenizer, ids, words[version::every], model.length - 2):
                shown.append(_hidden(row, mine))
                of.append((number, row, mine))
    answer = jax.jit(functools.partial(best, objectives.telling(model.cfg, model.model)))
    words_P, exact_P = np.zeros((2, len(texts)), int)
    for some, ids_BxL in batching.batched(shown, model.length, model.batch):
        id_BxL = np.asarray(answer(model.params, ids_BxL))
        for i, id_L in zip(some, id_BxL, strict=False):
            number, row, mine = of[i]
            words_P[number] += len(mine)
            exact_P[number] += sum(UNK not in row[first:end] and row[first:end] == id_L[first:end].tolist()
                                   for first, end in mine)
    return [Passage(text, int(words), int(exact)) for text, words, exact in zip(texts, words_P, exact_P, strict=True)]


def best(model: types.Model, params, ids_BxL):
    """id_BxL: the likeliest entry at each place, one row after the other: not all their logits are there at once."""
    h_BxLxD = model.encode(params["model"], masked_queries.text(ids_BxL))[0]
    return jax.lax.map(lambda h_LxD: model.logits(params["model"], h_LxD).argmax(-1).astype(jnp.int32), h_BxLxD)


def _placed(tokenizer, text, spans) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a text, and for each word from which up to which of them hold its letters."""
    ids, places = tokenizer.locate(text)
    first_T, end_T = np.array(places, int).reshape(-1, 2).T
    return ids, [(int(np.searchsorted(end_T, first, "right")), int(np.searchsorted(first_T, end, "left")))
                 for first, end in spans]


def _parts(tokenizer, ids, words, room):
    """Rows of at most `room` tokens between [CLS] and [SEP], cut before words; with each the words that it holds."""
    for start, stop in pseudo_likelihood.cut(tokenizer.starts_word_V[ids], room):
        mine = [(first - start + 1, end - start + 1) for first, end in words if start <= first < end <= stop]
        if mine:
            yield [CLS, *ids[start:stop], SEP], mine


def _hidden(row, words) -> list[int]:
    shown = list(row)
    for first, end in words:
        shown[first:end] = [MASK] * (end - first)
    return shown
