"""What is known of a loss on the built-in language, by what it lets a model see of an asked word's row.

Letters in array names: N rows, L places, P counts of words.
"""
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.data.language import bound, floor, word_classes
from mlm.data.language.grammar import Grammar

WINDOW = 5  # neighbours on each side that is seen: what models/sizes.py gives the window models


class Rows(NamedTuple):
    """The held-out rows, as floors take them."""

    language: Grammar
    words_NxL: np.ndarray
    asked_NxL: np.ndarray   # of an objective that hides words, those that evaluation asks for
    most: int               # words that a document may hold


class Kind(NamedTuple):
    """What is known of a loss, as functions of `Rows`."""

    floor: Callable                 # the least that it can be, a Floor
    others: Mapping[str, Callable]  # further Floors by name: those of models that see less
    parts: Callable                 # what the floor's nats are made of, nats_N by name
    document: Callable | None = None    # nats_N by name: "document", -log P of each row's whole document where the loss
                                    # tells it, and "bound", what of it the loss has to tell where that is not all
    times: int = 1                  # how often the loss tells a document


def _masked(rows):
    return floor.bayes_loss(rows.language.hmm, rows.words_NxL, rows.asked_NxL)


def _masked_near(rows):
    return floor.window_loss(rows.language.hmm, rows.words_NxL, rows.asked_NxL, WINDOW)


def _left(rows):
    return floor.left_loss(rows.language.hmm, rows.words_NxL, rows.most)


def _left_near(rows):
    return floor.left_window_loss(rows.language.hmm, rows.words_NxL, rows.most, WINDOW)


def _sides(rows):
    return floor.both(_left(rows), floor.right_loss(rows.language.hmm, rows.words_NxL, rows.most))


def _sides_near(rows):
    right = floor.right_window_loss(rows.language.hmm, rows.words_NxL, rows.most, WINDOW)
    return floor.both(_left_near(rows), right)


def _filled(rows):
    return floor.filled_loss(rows.language.hmm, rows.words_NxL, rows.asked_NxL)


def _bound(rows):
    return bound.weighted(_masked(rows), rows.words_NxL)


def _bound_near(rows):
    return bound.weighted(_masked_near(rows), rows.words_NxL)


def _document(rows):
    return {"document": _left(rows).nats_N}


def _of_length(rows):
    log_P, whole_N = bound.log_length(rows.language.hmm, rows.most), _left(rows).nats_N
    return {"document": whole_N, "bound": whole_N + log_P[(rows.words_NxL >= 0).sum(1)]}


def _masked_parts(rows):
    return word_classes.bayes_parts(rows.language, rows.words_NxL, rows.asked_NxL)


def _bound_parts(rows):
    times_N = bound.times(rows.words_NxL, rows.asked_NxL.sum(1))
    return {part: nats_N * times_N for part, nats_N in _masked_parts(rows).items()}


FLOORS = {
    "rest": Kind(_masked, {"window_floor": _masked_near}, _masked_parts),
    "left": Kind(_left, {"window_floor": _left_near},
                 lambda rows: word_classes.left_parts(rows.language, rows.words_NxL, rows.most), _document),
    "sides": Kind(_sides, {"window_floor": _sides_near},
                  lambda rows: word_classes.side_parts(rows.language, rows.words_NxL, rows.most), _document, times=2),
    "filled": Kind(_filled, {}, lambda rows: word_classes.filled_parts(rows.language, rows.words_NxL, rows.asked_NxL)),
    "bound": Kind(_bound, {"window_floor": _bound_near}, _bound_parts, _of_length),
}


def known(cfg: config.Config, objective: types.Objective) -> dict[Score, Kind]:
    """The losses among an objective's scores of which a floor is known, with what is known of them."""
    if cfg.data.corpus != "language":
        return {}
    seen, scores = objectives.losses(cfg), {score.name: score for score in objective.scores}
    return {scores[name]: FLOORS[of] for name, of in seen.items() if of in FLOORS and name in scores}
