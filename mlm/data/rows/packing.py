"""How documents are packed into sequences: by whole sentences across documents or within one, in pairs, or unbroken.

Letters in array names: T tokens, S sentences, R sequences (packed rows), P pieces of sequences.
"""

import functools
import itertools
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from mlm.base.special import CLS, SEP

PAIR_BATCH = 4096  # segment pairs that are yielded at once
WINDOW_TOKENS = 2**20  # tokens of the documents from which a random second segment is sampled
Document = list[list[int]]  # token ids of its sentences


class SentenceBatch(NamedTuple):
    """Consecutive sentences; the last document may continue in the next batch."""

    ids_T: np.ndarray
    size_S: np.ndarray  # tokens of each sentence
    ends_document_S: np.ndarray  # bool: the sentence is the last of its document


class PackedSequences(NamedTuple):
    """Consecutive sequences."""

    ids_T: np.ndarray  # without padding
    size_P: np.ndarray  # tokens of each piece; a piece holds tokens of one document
    pieces_R: np.ndarray  # how many pieces each sequence has
    second_start_R: np.ndarray | None = None  # where the second segment of a pair starts
    label_R: np.ndarray | None = None


def pack_sentences(
    batches: Iterable[SentenceBatch], seq_len: int, *, cross_documents: bool
) -> Iterator[PackedSequences]:
    """Fills sequences with sentences of one document, or across documents with [SEP] after each (RoBERTa, Liu et al.
    2019, arXiv:1907.11692, 4.2). Loses no token: splits a sentence only if it is too long for any sequence.
    """
    builder = _SequenceBuilder()
    pending_T = np.empty(0, np.int32)  # ids that no yielded sequence has
    for ids_T, size_S, ends_document_S in batches:
        for size, ends_document in zip(size_S.tolist(), ends_document_S.tolist(), strict=True):
            if builder.num_tokens + size >= seq_len:
                if size <= seq_len - 2 or builder.num_tokens == seq_len - 1:
                    builder.end_sequence()
                while builder.num_tokens + size >= seq_len:
                    num_free = seq_len - 1 - builder.num_tokens
                    builder.piece_size += num_free
                    size -= num_free
                    builder.end_sequence()
            builder.piece_size += size
            builder.num_tokens += size
            if ends_document:
                builder.end_piece()
                if not cross_documents or builder.num_tokens >= seq_len - 1:
                    builder.end_sequence()
        pending_T = np.concatenate([pending_T, ids_T])
        if builder.pieces_R:
            packed, num_used = builder.pop_sequences(pending_T)
            pending_T = pending_T[num_used:]
            yield packed
    builder.end_sequence()
    if builder.pieces_R:
        yield builder.pop_sequences(pending_T)[0]


class _SequenceBuilder:
    """The sizes of the sequence that is being filled, and of the complete ones."""

    def __init__(self):
        self.num_tokens = 1  # of the sequence, with [CLS]
        self.piece_size = 0  # tokens of its last piece
        self.text_P, self.pieces_R, self._num_pieces = [], [], 0

    def end_piece(self):
        """Ends the document's part in this sequence; there is always space for its [SEP]."""
        if self.piece_size:
            self.text_P.append(self.piece_size)
            self._num_pieces += 1
            self.piece_size = 0
            self.num_tokens += 1

    def end_sequence(self):
        self.end_piece()
        if self._num_pieces:
            self.pieces_R.append(self._num_pieces)
        self.num_tokens, self._num_pieces = 1, 0

    def pop_sequences(self, pending_T) -> tuple[PackedSequences, int]:
        """Removes the complete sequences. Returns them and how many of the pending ids, from the first on, they use."""
        pieces_R = np.array(self.pieces_R)
        text_P = np.array(self.text_P[: pieces_R.sum()])
        del self.text_P[: len(text_P)], self.pieces_R[:]
        is_first_P = np.zeros(len(text_P), bool)
        is_first_P[np.cumsum(pieces_R) - pieces_R] = True
        size_P = text_P + is_first_P + 1
        end_P = np.cumsum(size_P)
        ids_T, num_used = np.full(end_P[-1], CLS, np.int32), int(text_P.sum())
        is_text_T = np.ones(len(ids_T), bool)
        is_text_T[end_P - 1] = is_text_T[(end_P - size_P)[is_first_P]] = False
        ids_T[is_text_T] = pending_T[:num_used]
        ids_T[end_P - 1] = SEP
        return PackedSequences(ids_T, size_P, pieces_R), num_used


