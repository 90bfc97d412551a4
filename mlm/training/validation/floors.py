"""The floor of each loss on the built-in language, by what a model sees of the example when it predicts a word.

Letters in array names: N examples, L positions, P counts of words.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
import functools
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


def _compute_masked(inputs: FloorInputs, infer: Callable[..., Any] = posterior.compute_posterior, **window: int):
    known = infer(inputs.language.hmm, inputs.words_NxL, inputs.mask_NxL, **window)
    return floor.compute_floor(inputs.language.hmm, inputs.words_NxL, known)


def _decompose_masked(inputs: FloorInputs, infer: Callable[..., Any] = posterior.compute_posterior):
    known = infer(inputs.language.hmm, inputs.words_NxL, inputs.mask_NxL)
    return floor.decompose_floor(inputs.language, inputs.words_NxL, known)


def _compute_causal(inputs: FloorInputs, **window: int):
    return floor.compute_causal_floor(inputs.language.hmm, inputs.words_NxL, inputs.max_words, **window)


def _compute_two_stack(inputs: FloorInputs, **window: int):
    backward = floor.compute_backward_floor(inputs.language.hmm, inputs.words_NxL, inputs.max_words, **window)
    return floor.add_floors(_compute_causal(inputs, **window), backward)


def _compute_bound(inputs: FloorInputs, **settings: Any):
    return diffusion_bound.reweight_floor(_compute_masked(inputs, **settings), inputs.words_NxL)


def _decompose_bound(inputs: FloorInputs):
    weight_N = diffusion_bound.compute_loss_weights(inputs.words_NxL, inputs.mask_NxL.sum(1))
    return {part: nats_N * weight_N for part, nats_N in _decompose_masked(inputs).items()}


def _compute_document_nats(inputs: FloorInputs):
    return {"document": _compute_causal(inputs).nats_N}


def _compute_document_and_bound(inputs: FloorInputs):
    log_P = diffusion_bound.compute_length_log_probs(inputs.language.hmm, inputs.max_words)
    document_N = _compute_causal(inputs).nats_N
    return {"document": document_N, "bound": document_N + log_P[(inputs.words_NxL >= 0).sum(1)]}


def _of_window(function: Callable[..., Any], **settings: Any) -> dict[str, Callable[..., Any]]:
    return {"window_floor": functools.partial(function, window=WINDOW_NEIGHBORS, **settings)}


FLOORS = {
    types.Visibility.UNMASKED: FloorSpec(
        _compute_masked, _of_window(_compute_masked, infer=posterior.compute_window_posterior), _decompose_masked
    ),
    types.Visibility.CAUSAL: FloorSpec(
        _compute_causal,
        _of_window(_compute_causal),
        lambda inputs: floor.decompose_causal_floor(inputs.language, inputs.words_NxL, inputs.max_words),
        _compute_document_nats,
    ),
    types.Visibility.TWO_STACK: FloorSpec(
        _compute_two_stack,
        _of_window(_compute_two_stack),
        lambda inputs: floor.decompose_two_stack_floor(inputs.language, inputs.words_NxL, inputs.max_words),
        _compute_document_nats,
        document_passes=2,
    ),
    types.Visibility.UNMASKED_OR_LEFT: FloorSpec(
        functools.partial(_compute_masked, infer=posterior.compute_infilling_posterior),
        {},
        functools.partial(_decompose_masked, infer=posterior.compute_infilling_posterior),
    ),
    types.Visibility.BOUND: FloorSpec(
        _compute_bound,
        _of_window(_compute_bound, infer=posterior.compute_window_posterior),
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
    if (window := get_bag_window(cfg.model)) == 0:
        return found
    masked = FLOORS[types.Visibility.UNMASKED]
    bag = {"bag_floor": functools.partial(_compute_masked, infer=posterior.compute_bag_posterior, window=window)}
    return {
        loss: spec._replace(weaker_floors={**spec.weaker_floors, **bag}) if spec is masked else spec
        for loss, spec in found.items()
    }


def get_bag_window(model: config.Model) -> int:
    """The window of a model that sees its neighbours without their order, if the floor for it is exact; else 0."""
    return model.window if model.cell == "bag" and model.window <= posterior.BAG_SIZE else 0
