"""What a fine-tuned model predicts of each example of a split, written beside its run, and its scores there."""
from collections.abc import Iterator

import numpy as np

from mlm.base import config
from mlm.data.rows import pack
from mlm.data.tasks import splits
from mlm.evaluation.evaluations import EvaluationCase
from mlm.train.run import directory
from mlm.train.run.trained_run import Trained
from mlm.train.step import evaluation, parallel

FORMAT = 1
SPLITS = {"dev": "validation", "test": "test"}


def can(cfg: config.Config) -> str:
    return "" if cfg.data.corpus == "task" else f"config.data.corpus is {cfg.data.corpus}, not a task"


def parts(cfg: config.Config) -> list[EvaluationCase]:
    """Dev, and test where the task has one."""
    return [EvaluationCase("predictions", name, {"split": name, "max_rows": cfg.eval.max_examples, "format": FORMAT})
            for name in SPLITS if name == "dev" or splits.has_test(cfg.data)]


def ask(run: Trained, part: EvaluationCase, told) -> dict:
    """The objective's scores on the split, beside a file of its predictions: a line of JSON for each example, with its
    "id", the "gold" label, what is "predicted", and a "score": the log-probability of that, or for an answer the logits
    above those of none. A word of tags is an example by "id" and "word".
    """
    packed = run.packed()
    known = {}
    if part.name == "test" and "threshold" in (dev := evaluation.judge(run.cfg, run.program, run.state, packed)):
        known = {"threshold": dev["threshold"]}  # tuned there
    columns = evaluation.judge(run.cfg, run.program, run.state, packed, SPLITS[part.name], known)
    told()
    if not parallel.is_primary():
        return {}
    directory.write_predictions(run.cfg.workdir, part.name, lines(run.cfg, packed, SPLITS[part.name], columns))
    return evaluation.summary(columns, run.program.objective.scores)


def lines(cfg: config.Config, packed: pack.Packed, split: str, columns: dict) -> Iterator[dict]:
    """The records of `ask`; of the first config.eval.max_examples rows where that is set."""
    classes, rows, count = packed.about.classes, packed.split(split), len(columns["predicted"])
    for one in pack.told(cfg, packed, split):
        row = one["row"]
        if row >= count:
            return
        found, score = columns["predicted"][row], columns["score"][row]
        if cfg.objective not in ("tag", "edge"):
            predicted = classes[int(found)] if classes else found.item()
            gold = [text for text, _ in one["label"]] if cfg.objective == "span" else one["label"]
            yield {"id": one["id"], "gold": gold, "predicted": predicted, "score": float(score)}
            continue
        places = np.flatnonzero(rows[cfg.objective][row] >= 0)
        asked = [number for number, label in enumerate(one["label"]) if label] if cfg.objective == "tag" else places
        for number, place in zip(asked, places, strict=False):  # words past the row's end have none
            yield {"id": one["id"], "word": int(number), "gold": one["label"][number],
                   "predicted": classes[int(found[place])], "score": float(score[place])}
