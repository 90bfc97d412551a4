"""The class of each hidden word: its kind and number, from the passage around it.

In the default language the optimum is right on 0.80 of the hidden words, the most frequent class on 0.15.

Letters in array names: N examples, L places of a passage, C classes, K hidden words of all examples, D documents.
"""
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from mlm.base.config import Language
from mlm.data.language import posterior as hidden
from mlm.data.language.grammar import BLOCK, Grammar, build
from mlm.data.language.hmm import draw
from mlm.data.language.labelled import COUNT, Best, Example, LanguageTask, numbers, own, read, written

TASK = 2        # its place among the tasks' documents
WORDS = 30      # of a passage at most: it fits into a row of 32 tokens
RATE = 0.3      # probability that a word is hidden, each on its own


def classes(language: Grammar) -> tuple[str, ...]:
    """The names of the language's classes: a kind, and a number where words of the class show one ("noun.s")."""
    _, first_C = np.unique(language.hmm.class_W, return_index=True)
    return tuple(f"{language.kind_W[word]}.{language.number_W[word]}".removesuffix(".") for word in first_C)


def names(language: Language) -> tuple[str, ...]:
    return classes(build(language))


def examples(language: Language, split: str, count: int | None = None) -> Iterator[Example]:
    """A passage with hidden words, and their classes; documents of which nothing is hidden are passed over.

    Raises ConfigError for a split that is none.
    """
    first, grammar = numbers(TASK, split), build(language)
    return itertools.islice(_all(grammar, language.seed, first, split), COUNT[split] if count is None else count)


def _all(grammar, seed, first, split):
    label_W = np.array(classes(grammar))[grammar.hmm.class_W]
    for begin in itertools.count(first, BLOCK):
        for number, words_L in enumerate(draw(grammar.hmm, WORDS, seed, begin, BLOCK), begin):
            hidden_L = (own(seed, number).random(WORDS) < RATE) & (words_L >= 0)
            if hidden_L.any():
                text = written(grammar, words_L, hidden_L)
                label = tuple(str(label_W[word]) if asked else "" for word, asked in zip(words_L, hidden_L, strict=True)
                              if word >= 0)
                yield Example(f"tag/{split}/{number - first}", (text,), tuple(text.split()), label)


def posterior(language: Language, given: Sequence[Example]) -> np.ndarray:
    """P(class | passage) of each hidden word, KxC, example by example; exact, computed in float32 (`posterior`).

    Whether a word is hidden does not depend on the word, so what is hidden tells nothing.
    """
    grammar = build(language)
    words_NxL, hidden_NxL = read(grammar, [text for text, in (one.texts for one in given)], WORDS)
    return hidden.posterior(grammar.hmm, words_NxL, hidden_NxL).class_KxC.astype(np.float64)


def best(language: Language, given: Sequence[Example]) -> Best:
    """The likeliest class of each hidden word."""
    labels, share_KxC = names(language), posterior(language, given)
    true_K = np.array([labels.index(label) for one in given for label in one.label if label])
    weight_N = np.array([sum(map(bool, one.label)) for one in given])
    example_K = np.repeat(np.arange(len(given)), weight_N)
    right_N, expected_N = (np.bincount(example_K, value_K, len(given))
                           for value_K in (share_KxC.argmax(1) == true_K, share_KxC.max(1)))
    return Best(right_N, weight_N.astype(float), expected_N)


TAG = LanguageTask("tag", names, examples, posterior, best)
