"""The predictions of a fine-tuned model for each example of a split, written beside its run, and its scores there."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mlm.base import config
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES, LabelKind, has_kind
from mlm.data.rows import pack
from mlm.data.tasks import tasks
from mlm.evaluation.evaluations import SPLITS, EvaluationCase, EvaluationTable, ReportProgress, get_results
from mlm.report.table import Column
from mlm.training.run.directory import RunDirectory
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel
from mlm.training.validation import split_scores

FORMAT, MAX_ROWS, MAX_CONFUSION = 2, 20, 8  # of the results; classes of the tables


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    return "" if cfg.data.corpus == "task" else f"config.data.corpus is {cfg.data.corpus}, not a task"


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The case "dev" of a task, and "test" where it has a test split."""
    if get_unsupported_reason(cfg):
        return []
    return [
        EvaluationCase("predictions", name, {"split": name, "max_examples": cfg.eval.max_examples, "format": FORMAT})
        for name in SPLITS
        if name == "dev" or cfg.data.labelled.test or cfg.data.task in tasks.LANGUAGE_TASKS
    ]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The objective's scores on the split, and `count_labels` of it; also writes a file of predictions.

    It has a line of JSON for each example, with its "id", the "gold" label, the "predicted" one and its "score": the
    log-probability of the prediction, or for extractive QA the logits of the answer less those of no answer. In tagging
    each word with a label is an example, by "id" and "word"; a word that could not be scored has null for its
    prediction and score.
    """
    packed = run.load_data()
    known = {}
    if case.name == "test":  # whose threshold, where there is one, is tuned on dev
        dev_columns = split_scores.evaluate_split(run.cfg, run.program, run.state, packed)
        known = {name: column for name, column in dev_columns.items() if name == "threshold"}
    columns = split_scores.evaluate_split(run.cfg, run.program, run.state, packed, SPLITS[case.name], known)
    if not parallel.is_primary():
        return {}
    records = iterate_records(run.cfg, packed, SPLITS[case.name], columns)
    RunDirectory(run.cfg.workdir).write_predictions(case.name, records)
    counts = split_scores.count_labels(run.cfg, packed, columns, SPLITS[case.name])
    return split_scores.summarize(columns, run.program.objective.scores) | counts


def iterate_records(cfg: config.Config, packed: pack.PackedDataset, split: str, columns: dict) -> Iterator[dict]:
    """The lines of the predictions file, for the first config.eval.max_examples examples where that is set."""
    classes, arrays, count = packed.dataset_info.classes, packed.get_split(split), len(columns["predicted"])
    for record in pack.read_examples(cfg, packed, split):
        index, end = record["row"], record["row"] + record["rows"]
        if index >= count:
            return
        if column := LABELLED_OBJECTIVES[cfg.objective].word_column:
            if end <= count:  # else some of its windows were not evaluated
                yield from _iterate_words(cfg, record, arrays[column], columns, classes)
            continue
        predicted, score = columns["predicted"][index], columns["score"][index]
        label = classes[int(predicted)] if classes else predicted.item()
        gold = [text for text, _ in record["label"]] if has_kind(cfg.objective, LabelKind.ANSWERS) else record["label"]
        yield {"id": record["id"], "gold": gold, "predicted": label, "score": float(score)}


def _iterate_words(cfg, record, label_NxL, columns, classes):
    """The lines of a sentence: a line for each word that has a label."""
    start = record["row"]
    labels = label_NxL[start : start + record["rows"]]
    places = [(start + row, position) for row, position in np.argwhere(labels >= 0)]
    words = [word for word, label in enumerate(record["label"]) if label]
    if LABELLED_OBJECTIVES[cfg.objective].tags_words:
        place_by_word = dict(zip(words, places, strict=True))
    else:
        first_words = record.get("first_words", [0])
        place_by_word = {first_words[row - start] + position: (row, position) for row, position in places}
    for word in words:
        label, score = None, None
        if (place := place_by_word.get(word)) is not None:
            label, score = classes[int(columns["predicted"][place])], float(columns["score"][place])
        yield {"id": record["id"], "word": word, "gold": record["label"][word], "predicted": label, "score": score}


def build_tables(contents: Mapping[str, Any]) -> Iterator[EvaluationTable]:
    """Precision and recall of each class, of many classes those with the lowest F1; of few, a confusion matrix."""
    for split, result in get_results(contents, "predictions").items():
        classes = sorted(result.get("classes", ()), key=lambda row: row["f1"])
        of_many = f": the {MAX_ROWS} of {len(classes)} classes with the lowest F1" if len(classes) > MAX_ROWS else ""
        counts = (Column(name, name, ",d") for name in ("examples", "predicted"))
        shares = (Column(name, name, ".3f") for name in ("precision", "recall", "f1"))
        yield EvaluationTable(classes[:MAX_ROWS], [Column("class", "class"), *counts, *shares], f"{split}{of_many}")
        names = [row["class"] for row in result.get("classes", ())]
        if 1 < len(names) <= MAX_CONFUSION:
            columns = [Column("true", "true"), *(Column(f"{i}", name, ",d") for i, name in enumerate(names))]
            cells = ({f"{i}": count for i, count in enumerate(counts_C)} for counts_C in result["confusion"])
            rows = [{"true": name} | row for name, row in zip(names, cells, strict=True)]
            yield EvaluationTable(rows, columns, f"{split}: true classes (rows) by predicted ones (columns)")
