"""The tasks with hidden words: each word's class, against brute force over all documents of a tiny language."""
import numpy as np
import pytest
from tiny import TINY, documents

from mlm.base.config import Language
from mlm.data.language import labelled, posterior, tags
from mlm.data.language.grammar import build
from mlm.data.language.hmm import draw
from mlm.data.language.tasks import TASKS

LANGUAGE = Language()
GRAMMAR = build(LANGUAGE)
LENGTH = 6


@pytest.fixture(scope="module")
def tables():
    return documents(TINY, LENGTH)


def drawn(count=150):
    words_NxL = draw(TINY, LENGTH, 0, 0, count)
    return words_NxL, (np.random.default_rng(0).random(words_NxL.shape) < 0.5) & (words_NxL >= 0)


def seen(tables, words_L, hidden_L):
    """P(hidden words, visible ones as they are), an axis for each place."""
    count = (words_L >= 0).sum()
    shown = tuple(slice(None) if hidden_L[i] else slice(words_L[i], words_L[i] + 1) for i in range(count))
    return tables[count][shown]


def test_class_posterior_is_the_enumerated_one(tables):
    words_NxL, hidden_NxL = drawn()
    known = posterior.posterior(TINY, words_NxL, hidden_NxL)
    expected_KxC = []
    for row, place in zip(known.row_K, known.column_K, strict=True):
        joint = seen(tables, words_NxL[row], hidden_NxL[row])
        share_W = joint.sum(tuple(axis for axis in range(joint.ndim) if axis != place)) / joint.sum()
        expected_KxC.append(np.bincount(TINY.class_W, share_W))
    assert len(expected_KxC) > 200
    np.testing.assert_allclose(known.class_KxC, expected_KxC, atol=1e-5)


def test_a_tag_is_the_class_of_the_word_that_is_hidden():
    given = list(TASKS["tag"].examples(LANGUAGE, "dev", 400))
    labels, first = TASKS["tag"].labels(LANGUAGE), labelled.numbers(tags.TASK, "dev")
    assert set(labels) == {label for one in given for label in one.label} - {""} and len(labels) == 15
    asked, every = 0, 0
    for one in given:
        words_L = draw(GRAMMAR.hmm, tags.WORDS, LANGUAGE.seed, first + int(one.id.rpartition("/")[2]), 1)[0]
        for word, shown, label in zip(words_L[words_L >= 0], one.words, one.label, strict=True):
            assert shown == (labelled.HIDDEN if label else GRAMMAR.words[word])
            assert label in ("", (GRAMMAR.kind_W[word] + "." + GRAMMAR.number_W[word]).strip("."))
        assert one.texts == (" ".join(one.words),) and any(one.label)
        asked, every = asked + sum(map(bool, one.label)), every + len(one.words)
    assert asked / every == pytest.approx(tags.RATE, abs=4 * (0.21 / every) ** 0.5)
