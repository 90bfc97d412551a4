"""The floor: the least loss that a language model can reach on examples of a language that is an `HMM`.

It depends on which words the model sees. A model's excess loss is its loss minus the floor on the same examples and
masks. Compute its error from the differences by example (`estimates.compute_ratio`): the two losses rise and fall
together. Examples are arrays as `posterior` takes them.

A loss has parts, by the chain rule: the kind of a word, its number, and which word of these it is.

-log P(word) = -log P(kind) - log P(number | kind) - log P(word | kind, number)

A kind is that of a state (`grammar.State`), and with a number it is a class of the language, or several of scenes and
declensions: a noun in the plural, a determiner that shows no number. A form of two kinds is of a third, with the number
of the noun; endings are a kind whose numbers are the endings. Where a kind has one number only, the second part is 0.
The end of a document is a kind of its own, as is each special token of a vocabulary.

Letters in array names: N examples, L places, P places and one more, K masked words of all examples, C classes, W words,
V vocabulary.
"""

import numpy as np

from mlm.base.special import NUM_SPECIAL
from mlm.data.language import causal_posterior
from mlm.data.language.grammar import Grammar
from mlm.data.language.hmm import HMM, Floor
from mlm.data.language.posterior import Posterior, compute_posterior, predict_words

PARTS = ("kind", "number", "word")


def compute_floor(hmm: HMM, words_NxL: np.ndarray, known: Posterior) -> Floor:
    """The floor of all models that see what a posterior is given. Raises ValueError where a true word is impossible."""
    log_prob_K, best_K = predict_words(hmm, known, words_NxL)
    row_K = known.example_K
    if not np.isfinite(log_prob_K).all():
        raise ValueError(f"row {row_K[~np.isfinite(log_prob_K)][0]}: its words have probability 0 in this language")
    values_2xK = -log_prob_K, best_K == words_NxL[row_K, known.position_K]
    nats_N, right_N = (np.bincount(row_K, np.asarray(value_K, np.float64), len(words_NxL)) for value_K in values_2xK)
    return Floor(nats_N, right_N, np.bincount(row_K, minlength=len(words_NxL)))


def compute_masked_floor(hmm: HMM, words_NxL: np.ndarray, masked_NxL: np.ndarray) -> Floor:
    """The floor of all models where the masked words are hidden by [MASK] alone: the posterior's loss.

    Exact however many are masked, and however places are chosen, as long as the choice does not look at the words.
    """
    return compute_floor(hmm, words_NxL, compute_posterior(hmm, words_NxL, masked_NxL))


def compute_causal_floor(hmm: HMM, words_NxL: np.ndarray, length: int, window: int | None = None) -> Floor:
    """The floor of causal models, which predict each word, and then that the document ends, from what is to the left.

    length: the most words that a document may hold, which a model can learn; how many this one holds it does not know.
    window: they see so many words alone. count_N is a row's words and 1; nats_N is minus the log-probability of the
    document where there is no window.
    """
    known = causal_posterior.compute_causal_posterior(hmm, words_NxL, length, window)
    return compute_floor(causal_posterior.add_end_state(hmm), causal_posterior.append_end(hmm, words_NxL), known)


def compute_backward_floor(hmm: HMM, words_NxL: np.ndarray, length: int, window: int | None = None) -> Floor:
    """The floor of models that predict each word, and then that the document begins, from what is to the right.

    By the chain rule nats_N is that of `compute_causal_floor`: it is the same document's log-probability.
    """
    known = causal_posterior.compute_backward_posterior(hmm, words_NxL, length, window)
    return compute_floor(causal_posterior.add_end_state(hmm), causal_posterior.reverse_words(hmm, words_NxL), known)


def add_floors(one: Floor, other: Floor) -> Floor:
    """The floor of models that predict what both floors are of: their sums over each row, added up."""
    return Floor(*(a_N + b_N for a_N, b_N in zip(one, other, strict=True)))


def compute_vocab_groups(language: Grammar, pieces: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """kind_V and class_V: int32, equal for two entries of a vocabulary that share their kind, or kind and number."""
    number = language.number_words()
    word_V = np.array([number.get(piece, -1) for piece in pieces])
    special_V = -1 - np.arange(len(pieces))
    _, kind_W = np.unique(language.kind_W, return_inverse=True)
    drawn_V = np.arange(len(pieces)) >= NUM_SPECIAL
    group_W = _group_classes(language.hmm, language.kind_W, language.number_W)[language.hmm.class_W]
    kind_V, class_V = (np.where(drawn_V, of_W[word_V], special_V).astype(np.int32) for of_W in (kind_W, group_W))
    return kind_V, class_V


def decompose_causal_floor(language: Grammar, words_NxL: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The parts of `compute_causal_floor`."""
    known = causal_posterior.compute_causal_posterior(language.hmm, words_NxL, length)
    return decompose_floor(_add_end_kind(language), causal_posterior.append_end(language.hmm, words_NxL), known)


def decompose_two_stack_floor(language: Grammar, words_NxL: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The parts of what is read from the left and from the right; the beginning is a kind as the end is."""
    known = causal_posterior.compute_backward_posterior(language.hmm, words_NxL, length)
    right = decompose_floor(_add_end_kind(language), causal_posterior.reverse_words(language.hmm, words_NxL), known)
    return {part: nats_N + right[part] for part, nats_N in decompose_causal_floor(language, words_NxL, length).items()}


def _add_end_kind(language: Grammar) -> Grammar:
    names = {"kind_W": np.append(language.kind_W, "end"), "number_W": np.append(language.number_W, "")}
    return language._replace(hmm=causal_posterior.add_end_state(language.hmm), **names)


def _group_classes(hmm: HMM, *names_W: np.ndarray) -> np.ndarray:
    """group_C: the first class whose words have the same names."""
    _, first_C = np.unique(hmm.class_W, return_index=True)  # a word of each class
    return np.all([name_W[first_C][:, None] == name_W[first_C] for name_W in names_W], 0).argmax(1)


def decompose_floor(language: Grammar, words_NxL: np.ndarray, known: Posterior) -> dict[str, np.ndarray]:
    """The parts of `compute_floor`: nats_N of each, which add up to its nats_N."""
    hmm = language.hmm
    class_K = hmm.class_W[words_NxL[known.example_K, known.position_K]]
    share_KxC = known.class_KxC.astype(np.float64)
    log_word_K, _ = predict_words(hmm, known, words_NxL)
    groups = _group_classes(hmm, language.kind_W), _group_classes(hmm, language.kind_W, language.number_W)
    log_kind_K, log_class_K = (np.log((share_KxC * (one_C == one_C[class_K, None])).sum(1)) for one_C in groups)
    nats_PxK = -log_kind_K, log_kind_K - log_class_K, log_class_K - log_word_K
    nats_PxN = (np.bincount(known.example_K, nats_K, len(words_NxL)) for nats_K in nats_PxK)
    return dict(zip(PARTS, nats_PxN, strict=True))
