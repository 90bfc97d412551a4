"""The floor of each loss on the built-in language.

A floor is by what a model sees of the example when it predicts a word. Letters in array names: N examples, L positions,
P counts of words.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.base.recipe_constants import WINDOW_NEIGHBORS
from mlm.data.language import diffusion_bound, floor, posterior
from mlm.data.language.grammar import Grammar


class FloorInputs(NamedTuple):
    """The held-out examples, as floors take them."""

    language: Grammar
    words_NxL: np.ndarray
    mask_NxL: np.ndarray  # for an objective that hides words: those that evaluation predicts
    max_words: int  # of a document


class FloorSpec(NamedTuple):
    """The floors of a loss, as functions of `FloorInputs`."""

    floor: Callable[..., Any]  # the Bayes-optimal loss, a Floor
    weaker_floors: Mapping[str, Callable[..., Any]]  # more Floors by name: those of models that see less
    decompose: Callable[..., Any]  # the parts of the floor's nats, nats_N by name
    # nats_N by name: "document", -log P of each example's whole document, for a loss that predicts all of it; "bound",
    # the share of it that the loss must predict, where that is not all.
    document: Callable[..., Any] | None = None
    document_passes: int = 1  # how often the loss predicts a document


def _of_masked(function: Callable[..., Any], *more: Any) -> Callable[[FloorInputs], Any]:
    """The floor by a posterior of masked words, as a function of FloorInputs."""

    def compute(inputs: FloorInputs):
        known = function(inputs.language.hmm, inputs.words_NxL, inputs.mask_NxL, *more)
        return floor.compute_floor(inputs.language.hmm, inputs.words_NxL, known)

    return compute


def _of_documents(function: Callable[..., Any], *more: Any) -> Callable[[FloorInputs], Any]:
    """The function of a floor of all words of a document, as one of FloorInputs."""
    return lambda inputs: function(inputs.language.hmm, inputs.words_NxL, inputs.max_words, *more)


_compute_masked = _of_masked(posterior.compute_posterior)
_compute_masked_window = _of_masked(posterior.compute_window_posterior, WINDOW_NEIGHBORS)
_compute_causal = _of_documents(floor.compute_causal_floor)
_compute_causal_window = _of_documents(floor.compute_causal_floor, WINDOW_NEIGHBORS)
_compute_backward = _of_documents(floor.compute_backward_floor)
_compute_backward_window = _of_documents(floor.compute_backward_floor, WINDOW_NEIGHBORS)


def _compute_document_nats(inputs: FloorInputs):
    return {"document": _compute_causal(inputs).nats_N}


def _compute_document_and_bound(inputs: FloorInputs):
    log_P = diffusion_bound.compute_length_log_probs(inputs.language.hmm, inputs.max_words)
    document_N = _compute_causal(inputs).nats_N
    return {"document": document_N, "bound": document_N + log_P[(inputs.words_NxL >= 0).sum(1)]}


def _decompose_masked(inputs: FloorInputs, function: Callable[..., Any] = posterior.compute_posterior):
    known = function(inputs.language.hmm, inputs.words_NxL, inputs.mask_NxL)
    return floor.decompose_floor(inputs.language, inputs.words_NxL, known)


def _decompose_bound(inputs: FloorInputs):
    weight_N = diffusion_bound.compute_loss_weights(inputs.words_NxL, inputs.mask_NxL.sum(1))
    return {part: nats_N * weight_N for part, nats_N in _decompose_masked(inputs).items()}


def _reweight(function: Callable[[FloorInputs], Any]) -> Callable[[FloorInputs], Any]:
    return lambda inputs: diffusion_bound.reweight_floor(function(inputs), inputs.words_NxL)


FLOORS = {
    types.Visibility.UNMASKED: FloorSpec(_compute_masked, {"window_floor": _compute_masked_window}, _decompose_masked),
    types.Visibility.CAUSAL: FloorSpec(
        _compute_causal,
        {"window_floor": _compute_causal_window},
        lambda inputs: floor.decompose_causal_floor(inputs.language, inputs.words_NxL, inputs.max_words),
        _compute_document_nats,
    ),
    types.Visibility.TWO_STACK: FloorSpec(
        lambda inputs: floor.add_floors(_compute_causal(inputs), _compute_backward(inputs)),
        {
            "window_floor": lambda inputs: floor.add_floors(
                _compute_causal_window(inputs), _compute_backward_window(inputs)
            )
        },
        lambda inputs: floor.decompose_two_stack_floor(inputs.language, inputs.words_NxL, inputs.max_words),
        _compute_document_nats,
        document_passes=2,
    ),
    types.Visibility.UNMASKED_OR_LEFT: FloorSpec(
        _of_masked(posterior.compute_infilling_posterior),
        {},
        lambda inputs: _decompose_masked(inputs, posterior.compute_infilling_posterior),
    ),
    types.Visibility.BOUND: FloorSpec(
        _reweight(_compute_masked),
        {"window_floor": _reweight(_compute_masked_window)},
        _decompose_bound,
        _compute_document_and_bound,
    ),
}


def select_floors(cfg: config.Config, objective: types.Objective) -> dict[Score, FloorSpec]:
    """The losses among an objective's scores whose floor is known, with their floors; of a bag's loss, a bag's too."""
    if cfg.data.corpus != "language":
        return {}
    scores = {score.name: score for score in objective.scores}
    found = {
        scores[name]: FLOORS[visibility]
        for name, visibility in objectives.get_loss_visibilities(cfg).items()
        if visibility in FLOORS and name in scores
    }
    if (window := get_bag_window(cfg)) == 0:
        return found
    masked, bag = FLOORS[types.Visibility.UNMASKED], {"bag_floor": _of_masked(posterior.compute_bag_posterior, window)}
    return {
        loss: spec._replace(weaker_floors={**spec.weaker_floors, **bag}) if spec is masked else spec
        for loss, spec in found.items()
    }


def get_bag_window(cfg: config.Config) -> int:
    """The window of a model that sees its neighbours without their order, if the floor for it is exact; else 0."""
    return cfg.model.window if cfg.model.cell == "bag" and cfg.model.window <= posterior.BAG_SIZE else 0
