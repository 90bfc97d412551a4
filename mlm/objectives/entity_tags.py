"""Named entities in the tags of words, O, B-TYPE and I-TYPE, and how many a model finds.

Letters in array names: N examples of a split, L tokens of an example.
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from mlm.base.estimates import Score

TAG = re.compile(r"O|[BI]-.+")
SCHEMES = {"": "conlleval", "strict_": "strict BIO"}  # readings of broken tags, by the prefix of their columns


def find_entities(tags: Sequence[str], *, strict: bool) -> set[tuple[str, int, int]]:
    """(type, first position, end) of each entity.

    An entity begins with a B-, continues with each I- of its type, and ends before anything else. An I- that continues
    none begins one, as in conlleval (Tjong Kim Sang & De Meulder 2003); with strict it belongs to none.
    """
    entities, kind, first = set(), "", 0
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, tag_kind = tag.partition("-")
        if kind and (prefix, tag_kind) != ("I", kind):
            entities.add((kind, first, position))
            kind = ""
        if prefix == "B" or (prefix == "I" and not kind and not strict):
            kind, first = tag_kind, position
    return entities


def count_entities(
    predicted_NxL, tag_NxL, segments_NxL, classes: Sequence[str], sentence_N: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Columns of the correct, predicted and actual entities of each sentence, by each of SCHEMES, in its first row.

    Args:
        predicted_NxL, tag_NxL: indices into classes; tokens whose tag is below 0 are no words.
        segments_NxL: words of one segment are a sentence.
        sentence_N: rows of one number, which are next to each other, are windows of one sentence; None: no two rows.
    """
    sentence_N = np.arange(len(tag_NxL)) if sentence_N is None else sentence_N
    columns = {
        f"{scheme}{count}": np.zeros(len(tag_NxL))
        for scheme in SCHEMES
        for count in ("entities_correct", "entities_predicted", "entities_actual")
    }
    word_NxL = (np.asarray(tag_NxL) >= 0) & (np.asarray(segments_NxL) > 0)
    for row_R in np.split(np.arange(len(tag_NxL)), np.flatnonzero(np.diff(sentence_N)) + 1):
        word_RxL = word_NxL[row_R]
        words = zip(*(x_NxL[row_R][word_RxL] for x_NxL in (segments_NxL, predicted_NxL, tag_NxL)), strict=True)
        for _, sentence in itertools.groupby(words, key=lambda word: word[0]):
            tag_pairs = zip(*((classes[int(predicted)], classes[tag]) for _, predicted, tag in sentence), strict=True)
            predicted_tags, actual_tags = tag_pairs
            for scheme in SCHEMES:
                predicted, actual = (find_entities(tags, strict=bool(scheme)) for tags in (predicted_tags, actual_tags))
                for count, entities in (("correct", predicted & actual), ("predicted", predicted), ("actual", actual)):
                    columns[f"{scheme}entities_{count}"][row_R[0]] += len(entities)
    return columns


def build_entity_scores(weight: str) -> tuple[Score, ...]:
    """F1 of entities by each of SCHEMES."""
    return tuple(
        Score(
            "f1_strict" if scheme else "f1",
            f"held-out entity F1 ({title})",
            (*(f"{scheme}entities_{count}" for count in ("correct", "predicted", "actual")), weight),
            "f1",
            better=1,
            share=True,
            chart=not scheme,
        )
        for scheme, title in SCHEMES.items()
    )
