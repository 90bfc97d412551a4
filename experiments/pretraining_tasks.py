"""Does next-sentence prediction help, and should a row keep to one document?

Claim      Devlin et al. 2019 (BERT, arXiv:1810.04805, table 5): without NSP the model is worse. Liu et al. 2019
           (RoBERTa, arXiv:1907.11692, table 2): it is not; rows of full sentences without NSP are better, those that
           keep to one document (doc) a little better still.
Command    python -m mlm.launch.sweep run experiments/pretraining_tasks.py --scale=laptop --workers=2
           (your own text: --config.data.corpus=text --config.data.path=...)
Corpus     The documentation in Python's standard library, as the built-in language has no next sentence to tell.
Hours      quick: seconds a point. laptop: 12 points, about 10 minutes on 2 CPU cores with --workers=2, reckoned from
           the time of a step (0.07 s on one core). paper: 4 points of the base model, each about 54 hours of an H200 at
           40% of its peak: 220 hours, an estimate from 6 FLOPs a parameter and token.
Expected   BERT, development sets:     MNLI  QNLI  MRPC  SST-2  SQuAD 1.1
           segment pairs with NSP      84.4  88.4  86.7  92.7   88.5
           without                     83.9  84.9  86.5  92.6   87.9
           RoBERTa, development sets:  SQuAD 1.1/2.0  MNLI  SST-2  RACE
           segment pairs with NSP      90.4/78.7      84.0  92.9   64.2
           full sentences              90.4/79.1      84.7  92.5   64.8
           doc sentences               90.6/79.7      84.7  92.7   65.6
           BERT's stand beside ours at paper scale (--config.downstream.path=...; our MRPC is not split as GLUE's),
           beside held-out loss. Each way packs the held-out text its own way, so the losses are of different rows and
           masks: compare how far each is below the unigram baseline on its own. RoBERTa's pairs of single sentences are
           left out. laptop: tasks of English are files that nothing here brings along: name yours
           (--config.downstream.tasks=mrpc,rte --config.downstream.path=...).
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, named, product, without
from mlm.experiment.recipes import BERT, BERT_GRID, LAPTOP, OWN, PAPER_TASKS, QUICK
from mlm.report import evaluation_columns, summary
from mlm.report.table import Column

TASKS = [{"name": "segment-pairs-nsp", "pack.mode": "segment_pair", "objective": "nsp"}, {"name": "segment-pairs",
                                                                                          "pack.mode": "segment_pair",
                                                                                          "objective": "mlm"},
         {"name": "full-sentences", "pack.mode": "full_sentences", "pack.isolate_documents": False,
          "pack.short_seq_prob": 0.0, "objective": "mlm"}, {"name": "doc-sentences", "pack.mode": "doc_sentences",
                                                            "pack.short_seq_prob": 0.0, "objective": "mlm"}]
# Its rows, some three thousand, are seen a few times each, so that dropout is as in the papers.
TEXT = OWN["transformer"] | {"data.corpus": "docstrings", "tokenizer.vocab_size": 2048, "eval.max_examples": 500,
                             "model.dropout": 0.1, "model.attention_dropout": 0.1, "train.batch_size": 16}

NAMES = {"mnli": "MNLI", "qnli": "QNLI", "mrpc": "MRPC", "sst2": "SST-2", "squad": "SQuAD 1.1"}
PAPER = {"nsp": (84.4, 88.4, 86.7, 92.7, 88.5), "mlm": (83.9, 84.9, 86.5, 92.6, 87.9)}  # of segment pairs

SCALES = {
    "quick": {"fields": without(QUICK, "data.language") | TEXT, "seeds": 1},
    "laptop": {"fields": without(LAPTOP, "data.language") | TEXT | {"train.steps": 800, "train.eval_every": 100},
               "seeds": 3},
    "paper": {"fields": BERT | PAPER_TASKS | BERT_GRID | {"model.size": "base", "downstream.tasks": ",".join(NAMES)},
              "seeds": 1},
}

COLUMNS = (Column("rows", "rows"), Column("task", "task"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    points = product(TASKS, axis("seed", *range(plan["seeds"]), name="seed{}"))
    return {name: plan["fields"] | point for name, point in named(points).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    theirs = config["model.size"] == "base" and config["pack.mode"] == "segment_pair"
    return {"rows": config["pack.mode"].replace("_", " "),
            "task": {"mlm": "MLM", "nsp": "MLM + NSP"}[config["objective"]],
            **(evaluation_columns.paper(NAMES, PAPER[config["objective"]]) if theirs else {})}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Next-sentence prediction helps, on the same rows."""
    return [("segment-pairs-nsp", "segment-pairs")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each way of making rows and each task."""
    return summary.table(results, COLUMNS, about, evaluation_columns.papers(NAMES))
