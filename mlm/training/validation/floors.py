"""The floor of each loss on the built-in language, and the Bayes-optimal accuracy on its tasks.

A floor is by what a model sees of the example when it predicts a word. Letters in array names: N examples, L positions,
P counts of words, E examples of a task.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.estimates import Score, make_reference
from mlm.base.recipe_constants import WINDOW_NEIGHBORS
from mlm.data.language import diffusion_bound, floor, posterior, tasks
from mlm.data.language.grammar import Grammar
from mlm.data.language.synthetic_task import SyntheticExample
from mlm.data.rows import loader, pack, store

ACCURACY_SCORES = ("accuracy", "exact")  # scores that count correct predictions, whose optimum is known


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


def compute_optimum_columns(cfg: config.Config, packed: pack.PackedDataset) -> dict[str, np.ndarray]:
    """For each held-out example, how much the Bayes-optimal prediction gets right ("optimum_right") of how much
    ("optimum_weight"). It is the same for every model, and config.data.cache_dir keeps it.
    """
    task = tasks.TASKS[cfg.data.task]

    def make(folder: Path) -> dict[str, Any]:
        examples = pack.read_examples(cfg, packed, "validation")
        rows = [SyntheticExample(*(example[name] for name in SyntheticExample._fields)) for example in examples]
        best = task.score_optimum(cfg.data.language, rows)
        np.savez(folder / "best.npz", **best._asdict(), row_E=np.array([example["row"] for example in examples]))
        return {}

    inputs = {"format": tasks.FORMAT, "rows": packed.manifest["inputs"]}
    folder, _ = store.get_or_make_folder(cfg.data.cache_dir, "optimum", inputs, make)
    count = loader.count_eval_examples(packed.validation, cfg.eval.max_examples)
    with np.load(folder / "best.npz") as best:
        is_used_E = best["row_E"] < count
        right_N, weight_N = np.zeros(count), np.zeros(count)
        right_N[best["row_E"][is_used_E]] = best["right_N"][is_used_E]
        weight_N[best["row_E"][is_used_E]] = best["weight_N"][is_used_E]
    return {"optimum_right": right_N, "optimum_weight": weight_N}


def make_optimum_scores(objective: types.Objective) -> tuple[Score, ...]:
    """The Bayes-optimal accuracy beside the model's, and how far below it the model is, example by example."""
    accuracy = next(score for score in objective.scores if score.name in ACCURACY_SCORES)
    columns, title = ("shortfall", accuracy.columns[-1]), f"Bayes optimum's {accuracy.title.removeprefix('held-out ')}"
    return (
        make_reference(accuracy, "optimum", title, ("optimum_right",), "Bayes optimum"),
        Score("shortfall", f"{accuracy.title} below the optimum", columns, better=-1, chart=True),
    )


def add_optimum_columns(
    columns: dict[str, np.ndarray], optimum_columns: dict[str, np.ndarray], objective: types.Objective
) -> dict[str, np.ndarray]:
    """A model's columns with the optimum's. Raises ValueError if the model predicted other labels."""
    accuracy = next(score for score in objective.scores if score.name in ACCURACY_SCORES)
    right, weight = accuracy.columns
    if not np.array_equal(columns[weight], optimum_columns["optimum_weight"]):
        raise ValueError("the optimum was computed of other labels than the evaluation's")
    return columns | {
        "optimum_right": optimum_columns["optimum_right"],
        "shortfall": optimum_columns["optimum_right"] - columns[right],
    }
