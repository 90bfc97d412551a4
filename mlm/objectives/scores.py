"""Scores of labelled examples: which scores a run has, and the columns that they need.

Letters in array names: C classes, N examples of a split, G groups of examples with equal values.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score, make_reference
from mlm.base.text_files import split_names

FIELD = "config.data.labelled.scores"


def parse_score_names(cfg: config.Config, known: Sequence[str]) -> tuple[str, ...]:
    """The names in config.data.labelled.scores; empty: the first of `known`. Raises ConfigError for a bad one."""
    text = cfg.data.labelled.scores
    names = split_names(text) or tuple(known[:1])
    for name in names:
        errors.require_one_of(FIELD, name, known)
    errors.require(len({*names}) == len(names), FIELD, text, "each name once")
    return names


def build_loss_score(term: str, unit: str) -> Score:
    """The mean loss of a term, by its weight."""
    return Score("loss", "held-out loss", (f"{term}_nats", f"{term}_weight"), unit=unit, better=-1, chart=True)


def build_score(name: str, weight: str, classes: Sequence[str] = ()) -> Score:
    """A score of one label an example by its name in config.data.labelled.scores; weight: the column of its weight.

    f1 is that of the second of two classes. It and matthews are of the columns of `count_classes`, macro_f1 of
    `compute_macro_f1_column`, pearson and spearman of `compute_correlation_columns`. Raises ConfigError for f1 of any
    other number of classes.
    """
    is_possible = name != "f1" or len(classes) == 2
    errors.require(is_possible, FIELD, name, f"accuracy or matthews, since there are {len(classes)} classes")
    counts = (f"{kind}_{number}" for kind in ("predicted", "actual") for number in range(len(classes)))
    title, columns, function = {
        "accuracy": ("accuracy", ("correct",), "mean"),
        "f1": (f"F1 of {''.join(classes[1:2])}", ("true_positives", "predicted_1", "actual_1"), "f1"),
        "macro_f1": ("F1, mean over classes", ("macro_f1",), "mean"),
        "matthews": ("Matthews correlation", ("correct", *counts), "matthews"),
        "pearson": ("Pearson correlation", ("x", "y", "xx", "yy", "xy"), "pearson"),
        "spearman": ("Spearman correlation", ("spearman",), "mean"),
    }[name]
    is_share = name in ("accuracy", "f1", "macro_f1")
    return Score(name, f"held-out {title}", (*columns, weight), function, better=1, share=is_share, chart=True)


def compute_correlation_columns(x_N: np.ndarray, y_N: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of the Pearson and Spearman scores, float64; each example has weight 1.

    Medians are subtracted first: that changes no correlation, saves digits, and leaves zeros where values do not vary.
    The mean of the column "spearman" is the coefficient on average ranks. Its spread is that of the coefficient's
    influence function (infinitesimal jackknife, Jaeckel 1972), so that the standard error of the mean is right.
    """
    x_N, y_N = (np.asarray(value_N, np.float64) for value_N in (x_N, y_N))
    x_N, y_N = x_N - np.median(x_N), y_N - np.median(y_N)
    products = {"xx": x_N * x_N, "yy": y_N * y_N, "xy": x_N * y_N}
    return {"x": x_N, "y": y_N, **products, "spearman": _compute_spearman(x_N, y_N)}


def _compute_spearman(x_N, y_N):
    """The coefficient plus, for each example, its derivative by that example's share of all examples.

    A rank is itself a sum over examples: 1 for each lower value and 1/2 for each equal one. So an example counts by its
    own ranks and by the ranks that it adds to.
    """
    from scipy import stats  # takes half a second to import, and other runs do not need it

    u_N, v_N = ((stats.rankdata(value_N) - 0.5) / len(value_N) for value_N in (x_N, y_N))
    cov_xy, var_x, var_y = (u_N * v_N).mean() - 0.25, (u_N * u_N).mean() - 0.25, (v_N * v_N).mean() - 0.25
    if min(var_x, var_y) < 1e-12:  # ranks that do not vary are all 1/2
        return np.zeros(len(x_N))
    cov_xy_N = u_N * v_N + _compute_mean_above(x_N, v_N) + _compute_mean_above(y_N, u_N) - 3 * (cov_xy + 0.25)
    var_x_N = u_N * u_N + 2 * _compute_mean_above(x_N, u_N) - 3 * (var_x + 0.25)
    var_y_N = v_N * v_N + 2 * _compute_mean_above(y_N, v_N) - 3 * (var_y + 0.25)
    rho = cov_xy / np.sqrt(var_x * var_y)
    return rho + cov_xy_N / np.sqrt(var_x * var_y) - rho / 2 * (var_x_N / var_x + var_y_N / var_y)


