"""Pairs of segments of a text, of which the second follows the first in half of the rows (BERT's)."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from mlm.base.special import CLS, SEP

WINDOW_TOKENS = 2**20  # tokens of documents among which the second segment is drawn
Document = list[list[int]]  # token ids of its sentences


class SegmentPair(NamedTuple):
    """Two segments, and whether the second follows the first in its document."""

    ids: list[int]  # without padding
    second: int  # where the second segment starts
    label: int


def sample_segment_pairs(documents: Iterator[Document], length: int, short_share: float = 0.0) -> Iterator[SegmentPair]:
    """[CLS] A [SEP] B [SEP], where B follows A in half of the rows (BERT, arXiv:1810.04805, 3.1 and A.2).

    A and B are runs of sentences that fill the row together. Otherwise B comes from another of the documents read
    about the same time, where there is another, and the sentences that followed A start the next row. Of a share
    short_share of the documents the pairs are as long as a shorter row holds, of a length drawn for each document.
    """
    draw = random.Random(0)
    owed = [0]  # true pairs that were wished for where nothing followed A
    for window, others in _iterate_windows(documents, length):
        for document in window:
            room = length - 3
            target = draw.randint(2, room) if short_share and draw.random() < short_share else room
            yield from _pair_document(document, others, room, target, draw, owed)


def _iterate_windows(documents, length):
    """Documents in groups of about WINDOW tokens, each with all those that B may come from: its own and the last."""
    last, window, size = [], [], 0
    for document in documents:
        # A sentence takes at most half of a row, so that something else always fits beside it.
        half = (length - 3) // 2
        window.append([s[i : i + half] for s in document for i in range(0, len(s), half)])
        size += sum(map(len, document))
        if size > WINDOW_TOKENS and len(window) > 1:
            yield window, last + window
            last, window, size = window, [], 0
    if window:
        yield window, last + window


def _pair_document(document, others, room, target, draw, owed):
    """Pairs of at least `target` tokens where the document has them, cut to `room`."""
    first = 0
    while first < len(document):
        end, size = first, 0
        while end < len(document) and size < target:
            size += len(document[end])
            end += 1
        follows = draw.random() < 0.5
        if end - first == 1:  # the last sentence: nothing follows it
            owed[0] += follows
            follows = False
        elif not follows and owed[0]:
            owed[0] -= 1
            follows = True
        middle = draw.randint(first + 1, max(first + 1, end - 1))
        a = [i for sentence in document[first:middle] for i in sentence]
        if follows:
            b = [i for sentence in document[middle:end] for i in sentence]
            first = end
        else:
            b = _sample_other_segment(document, others, max(target - len(a), 1), draw)
            first = middle
        if b:
            a, b = _truncate_pair(a, b, room, draw)
            ids = [CLS, *a, SEP, *b, SEP]
            yield SegmentPair(ids, len(a) + 2, int(follows))


def _sample_other_segment(document, others, wanted, draw):
    """At least `wanted` tokens, where there are, from a random place of another document."""
    other = draw.choice(others)
    while other is document and len(others) > 1:
        other = draw.choice(others)
    ids = []
    for sentence in other[draw.randrange(len(other)) :]:
        if len(ids) >= wanted:
            break
        ids.extend(sentence)
    return ids


def _truncate_pair(a, b, target, draw):
    """Shortens the longer of both, then both alike, each at both ends at random, until they fit."""
    short = min(len(a), len(b), target // 2)
    keep_a = short if len(a) <= len(b) else min(len(a), target - short)
    keep_b = min(len(b), target - keep_a)
    cut_a, cut_b = draw.randint(0, len(a) - keep_a), draw.randint(0, len(b) - keep_b)
    return a[cut_a : cut_a + keep_a], b[cut_b : cut_b + keep_b]
