"""How documents are packed into sequences: by whole sentences across documents or within one, in pairs, or unbroken.

Letters in array names: T tokens, S sentences, R sequences (packed rows), P pieces of sequences.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mlm.base.special import CLS, SEP
from mlm.data.rows import segment_pairs

PAIR_BATCH = 4096  # segment pairs that are yielded at once


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
    2019, arXiv:1907.11692, 4.2).

    Loses no token: splits a sentence only if it is too long for any sequence.
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
    """`segment_pairs.sample_segment_pairs` of the documents."""
    pairs = segment_pairs.sample_segment_pairs(_iterate_documents(batches), seq_len, short_seq_prob)
    while batch := list(itertools.islice(pairs, PAIR_BATCH)):
        yield _concatenate_pairs(batch)


def _iterate_documents(batches) -> Iterator[segment_pairs.Document]:
    document: segment_pairs.Document = []
    for ids_T, size_S, ends_document_S in batches:
        ids, end = ids_T.tolist(), 0
        for size, ends_document in zip(size_S.tolist(), ends_document_S.tolist(), strict=True):
            start, end = end, end + size
            if size:
                document.append(ids[start:end])
            if ends_document and document:
                yield document
                document = []


def _concatenate_pairs(pairs):
    size_P = np.array([len(pair.ids) for pair in pairs])
    ids_T = np.fromiter((i for pair in pairs for i in pair.ids), np.int32, size_P.sum())
    return PackedSequences(
        ids_T,
        size_P,
        np.ones(len(pairs), np.int64),
        np.array([pair.second_start for pair in pairs]),
        np.array([pair.label for pair in pairs]),
    )


def build_columns(packed: PackedSequences, seq_len: int, isolate_documents: bool) -> dict[str, np.ndarray]:
    """The sequences by column, as in columns.PackedDataset.

    Args:
        packed: the sequences.
        seq_len: the length to which they are padded.
        isolate_documents: whether pieces become segments, which do not see each other.
    """
    size_P, pieces_R = packed.size_P, packed.pieces_R
    size_R = np.add.reduceat(size_P, np.cumsum(pieces_R) - pieces_R)
    if not isolate_documents:
        size_P, pieces_R = size_R, np.ones_like(pieces_R)
    piece_index_P = np.arange(len(size_P)) - np.repeat(np.cumsum(pieces_R) - pieces_R, pieces_R)
    start_P = np.cumsum(size_P) - size_P
    index_L = np.arange(seq_len)
    is_token_RxL = index_L < size_R[:, None]
    arrays: dict[str, Any] = {name: np.zeros(is_token_RxL.shape, np.int32) for name in ("ids", "segments", "positions")}
    arrays["ids"][is_token_RxL] = packed.ids_T
    arrays["segments"][is_token_RxL] = np.repeat(piece_index_P + 1, size_P)
    arrays["positions"][is_token_RxL] = np.arange(len(packed.ids_T)) - np.repeat(start_P, size_P)
    if packed.second_start_R is not None:
        arrays |= {"types": is_token_RxL & (index_L >= packed.second_start_R[:, None]), "next": packed.label_R}
    return arrays


PACKERS = {
    "full_sentences": functools.partial(pack_sentences, cross_documents=True),
    "doc_sentences": functools.partial(pack_sentences, cross_documents=False),
    "segment_pair": pack_segment_pairs,
    "stream": pack_stream,
}
