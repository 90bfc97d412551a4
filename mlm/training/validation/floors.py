"""The floor of each loss on the built-in language, by what a model sees of the example when it predicts a word.

Letters in array names: N examples, L positions, P counts of words.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
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

    @property
    def masked(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """The arguments of a floor of masked words."""
        return self.language.hmm, self.words_NxL, self.mask_NxL

    @property
    def documents(self) -> tuple[Any, np.ndarray, int]:
        """The arguments of a floor of all words of a document."""
        return self.language.hmm, self.words_NxL, self.max_words


class FloorSpec(NamedTuple):
    """The floors of a loss, as functions of `FloorInputs`."""

    floor: Callable[..., Any]  # the Bayes-optimal loss, a Floor
    weaker_floors: Mapping[str, Callable[..., Any]]  # more Floors by name: those of models that see less
    decompose: Callable[..., Any]  # the parts of the floor's nats, nats_N by name
    # nats_N by name: "document", -log P of each example's whole document, for a loss that predicts all of it; "bound",
    # the share of it that the loss must predict, where that is not all.
    document: Callable[..., Any] | None = None
    document_passes: int = 1  # how often the loss predicts a document


def _compute_masked(inputs: FloorInputs):
    return floor.compute_masked_floor(*inputs.masked)


def _compute_masked_window(inputs: FloorInputs):
    return floor.compute_window_floor(*inputs.masked, WINDOW_NEIGHBORS)


def _compute_causal(inputs: FloorInputs):
    return floor.compute_causal_floor(*inputs.documents)


def _compute_causal_window(inputs: FloorInputs):
    return floor.compute_causal_floor(inputs.language.hmm, inputs.words_NxL, inputs.max_words, WINDOW_NEIGHBORS)


def _compute_two_stack(inputs: FloorInputs):
    return floor.add_floors(_compute_causal(inputs), floor.compute_backward_floor(*inputs.documents))


def _compute_two_stack_window(inputs: FloorInputs):
    backward_floor = floor.compute_backward_floor(
        inputs.language.hmm, inputs.words_NxL, inputs.max_words, WINDOW_NEIGHBORS
    )
    return floor.add_floors(_compute_causal_window(inputs), backward_floor)


def _compute_document_nats(inputs: FloorInputs):
    return {"document": _compute_causal(inputs).nats_N}


def _compute_document_and_bound(inputs: FloorInputs):
    log_P = diffusion_bound.compute_length_log_probs(inputs.language.hmm, inputs.max_words)
    document_N = _compute_causal(inputs).nats_N
    return {"document": document_N, "bound": document_N + log_P[(inputs.words_NxL >= 0).sum(1)]}


def _decompose_masked(inputs: FloorInputs):
    return floor.decompose_masked_floor(inputs.language, inputs.words_NxL, inputs.mask_NxL)


def _decompose_bound(inputs: FloorInputs):
    weight_N = diffusion_bound.compute_loss_weights(inputs.words_NxL, inputs.mask_NxL.sum(1))
    return {part: nats_N * weight_N for part, nats_N in _decompose_masked(inputs).items()}


FLOORS = {
    types.Visibility.UNMASKED: FloorSpec(_compute_masked, {"window_floor": _compute_masked_window}, _decompose_masked),
    types.Visibility.CAUSAL: FloorSpec(
        _compute_causal,
        {"window_floor": _compute_causal_window},
        lambda inputs: floor.decompose_causal_floor(inputs.language, inputs.words_NxL, inputs.max_words),
        _compute_document_nats,
    ),
    types.Visibility.TWO_STACK: FloorSpec(
        _compute_two_stack,
        {"window_floor": _compute_two_stack_window},
        lambda inputs: floor.decompose_two_stack_floor(inputs.language, inputs.words_NxL, inputs.max_words),
        _compute_document_nats,
        document_passes=2,
    ),
    types.Visibility.UNMASKED_OR_LEFT: FloorSpec(
        lambda inputs: floor.compute_infilling_floor(*inputs.masked),
        {},
        lambda inputs: floor.decompose_infilling_floor(inputs.language, inputs.words_NxL, inputs.mask_NxL),
    ),
    types.Visibility.BOUND: FloorSpec(
        lambda inputs: diffusion_bound.reweight_floor(_compute_masked(inputs), inputs.words_NxL),
        {
            "window_floor": lambda inputs: diffusion_bound.reweight_floor(
                _compute_masked_window(inputs), inputs.words_NxL
            )
        },
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

    def compute_bag(inputs: FloorInputs):
        return floor.compute_bag_floor(*inputs.masked, window)

    masked = FLOORS[types.Visibility.UNMASKED]
    return {
        loss: spec._replace(weaker_floors={**spec.weaker_floors, "bag_floor": compute_bag}) if spec is masked else spec
        for loss, spec in found.items()
    }


def get_bag_window(cfg: config.Config) -> int:
    """The window of a model that sees its neighbours without their order, if the floor for it is exact; else 0."""
    return cfg.model.window if cfg.model.cell == "bag" and cfg.model.window <= posterior.BAG_SIZE else 0