def pack_stream(batches: Iterable[SentenceBatch], seq_len: int) -> Iterator[PackedSequences]:
    """Cuts the running text into sequences of seq_len tokens, without special tokens, as GPT-2 (Radford et al. 2019).

    Only the last sequence may be shorter.
    """
    pending_T = np.empty(0, np.int32)
    for ids_T, _, _ in batches:
        pending_T = np.concatenate([pending_T, ids_T])
        if count := len(pending_T) // seq_len:
            yield PackedSequences(pending_T[: count * seq_len], np.full(count, seq_len), np.ones(count, np.int64))
            pending_T = pending_T[count * seq_len :]
    if len(pending_T):
        yield PackedSequences(pending_T, np.array([len(pending_T)]), np.ones(1, np.int64))


def pack_segment_pairs(
    batches: Iterable[SentenceBatch], seq_len: int, short_seq_prob: float = 0.0
) -> Iterator[PackedSequences]:
    """`sample_segment_pairs` of the documents."""
    samples = sample_segment_pairs(_iterate_documents(batches), seq_len, short_seq_prob)
    while pairs := list(itertools.islice(samples, PAIR_BATCH)):
        size_P = np.array([len(pair.ids) for pair in pairs])
        ids_T = np.fromiter((i for pair in pairs for i in pair.ids), np.int32, size_P.sum())
        second_R, label_R = np.array([(pair.second_start, pair.label) for pair in pairs]).T
        yield PackedSequences(ids_T, size_P, np.ones(len(pairs), np.int64), second_R, label_R)


def _iterate_documents(batches) -> Iterator[Document]:
    document: Document = []
    for ids_T, size_S, ends_document_S in batches:
        ids, end = ids_T.tolist(), 0
        for size, ends_document in zip(size_S.tolist(), ends_document_S.tolist(), strict=True):
            start, end = end, end + size
            if size:
                document.append(ids[start:end])
            if ends_document and document:
                yield document
                document = []


class SegmentPair(NamedTuple):
    """Two segments as one sequence."""

    ids: list[int]  # without padding
    second_start: int  # where the second segment starts
    label: int  # 1 if the second segment follows the first in its document


def sample_segment_pairs(
    documents: Iterator[Document], seq_len: int, short_seq_prob: float = 0.0
) -> Iterator[SegmentPair]:
    """[CLS] A [SEP] B [SEP], where B follows A in half of the pairs (BERT, arXiv:1810.04805, 3.1 and A.2).

    A and B are runs of sentences that fill the sequence together. In the other half B comes from another document of
    the same window, if there is one, and the sentences that followed A start the next pair. short_seq_prob: the share
    of documents whose pairs are only as long as a random shorter sequence.
    """
    rng = random.Random(0)
    deficit = [0]  # how many true pairs are still to be made up for, since nothing followed A
    for window, candidates in _iterate_windows(documents, seq_len):
        for document in window:
            max_size = seq_len - 3
            is_short = short_seq_prob and rng.random() < short_seq_prob
            target_size = rng.randint(2, max_size) if is_short else max_size
            yield from _pair_document(document, candidates, max_size, target_size, rng, deficit)


