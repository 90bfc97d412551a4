"""Which topic a passage has.

In the default language the optimum is right on 0.91 of the passages, the most frequent label on 0.125.

Letters in array names: N examples, L places of a passage, T topics, W words, D documents.
"""
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from mlm.base.config import Language
from mlm.base.errors import require
from mlm.data.language.grammar import BLOCK, TOPICS, build
from mlm.data.language.hmm import HMM, draw, latents
from mlm.data.language.labelled import COUNT, Best, Example, LanguageTask, chosen, numbers, read, written

TASK = 0        # its place among the tasks' documents
WORDS = 16      # of a passage at most: few enough that its topic is not always known


def several(language: Language, task: str) -> None:
    """Raises ConfigError where all documents have one topic."""
    require(language.num_topics > 1, "config.data.language.num_topics", language.num_topics,
           f"at least 2, since config.data.task is {task}")


def names(language: Language) -> tuple[str, ...]:
    """A topic is called by the noun that it favours most."""
    return tuple(nouns.split()[0] for nouns in TOPICS[:language.num_topics])


def examples(language: Language, split: str, count: int | None = None) -> Iterator[Example]:
    """A passage and its document's topic; example n is document n of the split.

    Raises ConfigError for a split that is none, and a language of one topic.
    """
    first, label_T, grammar = numbers(TASK, split), names(language), build(language)
    several(language, "topic")
    for begin in itertools.count(0, BLOCK):
        words_DxL = draw(grammar.hmm, WORDS, language.seed, first + begin, BLOCK)
        topic_D, _ = latents(grammar.hmm, language.seed, first + begin, BLOCK)
        for n, (words_L, topic) in enumerate(zip(words_DxL, topic_D, strict=True), begin):
            if n == (COUNT[split] if count is None else count):
                return
            yield Example(f"topic/{split}/{n}", (written(grammar, words_L),), (), label_T[topic])


def evidence(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """log P(words | their states, name, topic) of each topic, NxT, up to a constant of the example.

    Given the words the topic depends on no state, as only the class of a word does (`HMM`).
    """
    log_WxT = np.log(hmm.by_topic_TxW).T
    return np.where((words_NxL >= 0)[:, :, None], log_WxT[words_NxL], 0).sum(1)


def topic_posterior(hmm: HMM, words_NxL: np.ndarray) -> np.ndarray:
    """P(topic | words), NxT; words_NxL: -1 where there is none."""
    odds_NxT = np.log(hmm.topic_T) + evidence(hmm, words_NxL)
    weight_NxT = np.exp(odds_NxT - odds_NxT.max(1, keepdims=True))
    return weight_NxT / weight_NxT.sum(1, keepdims=True)


def posterior(language: Language, given: Sequence[Example]) -> np.ndarray:
    """P(topic | passage), NxT."""
    grammar = build(language)
    return topic_posterior(grammar.hmm, read(grammar, [text for text, in (one.texts for one in given)], WORDS)[0])


def best(language: Language, given: Sequence[Example]) -> Best:
    """The likeliest topic of each passage."""
    label_T = names(language)
    return chosen(np.array([label_T.index(one.label) for one in given]), posterior(language, given))


TOPIC = LanguageTask("classify", names, examples, posterior, best)
