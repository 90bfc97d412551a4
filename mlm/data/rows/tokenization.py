"""Documents and running text as token ids: those that the whole text has, with the number of each sentence's.

Letters in array names: S sentences or texts, W their words, K words that are known, T tokens.
"""

import collections
import concurrent.futures
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from mlm.base.warnings_ import WarningCounter
from mlm.data.rows.packing import SentenceBatch
from mlm.data.text import corpus
from mlm.data.tokenizers.tokenizer import Tokenizer

BATCH_CHARACTERS = 2**18  # after so many characters a batch is tokenized
BATCH_LINES = 2**12  # lines of a running text that are tokenized at once where each is tokenized alone
CONTEXT_LINES = 4  # lines before a part of a running text that are tokenized with it
LONG_WORD = corpus.MAX_SENTENCE_LENGTH // 2  # characters of a word within which a sentence may be cut
MAX_CACHED_WORDS = 2**18  # words in the cache, with MAX_MEAN_LETTERS characters each on average; then it starts empty
MAX_MEAN_LETTERS = 16
SENTENCE_MARK, DOCUMENT_MARK = "\n", "\0"  # what stands alone after each sentence and document of a batch
FlatIds = tuple[np.ndarray, np.ndarray]  # (ids_T, size_S): the ids of all texts in turn, how many each one's are


def tokenize_documents(
    documents: Iterable[tuple[str, str]], tokenizer: Tokenizer
) -> Iterator[tuple[str, SentenceBatch]]:
    """The ids of whole documents, which come as pairs (split, text), in pairs (split, batch); each split has its order.

    Sentences are encoded apart, which is faster, where that gives the same ids.
    """
    encoder, is_context = CachedEncoder(tokenizer), re.compile(tokenizer.document_pattern).search
    faults = WarningCounter()

    def is_whole(text):
        has_long_word = len(text) >= LONG_WORD and max(map(len, text.split(" "))) >= LONG_WORD
        return has_long_word or DOCUMENT_MARK in text or is_context(text) is not None

    def encode_whole(text):
        ids_T, size_S = encode_sentences(tokenizer, text, list(corpus.locate_sentences(text, faults)))
        return SentenceBatch(ids_T, size_S, np.arange(len(size_S)) == len(size_S) - 1)

    def encode(split, batch):
        text, encoded = "\n".join(batch), []
        has_whole = max(map(len, batch)) >= LONG_WORD or DOCUMENT_MARK in text or is_context(text)  # perhaps
        for whole, group in itertools.groupby(batch, is_whole) if has_whole else [(False, batch)]:
            texts = list(group)
            encoded += map(encode_whole, texts) if whole else [encoder.encode_documents(texts, faults)]
        return split, SentenceBatch(*map(np.concatenate, zip(*encoded, strict=True)))

    yield from itertools.starmap(encode, _prefetch(_batch_documents(documents)))
    faults.report()


def tokenize_stream(lines: Iterable[str], tokenizer: Tokenizer) -> Iterator[SentenceBatch]:
    """The ids of a running text. Each line is encoded alone where no token has white space."""
    if not tokenizer.keeps_space:
        lines = iter(lines)
        for batch in _prefetch(iter(lambda: list(itertools.islice(lines, BATCH_LINES)), [])):
            ids_T, size_S = flatten_ids(tokenizer.encode_batch(batch))
            yield SentenceBatch(ids_T, size_S, np.zeros(len(size_S), bool))
        return
    for before, text, after in _prefetch(_batch_running_text(lines)):
        bounds = np.cumsum([0, len(before), len(text)]).tolist()
        spans = [(place, place) for place in bounds]
        ids_T, (num_before, size, _) = encode_sentences(tokenizer, before + text + after, spans)
        ids_T = ids_T[num_before if before else 0 : num_before + size]
        yield SentenceBatch(ids_T, np.array([len(ids_T)]), np.zeros(1, bool))


def _prefetch(batches):
    """The batches, of which the next is read while one is tokenized."""
    iterator = iter(batches)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, iterator, None)
        while (batch := future.result()) is not None:
            future = pool.submit(next, iterator, None)
            yield batch


def _batch_documents(documents):
    batches, sizes = collections.defaultdict(list), collections.Counter()
    for split, text in documents:
        batches[split].append(text)
        sizes[split] += len(text)
        if sizes[split] > BATCH_CHARACTERS:
            yield split, batches.pop(split)
            del sizes[split]
    yield from batches.items()