def _iterate_windows(documents, seq_len):
    """Documents in groups of about WINDOW_TOKENS, each with those from which B may come: of this group and the last."""
    previous, window, size = [], [], 0
    for document in documents:
        # A sentence fills at most half of a sequence, so that there is always space for another.
        half = (seq_len - 3) // 2
        window.append([s[i : i + half] for s in document for i in range(0, len(s), half)])
        size += sum(map(len, document))
        if size > WINDOW_TOKENS and len(window) > 1:
            yield window, previous + window
            previous, window, size = window, [], 0
    if window:
        yield window, previous + window


def _pair_document(document, candidates, max_size, target_size, rng, deficit):
    """Pairs of at least target_size tokens if the document has as many, truncated to max_size."""
    start = 0
    while start < len(document):
        end, size = start, 0
        while end < len(document) and size < target_size:
            size += len(document[end])
            end += 1
        is_next = rng.random() < 0.5
        if end - start == 1:  # the last sentence: nothing follows it
            deficit[0] += is_next
            is_next = False
        elif not is_next and deficit[0]:
            deficit[0] -= 1
            is_next = True
        middle = rng.randint(start + 1, max(start + 1, end - 1))
        a = [i for sentence in document[start:middle] for i in sentence]
        if is_next:
            b = [i for sentence in document[middle:end] for i in sentence]
            start = end
        else:
            b = _sample_random_segment(document, candidates, max(target_size - len(a), 1), rng)
            start = middle
        if b:
            a, b = _truncate_pair(a, b, max_size, rng)
            ids = [CLS, *a, SEP, *b, SEP]
            yield SegmentPair(ids, len(a) + 2, int(is_next))


def _sample_random_segment(document, candidates, min_size, rng):
    """Sentences from a random place of another document: min_size tokens or more, or all up to the document's end."""
    other = rng.choice(candidates)
    while other is document and len(candidates) > 1:
        other = rng.choice(candidates)
    ids = []
    for sentence in other[rng.randrange(len(other)) :]:
        if len(ids) >= min_size:
            break
        ids.extend(sentence)
    return ids


def _truncate_pair(a, b, max_size, rng):
    """Shortens the longer segment, then both equally, at both ends at random, until they fit."""
    short_size = min(len(a), len(b), max_size // 2)
    size_a = short_size if len(a) <= len(b) else min(len(a), max_size - short_size)
    size_b = min(len(b), max_size - size_a)
    start_a, start_b = rng.randint(0, len(a) - size_a), rng.randint(0, len(b) - size_b)
    return a[start_a : start_a + size_a], b[start_b : start_b + size_b]


def build_columns(packed: PackedSequences, seq_len: int, isolate_documents: bool) -> dict[str, np.ndarray]:
    """The sequences by column, as in columns.DENSE_COLUMNS.

    Args:
        seq_len: the length to which they are padded.
        isolate_documents: whether pieces become segments, which do not see each other.
    """
    size_P, pieces_R = packed.size_P, packed.pieces_R
    first_R = np.cumsum(pieces_R) - pieces_R
    size_R = np.add.reduceat(size_P, first_R)
    ids_RxL = np.zeros((len(size_R), seq_len), packed.ids_T.dtype)
    ids_RxL[np.arange(seq_len) < size_R[:, None]] = packed.ids_T
    start_P = np.cumsum(size_P) - size_P - np.repeat(np.cumsum(size_R) - size_R, pieces_R)
    breaks_P = np.delete(start_P, first_R) if isolate_documents else start_P[:0]
    break_ends_R = np.cumsum(pieces_R - 1) if isolate_documents else np.zeros_like(pieces_R)
    arrays = {"ids": ids_RxL, "lengths": size_R, "breaks": breaks_P, "break_ends": break_ends_R}
    if packed.second_start_R is not None:
        arrays |= {"second_starts": packed.second_start_R, "next": packed.label_R}
    return arrays


PACKERS = {
    "full_sentences": functools.partial(pack_sentences, cross_documents=True),
    "doc_sentences": functools.partial(pack_sentences, cross_documents=False),
    "segment_pair": pack_segment_pairs,
    "stream": pack_stream,
}
