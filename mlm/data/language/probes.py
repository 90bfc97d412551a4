"""Probes of what a masked language model has learnt of the built-in language: agreeing verbs and recurring names.

Each item is one word of one row, to be masked alone, with how far away lies what tells it. A model's accuracy on the
items is read beside the optimum's on the same ones.

Letters in array names: N rows, L places, I items.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm.base.estimates import compute_ratio
from mlm.data.language.grammar import Grammar
from mlm.data.language.lexicon import NOUNS, VERBS

DISTANCE_BINS = ((0, 0), (1, 3), (4, 8), (9, 16), (17, None))  # words between subject and verb, from and to
ATTRACTOR_BINS = ((0, 0), (1, 1), (2, 2), (3, None))  # nouns of the other number between them
SENTENCE_BINS = ((0, 0), (1, 1), (2, 3), (4, None))  # sentence ends between two mentions of a name


class AgreementItems(NamedTuple):
    """Verbs that agree with a noun or name. Judged by which form of the verb is likelier: right_I or wrong_I."""

    example_I: np.ndarray
    position_I: np.ndarray
    distance_I: np.ndarray  # words between the subject and the verb
    attractors_I: np.ndarray  # nouns and names between them that are of the other number
    target_I: np.ndarray  # word in the subject's number
    foil_I: np.ndarray  # the same lemma in the other number


class RecallItems(NamedTuple):
    """Names that stand elsewhere in their row too. Judged by whether the likeliest of all words is the name."""

    example_I: np.ndarray
    position_I: np.ndarray
    distance_I: np.ndarray  # sentence ends between the name and its nearest other mention, before or after
    target_I: np.ndarray  # the name


def parse_states(grammar: Grammar, words_NxL: np.ndarray) -> np.ndarray:
    """states_NxL of rows written in full, as indices into grammar.states; -1 where there is no word.

    Raises ValueError for a row without exactly one reading; what the language writes has one if its order is 1.
    """
    hmm = grammar.hmm
    can_SxW, onward_SxS = hmm.class_SxC[:, hmm.class_W] > 0, hmm.trans_SxS > 0
    reached_LxNxS = []
    state_NxS = np.broadcast_to(np.arange(len(onward_SxS)) == hmm.end, (len(words_NxL), len(onward_SxS)))
    for word_N in words_NxL.T:
        next_NxS = (state_NxS @ onward_SxS) & can_SxW.T[word_N]
        state_NxS = np.where(word_N[:, None] >= 0, next_NxS, state_NxS)
        reached_LxNxS.append(state_NxS)
    states_NxL = np.full(words_NxL.shape, -1)
    allowed_NxS = np.arange(len(onward_SxS)) == hmm.end
    for column in reversed(range(words_NxL.shape[1])):
        here_NxS, valid_N = reached_LxNxS[column] & allowed_NxS, words_NxL[:, column] >= 0
        readings_N = here_NxS.sum(1)
        if (readings_N[valid_N] != 1).any():
            row = np.nonzero(valid_N & (readings_N != 1))[0][0]
            raise ValueError(
                f"row {row}, place {column}: {readings_N[row]} readings, expected 1: a row that the "
                "language wrote with language.word_order_prob = 1"
            )
        states_NxL[valid_N, column] = here_NxS.argmax(1)[valid_N]
        allowed_NxS = np.where(valid_N[:, None], onward_SxS.T[here_NxS.argmax(1)], allowed_NxS)
    return states_NxL


class SubjectRelation(NamedTuple):
    """Two sets of states: a verb's subject is the last word of subject_S before it in the same sentence."""

    subject_S: np.ndarray
    verb_S: np.ndarray


def build_relations(language: Grammar) -> tuple[SubjectRelation, ...]:
    """The relations of the sentence's subject with its verbs, and of the subject inside a relative clause."""

    def where(kinds, parts):
        return np.array([state.kind in kinds and state.part in parts for state in language.states])

    return (
        SubjectRelation(where(NOUNS, ("subject",)), where(VERBS, ("main", "relative"))),
        SubjectRelation(where(NOUNS, ("inner",)), where(VERBS, ("inner",))),
    )


def find_subjects(language: Grammar, states_NxL: np.ndarray) -> np.ndarray:
    """place_NxL of each verb's subject, -1 where there is no verb; states_NxL: as `parse_states` returns them."""
    place_NxL, places_L = np.full(states_NxL.shape, -1), np.arange(states_NxL.shape[1])
    for subject_S, verb_S in build_relations(language):
        subject_NxL, verb_NxL = (np.append(is_S, False)[states_NxL] for is_S in (subject_S, verb_S))
        last_NxL = np.maximum.accumulate(np.where(subject_NxL, places_L, -1), 1)
        place_NxL = np.where(verb_NxL, last_NxL, place_NxL)
    return place_NxL


