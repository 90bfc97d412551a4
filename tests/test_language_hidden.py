"""The tasks with hidden words against brute force: each word's class over all documents of a tiny language, the subject
of a verb over all paths of states."""

import itertools

import numpy as np
import pytest
from tiny import TINY, documents

from mlm.base import errors
from mlm.base.config import Language
from mlm.data.language import posterior, probes, subjects, synthetic_task, tasks
from mlm.data.language.grammar import build_grammar
from mlm.data.language.hmm import sample_documents
from mlm.data.language.tasks import TASKS

LANGUAGE = Language()
GRAMMAR = build_grammar(LANGUAGE)
LENGTH = 6


@pytest.fixture(scope="module")
def tables():
    return documents(TINY, LENGTH)


def draw_rows(count=150):
    words_NxL = sample_documents(TINY, LENGTH, 0, 0, count)
    return words_NxL, (np.random.default_rng(0).random(words_NxL.shape) < 0.5) & (words_NxL >= 0)


def select_visible(tables, words_L, hidden_L):
    """P(hidden words, visible ones as they are), an axis for each place."""
    count = (words_L >= 0).sum()
    shown = tuple(slice(None) if hidden_L[i] else slice(words_L[i], words_L[i] + 1) for i in range(count))
    return tables[count][shown]


def test_class_posterior_is_the_enumerated_one(tables):
    words_NxL, hidden_NxL = draw_rows()
    known = posterior.compute_posterior(TINY, words_NxL, hidden_NxL)
    expected_KxC = []
    for row, place in zip(known.example_K, known.position_K, strict=True):
        joint = select_visible(tables, words_NxL[row], hidden_NxL[row])
        share_W = joint.sum(tuple(axis for axis in range(joint.ndim) if axis != place)) / joint.sum()
        expected_KxC.append(np.bincount(TINY.class_W, share_W))
    assert len(expected_KxC) > 200
    np.testing.assert_allclose(known.class_KxC, expected_KxC, atol=1e-5)


def test_a_tag_is_the_class_of_the_word_that_is_hidden():
    given = list(TASKS["tag"].generate_examples(LANGUAGE, "dev", 150))
    labels, first = TASKS["tag"].list_labels(LANGUAGE), TASKS["tag"].get_first_document("dev")
    assert set(labels) == {label for one in given for label in one.label} - {""} and len(labels) == 15
    asked, every = 0, 0
    for one in given:
        words_L = sample_documents(
            GRAMMAR.hmm, tasks.MAX_TAG_WORDS, LANGUAGE.seed, first + int(one.id.rpartition("/")[2]), 1
        )[0]
        for word, shown, label in zip(words_L[words_L >= 0], one.words, one.label, strict=True):
            assert shown == (synthetic_task.HIDDEN_WORD if label else GRAMMAR.words[word])
            assert label in ("", (GRAMMAR.kind_W[word] + "." + GRAMMAR.number_W[word]).strip("."))
        assert one.texts == (" ".join(one.words),) and any(one.label)
        asked, every = asked + sum(map(bool, one.label)), every + len(one.words)
    assert asked / every == pytest.approx(tasks.HIDE_PROB, abs=4 * (0.21 / every) ** 0.5)


LINKS = tuple(probes.SubjectRelation(np.eye(3, dtype=bool)[a], np.eye(3, dtype=bool)[b]) for a, b in ((1, 2), (2, 1)))
HIDE_C = np.array([0.2, 0.6, 0.35])


def enumerated_subject(words_L, hidden_L, verb):
    """P(subject of the word in place `verb` stands here | seen): states, topics and names of a row written out."""
    count = int((words_L >= 0).sum())
    hide_W = HIDE_C[TINY.class_W]
    share_L, every = np.zeros(len(words_L)), 0.0
    for path in itertools.product(range(3), repeat=count - 1):
        path = (*path, int(TINY.end))
        weight = np.prod([TINY.trans_SxS[a, b] for a, b in itertools.pairwise((int(TINY.end), *path))])
        seen = 0.0
        for topic, name in itertools.product(range(2), repeat=2):
            word_SxW = TINY.class_SxC[:, TINY.class_W] * TINY.topic_emission_TxW[topic] * TINY.name_emission_MxW[name]
            seen += (
                TINY.topic_T[topic]
                * TINY.name_M[name]
                * np.prod(
                    [
                        (word_SxW[state] * hide_W).sum()
                        if hidden_L[place]
                        else word_SxW[state, words_L[place]] * (1 - hide_W[words_L[place]])
                        for place, state in enumerate(path)
                    ]
                )
            )
        every += weight * seen
        for subject, verb_state in ((1, 2), (2, 1)):
            if path[verb] == verb_state:
                before = [place for place in range(verb) if path[place] in (subject, int(TINY.end))]
                if before and path[before[-1]] == subject:
                    share_L[before[-1]] += weight * seen
    return share_L / every


