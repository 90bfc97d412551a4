"""Documents and running text as token ids: those that the whole text has, with the number of each sentence's.

Letters in array names: S sentences or texts, W their words, K words that are known, T tokens.
"""

import concurrent.futures
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from mlm.data.rows.packing import SentenceBatch
from mlm.data.text import corpus
from mlm.data.tokenizers.tokenizer import UNUSUAL_SENTENCE_END, Tokenizer

BATCH_CHARACTERS = 2**18  # after so many characters a batch is tokenized
BATCH_LINES = 2**12  # lines of a running text that are tokenized at once where each is tokenized alone
CONTEXT_LINES = 4  # lines before a part of a running text that are tokenized with it
LONG_WORD = corpus.MAX_SENTENCE_LENGTH // 2  # characters of a word within which a sentence may be cut
MAX_CACHED_WORDS = 2**18  # words in the cache, with MAX_MEAN_LETTERS characters each on average; then it starts empty
MAX_MEAN_LETTERS = 16
SENTENCE_MARK, DOCUMENT_MARK = "\n", "\0"  # what stands alone after each sentence and document of a batch
FlatIds = tuple[np.ndarray, np.ndarray]  # (ids_T, size_S): the ids of all texts in turn, how many each one's are


def tokenize_documents(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[SentenceBatch]:
    """The ids of whole documents. Sentences are encoded apart, which is faster, where that gives the same ids."""
    encode_apart, is_context = CachedEncoder(tokenizer), re.compile(tokenizer.document_pattern).search
    long_sentences = corpus.make_long_sentence_counter()
    split = corpus.split_text if tokenizer.keeps_space else corpus.split_sentences

    def is_whole(text):
        return is_context(text) is not None or max(map(len, text.split(" "))) >= LONG_WORD

    def encode(batch):
        if tokenizer.document_pattern == UNUSUAL_SENTENCE_END and (encoded := encode_apart.encode_documents(batch)):
            return encoded
        ids, sizes, counts = [], [], []
        for whole, group in itertools.groupby(batch, is_whole):
            if whole:
                for text in group:
                    spans = list(corpus.locate_sentences(text, long_sentences))
                    ids_T, size_S = encode_sentences(tokenizer, text, spans)
                    ids.append(ids_T)
                    sizes.append(size_S)
                    counts.append(len(spans))
            else:
                sentences = [list(split(text, long_sentences)) for text in group]
                ids_T, size_S = encode_apart(list(itertools.chain.from_iterable(sentences)))
                ids.append(ids_T)
                sizes.append(size_S)
                counts += map(len, sentences)
        ends_document_S = np.zeros(sum(counts), bool)
        ends_document_S[np.cumsum(counts) - 1] = True
        return SentenceBatch(np.concatenate(ids), np.concatenate(sizes), ends_document_S)

    yield from map(encode, _prefetch(_batch_documents(documents)))
    long_sentences.report()


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
    batch, size = [], 0
    for text in documents:
        batch.append(text)
        size += len(text)
        if size > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
            ids_T, size_W = self._words(words)
            return ids_T, _add_sizes(size_W, [text.count(" ") + 1 for text in texts])
        return self._encode(texts)

    def encode_documents(self, texts: Sequence[str]) -> SentenceBatch | None:
        """The ids of documents; None where one has an unusual sentence end, or a sentence that might have to be cut.

        A document's last sentence is an empty one. White space is no part of the tokenizer's pieces.
        """
        text = f"{SENTENCE_MARK}{DOCUMENT_MARK}{SENTENCE_MARK}".join([*texts, ""]).removesuffix(SENTENCE_MARK)
        if text.count(DOCUMENT_MARK) != len(texts) or corpus.UNUSUAL_END.search(text):
            return None
        sentences = corpus.mark_sentence_ends(text).split(SENTENCE_MARK)
        if max(map(len, sentences)) >= LONG_WORD:
            return None
        ends_document_S = np.fromiter(map(DOCUMENT_MARK.__eq__, sentences), bool, len(sentences))
        if self._tokenizer.splits_at_spaces:
            words = f" {SENTENCE_MARK} ".join(sentences).split(" ")
            ids_T, size_W = self._words(words)
            is_end_W = self._words.last_numbers == self._words[SENTENCE_MARK]
            ends_W = np.cumsum(size_W)
            size_S = np.diff(ends_W[np.append(np.flatnonzero(is_end_W), len(words) - 1)], prepend=0)
            return SentenceBatch(ids_T, size_S, ends_document_S)
        ids_T, size_S = self._encode([sentence.strip() for sentence in sentences if sentence != DOCUMENT_MARK])
        sizes_S = np.zeros(len(sentences), np.int64)
        sizes_S[~ends_document_S] = size_S
        return SentenceBatch(ids_T, sizes_S, ends_document_S)

    def _encode(self, texts):
        if not self._tokenizer.split_parts:
            return flatten_ids(self._tokenizer.encode_batch(list(texts)))
        parts = list(map(self._tokenizer.split_parts, texts))
        ids_T, size_P = self._parts(list(itertools.chain.from_iterable(parts)))
        return ids_T, _add_sizes(size_P, list(map(len, parts)))


def _add_sizes(size_W, count_S):
    """The sums of as many sizes in turn as each count says."""
    end_W = np.append(0, np.cumsum(size_W))
    return np.diff(end_W[np.cumsum(count_S, dtype=np.int64)], prepend=0)


def encode_sentences(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> FlatIds:
    """Ids of a whole text, divided among its sentences: what lies before the first letter of one is of that before it.

    spans: where each sentence starts and ends.
    """
    ids, char_spans = tokenizer.encode_with_offsets(text)
    end_T = np.maximum.accumulate(np.array([end for _, end in char_spans], np.int64))
    first_S = np.searchsorted(end_T, [start for start, _ in spans[1:]], "right")
    return np.array(ids, np.int32), np.diff(first_S, prepend=0, append=len(ids))


class _WordCache(dict):
    """Words by the order in which they first came, and their ids, which `encode` gives once; marks have none."""

    def __init__(self, encode: Callable[[list[str]], FlatIds]):
        super().__init__({SENTENCE_MARK: 0, DOCUMENT_MARK: 1})
        self._encode, self._new, self._letters = encode, [], 0
        self._ids_T, self._end_K = np.empty(0, np.int32), np.zeros(3, np.int64)  # ids begin where those before end

    def __missing__(self, word):
        number = self[word] = len(self)
        self._new.append(word)
        return number

    def __call__(self, words: list[str]) -> FlatIds:
        """The ids of words, one after another, and how many each word has."""
        if len(self) > MAX_CACHED_WORDS or self._letters > MAX_CACHED_WORDS * MAX_MEAN_LETTERS:
            self.clear()
            self.__init__(self._encode)
        self.last_numbers = number_W = np.fromiter(map(self.__getitem__, words), np.int64, len(words))
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
        return self._ids_T[place_T], size_W


def flatten_ids(ids: Sequence[Sequence[int]]) -> FlatIds:
    """Lists of ids as one array, with their sizes."""
    size_S = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(size_S.sum())), size_S
