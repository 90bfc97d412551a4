"""Documents and running text as token ids: those that the whole text has, with the number of each sentence's."""

import concurrent.futures
import itertools
import re
from collections.abc import Iterable, Iterator

import numpy as np

from mlm.data.rows.packing import SentenceBatch
from mlm.data.text import corpus
from mlm.data.tokenizers.encoding_cache import CachedEncoder, encode_sentences, flatten_ids
from mlm.data.tokenizers.tokenizer import Tokenizer

BATCH_CHARACTERS = 2**18  # after so many characters a batch is tokenized
BATCH_LINES = 2**12  # lines of a running text that are tokenized at once where each is tokenized alone
CONTEXT_LINES = 4  # lines before a part of a running text that are tokenized with it
LONG_WORD = corpus.MAX_SENTENCE_LENGTH // 2  # characters of a word within which a sentence may be cut


def tokenize_documents(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[SentenceBatch]:
    """The ids of whole documents. Sentences are encoded apart, which is faster, where that gives the same ids."""
    encode_apart, is_context = CachedEncoder(tokenizer), re.compile(tokenizer.document_pattern).search
    long_sentences = corpus.make_long_sentence_counter()
    split = corpus.split_text if tokenizer.keeps_space else corpus.split_sentences

    def is_whole(text):
        return is_context(text) is not None or max(map(len, text.split(" "))) >= LONG_WORD

    def encode(batch):
        ids, sizes = [], []
        for whole, group in itertools.groupby(batch, is_whole):
            if whole:
                for text in group:
                    spans = list(corpus.locate_sentences(text, long_sentences))
                    ids_T, size_S = encode_sentences(tokenizer, text, spans)
                    ids.append(ids_T)
                    sizes.append(size_S)
            else:
                sentences = [list(split(text, long_sentences)) for text in group]
                ids_T, size_S = encode_apart(list(itertools.chain.from_iterable(sentences)))
                ids.append(ids_T)
                sizes += np.split(size_S, np.cumsum(list(map(len, sentences)))[:-1])
        ends_document_S = np.zeros(sum(map(len, sizes)), bool)
        ends_document_S[np.cumsum(list(map(len, sizes))) - 1] = True
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
