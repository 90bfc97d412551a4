"""Probes: items found by parsing, on sentences whose structure is known, and what the optimum makes of them."""

import numpy as np
import pytest

from mlm.base.config import Language
from mlm.data.language import probes
from mlm.data.language.grammar import build_grammar
from mlm.data.language.hmm import sample_documents


def rows(grammar, *texts):
    """words_NxL of texts, with a place for [CLS] before and room behind."""
    words_NxL = np.full((len(texts), 2 + max(len(text.split()) for text in texts)), -1)
    for row_L, text in zip(words_NxL, texts, strict=True):
        row_L[1 : 1 + len(text.split())] = [grammar.words.index(word) for word in text.split()]
    return words_NxL


def test_agreement_across_a_relative_clause_with_its_own_agreement():
    grammar = build_grammar(Language())
    text = "the horses that the farmer near the barns feeds trot . Anna pays these bakers ."
    words_NxL = rows(grammar, "Anna trots .", text)
    found = {
        grammar.words[words_NxL[1, column]]: (distance, attractors, grammar.words[right], grammar.words[wrong])
        for row, column, distance, attractors, right, wrong in zip(
            *probes.find_agreement_items(grammar, words_NxL), strict=True
        )
        if row == 1
    }
    assert found == {"feeds": (3, 1, "feeds", "feed"), "trot": (7, 1, "trot", "trots"), "pays": (0, 0, "pays", "pay")}


def test_recurring_names_with_the_sentences_between():
    grammar = build_grammar(Language())
    texts = "Anna trots .", "Anna pays Boris . the king trots . Anna hums . Anna hums .", "Clara pays Clara ."
    items = probes.find_recall_items(grammar, rows(grammar, *texts))
    found = [(row, column, distance, grammar.words[name]) for row, column, distance, name in zip(*items, strict=True)]
    assert found == [(1, 1, 2, "Anna"), (1, 9, 1, "Anna"), (1, 12, 1, "Anna"), (2, 1, 0, "Clara"), (2, 3, 0, "Clara")]


def test_every_drawn_row_is_parsed_and_the_optimum_never_misses_an_agreement():
    grammar = build_grammar(Language())
    words_NxL = sample_documents(grammar.hmm, 126, 0, 0, 48)
    states_NxL = probes.parse_states(grammar, words_NxL)
    assert ((states_NxL >= 0) == (words_NxL >= 0)).all()
    items = probes.find_agreement_items(grammar, words_NxL)
    assert all((probes.is_within(items.distance_I, *bin_)).any() for bin_ in probes.DISTANCE_BINS)
    assert probes.score_optimum(grammar, words_NxL, items).all()
    names = probes.find_recall_items(grammar, words_NxL)
    known_I = probes.score_optimum(grammar, words_NxL, names)
    near_I = probes.is_within(names.distance_I, 0, 1)
    assert probes.compute_accuracy(names, known_I, near_I)[0] > 0.97 and near_I.sum() > 100


def test_a_sample_has_the_accuracy_of_all_items_though_it_is_spread_over_distances():
    grammar = build_grammar(Language())
    items = probes.find_agreement_items(grammar, sample_documents(grammar.hmm, 126, 0, 0, 200))
    some, weight_I = probes.sample_items(items, probes.DISTANCE_BINS, 150, 3)
    for low, high in probes.DISTANCE_BINS:
        among_I = probes.is_within(some.distance_I, low, high)
        there = probes.is_within(items.distance_I, low, high).sum()
        assert among_I.sum() == min(150, there) and weight_I[among_I].sum() == pytest.approx(there)
    assert len(set(zip(some.example_I, some.position_I, strict=True))) == len(some.example_I)
    right_I = items.distance_I < 3  # whatever is easier nearby
    whole = probes.compute_accuracy(items, right_I, np.ones(len(right_I)))[0]
    share, error = probes.compute_accuracy(some, some.distance_I < 3, weight_I)
    assert abs(share - whole) < 4 * error and abs((some.distance_I < 3).mean() - whole) > 0.1


def test_where_verbs_agree_by_chance_so_does_the_optimum():
    grammar = build_grammar(Language(agreement_prob=0.8))
    words_NxL = sample_documents(grammar.hmm, 126, 0, 0, 48)
    items = probes.find_agreement_items(grammar, words_NxL)
    written_I = words_NxL[items.example_I, items.position_I] == items.target_I
    assert written_I.mean() == pytest.approx(0.8, abs=0.05)
    assert probes.score_optimum(
        grammar, words_NxL, items
    ).all()  # it is asked for the right form, not for the written one


def test_a_row_that_cannot_be_parsed_is_named():
    grammar = build_grammar(Language())
    with pytest.raises(ValueError, match="row 1, place 3: 0 readings"):
        probes.parse_states(grammar, rows(grammar, "Anna trots .", "Anna trot ."))
    loose = build_grammar(Language(word_order_prob=0.9))
    with pytest.raises(ValueError, match=r"language\.word_order_prob = 1"):
        probes.parse_states(loose, sample_documents(loose.hmm, 126, 0, 0, 4))
