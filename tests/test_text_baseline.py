"""TF-IDF with logistic regression beside a fine-tuned score: what it scores, where it shows, who is below it."""

import random
import types

import numpy as np
import pytest
from small import small_config

from mlm.base import errors, fields
from mlm.evaluation import evaluation_tasks, text_baseline

metrics = pytest.importorskip("sklearn.metrics")


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    """A task in which one word mostly decides, and its order never does."""
    folder, draw = tmp_path_factory.mktemp("task"), random.Random(0)
    for split, count in (("train", 200), ("dev", 60)):
        lines = ["text\tlabel"]
        for _ in range(count):
            label = draw.choice(["bad", "good"])
            word = label if draw.random() < 0.8 else "so"
            lines.append(f"{' '.join(draw.sample(['the', 'film', 'is', word], 4))}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return small_config(
        data__corpus="task",
        data__task="own",
        data__task_path=str(folder),
        data__labelled__format="tsv",
        data__labelled__train="train.tsv",
        data__labelled__dev="dev.tsv",
        data__labelled__text_column="text",
        data__labelled__label_column="label",
        objective="classification",
        eval__baseline="tfidf",
    )


def test_its_scores_are_scikit_learns_of_the_same_predictions(cfg, monkeypatch):
    predictions = []
    linear_model = pytest.importorskip("sklearn.linear_model")
    predict = linear_model.LogisticRegression.predict
    monkeypatch.setattr(
        linear_model.LogisticRegression,
        "predict",
        lambda self, x: predictions.append(predict(self, x)) or predictions[-1],
    )
    (case,) = text_baseline.list_due_cases(cfg)
    result = text_baseline.evaluate(types.SimpleNamespace(cfg=cfg), case, lambda: None)["scores"]
    gold = np.array([example.label == "good" for example in text_baseline.splits.open_task(cfg)["validation"]()])
    assert result["accuracy"] == pytest.approx(metrics.accuracy_score(gold, predictions[0]))
    assert result["f1"] == pytest.approx(metrics.f1_score(gold, predictions[0]))
    assert result["matthews"] == pytest.approx(metrics.matthews_corrcoef(gold, predictions[0]))
    assert 0.75 < result["accuracy"] < 1  # it learns the word, and cannot learn more
    first = fields.override(cfg, {"eval.max_examples": 10})
    text_baseline.compute_scores(first)
    assert len(predictions[1]) == 10


def test_it_is_a_due_case_only_where_it_is_asked_for(cfg):
    due = {case.task for case in evaluation_tasks.list_due_cases(cfg)}
    without = fields.override(cfg, {"eval.baseline": ""})
    assert due - {case.task for case in evaluation_tasks.list_due_cases(without)} == {"text_baseline"}
    assert fields.fingerprint(cfg) == fields.fingerprint(without)
    with pytest.raises(errors.ConfigError, match=r"config.eval.baseline = 'tfid': .*did you mean 'tfidf'"):
        fields.check_values(fields.override(cfg, {"eval.baseline": "tfid"}))
    with pytest.raises(errors.ConfigError, match="expected a run that is fine-tuned for a classification task"):
        text_baseline.list_due_cases(small_config(eval__baseline="tfidf"))
