"""Token ids of many texts at once, as arrays: a word that came before is not tokenized again.

Letters in array names: S texts, W their words, K words that are known, T tokens.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from mlm.data.tokenizers.tokenizer import Tokenizer

MAX_CACHED_WORDS = 2**18  # words in the cache, with MAX_MEAN_LETTERS characters each on average; then it starts empty
MAX_MEAN_LETTERS = 16
FlatIds = tuple[np.ndarray, np.ndarray]  # (ids_T, size_S): the ids of all texts in turn, how many each one's are


class CachedEncoder:
    """encode_batch of a tokenizer, with the same ids; memory stays bounded, whatever the texts hold.

    Texts are stripped, or begin with the white space behind the text before them.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, encode = tokenizer, tokenizer.encode_parts or tokenizer.encode_batch
        self._parts = _WordCache(lambda texts: flatten_ids(encode(texts)))
        self._words = _WordCache(self._encode) if tokenizer.split_parts else self._parts

    def __call__(self, texts: Sequence[str]) -> FlatIds:
        """Encodes texts; reuses the ids of words or parts that came before."""
        if self._tokenizer.splits_at_spaces:
            words = " ".join(texts).split(" ") if texts else []
            return self._words(words, np.fromiter((text.count(" ") + 1 for text in texts), np.int64, len(texts)))
        return self._encode(texts)

    def _encode(self, texts):
        if not self._tokenizer.split_parts:
            return flatten_ids(self._tokenizer.encode_batch(list(texts)))
        parts = list(map(self._tokenizer.split_parts, texts))
        return self._parts(list(itertools.chain.from_iterable(parts)), np.fromiter(map(len, parts), np.int64))


def encode_sentences(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> FlatIds:
    """Ids of a whole text, divided among its sentences: what lies before the first letter of one is of that before it.

    spans: where each sentence starts and ends.
    """
    ids, char_spans = tokenizer.encode_with_offsets(text)
    end_T = np.maximum.accumulate(np.array([end for _, end in char_spans], np.int64))
    first_S = np.searchsorted(end_T, [start for start, _ in spans[1:]], "right")
    return np.array(ids, np.int32), np.diff(first_S, prepend=0, append=len(ids))


class _WordCache(dict):
    """Words by the order in which they first came, and their ids, which `encode` gives once."""

    def __init__(self, encode: Callable[[list[str]], FlatIds]):
        self._encode, self._new, self._letters = encode, [], 0
        self._ids_T, self._end_K = np.empty(0, np.int32), np.zeros(1, np.int64)  # ids begin where those before end

    def __missing__(self, word):
        number = self[word] = len(self)
        self._new.append(word)
        return number

    def __call__(self, words: list[str], count_S: np.ndarray) -> FlatIds:
        """The ids of texts; words: those of all texts, one after another; count_S: how many words each text has."""
        if len(self) > MAX_CACHED_WORDS or self._letters > MAX_CACHED_WORDS * MAX_MEAN_LETTERS:
            self.clear()
            self.__init__(self._encode)
        number_W = np.fromiter(map(self.__getitem__, words), np.int64, len(words))
        if self._new:
            ids_T, size_K = self._encode(self._new)
            self._ids_T = np.concatenate([self._ids_T, ids_T])
            self._end_K = np.concatenate([self._end_K, self._end_K[-1] + np.cumsum(size_K)])
            self._letters += sum(map(len, self._new))
            self._new = []
        first_W = self._end_K[number_W]
        size_W = self._end_K[number_W + 1] - first_W
        end_W = np.concatenate([[0], np.cumsum(size_W)])
        ids_T = self._ids_T[np.repeat(first_W - end_W[:-1], size_W) + np.arange(end_W[-1])]
        return ids_T, np.diff(end_W[np.cumsum(count_S)], prepend=0)


def flatten_ids(ids: Sequence[Sequence[int]]) -> FlatIds:
    """Lists of ids as one array, with their sizes."""
    size_S = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(size_S.sum())), size_S
