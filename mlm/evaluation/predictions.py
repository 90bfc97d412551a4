"""The predictions of a fine-tuned model for each example of a split, written beside its run, and its scores there."""

from collections.abc import Iterator

import numpy as np

from mlm.base import config
from mlm.data.rows import pack
from mlm.data.tasks import splits
from mlm.data.tasks.tasks import LABELLED_OBJECTIVES
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.training.run.directory import RunDirectory
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel
from mlm.training.validation import split_scores

FORMAT = 2
SPLITS = {"dev": "validation", "test": "test"}


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
        if name == "dev" or splits.has_test(cfg.data)
    ]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The objective's scores on the split; also writes a file of predictions, a line of JSON for each example.

    A line holds the "id", the "gold" label, the "predicted" one and its "score": the log-probability of the prediction,
    or for extractive QA the logits of the answer less those of no answer. In tagging each word with a label is an
    example, by "id" and "word"; a word that could not be scored has null for its prediction and score.
    """
    packed = run.load_data()
    known = {}
    if case.name == "test":
        dev_columns = split_scores.evaluate_split(run.cfg, run.program, run.state, packed)
        if "threshold" in dev_columns:
            known = {"threshold": dev_columns["threshold"]}  # tuned on dev
    columns = split_scores.evaluate_split(run.cfg, run.program, run.state, packed, SPLITS[case.name], known)
    progress()
    if not parallel.is_primary():
        return {}
    records = iterate_records(run.cfg, packed, SPLITS[case.name], columns)
    RunDirectory(run.cfg.workdir).write_predictions(case.name, records)
    return split_scores.summarize(columns, run.program.objective.scores)


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
        gold = [text for text, _ in record["label"]] if cfg.objective == "extractive_qa" else record["label"]
        yield {"id": record["id"], "gold": gold, "predicted": label, "score": float(score)}


def _iterate_words(cfg, record, label_NxL, columns, classes):
    """The lines of a sentence: a line for each word that has a label."""
    start = record["row"]
    labels = label_NxL[start : start + record["rows"]]
    places = [(start + row, position) for row, position in np.argwhere(labels >= 0)]
    words = [word for word, label in enumerate(record["label"]) if label]
    if cfg.objective == "tagging":
        place_by_word = dict(zip(words, places, strict=True))
    else:
        first_words = record.get("first_words", [0])
        place_by_word = {first_words[row - start] + position: (row, position) for row, position in places}
    for word in words:
        place = place_by_word.get(word)
        yield {
            "id": record["id"],
            "word": word,
            "gold": record["label"][word],
            "predicted": None if place is None else classes[int(columns["predicted"][place])],
            "score": None if place is None else float(columns["score"][place]),
        }
