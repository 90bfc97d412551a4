"""Which topic a passage has.

In the default language the optimum is right on 0.91 of the passages, the most frequent label on 0.125.

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
    SPLIT_SIZES,
    OptimalScore,
    SyntheticExample,
    SyntheticTask,
    encode_passages,
    format_passage,
    get_first_document,
    score_labels,
)

TASK_NUMBER = 0  # its place among the tasks' documents
MAX_WORDS = 16  # of a passage at most: few enough that its topic is not always known


def require_several_topics(language: Language, task: str) -> None:
    """Raises ConfigError where all documents have one topic."""
    require(
        language.num_topics > 1,
        "config.data.language.num_topics",
        language.num_topics,
        f"at least 2, since config.data.task is {task}",
    )


def list_labels(language: Language) -> tuple[str, ...]:
    """A topic is called by the noun that it favours most."""
    return tuple(nouns.split()[0] for nouns in TOPICS[: language.num_topics])


def generate_examples(language: Language, split: str, count: int | None = None) -> Iterator[SyntheticExample]:
    """A passage and its document's topic; example n is document n of the split.

    Raises ConfigError for a split that is none, and a language of one topic.
    """
    first, label_T, grammar = get_first_document(TASK_NUMBER, split), list_labels(language), build_grammar(language)
    require_several_topics(language, "topic")
    for begin in itertools.count(0, DOCUMENT_BATCH):
        words_DxL = sample_documents(grammar.hmm, MAX_WORDS, language.seed, first + begin, DOCUMENT_BATCH)
        topic_D, _ = sample_latents(grammar.hmm, language.seed, first + begin, DOCUMENT_BATCH)
        for n, (words_L, topic) in enumerate(zip(words_DxL, topic_D, strict=True), begin):
            if n == (SPLIT_SIZES[split] if count is None else count):
                return
            yield SyntheticExample(f"topic/{split}/{n}", (format_passage(grammar, words_L),), (), label_T[topic])


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


def compute_posterior(language: Language, given: Sequence[SyntheticExample]) -> np.ndarray:
    """P(topic | passage), NxT."""
    grammar = build_grammar(language)
    return compute_topic_posterior(
        grammar.hmm, encode_passages(grammar, [text for (text,) in (one.texts for one in given)], MAX_WORDS)[0]
    )


def score_optimum(language: Language, given: Sequence[SyntheticExample]) -> OptimalScore:
    """The likeliest topic of each passage."""
    label_T = list_labels(language)
    return score_labels(np.array([label_T.index(one.label) for one in given]), compute_posterior(language, given))


TOPIC = SyntheticTask("classification", list_labels, generate_examples, compute_posterior, score_optimum)
