"""Macro-F1, precision, recall and the confusion matrix of a fine-tuned run: as scikit-learn counts them."""

import types

import numpy as np
import pytest

from mlm.base import estimates
from mlm.evaluation import predictions
from mlm.objectives import scores
from mlm.training.validation import split_scores

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def draw(count=500, classes=5):
    draws = np.random.default_rng(0)
    label_N = draws.choice(classes - 1, count, p=[0.5, 0.3, 0.15, 0.05])  # none is of the last class
    return np.where(draws.random(count) < 0.6, label_N, draws.integers(classes, size=count)), label_N


def test_macro_f1_is_scikit_learn_s_and_its_error_the_bootstrap_s():
    predicted_N, label_N = draw()
    columns = {"macro_f1": scores.compute_macro_f1_column(predicted_N, label_N), "weight": np.ones(500)}
    value, error = estimates.compute_score(scores.build_score("macro_f1", "weight", "abcde"), columns)
    compute = lambda index: scores.compute_macro_f1_column(predicted_N[index], label_N[index]).mean()
    assert value == pytest.approx(sklearn_metrics.f1_score(label_N, predicted_N, average="macro", zero_division=0))
    drawn = np.random.default_rng(1).integers(500, size=(2000, 500))
    assert error == pytest.approx(np.std([compute(index) for index in drawn]), rel=0.1)


@pytest.mark.parametrize("objective", ["classification", "tagging"])
def test_counts_of_classes_are_scikit_learn_s(objective):
    predicted_N, label_N = draw()
    arrays = {"label": label_N}
    columns = {"predicted": predicted_N}
    if objective == "tagging":  # every second token has a tag
        arrays = {"tag": np.stack([label_N, np.full(500, -1)], axis=1)}
        columns = {"predicted": np.stack([predicted_N, np.zeros(500, int)], axis=1)}
    packed = types.SimpleNamespace(
        get_split=lambda split: arrays, dataset_info=types.SimpleNamespace(classes=tuple("abcde"))
    )
    found = split_scores.count_labels(types.SimpleNamespace(objective=objective), packed, columns)  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        found["confusion"], sklearn_metrics.confusion_matrix(label_N, predicted_N, labels=range(5))
    )
    expected = sklearn_metrics.precision_recall_fscore_support(label_N, predicted_N, labels=range(5), zero_division=0)
    for name, value_C in zip(("precision", "recall", "f1", "examples"), expected, strict=True):
        np.testing.assert_allclose([row[name] for row in found["classes"]], value_C)
    _, matrix = predictions.build_tables({"evaluations": {"predictions": {"dev": found}}})
    assert [[row["true"], *map(row.get, "01234")] for row in matrix.rows] == [
        [name, *counts] for name, counts in zip("abcde", found["confusion"], strict=True)
    ]
    assert [column.title for column in matrix.columns] == ["true", *"abcde"]
