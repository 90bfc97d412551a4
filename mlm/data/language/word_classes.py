"""What a loss is made of, exactly, by the chain rule: the kind of a word, its number, and which word of these it is.

-log P(word) = -log P(kind) - log P(number | kind) - log P(word | kind, number)

A kind is that of a state (`grammar.State`), and a kind with a number is a class of the language: a noun in the plural,
a determiner that shows no number. Where a kind has one number only, the second part is 0. The end of a document is a
kind of its own, as is each special token of a vocabulary.

Letters in array names: N rows, L places, K queried words of all rows, C classes, W words, V vocabulary, P parts.
"""

import numpy as np

from mlm.base.special import NUM_SPECIAL
from mlm.data.language.causal_posterior import (
    add_end_state,
    append_end,
    compute_backward_posterior,
    compute_causal_posterior,
    reverse_words,
)
from mlm.data.language.grammar import Grammar
from mlm.data.language.hmm import HMM
from mlm.data.language.posterior import Posterior, compute_infilling_posterior, compute_posterior, predict_words

PARTS = ("kind", "number", "word")


def compute_vocab_groups(language: Grammar, pieces: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """kind_V and class_V: int32, equal for two entries of a vocabulary that share their kind, or kind and number."""
    word_V = np.array([language.word_index.get(piece, -1) for piece in pieces])
    special_V = -1 - np.arange(len(pieces))
    _, kind_W = np.unique(language.kind_W, return_inverse=True)
    drawn_V = np.arange(len(pieces)) >= NUM_SPECIAL
    kind_V, class_V = (
        np.where(drawn_V, of_W[word_V], special_V).astype(np.int32) for of_W in (kind_W, language.hmm.class_W)
    )
    return kind_V, class_V


def decompose_masked_floor(language: Grammar, words_NxL: np.ndarray, masked_NxL: np.ndarray) -> dict[str, np.ndarray]:
    """The parts of `floor.compute_masked_floor`: nats_N of each, which add up to its nats_N."""
    return _decompose(language.hmm, language.kind_W, compute_posterior(language.hmm, words_NxL, masked_NxL), words_NxL)


def decompose_infilling_floor(
    language: Grammar, words_NxL: np.ndarray, hidden_NxL: np.ndarray
) -> dict[str, np.ndarray]:
    """The parts of `floor.compute_infilling_floor`."""
    known = compute_infilling_posterior(language.hmm, words_NxL, hidden_NxL)
    return _decompose(language.hmm, language.kind_W, known, words_NxL)


def _decompose_with_end(language, known, tokens_NxP):
    return _decompose(add_end_state(language.hmm), np.append(language.kind_W, "end"), known, tokens_NxP)


def decompose_causal_floor(language: Grammar, words_NxL: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The parts of `floor.compute_causal_floor`."""
    known = compute_causal_posterior(language.hmm, words_NxL, length)
    return _decompose_with_end(language, known, append_end(language.hmm, words_NxL))


def decompose_two_stack_floor(language: Grammar, words_NxL: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The parts of what is read from the left and from the right; the beginning is a kind as the end is."""
    known = compute_backward_posterior(language.hmm, words_NxL, length)
    right = _decompose_with_end(language, known, reverse_words(language.hmm, words_NxL))
    return {part: nats_N + right[part] for part, nats_N in decompose_causal_floor(language, words_NxL, length).items()}


def _decompose(hmm: HMM, kind_W: np.ndarray, known: Posterior, words_NxL: np.ndarray) -> dict[str, np.ndarray]:
    class_K = hmm.class_W[words_NxL[known.example_K, known.position_K]]
    _, first_C = np.unique(hmm.class_W, return_index=True)  # a word of each class
    same_CxC = kind_W[first_C][:, None] == kind_W[first_C]
    share_KxC = known.class_KxC.astype(np.float64)
    log_word_K, _ = predict_words(hmm, known, words_NxL)
    log_class_K = np.log(share_KxC[np.arange(len(class_K)), class_K])
    log_kind_K = np.log((share_KxC * same_CxC[class_K]).sum(1))
    nats_PxK = -log_kind_K, log_kind_K - log_class_K, log_class_K - log_word_K
    nats_PxN = (np.bincount(known.example_K, nats_K, len(words_NxL)) for nats_K in nats_PxK)
    return dict(zip(PARTS, nats_PxN, strict=True))