def _compute_mean_above(value_N, weight_N):
    """For each example: the weights of the examples with larger values plus half those with equal ones, over N."""
    _, group_N = np.unique(value_N, return_inverse=True)
    sum_G = np.bincount(group_N, weight_N)
    return (weight_N.sum() - np.cumsum(sum_G) + sum_G / 2)[group_N] / len(weight_N)


def count_classes(predicted_B, label_B, weight_B, num_classes: int) -> dict:
    """The columns of the F1 and Matthews scores, beside those of accuracy."""
    counts = {
        f"{kind}_{number}": (class_B == number) * weight_B
        for kind, class_B in (("predicted", predicted_B), ("actual", label_B))
        for number in range(num_classes)
    }
    return counts | {"true_positives": (predicted_B == 1) * (label_B == 1) * weight_B}


def compute_macro_f1_column(predicted_N: np.ndarray, label_N: np.ndarray) -> np.ndarray:
    """A column whose mean is the mean F1 of the classes that are predicted or there (scikit-learn's macro average).

    Its spread is that of the mean's influence function, as in `compute_correlation_columns`. F1 of a class is
    2 hits / (predicted + labels), of which each term is a mean over examples.
    """
    num_classes = int(max(predicted_N.max(), label_N.max())) + 1
    hit_N = predicted_N == label_N
    hits_C, *sums = (np.bincount(x_N, minlength=num_classes) for x_N in (label_N[hit_N], predicted_N, label_N))
    size_C = np.maximum(sum(sums), 1) / len(label_N)
    f1_C, num_used = 2 * hits_C / len(label_N) / size_C, np.count_nonzero(sum(sums))
    change_N = 2 * hit_N / size_C[label_N] - (f1_C / size_C)[predicted_N] - (f1_C / size_C)[label_N]
    return (f1_C.sum() + change_N) / num_used


def compute_log_class_shares(dataset: types.DatasetInfo):
    """log_share_C: log shares of the classes in the train split, with one added to each count."""
    num_classes = len(dataset.classes)
    errors.require(num_classes > 1, "classes of the train split", dataset.classes, "two or more")
    count_C = np.frombuffer(dataset.class_counts, np.int64) if dataset.class_counts else np.zeros(num_classes, np.int64)
    return jax.device_put(np.log((count_C + 1) / (count_C + 1).sum()).astype(np.float32))


def compute_majority_baseline(log_share_C, label, weight) -> dict:
    """Nats and correct predictions of the train split's class shares, in the shape of `label`."""
    majority, correct = log_share_C.argmax(), (label == log_share_C.argmax()) * weight
    positives = {"majority_true_positives": (majority == 1) * correct, "majority_predicted": (majority == 1) * weight}
    return {"majority_nats": -log_share_C[label] * weight, "majority_correct": correct, **positives}


MAJORITY_COLUMNS = {
    "loss": ("majority_nats",),
    "accuracy": ("majority_correct",),
    "f1": ("majority_true_positives", "majority_predicted", "actual_1"),
}


def build_majority_scores(
    scores: Sequence[Score], dataset: types.DatasetInfo, columns: Mapping[str, tuple[str, ...]] = MAJORITY_COLUMNS
) -> tuple[Score, ...]:
    """The scores of the majority class, where classes were counted; columns: its own, by score, without the weight."""
    majority = "majority class"
    return tuple(
        make_reference(
            score, f"majority_{score.name}", score.title.replace("held-out", majority), columns[score.name], majority
        )
        for score in scores
        if score.name in columns and dataset.class_counts
    )


def merge_windows(columns: Mapping[str, np.ndarray], weight: str, examples: Sequence[Mapping]) -> dict:
    """The columns with the sums of all windows of a sentence in its first row, and 0 in its others.

    Adds "unscored", how many of a sentence's labels have no prediction. A sentence of which some windows were not
    evaluated counts nothing. Columns with a value for each token stay as they are; weight: the column with the number
    of predictions; examples: the sentences with "label", "row" and "rows".
    """
    count = len(columns[weight])
    merged = {name: value_Nx.copy() if value_Nx.ndim == 1 else value_Nx for name, value_Nx in columns.items()}
    merged["unscored"] = np.zeros(count, np.int64)
    for example in examples:
        row, end = example["row"], example["row"] + example["rows"]
        if row >= count:
            break
        if example["rows"] > 1:
            for value_Nx in merged.values():
                if value_Nx.ndim == 1:
                    total = value_Nx[row:end].sum() if end <= count else 0
                    value_Nx[row:end] = 0
                    value_Nx[row] = total
        if end <= count:
            merged["unscored"][row] = sum(map(bool, example["label"])) - merged[weight][row]
    return merged
