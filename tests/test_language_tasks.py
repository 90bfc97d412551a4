"""The built-in language's labelled tasks: their posteriors against brute force, and what their optimum promises."""

import itertools
import zlib

import numpy as np
import pytest
from tiny import TINY, documents

from mlm.base import config, errors, fields
from mlm.base.config import Language
from mlm.data.language import subjects, synthetic_task, tasks
from mlm.data.language.grammar import build_grammar
from mlm.data.language.hmm import compute_topic_posterior, sample_documents, sample_latents
from mlm.data.language.tasks import FORMAT, TASKS
from mlm.data.rows import preprocessors
from mlm.data.text.corpus import FIRST_VALIDATION_NUMBER
from mlm.data.tokenizers import kinds

LANGUAGE = Language()
LENGTH = 6
DRAWN = {"topic": 2030786487, "pair": 3454250674, "tag": 3027330872, "subject": 1051535860}


@pytest.fixture(scope="module", params=TASKS)
def task_examples(request):
    """A task's name, the task, and 2,000 of its training examples with their posterior."""
    task = TASKS[request.param]
    given = list(task.generate_examples(LANGUAGE, "train", 2000))
    return request.param, task, given, task.compute_posterior(LANGUAGE, given)


def text(given):
    return "\n".join(repr(example[:4]) for example in given).encode()


def test_examples_are_those_of_their_format(task_examples):
    """Where this fails the examples have changed: raise FORMAT, then write down what is drawn now."""
    name, _, given, _ = task_examples
    assert (FORMAT, zlib.crc32(text(given))) == (1, DRAWN[name])


@pytest.mark.exhaustive(but=("tag",))
def test_an_example_depends_on_its_number_alone(task_examples):
    _, task, given, _ = task_examples
    assert list(task.generate_examples(LANGUAGE, "train", 30)) == given[:30]
    assert len(list(task.generate_examples(LANGUAGE, "dev", None))) == 1000
    other = Language(max_words=20, train_documents=7)  # what changes pretraining's documents alone
    assert list(task.generate_examples(other, "train", 30)) == given[:30]


def test_a_passage_that_is_longer_than_a_row_has_windows_though_no_stride_is_set():
    given = list(TASKS["subject"].generate_examples(LANGUAGE, "dev", 20))
    words = kinds.train_tokenizer(config.Tokenizer("words", 0), [text for example in given for text in example.texts])
    cfg = fields.override(config.Config(), {"pack.seq_len": 24})
    windows = list(preprocessors.encode_questions(given, words, cfg, ()))
    assert len(windows) == 20 and max(map(len, windows)) > 1


def test_splits_share_no_document(monkeypatch):
    """No number is drawn in two splits or tasks, nor by pretraining."""
    drawn = {}
    for module in (tasks, subjects):
        monkeypatch.setattr(
            module,
            "sample_documents",
            lambda hmm, length, seed, start, count, *topic_D: (
                drawn.setdefault(key, set()).update(range(start, start + count)),
                sample_documents(hmm, length, seed, start, count),
            )[1],
        )
    for key in itertools.product(TASKS, synthetic_task.SPLIT_SIZES):
        assert len({one.id for one in TASKS[key[0]].generate_examples(LANGUAGE, key[1], 300)}) == 300
    assert len(drawn) == len(TASKS) * 3 and min(map(min, drawn.values())) > 2 * FIRST_VALIDATION_NUMBER
    for one, other in itertools.combinations(drawn.values(), 2):
        assert not one & other


def answers(task, given):
    """The column of the true answer in each row of the posterior."""
    names = task.list_labels(LANGUAGE)
    return {
        "classification": lambda: [names.index(one.label) for one in given],
        "tagging": lambda: [names.index(label) for one in given for label in one.label if label],
        "extractive_qa": lambda: [one.texts[1][: one.label[0][1]].count(" ") for one in given],
    }[task.objective]()


def test_the_posterior_is_calibrated(task_examples):
    """The share of right answers is what the posterior expects, so none of it is seen by chance or by the label."""
    name, task, given, share = task_examples
    best = task.score_optimum(LANGUAGE, given)
    apart_N = best.right_N - best.expected_N
    assert abs(apart_N.mean()) < 4 * apart_N.std() / len(apart_N) ** 0.5
    assert best.weight_N.sum() >= 2000 and (best.right_N <= best.weight_N).all()
    np.testing.assert_allclose(share.sum(1), 1, rtol=1e-5)
    apart_K = share[np.arange(len(share)), answers(task, given)] - (share**2).sum(1)  # of all answers, not the best
    assert abs(apart_K.mean()) < 4 * apart_K.std() / len(apart_K) ** 0.5 < 0.02
    assert FIGURES[name] == pytest.approx(best.expected_N.sum() / best.weight_N.sum(), abs=0.01)


FIGURES = {"topic": 0.91, "pair": 0.91, "tag": 0.80, "subject": 0.965}  # the optimum's accuracy, as docstrings say it


