"""Minimal pairs: how often the acceptable sentence of a pair scores above the other."""

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from mlm.base.estimates import mean_share_interval
from mlm.data.tasks.blimp import Suite
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.evaluation.sentence_scores import score_case
from mlm.inference.pseudo_likelihood import METRICS, SentenceScores
from mlm.training.run.trained_run import TrainedRun


def list_cases(suite: Suite) -> list[EvaluationCase]:
    """A case for each paradigm. Two suites of one name that differ in any sentence have no case in common."""
    return [
        EvaluationCase(
            "minimal_pairs",
            f"{format_key(suite)}/{paradigm.name}",
            paradigm.sentences,
            {"suite": suite.name, "phenomenon": paradigm.phenomenon},
        )
        for paradigm in suite.paradigms
    ]


def format_key(suite: Suite) -> str:
    """The name of a suite in evaluations.json, with a digest of its sentences."""
    return f"{suite.name}-{suite.sha256[:6]}"


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The accuracies on a paradigm. The case's inputs are its sentences: good, bad, good, bad, ..."""
    return compute_accuracy(score_case(run, case, progress))


def compute_accuracy(scores: SentenceScores) -> dict:
    """How often the first sentence of a pair scores above the second, for each metric. Pairs follow one another.

    Ties count half. So do pairs whose sentences hold unequal numbers of unknown tokens ("incomparable"): unknown tokens
    are not scored, so the sentence that has more of them would win by it. "split_sentences" counts the
    sentences that are longer than an example.
    """
    unknown_Px2 = scores.unknown_S.reshape(-1, 2)
    comparable_P = unknown_Px2[:, 0] == unknown_Px2[:, 1]
    result: dict[str, float] = {
        "pairs": len(comparable_P),
        "incomparable": int((~comparable_P).sum()),
        "split_sentences": int((scores.sequences_S > 1).sum()),
    }
    for metric in METRICS:
        score_Px2 = getattr(scores, f"{metric}_S").reshape(-1, 2)
        correct_P = np.where(comparable_P, (1 + np.sign(score_Px2[:, 0] - score_Px2[:, 1])) / 2, 0.5)
        result[f"{metric}_accuracy"] = float(correct_P.mean())
    return result


def summarize(results: Mapping[str, dict]) -> dict:
    """The accuracies of each suite, by its key: overall and by phenomenon, with the SHA-256 of all sentences.

    results: those of the paradigms, by "KEY/PARADIGM". A mean is over paradigms of equal weight, as in the paper. Its
    95% interval ("_low", "_high") takes the paradigms as fixed and their pairs as sampled.
    """
    suites: dict[str, dict[str, dict]] = {}
    for name, result in results.items():
        suite, _, paradigm = name.partition("/")
        suites.setdefault(suite, {})[paradigm] = result
    return {suite: _summarize_suite(paradigms) for suite, paradigms in suites.items()}


def _summarize_suite(paradigms):
    phenomena: dict[str, list[dict]] = {}
    for paradigm in paradigms.values():
        phenomena.setdefault(paradigm["phenomenon"], []).append(paradigm)
    inputs = json.dumps(sorted((name, paradigm["sha256"]) for name, paradigm in paradigms.items()))
    return {
        "suite": next(iter(paradigms.values()))["suite"],
        "sha256": hashlib.sha256(inputs.encode()).hexdigest(),
        "phenomena": {name: _average_accuracies(group) for name, group in sorted(phenomena.items())},
        "overall": _average_accuracies(list(paradigms.values())),
    }


def _average_accuracies(paradigms):
    result: dict[str, float] = {"paradigms": len(paradigms), "pairs": sum(paradigm["pairs"] for paradigm in paradigms)}
    for name in (f"{metric}_accuracy" for metric in METRICS):
        accuracies = [paradigm[name] for paradigm in paradigms]
        result[name] = float(np.mean(accuracies))
        result[f"{name}_low"], result[f"{name}_high"] = mean_share_interval(
            accuracies, [paradigm["pairs"] for paradigm in paradigms]
        )
    return result