def find_agreement_items(grammar: Grammar, words_NxL: np.ndarray) -> AgreementItems:
    """Every verb of the rows, in the order of np.nonzero. Raises ValueError where `parse_states` does."""
    states_NxL = parse_states(grammar, words_NxL)

    def holds(of_state):  # of the states at every place; -1 picks the last entry, False
        return np.array([of_state(state) for state in grammar.states] + [False])[states_NxL]

    noun_NxL, plural_NxL = holds(lambda s: s.kind in NOUNS), holds(lambda s: s.numbers[-1:] == "p")
    subject_NxL = find_subjects(grammar, states_NxL)
    row_I, column_I = np.nonzero(subject_NxL >= 0)
    subject_I = subject_NxL[row_I, column_I]
    plural_I, word_I = plural_NxL[row_I, column_I], words_NxL[row_I, column_I]
    among_NxLx2 = np.stack([noun_NxL & plural_NxL, noun_NxL & ~plural_NxL], -1).cumsum(1)
    between_Ix2 = among_NxLx2[row_I, column_I] - among_NxLx2[row_I, subject_I]
    agrees_I = (grammar.number_W[word_I] == "p") == plural_I
    partner_I = grammar.partner_W[word_I]
    forms_2xI = np.where(agrees_I, (word_I, partner_I), (partner_I, word_I))
    attractors_I = np.where(plural_I, between_Ix2[:, 1], between_Ix2[:, 0])
    return AgreementItems(row_I, column_I, column_I - subject_I - 1, attractors_I, *forms_2xI)


def find_recall_items(grammar: Grammar, words_NxL: np.ndarray) -> RecallItems:
    """Every name that its row holds more than once, in the order of np.nonzero."""
    name_W = grammar.kind_W == "name"
    stop = grammar.words.index(".")
    items = []
    for row, words_L in enumerate(words_NxL):
        sentence_L = (words_L == stop).cumsum()
        column_J = np.nonzero((words_L >= 0) & name_W[words_L])[0]
        apart_JxJ = np.abs(sentence_L[column_J, None] - sentence_L[column_J]).astype(float)
        apart_JxJ[(words_L[column_J, None] != words_L[column_J]) | np.eye(len(column_J), dtype=bool)] = np.inf
        nearest = zip(column_J, apart_JxJ.min(1, initial=np.inf), strict=True)
        items += [(row, column, int(apart), words_L[column]) for column, apart in nearest if apart < np.inf]
    return RecallItems(*np.array(items, int).reshape(-1, 4).T)


def is_correct(items: AgreementItems | RecallItems, log_prob_IxW: np.ndarray) -> np.ndarray:
    """Which items a model gets right, given its log-probability of every word of the language at each."""
    at_I = np.arange(len(items.example_I))
    if isinstance(items, AgreementItems):
        return log_prob_IxW[at_I, items.target_I] > log_prob_IxW[at_I, items.foil_I]
    return log_prob_IxW.argmax(1) == items.target_I


def score_optimum(grammar: Grammar, words_NxL: np.ndarray, items: AgreementItems | RecallItems) -> np.ndarray:
    """Which items, in the order of np.nonzero, the exact posterior gets right, given all other words of the row."""
    from mlm.data.language import posterior  # imports jax, which takes a second

    asked_NxL = np.zeros(words_NxL.shape, bool)
    asked_NxL[items.example_I, items.position_I] = True
    known = posterior.compute_posterior(grammar.hmm, words_NxL, np.zeros_like(asked_NxL), asked_NxL)
    return is_correct(items, posterior.compute_log_probs(grammar.hmm, known))


def sample_items(
    items: AgreementItems | RecallItems, bins: Sequence[tuple], most: int, seed: int
) -> tuple[AgreementItems | RecallItems, np.ndarray]:
    """At most `most` items of each bin of distances, in their order, and weight_I: how many items each stands for."""
    stream = np.random.default_rng(seed)
    chosen, weights = [np.zeros(0, int)], [np.zeros(0)]
    for bin_ in bins:
        (there_J,) = np.nonzero(is_within(items.distance_I, *bin_))
        chosen.append(np.sort(stream.permutation(there_J)[:most]))
        weights.append(np.full(len(chosen[-1]), len(there_J) / max(len(chosen[-1]), 1)))
    order_I = np.concatenate(chosen).argsort()
    return type(items)(*(x_I[np.concatenate(chosen)[order_I]] for x_I in items)), np.concatenate(weights)[order_I]


def compute_accuracy(
    items: AgreementItems | RecallItems, correct_I: np.ndarray, weight_I: np.ndarray
) -> tuple[float, float]:
    """Share of the items that are correct, and its standard error over rows.

    weight_I: how much each counts, such as a sample's weights, or 0 and 1 as from `within(items.distance_I, 4, 8)`.
    """
    correct_N, weight_N = (np.bincount(items.example_I, x_I) for x_I in (correct_I * weight_I, weight_I))
    return compute_ratio(correct_N[weight_N > 0], weight_N[weight_N > 0])


def is_within(value_I: np.ndarray, low: int, high: int | None) -> np.ndarray:
    """low <= value <= high, where None is no bound."""
    return (value_I >= low) & (high is None or value_I <= high)