def test_a_label_is_one_of_the_task_s(task_examples):
    _, task, given, _ = task_examples
    names = task.list_labels(LANGUAGE)
    assert len(set(names)) == len(names)
    if task.objective == "classification":
        often_C = np.bincount([names.index(one.label) for one in given], minlength=len(names)) / len(given)
        np.testing.assert_allclose(often_C, 1 / len(names), atol=4 * (len(names) * len(given)) ** -0.5)


@pytest.fixture(scope="module")
def topic_tables():
    """P(words, their count | topic) of all documents of TINY, for each topic."""
    return [documents(TINY._replace(topic_T=only_T), LENGTH) for only_T in np.eye(len(TINY.topic_T))]


def likelihood(by_topic, words_L):
    words = tuple(words_L[words_L >= 0])
    return np.array([tables[len(words)][words] for tables in by_topic])


def test_topic_posterior_is_the_enumerated_one(topic_tables):
    words_NxL = sample_documents(TINY, LENGTH, 0, 0, 200)
    joint_NxT = TINY.topic_T * np.array([likelihood(topic_tables, words_L) for words_L in words_NxL])
    np.testing.assert_allclose(compute_topic_posterior(TINY, words_NxL), joint_NxT / joint_NxT.sum(1, keepdims=True))


def enumerated_pairs(one_NxT, two_NxT):
    """P(label | words) from P(words | topic) of each passage: topics of a pair added up, one by one."""
    weight_2xN = np.zeros((2, len(one_NxT)))
    for t, u in itertools.product(range(len(TINY.topic_T)), repeat=2):
        share = TINY.topic_T[t] * (1.0 if t == u else TINY.topic_T[u] / (1 - TINY.topic_T[t]))
        weight_2xN[int(t == u)] += 0.5 * share * one_NxT[:, t] * two_NxT[:, u]
    return (weight_2xN / weight_2xN.sum(0)).T


def test_pair_posterior_is_the_enumerated_one(topic_tables):
    words_NxL = sample_documents(TINY, LENGTH, 0, 0, 400)
    given_NxT = np.array([likelihood(topic_tables, words_L) for words_L in words_NxL])
    known_Nx2 = tasks.compute_pair_posterior(TINY, words_NxL[:200], words_NxL[200:])
    np.testing.assert_allclose(known_Nx2, enumerated_pairs(given_NxT[:200], given_NxT[200:]))
    assert known_Nx2.std(0).min() > 0.05


def test_a_pair_s_topics_are_drawn_as_its_posterior_has_them():
    """Three topics, so clear that passages tell them: equal in half of the pairs, all others equally often."""
    clear = Language(num_topics=3, topic_strength=9.0)
    given = list(TASKS["pair"].generate_examples(clear, "train", 2000))
    grammar = build_grammar(clear)
    topic_2xN = np.array(
        [
            compute_topic_posterior(
                grammar.hmm, synthetic_task.encode_passages(grammar, texts, tasks.MAX_PAIR_WORDS)[0]
            ).argmax(1)
            for texts in zip(*(one.texts for one in given), strict=True)
        ]
    )
    same_N = topic_2xN[0] == topic_2xN[1]
    assert (same_N == [one.label == "same" for one in given]).mean() > 0.97
    often_TxT = np.zeros((3, 3))
    np.add.at(often_TxT, tuple(topic_2xN), 1 / 2000)
    np.testing.assert_allclose(often_TxT, np.where(np.eye(3), 1 / 6, 1 / 12), atol=4 * 0.37 / 2000**0.5)


def test_latents_are_those_of_the_documents():
    """A document of another topic is the same but for its words of topics; of its own it is the same."""
    hmm = build_grammar(LANGUAGE).hmm
    topic_D, name_D = sample_latents(hmm, 3, 50, 200)
    words_DxL = sample_documents(hmm, 40, 3, 50, 200)
    np.testing.assert_array_equal(sample_documents(hmm, 40, 3, 50, 200, topic_D), words_DxL)
    other_DxL = sample_documents(hmm, 40, 3, 50, 200, (topic_D + 1) % 8)
    changed_DxL = other_DxL != words_DxL
    np.testing.assert_array_equal(hmm.class_W[other_DxL], hmm.class_W[words_DxL])
    assert changed_DxL.any(1).all() and (hmm.name_emission_MxW[:, words_DxL[changed_DxL]] == 1).all()
    said_DxM = np.where((words_DxL >= 0)[:, :, None], np.log(hmm.name_emission_MxW.T)[words_DxL], 0).sum(1)
    assert (said_DxM.argmax(1) == name_D).mean() > 0.8


@pytest.mark.parametrize("name", ["topic", "pair"])
def test_one_topic_is_no_question(name):
    with pytest.raises(errors.ConfigError, match=rf"topics = 1: expected at least 2, .* is {name}"):
        next(TASKS[name].generate_examples(Language(num_topics=1), "train", 1))


def test_a_passage_of_other_words_is_named():
    with pytest.raises(ValueError, match=r"text 2, word 2 = 'loves'"):
        synthetic_task.encode_passages(build_grammar(LANGUAGE), ["Anna sleeps .", "Anna loves ."], 5)
