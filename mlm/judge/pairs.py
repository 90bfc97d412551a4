"""Minimal pairs: how often the acceptable sentence scores above the other."""
from collections.abc import Callable, Mapping

import numpy as np

from mlm.base.estimates import ratio
from mlm.judge.judged import Part
from mlm.judge.pll import METRICS, Scores, of_part
from mlm.train.run.trained import Trained


def ask(run: Trained, part: Part, told: Callable) -> dict:
    """`accuracy` on a paradigm: its sentences, good, bad, good, bad, ..."""
    return accuracy(of_part(run, part, told))


def accuracy(given: Scores) -> dict:
    """How often the first sentence of two that follow one another scores above the second, for each metric.

    Ties count half. So does a pair whose sentences hold unequal numbers of unknown tokens ("incomparable"): these are
    not asked for, and the one that has more of them would win by it. Standard errors ("_se") are over pairs.
    """
    unknown_Px2 = given.unknown_S.reshape(-1, 2)
    same_P = unknown_Px2[:, 0] == unknown_Px2[:, 1]
    result = {"pairs": len(same_P), "incomparable": int((~same_P).sum()), "cut": int((given.rows_S > 1).sum())}
    for metric in METRICS:
        score_Px2 = getattr(given, f"{metric}_S").reshape(-1, 2)
        right_P = np.where(same_P, (1 + np.sign(score_Px2[:, 0] - score_Px2[:, 1])) / 2, 0.5)
        result[f"{metric}_accuracy"], result[f"{metric}_accuracy_se"] = ratio(right_P, np.ones(len(right_P)))
    return result


def summary(paradigms: Mapping[str, dict]) -> dict:
    """Accuracies by phenomenon and overall from those of paradigms (name -> "phenomenon" and what `accuracy` says).

    A mean over paradigms, each weighing the same, as in the paper; its standard error takes the paradigms as given and
    their pairs as drawn.
    """
    groups: dict[str, list[dict]] = {}
    for paradigm in paradigms.values():
        groups.setdefault(paradigm["phenomenon"], []).append(paradigm)
    return {"phenomena": {name: _mean(group) for name, group in sorted(groups.items())},
            "overall": _mean(list(paradigms.values()))}


def _mean(group):
    result = {"paradigms": len(group), "pairs": sum(paradigm["pairs"] for paradigm in group)}
    for name in (key for key in group[0] if key.endswith("_accuracy")):
        result[name] = float(np.mean([paradigm[name] for paradigm in group]))
        result[f"{name}_se"] = float(np.linalg.norm([paradigm[f"{name}_se"] for paradigm in group]) / len(group))
    return result
