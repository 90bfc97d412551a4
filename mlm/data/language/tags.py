"""The class of each hidden word: its kind and number, from the passage around it.

In the default language the optimum is right on 0.80 of the hidden words, the most frequent class on 0.15.

Letters in array names: N examples, L places of a passage, C classes, K hidden words of all examples, D documents.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from mlm.base.config import Language
from mlm.data.language import posterior as hidden
from mlm.data.language.grammar import DOCUMENT_BATCH, build_grammar
from mlm.data.language.hmm import sample_documents
from mlm.data.language.synthetic_task import (
    OptimalScore,
    SyntheticExample,
    SyntheticTask,
    encode_passages,
    format_passage,
    make_stream,
)

MAX_WORDS = 30  # of a passage at most: it fits into a row of 32 tokens
HIDE_PROB = 0.3  # probability that a word is hidden, each on its own


def list_labels(language: Language) -> tuple[str, ...]:
    """The names of the language's classes: a kind, and a number where words of the class show one ("noun.s")."""
    grammar = build_grammar(language)
    _, first_C = np.unique(grammar.hmm.class_W, return_index=True)
    return tuple(f"{grammar.kind_W[word]}.{grammar.number_W[word]}".removesuffix(".") for word in first_C)


def iterate_examples(language: Language, first: int) -> Iterator[SyntheticExample]:
    """A passage with hidden words, and their classes; documents of which nothing is hidden are passed over."""
    grammar, seed = build_grammar(language), language.seed
    label_W = np.array(list_labels(language))[grammar.hmm.class_W]
    for begin in itertools.count(first, DOCUMENT_BATCH):
        for number, words_L in enumerate(sample_documents(grammar.hmm, MAX_WORDS, seed, begin, DOCUMENT_BATCH), begin):
            hidden_L = (make_stream(seed, number).random(MAX_WORDS) < HIDE_PROB) & (words_L >= 0)
            if hidden_L.any():
                text = format_passage(grammar, words_L, hidden_L)
                label_L = np.where(hidden_L, label_W[words_L], "")[words_L >= 0]
                yield SyntheticExample(str(number - first), (text,), tuple(text.split()), tuple(label_L.tolist()))


def compute_posterior(language: Language, given: Sequence[SyntheticExample]) -> np.ndarray:
    """P(class | passage) of each hidden word, KxC, example by example; exact, computed in float32 (`posterior`).

    Whether a word is hidden does not depend on the word, so what is hidden tells nothing.
    """
    grammar = build_grammar(language)
    words_NxL, hidden_NxL = encode_passages(grammar, [one.texts[0] for one in given], MAX_WORDS)
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


TAG = SyntheticTask("tag", 2, "tagging", list_labels, iterate_examples, compute_posterior, score_optimum)
