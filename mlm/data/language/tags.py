"""The class of each hidden word: its kind and number, from the passage around it.

In the default language the optimum is right on 0.80 of the hidden words, the most frequent class on 0.15.

Letters in array names: N examples, L places of a passage, C classes, K hidden words of all examples, D documents.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from mlm.base.config import Language
from mlm.data.language import posterior as hidden
from mlm.data.language.grammar import DOCUMENT_BATCH, Grammar, build_grammar
from mlm.data.language.hmm import sample_documents
from mlm.data.language.synthetic_task import (
    SPLIT_SIZES,
    OptimalScore,
    SyntheticExample,
    SyntheticTask,
    encode_passages,
    format_passage,
    get_first_document,
    make_stream,
)

TASK_NUMBER = 2  # its place among the tasks' documents
MAX_WORDS = 30  # of a passage at most: it fits into a row of 32 tokens
HIDE_PROB = 0.3  # probability that a word is hidden, each on its own


def list_classes(language: Grammar) -> tuple[str, ...]:
    """The names of the language's classes: a kind, and a number where words of the class show one ("noun.s")."""
    _, first_C = np.unique(language.hmm.class_W, return_index=True)
    return tuple(f"{language.kind_W[word]}.{language.number_W[word]}".removesuffix(".") for word in first_C)


def list_labels(language: Language) -> tuple[str, ...]:
    """The labels of the task, in the order of their numbers."""
    return list_classes(build_grammar(language))


def generate_examples(language: Language, split: str, count: int | None = None) -> Iterator[SyntheticExample]:
    """A passage with hidden words, and their classes; documents of which nothing is hidden are passed over.

    Raises ConfigError for a split that is none.
    """
    first, grammar = get_first_document(TASK_NUMBER, split), build_grammar(language)
    return itertools.islice(
        _generate_examples(grammar, language.seed, first, split), SPLIT_SIZES[split] if count is None else count
    )


def _generate_examples(grammar, seed, first, split):
    label_W = np.array(list_classes(grammar))[grammar.hmm.class_W]
    for begin in itertools.count(first, DOCUMENT_BATCH):
        for number, words_L in enumerate(sample_documents(grammar.hmm, MAX_WORDS, seed, begin, DOCUMENT_BATCH), begin):
            hidden_L = (make_stream(seed, number).random(MAX_WORDS) < HIDE_PROB) & (words_L >= 0)
            if hidden_L.any():
                text = format_passage(grammar, words_L, hidden_L)
                label = tuple(
                    str(label_W[word]) if hidden else ""
                    for word, hidden in zip(words_L, hidden_L, strict=True)
                    if word >= 0
                )
                yield SyntheticExample(f"tag/{split}/{number - first}", (text,), tuple(text.split()), label)


def compute_posterior(language: Language, given: Sequence[SyntheticExample]) -> np.ndarray:
    """P(class | passage) of each hidden word, KxC, example by example; exact, computed in float32 (`posterior`).

    Whether a word is hidden does not depend on the word, so what is hidden tells nothing.
    """
    grammar = build_grammar(language)
    words_NxL, hidden_NxL = encode_passages(grammar, [text for (text,) in (one.texts for one in given)], MAX_WORDS)
    return hidden.compute_posterior(grammar.hmm, words_NxL, hidden_NxL).class_KxC.astype(np.float64)


def score_optimum(language: Language, given: Sequence[SyntheticExample]) -> OptimalScore:
    """The likeliest class of each hidden word."""
    labels, share_KxC = list_labels(language), compute_posterior(language, given)
    true_K = np.array([labels.index(label) for one in given for label in one.label if label])
    weight_N = np.array([sum(map(bool, one.label)) for one in given])
    example_K = np.repeat(np.arange(len(given)), weight_N)
    right_N, expected_N = (
        np.bincount(example_K, value_K, len(given)) for value_K in (share_KxC.argmax(1) == true_K, share_KxC.max(1))
    )
    return OptimalScore(right_N, weight_N.astype(float), expected_N)


TAG = SyntheticTask("tagging", list_labels, generate_examples, compute_posterior, score_optimum)
