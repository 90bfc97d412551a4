"""How documents fill rows: whole sentences across documents, within one, or in pairs, or all as it comes.

Letters in array names: T tokens, S sentences, R rows, P pieces of rows.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mlm.base.special import CLS, SEP
from mlm.data.rows import segment_pairs


class SentenceBatch(NamedTuple):
    """Sentences that follow each other; those of one document may go on in the next of these."""

    ids_T: np.ndarray
    size_S: np.ndarray  # tokens of each
    last_S: np.ndarray  # bool: its document ends with it


class PackedSequences(NamedTuple):
    """Rows one after another."""

    ids_T: np.ndarray  # without padding
    size_P: np.ndarray  # tokens of their pieces, one a document
    pieces_R: np.ndarray  # how many each has
    second_R: np.ndarray | None = None  # where the second segment of a pair starts
    label_R: np.ndarray | None = None


def pack_full_sentences(text: Iterable[SentenceBatch], length: int) -> Iterator[PackedSequences]:
    """Rows filled with whole sentences across documents, [SEP] after each document (RoBERTa, arXiv:1907.11692, 4.2)."""
    return _pack_sentences(text, length, across=True)


def pack_doc_sentences(text: Iterable[SentenceBatch], length: int) -> Iterator[PackedSequences]:
    """Rows filled with whole sentences of one document (RoBERTa, arXiv:1907.11692, 4.2)."""
    return _pack_sentences(text, length, across=False)


def _pack_sentences(text, length, across):
    """No token is lost: a sentence too long for any row is cut where rows end, the others at no place."""
    row = _SequenceBuilder()
    left_T = np.empty(0, np.int32)  # ids of the row that is not full yet
    for ids_T, size_S, last_S in text:
        for size, last in zip(size_S.tolist(), last_S.tolist(), strict=True):
            if row.filled + size >= length:
                if size <= length - 2 or row.filled == length - 1:
                    row.flush()
                while row.filled + size >= length:
                    room = length - 1 - row.filled
                    row.piece += room
                    size -= room
                    row.flush()
            row.piece += size
            row.filled += size
            if last:
                row.close()
                if not across or row.filled >= length - 1:
                    row.flush()
        left_T = np.concatenate([left_T, ids_T])
        if row.pieces_R:
            filled, used = row.take(left_T)
            left_T = left_T[used:]
            yield filled
    row.flush()
    if row.pieces_R:
        yield row.take(left_T)[0]


class _SequenceBuilder:
    """The row that is being filled, by numbers of tokens alone, and those that are full."""

    def __init__(self):
        self.filled = 1  # tokens in it, [CLS] among them
        self.piece = 0  # tokens of its last document
        self.text_P, self.pieces_R, self._closed = [], [], 0

    def close(self):
        """Ends the document's part in this row; there is always room for its [SEP]."""
        if self.piece:
            self.text_P.append(self.piece)
            self._closed += 1
            self.piece = 0
            self.filled += 1

    def flush(self):
        self.close()
        if self._closed:
            self.pieces_R.append(self._closed)
        self.filled, self._closed = 1, 0

    def take(self, ids_T) -> tuple[PackedSequences, int]:
        """The full rows, which begin with the first of these ids, and how many of the ids are in them."""
        pieces_R = np.array(self.pieces_R)
        text_P = np.array(self.text_P[: pieces_R.sum()])
        del self.text_P[: len(text_P)], self.pieces_R[:]
        first_P = np.zeros(len(text_P), bool)
        first_P[np.cumsum(pieces_R) - pieces_R] = True
        size_P = text_P + first_P + 1
        end_P = np.cumsum(size_P)
        there_T, used = np.full(end_P[-1], CLS, np.int32), int(text_P.sum())
        of_text_T = np.ones(len(there_T), bool)
        of_text_T[end_P - 1] = of_text_T[(end_P - size_P)[first_P]] = False
        there_T[of_text_T] = ids_T[:used]
        there_T[end_P - 1] = SEP
        return PackedSequences(there_T, size_P, pieces_R), used


def pack_stream(text: Iterable[SentenceBatch], length: int) -> Iterator[PackedSequences]:
    """Rows cut from the running text, however it goes on, with nothing between: each is of `length` tokens but the
    last (GPT-2's, Radford et al. 2019, and its followers').
    """
    left_T = np.empty(0, np.int32)
    for ids_T, _, _ in text:
        left_T = np.concatenate([left_T, ids_T])
        if count := len(left_T) // length:
            yield PackedSequences(left_T[: count * length], np.full(count, length), np.ones(count, np.int64))
            left_T = left_T[count * length :]
    if len(left_T):
        yield PackedSequences(left_T, np.array([len(left_T)]), np.ones(1, np.int64))


def pack_segment_pairs(
    text: Iterable[SentenceBatch], length: int, short_share: float = 0.0
) -> Iterator[PackedSequences]:
    """`pairs.rows` of the documents."""
    rows: list[segment_pairs.SegmentPair] = []
    for row in segment_pairs.sample_segment_pairs(_iterate_documents(text), length, short_share):
        rows.append(row)
        if len(rows) == GATHERED_PAIRS:
            yield _gather_pairs(rows)
            rows = []
    if rows:
        yield _gather_pairs(rows)


GATHERED_PAIRS = 4096  # pairs that are written at once


def _iterate_documents(text) -> Iterator[segment_pairs.Document]:
    document: segment_pairs.Document = []
    for ids_T, size_S, last_S in text:
        ids, end = ids_T.tolist(), 0
        for size, last in zip(size_S.tolist(), last_S.tolist(), strict=True):
            first, end = end, end + size
            if size:
                document.append(ids[first:end])
            if last and document:
                yield document
                document = []


def _gather_pairs(rows):
    size_P = np.array([len(row.ids) for row in rows])
    ids_T = np.fromiter((i for row in rows for i in row.ids), np.int32, size_P.sum())
    return PackedSequences(
        ids_T,
        size_P,
        np.ones(len(rows), np.int64),
        np.array([row.second for row in rows]),
        np.array([row.label for row in rows]),
    )


def build_columns(filled: PackedSequences, length: int, isolate: bool) -> dict[str, np.ndarray]:
    """The rows by column, as columns.Packed has them. isolate: pieces see nothing of each other."""
    size_P, pieces_R = filled.size_P, filled.pieces_R
    size_R = np.add.reduceat(size_P, np.cumsum(pieces_R) - pieces_R)
    if not isolate:
        size_P, pieces_R = size_R, np.ones_like(pieces_R)
    number_P = np.arange(len(size_P)) - np.repeat(np.cumsum(pieces_R) - pieces_R, pieces_R)
    start_P = np.cumsum(size_P) - size_P
    place_L = np.arange(length)
    used_RxL = place_L < size_R[:, None]
    found: dict[str, Any] = {name: np.zeros(used_RxL.shape, np.int32) for name in ("ids", "segments", "positions")}
    found["ids"][used_RxL] = filled.ids_T
    found["segments"][used_RxL] = np.repeat(number_P + 1, size_P)
    found["positions"][used_RxL] = np.arange(len(filled.ids_T)) - np.repeat(start_P, size_P)
    if filled.second_R is not None:
        found |= {"types": used_RxL & (place_L >= filled.second_R[:, None]), "next": filled.label_R}
    return found


MODES = {
    "full_sentences": pack_full_sentences,
    "doc_sentences": pack_doc_sentences,
    "segment_pair": pack_segment_pairs,
    "stream": pack_stream,
}
