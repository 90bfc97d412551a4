"""A word's neighbours in context: where in other texts a model's state of a word is most like its state here.

Letters in array names: W words as they stand in texts.
"""
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import regex

from mlm.base import errors
from mlm.base.special import UNK
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.evaluation import embeddings
from mlm.inference.language_model import LanguageModel

WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:['\u2019][\p{L}\p{M}\p{N}]+)*")
MARKS = "'\u2019"     # what may stand within a word
NUMBERS = 2 ** 25       # of the states that are held at once


class Word(NamedTuple):
    """A word of a text: from which character to which, and from which piece to which."""

    first: int
    end: int
    piece: int
    stop: int


class Neighbour(NamedTuple):
    """A word in its context, and how like it is."""

    word: str
    cosine: float
    line: int             # the number of its text, from 0
    first: int            # the character of the text at which it begins
    text: str


class Words(NamedTuple):
    """The words of some texts, in their order, with their states scaled to length 1."""

    line_W: np.ndarray
    span_Wx2: np.ndarray  # characters
    unit_WxD: np.ndarray


def words(tokenizer: Tokenizer, text: str, longest: int) -> list[Word]:
    """The words among the first `longest` pieces of a text, without those that the vocabulary has no entry for.

    A word is letters, marks and digits that stand together, an apostrophe within it; it ends before where the
    vocabulary begins another, as BERT's does at each Chinese character.
    """
    ids, spans = tokenizer.locate(text)
    if not ids:
        return []
    id_P, (first_P, end_P) = np.array(ids), np.array(spans).T
    end_P = np.maximum(end_P, first_P + 1)  # a mark of the space before the word has no letter
    cuts = sorted({place for place in first_P[tokenizer.starts_word_V[id_P]].tolist()
                   if 0 < place < len(text) and not {text[place - 1], text[place]} & set(MARKS)})
    found = []
    for match in WORD.finditer(text):
        inner = cuts[np.searchsorted(cuts, match.start(), "right"):np.searchsorted(cuts, match.end())]
        for first, end in itertools.pairwise([match.start(), *inner, match.end()]):
            piece, stop = int(np.searchsorted(end_P, first, "right")), int(np.searchsorted(first_P, end))
            if piece < stop <= longest and UNK not in ids[piece:stop]:
                found.append(Word(first, end, piece, stop))
    return found


def at(model: LanguageModel, text: str, word: str, which: int | None = None) -> Word:
    """Where a word, or some that follow each other, stands in a text.

    which: of several such, from 1; without it there must be one alone. A number that is no word of the text is that of
    a word, from 1. Raises ConfigError where it stands nowhere, or more than once.
    """
    there = words(model.tokenizer, text, model.length - 2)
    ends = {one.end: one for one in there}
    for same in (str, str.casefold):
        found = [one._replace(end=last.end, stop=last.stop) for one in there
                 if (last := ends.get(one.first + len(word))) and same(text[one.first:last.end]) == same(word)]
        if found:
            break
    if not found and word.isdecimal() and 1 <= int(word[:9]) <= len(there):
        return there[int(word[:9]) - 1]
    errors.require(bool(found), "word", word,
                   f"a word of {errors.format_value(text)} that this model has entries for, among " f"the first {model.length - 2} tokens")
    numbers = [there.index(ends[one.end]) + 1 for one in found]
    errors.require(which is not None or len(found) == 1, "word", word,
                   f"a word that stands in {errors.format_value(text)} " f"once, or its number: {' or '.join(map(str, numbers))}")
    errors.require_number("which", which or 1, 1, len(found))
    return found[(which or 1) - 1]


def state(model: LanguageModel, text: str, word: Word, layer: int = -1) -> np.ndarray:
    """unit_D: the mean of the states of a word's pieces, scaled to length 1."""
    h_TxD = model.embed(text, layer, pool=None)
    return embeddings.unit(h_TxD[word.piece + 1:word.stop + 1].mean(0))


def gathered(model: LanguageModel, texts: Sequence[str], layer: int = -1) -> Words:
    """All words of some texts. The states of all their tokens are not held at once."""
    lines, spans, size = [], [], _size(model)
    h_WxD = np.zeros((0, len(model.model.directions) * model.model.width), np.float32)
    for begin in range(0, len(texts), size):
        part = texts[begin:begin + size]
        there = [words(model.tokenizer, text, model.length - 2) for text in part]
        lines += [line for line, of_text in enumerate(there, begin) for _ in of_text]
        spans += [(one.first, one.end) for of_text in there for one in of_text]
        more = [h_TxD[one.piece + 1:one.stop + 1].mean(0) for of_text, h_TxD in
                zip(there, model.embed(part, layer, pool=None), strict=True) for one in of_text]
        h_WxD = np.concatenate([h_WxD, np.reshape(more, (-1, h_WxD.shape[1]))])
    return Words(np.array(lines, int), np.array(spans, int).reshape(-1, 2), embeddings.unit(h_WxD).astype(np.float32))


def _size(model: LanguageModel) -> int:
    """Texts whose states are held at once."""
    return max(model.batch, NUMBERS // (model.length * len(model.model.directions) * model.model.width))


def ranked(unit_D, among: Words, texts: Sequence[str], top: int) -> list[Neighbour]:
    """The `top` of some words whose states are most like one, the first in the texts where two are alike."""
    cosine_W = (among.unit_WxD @ unit_D.astype(np.float32)).astype(np.float64).round(6)
    best = np.argsort(-cosine_W, kind="stable")[:top].tolist()
    return [Neighbour(texts[line][first:end], float(cosine_W[i]), line, first, texts[line])
            for i in best for line, (first, end) in [(int(among.line_W[i]), among.span_Wx2[i].tolist())]]


def nearest(model: LanguageModel, text: str, word: str, others: Iterable[str], top: int = 5, layer: int = -1
            ) -> list[Neighbour]:
    """The `top` words of other texts whose states are most like that of a word of this text, by their cosine.

    A word's state is the mean over its pieces (as of Ethayarajh 2019); layer: 0 the embeddings, -1 the last. word: as
    of `at`. The other texts are read a few at a time, so that there may be many. Raises ConfigError as `at` does.
    """
    errors.require_at_least(1, "top", top)
    unit_D = state(model, text, at(model, text, word), layer)
    best: list[Neighbour] = []
    rest, seen = iter(others), 0
    while chunk := list(itertools.islice(rest, _size(model))):
        more = [one._replace(line=one.line + seen) for one in
                ranked(unit_D, gathered(model, chunk, layer), chunk, top)]
        best = sorted([*best, *more], key=lambda one: -one.cosine)[:top]
        seen += len(chunk)
    return best
