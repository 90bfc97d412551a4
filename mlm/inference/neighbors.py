"""Contextual nearest neighbors: the words of other texts whose states are most similar to a word's state in its text.

Letters in array names: W words of texts, P pieces of a text.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import regex

from mlm.base import errors
from mlm.base.special import UNK
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.inference import batching
from mlm.inference.forward_passes import l2_normalize
from mlm.inference.language_model import LanguageModel

WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:['\u2019][\p{L}\p{M}\p{N}]+)*")
APOSTROPHES = "'\u2019"  # allowed inside a word
MAX_STATE_VALUES = 2**25  # numbers of states in memory at once


class WordSpan(NamedTuple):
    """A word of a text, as a range of characters and a range of pieces."""

    start: int
    end: int
    first_piece: int
    end_piece: int


class Neighbor(NamedTuple):
    """A word in its text, and its cosine similarity."""

    word: str
    cosine: float
    line: int  # the index of its text
    start: int  # the index of its first character
    text: str


class WordStates(NamedTuple):
    """The words of some texts, in order, with their states scaled to length 1."""

    line_W: np.ndarray
    span_Wx2: np.ndarray  # characters
    unit_WxD: np.ndarray


def find_words(tokenizer: Tokenizer, text: str, max_pieces: int) -> list[WordSpan]:
    """The words within the first `max_pieces` pieces of a text, without those that have an unknown piece.

    A word is a run of letters, marks and digits, with apostrophes inside. It also ends where the vocabulary starts a
    new word, as BERT's does at each Chinese character. A text with [MASK] has none.
    """
    ids, spans = tokenizer.encode_with_offsets(text)
    if not ids or batching.MASK_TOKEN in text:
        return []
    id_P, (start_P, end_P) = np.array(ids), np.array(spans).T
    end_P = np.maximum(end_P, start_P + 1)  # the piece of a space before a word has no character
    starts = np.unique(start_P[tokenizer.find_word_starts(id_P)])
    words = []
    for match in WORD.finditer(text):
        within = starts[(match.start() < starts) & (starts < match.end())].tolist()
        inner = (place for place in within if not {text[place - 1], text[place]} & set(APOSTROPHES))
        for start, end in itertools.pairwise([match.start(), *inner, match.end()]):
            first_piece, end_piece = int(np.searchsorted(end_P, start, "right")), int(np.searchsorted(start_P, end))
            if first_piece < end_piece <= max_pieces and UNK not in ids[first_piece:end_piece]:
                words.append(WordSpan(start, end, first_piece, end_piece))
    return words


def locate_word(model: LanguageModel, text: str, word: str, which: int | None = None) -> WordSpan:
    """Finds a word, or several words in a row, in a text.

    word: the word, or its number from 1 if the text does not hold that number as a word. which: the occurrence, from 1.
    Raises ConfigError where the word does not occur, or occurs more than once without `which`.
    """
    mask = batching.MASK_TOKEN
    errors.require(mask not in text, "text", text, f"one without {mask}, as its words have states")
    words = find_words(model.tokenizer, text, model.length - 2)
    by_end = {span.end: span for span in words}
    for normalize in (str, str.casefold):
        found = [
            span._replace(end=last.end, end_piece=last.end_piece)
            for span in words
            if word
            and (last := by_end.get(span.start + len(word)))
            and normalize(text[span.start : last.end]) == normalize(word)
        ]
        if found:
            break
    if not found and word.isdecimal() and 1 <= int(word[:9]) <= len(words):
        return words[int(word[:9]) - 1]
    shown = errors.format_value(text)
    expected = f"a word of {shown} that this model has entries for, among the first {model.length - 2} tokens"
    errors.require(bool(found), "word", word, expected)
    numbers = " or ".join(str(words.index(by_end[span.end]) + 1) for span in found)
    expected = f"a word that occurs in {shown} once, or its number: {numbers}"
    errors.require(which is not None or len(found) == 1, "word", word, expected)
    errors.require_number("which", which or 1, 1, len(found))
    return found[(which or 1) - 1]


def compute_word_state(model: LanguageModel, text: str, word: WordSpan, layer: int = -1) -> np.ndarray:
    """unit_D: the mean of the states of a word's pieces, scaled to length 1."""
    h_TxD = model.encode(text, layer, pooling=None)
    return l2_normalize(np.mean(h_TxD[word.first_piece + 1 : word.end_piece + 1], axis=0))


def iterate_word_states(
    model: LanguageModel, texts: Iterable[str], layer: int = -1
) -> Iterator[tuple[dict[int, str], WordStates]]:
    """Yields chunks of texts, by their index, with the states of all their words, as many as fit in memory."""
    width = len(model.model.directions) * model.model.width
    chunk_size, numbered = max(model.batch_size, MAX_STATE_VALUES // (model.length * width)), enumerate(texts)
    while chunk := dict(itertools.islice(numbered, chunk_size)):
        encoded = zip(chunk.items(), model.encode([*chunk.values()], layer, pooling=None), strict=True)
        words = [
            (line, word, h_TxD[word.first_piece + 1 : word.end_piece + 1].mean(0))
            for (line, text), h_TxD in encoded
            for word in find_words(model.tokenizer, text, model.length - 2)
        ]
        line_W = np.array([line for line, *_ in words], int)
        span_Wx2 = np.array([(word.start, word.end) for _, word, _ in words], int).reshape(-1, 2)
        h_WxD = np.reshape([h_D for *_, h_D in words], (-1, width))
        yield chunk, WordStates(line_W, span_Wx2, l2_normalize(h_WxD).astype(np.float32))


def rank_neighbors(unit_D, words: WordStates, texts: Mapping[int, str], top: int) -> list[Neighbor]:
    """The `top` words with the most similar states, earlier words first among equals. texts: by index."""
    cosine_W = (words.unit_WxD @ unit_D.astype(np.float32)).astype(np.float64).round(6)
    best = np.argsort(-cosine_W, kind="stable")[:top].tolist()
    return [
        Neighbor(texts[line][start:end], float(cosine_W[i]), line, start, texts[line])
        for i in best
        for line, (start, end) in [(int(words.line_W[i]), words.span_Wx2[i].tolist())]
    ]


def find_neighbors(
    model: LanguageModel, text: str, word: str, others: Iterable[str], top: int = 5, layer: int = -1
) -> list[Neighbor]:
    """The `top` words of other texts whose states have the highest cosine with that of a word of this text.

    word: as for `locate_word`, which raises ConfigError. others: read in chunks, so there may be any number. layer: 0:
    the embeddings, -1: the last layer. A word's state is the mean over its pieces (Ethayarajh 2019).
    """
    unit_D = compute_word_state(model, text, locate_word(model, text, word), layer)
    best: list[Neighbor] = []
    for texts, words in iterate_word_states(model, others, layer):
        ranked = rank_neighbors(unit_D, words, texts, top)
        best = sorted([*best, *ranked], key=lambda neighbor: -neighbor.cosine)[:top]
    return best
