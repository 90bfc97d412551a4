"""Evaluations by name. To add one: write a module with an `evaluate` and add an entry to EVALUATIONS."""

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlm.base import config
from mlm.base.estimates import EvaluationScore
from mlm.evaluation import (
    age_of_acquisition,
    anisotropy,
    context_range,
    evaluations,
    few_shot,
    finetuned_tasks,
    flags,
    grammar_probes,
    loss_decomposition,
    mask_rates,
    minimal_pairs,
    nonce_words,
    predictions,
    prompts,
    retrieval,
    sentence_scores,
    sentence_similarity,
    text_baseline,
    translation_scores,
)
from mlm.evaluation.evaluations import EvaluationCase, make_evaluation
from mlm.training.run.trained_run import TrainedRun

# The order is that of the cases of a run, of a table's columns and of the flags of mlm evaluate.
EVALUATIONS = {
    "mask_rates": make_evaluation(mask_rates),
    "grammar_probes": make_evaluation(grammar_probes),
    "loss_decomposition": make_evaluation(loss_decomposition),
    "predictions": make_evaluation(predictions),
    "pseudo_likelihood": make_evaluation(sentence_scores),
    "minimal_pairs": make_evaluation(minimal_pairs),
    "nonce_words": make_evaluation(nonce_words),
    "age_of_acquisition": make_evaluation(age_of_acquisition),
    "text_baseline": make_evaluation(text_baseline),
    "finetuned_tasks": make_evaluation(finetuned_tasks),
    "anisotropy": make_evaluation(anisotropy),
    "context_range": make_evaluation(context_range),
    "sts": make_evaluation(sentence_similarity),
    "retrieval": make_evaluation(retrieval),
    "zero_shot": make_evaluation(prompts),
    "few_shot": make_evaluation(few_shot),
    "translation": make_evaluation(translation_scores),
}
DEFAULT = "pseudo_likelihood"  # what mlm evaluate does without flags


list_due_cases = functools.partial(evaluations.list_due_cases, EVALUATIONS)
finish_evaluations = functools.partial(evaluations.finish_evaluations, EVALUATIONS)
evaluate = functools.partial(evaluations.evaluate, EVALUATIONS)
list_pending = functools.partial(evaluations.list_pending, EVALUATIONS)


def read_flags(args: argparse.Namespace) -> Callable[[TrainedRun], list[EvaluationCase]]:
    """Reads what the flags name; returns the function from a run to its cases. Raises ConfigError for what is wrong."""
    asked = [EVALUATIONS[name] for name in flags.find_evaluations(args) or [DEFAULT]]
    list_cases = [evaluation.read_flags(args) for evaluation in asked if evaluation.read_flags]
    return lambda run: [case for function in list_cases for case in function(run)]


def select_results(contents: Mapping[str, Any], cases: Sequence[EvaluationCase]) -> dict[str, Any]:
    """The contents of evaluations.json with the results of some cases alone."""
    selected: dict[str, dict[str, dict]] = {}
    for case in cases:
        selected.setdefault(case.task, {})[case.name] = contents["evaluations"][case.task][case.name]
    summary = {task: EVALUATIONS[task].summarize(results) for task, results in selected.items()}
    return {"evaluations": selected, "summary": summary}


def list_missing_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The due cases of which a finished run has no result yet, as `evaluations.list_missing_cases` finds them."""
    return evaluations.list_missing_cases(cfg, list_due_cases(cfg))


def list_scores(contents: Mapping[str, Any]) -> list[EvaluationScore]:
    """All scores in the contents of evaluations.json."""
    return [score for evaluation in EVALUATIONS.values() for score in evaluation.list_scores(contents)]


def add_scores(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run as reports read it: with its "evaluation_scores", and with those of its milestones."""
    milestones = {step: add_scores(contents) for step, contents in run.get("milestones", {}).items()}
    return {**run, "evaluation_scores": list_scores(run), **({"milestones": milestones} if milestones else {})}
