"""The predictions of a fine-tuned model for each example of a split, written beside its run, and its scores there."""

from collections.abc import Iterator

import numpy as np

from mlm.base import config
from mlm.data.rows import pack
from mlm.data.tasks import splits
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.training.run import directory
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import evaluation, parallel

FORMAT = 1
SPLITS = {"dev": "validation", "test": "test"}


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    return "" if cfg.data.corpus == "task" else f"config.data.corpus is {cfg.data.corpus}, not a task"


def list_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The case "dev", and "test" where the task has a test split."""
    return [
        EvaluationCase("predictions", name, {"split": name, "max_examples": cfg.eval.max_examples, "format": FORMAT})
        for name in SPLITS
        if name == "dev" or splits.has_test(cfg.data)
    ]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The objective's scores on the split; also writes a file of predictions, a line of JSON for each example.

    A line holds the "id", the "gold" label, the "predicted" one and its "score": the log-probability of the prediction,
    or for extractive QA the logits of the answer less those of no answer. In tagging each word is an example, by "id"
    and "word".
    """
    packed = run.load_data()
    known = {}
    if case.name == "test":
        dev_columns = evaluation.evaluate_split(run.cfg, run.program, run.state, packed)
        if "threshold" in dev_columns:
            known = {"threshold": dev_columns["threshold"]}  # tuned on dev
    columns = evaluation.evaluate_split(run.cfg, run.program, run.state, packed, SPLITS[case.name], known)
    progress()
    if not parallel.is_primary():
        return {}
    records = iterate_records(run.cfg, packed, SPLITS[case.name], columns)
    directory.write_predictions(run.cfg.workdir, case.name, records)
    return evaluation.summarize(columns, run.program.objective.scores)


def iterate_records(cfg: config.Config, packed: pack.PackedDataset, split: str, columns: dict) -> Iterator[dict]:
    """The lines of the predictions file, for the first config.eval.max_examples examples where that is set."""
    classes, arrays, count = packed.dataset_info.classes, packed.get_split(split), len(columns["predicted"])
    for record in pack.read_examples(cfg, packed, split):
        index = record["row"]
        if index >= count:
            return
        predicted, score = columns["predicted"][index], columns["score"][index]
        if cfg.objective not in ("tagging", "edge_probing"):
            label = classes[int(predicted)] if classes else predicted.item()
            gold = [text for text, _ in record["label"]] if cfg.objective == "extractive_qa" else record["label"]
            yield {"id": record["id"], "gold": gold, "predicted": label, "score": float(score)}
            continue
        positions = np.flatnonzero(arrays["tag" if cfg.objective == "tagging" else "edge"][index] >= 0)
        words = (
            [number for number, label in enumerate(record["label"]) if label]
            if cfg.objective == "tagging"
            else positions
        )
        for word, position in zip(words, positions, strict=False):  # leaves out words past the end
            yield {
                "id": record["id"],
                "word": int(word),
                "gold": record["label"][word],
                "predicted": classes[int(predicted[position])],
                "score": float(score[position]),
            }
