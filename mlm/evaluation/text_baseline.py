"""A classifier without a network beside a fine-tuned model: TF-IDF with logistic regression (config.eval.baseline).

Words and pairs of words, with scikit-learn's own settings; the two texts of a pair are one bag of words. It learns from
the whole train split and its scores are those of dev, as a fine-tuned run's.
"""

from collections.abc import Mapping

import numpy as np

from mlm.base import config, errors, extras
from mlm.base.estimates import SCORE_FUNCTIONS, Score
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES
from mlm.data.tasks import splits
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.objectives import scores
from mlm.training.run import finetuning_recipe
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

FORMAT = 1
FIELD = "config.eval.baseline"
TITLE = "TF-IDF with logistic regression"


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    return "" if select_tasks(cfg) else "it has no classification task"


def select_tasks(cfg: config.Config) -> dict[str, config.Config]:
    """The classification tasks that a run is fine-tuned for, by name: its own, or those of config.downstream."""
    task_cfgs = {cfg.data.task: cfg} if cfg.data.corpus == "task" else {}
    if not task_cfgs:
        trials = {trial.task: trial for trial in finetuning_recipe.list_trials(cfg)}
        task_cfgs = {name: finetuning_recipe.plan_config(cfg, trial) for name, trial in trials.items()}
    return {
        name: task_cfg
        for name, task_cfg in task_cfgs.items()
        if LABELLED_OBJECTIVES[task_cfg.objective].classifies_texts
    }


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """A case for each classification task of a run, where config.eval.baseline asks for it.

    Raises ConfigError where there is no such task, and without scikit-learn.
    """
    if not cfg.eval.baseline:
        return []
    task_cfgs = select_tasks(cfg)
    errors.require(bool(task_cfgs), FIELD, cfg.eval.baseline, "a run that is fine-tuned for a classification task")
    extras.import_extra("sklearn", "baseline", f"{FIELD} = {cfg.eval.baseline!r}")
    cases = []
    for name, task_cfg in task_cfgs.items():
        inputs = {
            "format": FORMAT,
            "content": splits.hash_content(task_cfg.data),
            "max_examples": task_cfg.eval.max_examples,
        }
        cases.append(EvaluationCase("text_baseline", name, inputs, {"title": TITLE}))
    return cases


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The baseline's "scores" on dev: accuracy, and F1 and Matthews' correlation where there are two classes."""
    values = compute_scores(select_tasks(run.cfg)[case.name]) if parallel.is_primary() else {}
    return {"scores": values}


def compute_scores(cfg: config.Config) -> dict[str, float]:
    """Trains the baseline of a task and returns its scores on dev by name."""
    sklearn_text = extras.import_extra("sklearn.feature_extraction.text", "baseline", FIELD)
    linear_model = extras.import_extra("sklearn.linear_model", "baseline", FIELD)
    source = splits.open_task(cfg)
    classes, splits_read = splits.list_classes(cfg), {}
    for split in ("train", "validation"):
        examples = list(source[split]())
        examples = examples[: cfg.eval.max_examples or None] if split == "validation" else examples
        texts = [" ".join(example.texts) for example in examples]
        splits_read[split] = texts, np.array([classes.index(example.label) for example in examples])
    (train_texts, train_label_N), (texts, label_N) = splits_read["train"], splits_read["validation"]
    vectorizer = sklearn_text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = linear_model.LogisticRegression(max_iter=1000)
    classifier.fit(vectorizer.fit_transform(train_texts), train_label_N)
    predicted_N, weight = classifier.predict(vectorizer.transform(texts)), "weight"
    sums = {name: column.sum() for name, column in scores.count_classes(predicted_N, label_N, 1, len(classes)).items()}
    sums |= {"correct": (predicted_N == label_N).sum(), weight: len(label_N)}
    known: list[Score] = [scores.build_score("accuracy", weight), scores.build_score("matthews", weight, classes)]
    known += [scores.build_score("f1", weight, classes)] if len(classes) == 2 else []
    return {score.name: float(SCORE_FUNCTIONS[score.function](*(sums[c] for c in score.columns))) for score in known}


def describe(score: Score, value: float, evaluations: Mapping[str, dict], task: str) -> str:
    """A line about a fine-tuned score beside the baseline's; empty where there is no baseline of the score."""
    baseline = evaluations.get("text_baseline", {}).get(task, {}).get("scores", {}).get(score.name)
    if baseline is None:
        return ""
    is_below = score.better * (value - baseline) < 0
    verdict = f": the model, {format(value, score.format)}, is below a bag of words" if is_below else ""
    return f"{TITLE}: {score.title.removeprefix('held-out ')} {format(baseline, score.format)}{verdict}"