def _batch_running_text(lines):
    """(lines before, lines, line after) as texts; a part ends between two lines that are not blank."""
    before, batch, size = "", [], 0
    for line in lines:
        if size > BATCH_CHARACTERS and ((batch[-1].strip() and line.strip()) or size > 2**4 * BATCH_CHARACTERS):
            yield before, "".join(batch), line
            before, batch, size = "".join(batch[-CONTEXT_LINES:]), [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield before, "".join(batch), ""


class CachedEncoder:
    """Encodes the sentences of documents apart, each word or part once; memory stays bounded."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, encode = tokenizer, tokenizer.encode_parts or tokenizer.encode_batch
        self._parts = _WordCache(lambda texts: flatten_ids(encode(texts)))
        self._words = _WordCache(self._encode) if tokenizer.split_parts else self._parts

    def encode_documents(self, texts: Sequence[str], faults: WarningCounter) -> SentenceBatch:
        """The ids of documents without `document_pattern` and DOCUMENT_MARK; some sentences of them may be empty."""
        if self._tokenizer.keeps_space:
            sentences = [list(corpus.split_text(text, faults)) for text in texts]
            ends_S = np.zeros(sum(map(len, sentences)), bool)
            ends_S[np.cumsum(list(map(len, sentences))) - 1] = True
            return SentenceBatch(*self._encode(list(itertools.chain.from_iterable(sentences))), ends_S)
        text = "".join(f"{text}{SENTENCE_MARK}{DOCUMENT_MARK}{SENTENCE_MARK}" for text in texts)
        sentences = corpus.split_usual_sentences(text, faults)
        if self._tokenizer.splits_at_spaces:
            words = f" {SENTENCE_MARK} ".join([*sentences, ""]).split(" ")
            ids_T, size_W, number_W = self._words(words)
            mark_S = np.flatnonzero(number_W == self._words[SENTENCE_MARK])
            ends_document_S = number_W[mark_S - 1] == self._words[DOCUMENT_MARK]
            return SentenceBatch(ids_T, np.diff(np.cumsum(size_W)[mark_S], prepend=0), ends_document_S)
        sentences = list(filter(None, map(str.strip, sentences)))
        ends_S = np.fromiter(map(DOCUMENT_MARK.__eq__, sentences), bool, len(sentences))
        size_S = np.zeros(len(sentences), np.int64)
        ids_T, size_S[~ends_S] = self._encode([sentence for sentence in sentences if sentence != DOCUMENT_MARK])
        return SentenceBatch(ids_T, size_S, ends_S)

    def _encode(self, texts):
        if not self._tokenizer.split_parts:
            return flatten_ids(self._tokenizer.encode_batch(list(texts)))
        parts = list(map(self._tokenizer.split_parts, texts))
        ids_T, size_P, _ = self._parts(list(itertools.chain.from_iterable(parts)))
        end_P = np.append(0, np.cumsum(size_P))
        return ids_T, np.diff(end_P[np.cumsum(list(map(len, parts)), dtype=np.int64)], prepend=0)


def encode_sentences(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> FlatIds:
    """Ids of a whole text, divided among its sentences: what lies before the first letter of one is of that before it.

    spans: where each sentence starts and ends.
    """
    ids, char_spans = tokenizer.encode_with_offsets(text)
    end_T = np.maximum.accumulate(np.array([end for _, end in char_spans], np.int64))
    first_S = np.searchsorted(end_T, [start for start, _ in spans[1:]], "right")
    return np.array(ids, np.int32), np.diff(first_S, prepend=0, append=len(ids))


class _WordCache(dict):
    """Words by the order in which they first came, and their ids, which `encode` gives once; marks have no ids."""

    def __init__(self, encode: Callable[[list[str]], FlatIds]):
        super().__init__({SENTENCE_MARK: 0, DOCUMENT_MARK: 1})
        self._encode, self._new, self._letters = encode, [], 0
        self._ids_T, self._end_K = np.empty(0, np.int32), np.zeros(3, np.int64)  # ids begin where those before end

    def __missing__(self, word):
        number = self[word] = len(self)
        self._new.append(word)
        return number

    def __call__(self, words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids of words, one after another, how many each word has, and the words' numbers."""
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
        end_W = np.cumsum(size_W)
        place_T = np.repeat(first_W - end_W + size_W, size_W)
        place_T += np.arange(len(place_T))
        return self._ids_T[place_T], size_W, number_W


def flatten_ids(ids: Sequence[Sequence[int]]) -> FlatIds:
    """Lists of ids as one array, with their sizes."""
    size_S = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(size_S.sum())), size_S
