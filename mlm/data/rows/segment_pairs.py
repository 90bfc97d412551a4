"""BERT's pairs of text segments: in half of the pairs the second segment follows the first in its document."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from mlm.base.special import CLS, SEP

WINDOW_TOKENS = 2**20  # tokens of the documents from which a random second segment is sampled
Document = list[list[int]]  # token ids of its sentences


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
