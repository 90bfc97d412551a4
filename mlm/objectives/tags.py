"""Entities in the tags of words, O, B-TYPE and I-TYPE, and how many of them were found.

Letters in array names: N rows of a split, L tokens of a row.
"""
import itertools
import re
from collections.abc import Sequence

import numpy as np

from mlm.base.estimates import Score

TAG = re.compile(r"O|[BI]-.+")
READINGS = {"": "conlleval", "strict_": "strict BIO"}  # of broken tags, by what their columns' names begin with


def entities(tags: Sequence[str], *, strict: bool) -> set[tuple[str, int, int]]:
    """Type, first place and end of each entity.

    It begins with a B-, goes on with each I- of its type, and ends before anything else. An I- that continues none
    begins one itself, as in conlleval (Tjong Kim Sang & De Meulder 2003); strict: it is no part of any.
    """
    found, kind, first = set(), "", 0
    for place, tag in enumerate([*tags, "O"]):
        begins, _, of = tag.partition("-")
        if kind and (begins, of) != ("I", kind):
            found.add((kind, first, place))
            kind = ""
        if begins == "B" or (begins == "I" and not kind and not strict):
            kind, first = of, place
    return found


def counts(predicted_NxL, tag_NxL, segments_NxL, classes: Sequence[str]) -> dict[str, np.ndarray]:
    """Entities that were found rightly, were found, and are there, in each row by each of READINGS.

    Indices into classes; words are the tokens whose tag is not below 0, and those of one segment a sentence.
    """
    columns = {f"{reading}{count}": np.zeros(len(tag_NxL)) for reading in READINGS
               for count in ("entities_right", "entities_found", "entities_there")}
    word_NxL = (np.asarray(tag_NxL) >= 0) & (np.asarray(segments_NxL) > 0)
    for row, word_L in enumerate(word_NxL):
        words = zip(segments_NxL[row][word_L], predicted_NxL[row][word_L], tag_NxL[row][word_L], strict=True)
        for _, sentence in itertools.groupby(words, key=lambda word: word[0]):
            guessed, right = zip(*((classes[int(one)], classes[other]) for _, one, other in sentence), strict=True)
            for reading in READINGS:
                found, there = (entities(tags, strict=bool(reading)) for tags in (guessed, right))
                for count, number in (("right", len(found & there)), ("found", len(found)), ("there", len(there))):
                    columns[f"{reading}entities_{count}"][row] += number
    return columns


def scores(weight: str) -> tuple[Score, ...]:
    """F1 of entities by each of READINGS."""
    return tuple(Score("f1_strict" if reading else "f1", f"held-out entity F1 ({title})",
                       (*(f"{reading}entities_{count}" for count in ("right", "found", "there")), weight), "f1",
                       better=1, share=True, chart=not reading) for reading, title in READINGS.items())
