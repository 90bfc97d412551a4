"""Which topic a passage has, and whether two passages share theirs: half of the pairs do.

In the default language the optimum is right on 0.91 of the passages, the most frequent label on 0.125; of the pairs on
0.91, the most frequent label on 0.5.

Letters in array names: N examples, L places of a passage, T topics, W words, D documents.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from mlm.base.config import Language
from mlm.base.errors import require
from mlm.data.language.grammar import DOCUMENT_BATCH, TOPICS, build_grammar
from mlm.data.language.hmm import HMM, sample_documents, sample_latents
from mlm.data.language.synthetic_task import (
    OptimalScore,
    SyntheticExample,
    SyntheticTask,
    encode_passages,
    format_passage,
    make_stream,
    score_labels,
)

MAX_WORDS = 16  # of a passage at most: few enough that its topic is not always known
MAX_PAIR_WORDS = 14  # of a passage of a pair at most: the two fit into a row of 32 tokens
PAIR_LABELS = ("different", "same")


def _require_topics(language, task):
    """Raises ConfigError where all documents have one topic."""
    expected = f"at least 2, since config.data.task is {task}"
    require(language.num_topics > 1, "config.data.language.num_topics", language.num_topics, expected)


def list_labels(language: Language) -> tuple[str, ...]:
    """A topic is called by the noun that it favours most."""
    return tuple(nouns.split()[0] for nouns in TOPICS[: language.num_topics])


def _iterate_examples(language: Language, first: int) -> Iterator[SyntheticExample]:
    """A passage and its document's topic."""
    label_T, grammar = list_labels(language), build_grammar(language)
    _require_topics(language, "topic")
    for begin in itertools.count(0, DOCUMENT_BATCH):
        words_DxL = sample_documents(grammar.hmm, MAX_WORDS, language.seed, first + begin, DOCUMENT_BATCH)
        topic_D, _ = sample_latents(grammar.hmm, language.seed, first + begin, DOCUMENT_BATCH)
        for n, (words_L, topic) in enumerate(zip(words_DxL, topic_D, strict=True), begin):
            yield SyntheticExample(str(n), (format_passage(grammar, words_L),), (), label_T[topic])


def _iterate_pairs(language: Language, first: int) -> Iterator[SyntheticExample]:
    """Two passages, and whether their topics are the same; example n is documents 2n and 2n + 1 of the split.

    The two have their own protagonists, which say nothing. By a coin the second has the first one's topic, else another
    in proportion to its probability.
    """
    grammar = build_grammar(language)
    _require_topics(language, "pair")
    hmm, seed = grammar.hmm, language.seed
    for begin in itertools.count(first, DOCUMENT_BATCH):
        topic_D, _ = sample_latents(hmm, seed, begin, DOCUMENT_BATCH)
        same_N = np.zeros(DOCUMENT_BATCH // 2, int)
        for n in range(DOCUMENT_BATCH // 2):
            stream = make_stream(seed, begin + 2 * n)
            same_N[n] = stream.random() < 0.5
            other_T = np.where(np.arange(len(hmm.topic_T)) == topic_D[2 * n], 0, hmm.topic_T)
            other = stream.choice(len(other_T), p=other_T / other_T.sum())
            topic_D[2 * n + 1] = topic_D[2 * n] if same_N[n] else other
        words_DxL = sample_documents(hmm, MAX_PAIR_WORDS, seed, begin, DOCUMENT_BATCH, topic_D)
        for n, same in enumerate(same_N):
            one, two = (format_passage(grammar, words_L) for words_L in words_DxL[2 * n : 2 * n + 2])
            yield SyntheticExample(str((begin - first) // 2 + n), (one, two), (), PAIR_LABELS[same])


def compute_topic_log_likelihood(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """log P(words | their states, name, topic) of each topic, NxT, up to a constant of the example.

    Given the words the topic depends on no state, as only the class of a word does (`HMM`).
    """
    log_WxT = np.log(hmm.topic_emission_TxW).T
    return np.where((words_NxL >= 0)[:, :, None], log_WxT[words_NxL], 0).sum(1)


def compute_topic_posterior(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """P(topic | words), NxT; words_NxL: -1 where there is none."""
    odds_NxT = np.log(hmm.topic_T) + compute_topic_log_likelihood(hmm, words_NxL)
    weight_NxT = np.exp(odds_NxT - odds_NxT.max(1, keepdims=True))
    return weight_NxT / weight_NxT.sum(1, keepdims=True)


def compute_pair_posterior(hmm: HMM, one_NxL: np.ndarray, two_NxL: np.ndarray) -> np.ndarray:
    """P(topics differ | words) and P(they are the same | words), Nx2, where half of the pairs share theirs.

    words: -1 where there is none.
    """
    # Each passage's evidence, scaled by its largest: the scales are common to both answers.
    one_NxT, two_NxT = (
        np.exp(odds_NxT - odds_NxT.max(1, keepdims=True))
        for odds_NxT in (compute_topic_log_likelihood(hmm, words_NxL) for words_NxL in (one_NxL, two_NxL))
    )
    same_TxT = np.diag(hmm.topic_T)
    other_TxT = hmm.topic_T * (1 - np.eye(len(hmm.topic_T)))
    differ_TxT = hmm.topic_T[:, None] * other_TxT / other_TxT.sum(1, keepdims=True)
    weight_Nx2 = np.stack([((one_NxT @ joint_TxT) * two_NxT).sum(1) for joint_TxT in (differ_TxT, same_TxT)], 1)
    return weight_Nx2 / weight_Nx2.sum(1, keepdims=True)


def _compute_posterior(language: Language, given: Sequence[SyntheticExample]) -> np.ndarray:
    """P(topic | passage), NxT."""
    grammar = build_grammar(language)
    return compute_topic_posterior(grammar.hmm, encode_passages(grammar, [one.texts[0] for one in given], MAX_WORDS)[0])


def _compute_pair_posterior(language: Language, given: Sequence[SyntheticExample]) -> np.ndarray:
    """P(label | passages), Nx2, in the order of PAIR_LABELS."""
    grammar = build_grammar(language)
    sides = zip(*(example.texts for example in given), strict=True)
    return compute_pair_posterior(grammar.hmm, *(encode_passages(grammar, texts, MAX_PAIR_WORDS)[0] for texts in sides))


def _score_optimum(language: Language, given: Sequence[SyntheticExample]) -> OptimalScore:
    return score_labels(list_labels(language), given, _compute_posterior(language, given))


def _score_pair_optimum(language: Language, given: Sequence[SyntheticExample]) -> OptimalScore:
    return score_labels(PAIR_LABELS, given, _compute_pair_posterior(language, given))


TOPIC = SyntheticTask("topic", 0, "classification", list_labels, _iterate_examples, _compute_posterior, _score_optimum)
PAIR = SyntheticTask(
    "pair",
    1,
    "classification",
    lambda language: PAIR_LABELS,
    _iterate_pairs,
    _compute_pair_posterior,
    _score_pair_optimum,
)
