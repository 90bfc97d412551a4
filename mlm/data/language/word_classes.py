"""What a loss is made of, exactly, by the chain rule: the kind of a word, its number, and which word of these it is.

-log P(word) = -log P(kind) - log P(number | kind) - log P(word | kind, number)

A kind is that of a state (`grammar.State`), and a kind with a number is a class of the language: a noun in the plural,
a determiner that shows no number. Where a kind has one number only, the second part is 0. The end of a document is a
kind of its own, as is each special token of a vocabulary.

Letters in array names: N rows, L places, K asked words of all rows, C classes, W words, V vocabulary, P parts.
"""
import numpy as np

from mlm.base.special import NUM_SPECIAL
from mlm.data.language.backward_posterior import right_posterior, turned
from mlm.data.language.causal_posterior import ended, left_posterior, with_end
from mlm.data.language.filled_posterior import filled_posterior
from mlm.data.language.grammar import Grammar
from mlm.data.language.hmm import HMM
from mlm.data.language.posterior import Posterior, guess, posterior

PARTS = ("kind", "number", "word")


def groups(language: Grammar, pieces: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """kind_V and class_V: int32, equal for two entries of a vocabulary that share their kind, or kind and number."""
    number = {word: i for i, word in enumerate(language.words)}
    word_V = np.array([number.get(piece, -1) for piece in pieces])
    special_V = -1 - np.arange(len(pieces))
    _, kind_W = np.unique(language.kind_W, return_inverse=True)
    drawn_V = np.arange(len(pieces)) >= NUM_SPECIAL
    return tuple(np.where(drawn_V, of_W[word_V], special_V).astype(np.int32) for of_W in (kind_W, language.hmm.class_W))


def bayes_parts(language: Grammar, words_NxL: np.ndarray, masked_NxL: np.ndarray) -> dict[str, np.ndarray]:
    """The parts of `floor.bayes_loss`: nats_N of each, which add up to its nats_N."""
    return _split(language.hmm, language.kind_W, posterior(language.hmm, words_NxL, masked_NxL), words_NxL)


def filled_parts(language: Grammar, words_NxL: np.ndarray, hidden_NxL: np.ndarray) -> dict[str, np.ndarray]:
    """The parts of `floor.filled_loss`: nats_N of each, which add up to its nats_N."""
    return _split(language.hmm, language.kind_W, filled_posterior(language.hmm, words_NxL, hidden_NxL), words_NxL)


def left_parts(language: Grammar, words_NxL: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The parts of `floor.left_loss`: nats_N of each, which add up to its nats_N."""
    known = left_posterior(language.hmm, words_NxL, length)
    return _split(ended(language.hmm), np.append(language.kind_W, "end"), known, with_end(language.hmm, words_NxL))


def side_parts(language: Grammar, words_NxL: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The parts of what is read from the left and from the right, each apart; the beginning is a kind as the end is."""
    known = right_posterior(language.hmm, words_NxL, length)
    right = _split(ended(language.hmm), np.append(language.kind_W, "end"), known, turned(language.hmm, words_NxL))
    return {part: nats_N + right[part] for part, nats_N in left_parts(language, words_NxL, length).items()}


def _split(hmm: HMM, kind_W: np.ndarray, known: Posterior, words_NxL: np.ndarray) -> dict[str, np.ndarray]:
    class_K = hmm.class_W[words_NxL[known.row_K, known.column_K]]
    _, first_C = np.unique(hmm.class_W, return_index=True)  # a word of each class
    same_CxC = kind_W[first_C][:, None] == kind_W[first_C]
    share_KxC = known.class_KxC.astype(np.float64)
    log_word_K, _ = guess(hmm, known, words_NxL)
    log_class_K = np.log(share_KxC[np.arange(len(class_K)), class_K])
    log_kind_K = np.log((share_KxC * same_CxC[class_K]).sum(1))
    nats_PxK = -log_kind_K, log_kind_K - log_class_K, log_class_K - log_word_K
    return {part: np.bincount(known.row_K, nats_K, len(words_NxL))
            for part, nats_K in zip(PARTS, nats_PxK, strict=True)}
