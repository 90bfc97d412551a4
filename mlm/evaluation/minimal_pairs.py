"""Minimal pairs: how often the acceptable sentence scores above the other."""
import hashlib
import json
from collections.abc import Callable, Mapping

import numpy as np

from mlm.base.estimates import mean_share
from mlm.data.tasks.blimp import Suite
from mlm.evaluation.evaluations import EvaluationCase
from mlm.inference.pseudo_likelihood import METRICS, Scores, of_part
from mlm.train.run.trained_run import Trained


def parts(suite: Suite) -> list[EvaluationCase]:
    """What a suite asks, a part a paradigm: two suites of one name that differ in any sentence have no part in common.
    """
    return [EvaluationCase("pairs", f"{key(suite)}/{one.name}", one.sentences, {"suite": suite.name,
                                                                      "phenomenon": one.phenomenon})
            for one in suite.paradigms]


def key(suite: Suite) -> str:
    return f"{suite.name}-{suite.sha256[:6]}"


def ask(run: Trained, part: EvaluationCase, told: Callable) -> dict:
    """`accuracy` on a paradigm: its sentences, good, bad, good, bad, ..."""
    return accuracy(of_part(run, part, told))


def accuracy(given: Scores) -> dict:
    """How often the first sentence of two that follow one another scores above the second, for each metric.

    Ties count half. So does a pair whose sentences hold unequal numbers of unknown tokens ("incomparable"): these are
    not asked for, and the one that has more of them would win by it.
    """
    unknown_Px2 = given.unknown_S.reshape(-1, 2)
    same_P = unknown_Px2[:, 0] == unknown_Px2[:, 1]
    result = {"pairs": len(same_P), "incomparable": int((~same_P).sum()), "cut": int((given.rows_S > 1).sum())}
    for metric in METRICS:
        score_Px2 = getattr(given, f"{metric}_S").reshape(-1, 2)
        right_P = np.where(same_P, (1 + np.sign(score_Px2[:, 0] - score_Px2[:, 1])) / 2, 0.5)
        result[f"{metric}_accuracy"] = float(right_P.mean())
    return result


def summary(answers: Mapping[str, dict]) -> dict:
    """The accuracies of each suite by its key: its name, by phenomenon and overall, and the SHA-256 of what was asked.

    answers: of paradigms, by "KEY/PARADIGM". A mean is over paradigms, each weighing the same, as in the paper; its 95%
    interval ("_low", "_high") takes the paradigms as given and their pairs as drawn.
    """
    suites: dict[str, dict[str, dict]] = {}
    for name, answer in answers.items():
        suite, _, paradigm = name.partition("/")
        suites.setdefault(suite, {})[paradigm] = answer
    return {suite: _summary(paradigms) for suite, paradigms in suites.items()}


def _summary(paradigms):
    groups: dict[str, list[dict]] = {}
    for paradigm in paradigms.values():
        groups.setdefault(paradigm["phenomenon"], []).append(paradigm)
    asked = json.dumps(sorted((name, paradigm["sha256"]) for name, paradigm in paradigms.items()))
    return {"suite": next(iter(paradigms.values()))["suite"], "sha256": hashlib.sha256(asked.encode()).hexdigest(),
            "phenomena": {name: _mean(group) for name, group in sorted(groups.items())},
            "overall": _mean(list(paradigms.values()))}


def _mean(group):
    result = {"paradigms": len(group), "pairs": sum(paradigm["pairs"] for paradigm in group)}
    for name in (f"{metric}_accuracy" for metric in METRICS):
        shares = [paradigm[name] for paradigm in group]
        result[name] = float(np.mean(shares))
        result[f"{name}_low"], result[f"{name}_high"] = mean_share(shares, [paradigm["pairs"] for paradigm in group])
    return result
