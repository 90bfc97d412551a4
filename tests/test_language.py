"""The built-in language: what its documents are, that they can be drawn again and streamed, and what its knobs do."""

import dataclasses
import itertools
import tracemalloc

import numpy as np
import pytest

from mlm.base.config import Language
from mlm.base.estimates import compute_ratio
from mlm.data.language import grammar as grammars
from mlm.data.language import probes
from mlm.data.language.grammar import build_grammar, iterate_documents
from mlm.data.language.hmm import compute_fit_probs, compute_state_marginals, sample_documents


def take(knobs, seed, count, start=0):
    return list(itertools.islice(iterate_documents(dataclasses.replace(knobs, seed=seed), start), count))


def test_documents_depend_on_seed_and_number_alone():
    knobs = Language(max_words=40)
    texts = take(knobs, 3, 600)
    assert texts == take(knobs, 3, 600)
    assert texts[500:] == take(knobs, 3, 100, start=500)
    assert len(set(texts) & set(take(knobs, 4, 600))) < 6
    grammar = build_grammar(knobs)
    alone_L = sample_documents(grammar.hmm, 40, 3, 257, 1)[0]
    assert " ".join(grammar.words[word] for word in alone_L[alone_L >= 0]) == texts[257]


def test_documents_are_whole_sentences_that_fit_and_rarely_leave_much_room():
    lengths = []
    for text in take(Language(max_words=60), 0, 500):
        words = text.split(" ")
        assert words[-1] == "." and words[0] != "." and ". ." not in text
        lengths.append(len(words))
    assert max(lengths) == 60 and np.mean(lengths) > 45


def test_documents_stream(monkeypatch):
    """No memory is held for documents that have passed."""
    monkeypatch.setattr(grammars, "DOCUMENT_BATCH", 16)
    stream = iterate_documents(Language(max_words=40))
    next(stream)
    tracemalloc.start()
    held = []
    for count in (100, 1000):
        for _ in itertools.islice(stream, count):
            pass
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[1] < held[0] + 50_000


def expected_shares(hmm, length):
    """Of each word in all documents, which hold at most `length` words each."""
    before_LxS, after_LxS = compute_state_marginals(hmm, length)
    _, unfit_P = compute_fit_probs(hmm, length)
    by_last_LxS = [unfit_P[n + 1] * (before_LxS[: n + 1] * after_LxS[n::-1]).sum(0) for n in range(length)]
    state_S = np.sum(by_last_LxS, 0)
    class_C = state_S / state_S.sum() @ hmm.class_SxC
    return class_C[hmm.class_W] * (hmm.topic_T @ hmm.topic_emission_TxW) * (hmm.name_M @ hmm.name_emission_MxW)


def test_word_frequencies_are_the_expected_ones():
    grammar = build_grammar(Language(max_words=30))
    words_DxL = sample_documents(grammar.hmm, 30, 0, 0, 5000)
    share_W = expected_shares(grammar.hmm, 30)
    count_D = (words_DxL >= 0).sum(1)
    apart = []
    for word in np.argsort(-share_W)[:100]:
        mean, error = compute_ratio((words_DxL == word).sum(1), count_D)
        apart.append((mean - share_W[word]) / error)
    assert np.abs(apart).max() < 4 and 0.7 < np.std(apart) < 1.3


def shares(knobs, count=300):
    """Of documents drawn: the share of verbs that agree, and the share of names that are the row's most frequent."""
    grammar = build_grammar(knobs)
    words_NxL = sample_documents(grammar.hmm, 126, 0, 0, count)
    verbs = probes.find_agreement_items(grammar, words_NxL)
    agree = words_NxL[verbs.example_I, verbs.position_I] == verbs.target_I
    name_W = (grammar.hmm.name_emission_MxW != 1).any(0)
    commonest = [
        np.bincount(names).max() / len(names)
        for names in (row[(row >= 0) & name_W[row]] for row in words_NxL)
        if len(names) > 3
    ]
    return agree.mean(), np.mean(commonest)


def test_strengths_of_agreement_and_recall():
    agree, recalled = shares(Language())
    assert agree == 1 and recalled > 0.85
    agree, recalled = shares(Language(agreement_prob=0.7, recall_prob=0.1))
    assert agree == pytest.approx(0.7, abs=0.03) and recalled < 0.6


def test_strength_of_topic():
    by_topic_TxW = build_grammar(Language()).hmm.topic_emission_TxW
    own_W = by_topic_TxW[0] > by_topic_TxW[1]

    def spread(knobs):  # over documents, of the share of one topic's words; 1 where words are independent
        grammar = build_grammar(knobs)
        words_NxL = sample_documents(grammar.hmm, 126, 0, 0, 300)
        own_N = ((words_NxL >= 0) & own_W[words_NxL]).sum(1)
        all_N = ((words_NxL >= 0) & (grammar.partner_W >= 0)[words_NxL]).sum(1)
        share = own_N.sum() / all_N.sum()
        return ((own_N - share * all_N) ** 2).mean() / (share * (1 - share) * all_N).mean()

    assert spread(Language()) > 5
    assert spread(Language(topic_strength=0.0)) == pytest.approx(1, abs=0.25)


def test_strengths_of_modifiers_and_attractors():
    def verbs(**knobs):
        grammar = build_grammar(Language(**knobs))
        return probes.find_agreement_items(grammar, sample_documents(grammar.hmm, 126, 0, 0, 100))

    assert verbs(modifier_prob=0.0).distance_I.max() == 0
    assert verbs(attractor_prob=0.0).attractors_I.max() <= 1  # a name, which is singular, in a plural's relative clause
    short, long = verbs(modifier_continue_prob=0.0), verbs(modifier_continue_prob=0.6)
    assert long.distance_I.mean() > 1.5 * short.distance_I.mean()
    assert long.attractors_I.mean() > 1.5 * short.attractors_I.mean()


def test_without_order_neighbours_tell_nothing_of_class():
    grammar = build_grammar(Language(word_order_prob=0.0))
    words_NxL = sample_documents(grammar.hmm, 126, 0, 0, 300)
    class_NxL = np.where(words_NxL >= 0, grammar.hmm.class_W[words_NxL], -1)
    noun, determiner = (grammar.hmm.class_W[grammar.words.index(word)] for word in ("horse", "the"))
    after_N, pairs_N = (class_NxL[:, :-1] == determiner), (class_NxL[:, 1:] == noun)
    inside_NxL = (class_NxL[:, 1:] >= 0) & (words_NxL[:, 1:] != grammar.words.index("."))
    share = pairs_N[inside_NxL].mean()
    assert pairs_N[after_N & inside_NxL].mean() == pytest.approx(share, abs=0.02) and share > 0.05