def test_subject_posterior_is_the_enumerated_one():
    words_NxL, hidden_NxL = draw_rows(40)
    verb_N = np.random.default_rng(1).integers((words_NxL >= 0).sum(1))
    found_NxL = subjects.compute_subject_posterior(TINY, LINKS, HIDE_C, words_NxL, hidden_NxL, verb_N)
    expected_NxL = [enumerated_subject(*row) for row in zip(words_NxL, hidden_NxL, verb_N, strict=True)]
    np.testing.assert_allclose(found_NxL, expected_NxL, atol=1e-12)
    assert 5 < found_NxL.sum() < 30


@pytest.mark.parametrize(
    ("sentence", "subject"),
    [
        (
            "the mayor that many small streets near another banker pay hires the bridges again .",
            {"pay": "streets", "hires": "mayor"},
        ),
        ("Anna sleeps . the owls that feed the cow sleep .", {"sleeps": "Anna", "feed": "owls", "sleep": "owls"}),
        ("the horse that Boris feeds near the fox sails .", {"feeds": "Boris", "sails": "horse"}),
        ("the horses near the fox behind the owl sail . the fox sails .", {"sail": "horses", "sails": "fox"}),
    ],
)
def test_the_subject_is_the_head_of_the_verb_s_own_clause(sentence, subject):
    words = sentence.split()
    (place_L,) = probes.find_subjects(
        GRAMMAR, probes.parse_states(GRAMMAR, np.array([[GRAMMAR.words.index(word) for word in words]]))
    )
    assert {words[verb]: words[place] for verb, place in enumerate(place_L) if place >= 0} == subject


def test_a_question_has_one_answer_and_says_no_more():
    """Over the documents that the questions are drawn from: what is hidden, what is asked, and where the answer is."""
    given = list(TASKS["subject"].generate_examples(LANGUAGE, "dev", 150))
    first = TASKS["subject"].get_first_document("dev")
    noun, verb = (
        {word for word, kind in zip(GRAMMAR.words, GRAMMAR.kind_W, strict=True) if kind in kinds}
        for kinds in (probes.NOUNS, probes.VERBS)
    )
    hidden, every, part, nearest = 0, 0, 0, 0
    for one in given:
        (question, passage), ((answer, start),) = one.texts, one.label
        seen = passage.split(" ")
        words_L = sample_documents(
            GRAMMAR.hmm, subjects.MAX_WORDS, LANGUAGE.seed, first + int(one.id.rpartition("/")[2]), 1
        )[0]
        words_L = words_L[: len(seen)]
        whole = [GRAMMAR.words[word] for word in words_L]
        assert all(shown in (word, synthetic_task.HIDDEN_WORD) for shown, word in zip(seen, whole, strict=True))
        nouns = [word for word in whole if word in noun]
        assert len(set(nouns)) == len(nouns) and set(nouns) <= set(seen) and whole[-1] == "."
        assert question in verb and seen.count(question) == 1 and passage[start:].split(" ")[0] == answer
        place = probes.find_subjects(GRAMMAR, probes.parse_states(GRAMMAR, words_L[None]))[0, seen.index(question)]
        assert whole[place] == answer and len(passage[:start].split()) == place
        open_nouns = [word for word in " ".join(seen[: seen.index(question)]).split(".")[-1].split() if word in noun]
        assert len(open_nouns) > 1 and answer in open_nouns
        nearest += open_nouns[-1] == answer
        part += len(words_L) < subjects.MAX_WORDS - 15
        free = [
            shown == synthetic_task.HIDDEN_WORD
            for shown, word in zip(seen, whole, strict=True)
            if word not in noun and word not in verb and word != "."
        ]
        hidden, every = hidden + sum(free), every + len(free)
    assert hidden / every == pytest.approx(subjects.HIDE_PROB, abs=5 * (0.25 / every) ** 0.5) and part > 10
    assert 0.3 < nearest / len(given) < 0.45


def test_sentences_of_no_one_reading_have_no_subject():
    with pytest.raises(errors.ConfigError, match=r"config.data.language.word_order_prob = 0.9: expected 1, since"):
        next(TASKS["subject"].generate_examples(Language(word_order_prob=0.9), "train", 1))


def test_a_language_that_leaves_nothing_to_ask_is_refused(monkeypatch):
    monkeypatch.setattr(subjects, "MAX_SKIPPED", 512)
    one_noun = Language(modifier_prob=0.0, protagonist_prob=0.999, num_names=1, zipf_exponent=100.0)
    with pytest.raises(errors.ConfigError, match=r"'language/subject': expected .* 768 documents in a row have"):
        next(TASKS["subject"].generate_examples(one_noun, "train", 1))
