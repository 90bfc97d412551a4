"""Age of acquisition: how far the words that children learn late are those that surprise a model.

A word stands alone, as in BabyLM 2025, which correlates (Pearson) its age with the training step at which its surprisal
passes the middle between chance and its least value (Chang & Bergen 2022). Ours is the rank correlation with surprisal
itself in one state of a model, for each group of words too: function words are frequent and yet learned late.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.base.estimates import EvaluationMetric, EvaluationScore
from mlm.data.tasks import examples
from mlm.data.text import records
from mlm.evaluation import minimal_pairs, sentence_scores, sentence_similarity
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_results
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

KEYS = ("word_clean", "lexical_category", "aoa")  # of the list of BabyLM 2023: a word, its group, its age in months


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    is_stream, reason = cfg.pack.mode == "stream", "config.pack.mode is stream, where no [CLS] predicts a first word"
    return reason if is_stream else minimal_pairs.get_unsupported_reason(cfg)


def read_flags(args: argparse.Namespace):
    """Reads the file; returns the function from a run to its case."""
    rows = []
    for where, values in records.read_records(args.aoa, "csv"):
        examples.require_columns(KEYS, values, where)
        word, group = (examples.require_text(values[key], f"{where}: {key}") for key in KEYS[:2])
        rows.append([word, group, examples.parse_number(values["aoa"], f"{where}: aoa")])
    errors.require(len(rows) > 1, "--aoa", args.aoa, "a file of two words or more")
    case = EvaluationCase("age_of_acquisition", "all", rows)
    return lambda run: [case]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The surprisal of each word, in nats, and its correlation with age, of the words without unknown tokens."""
    words, groups, ages = zip(*case.inputs, strict=True)
    scores, correlations = sentence_scores.score_case(run, case._replace(inputs=words), progress), {}
    nats_N, age_N = -getattr(scores, f"{sentence_scores.METRIC}_S"), np.array(ages)
    for name in ("words", *dict.fromkeys(groups)):
        chosen_N = (scores.unknown_S == 0) & np.array([name in ("words", group) for group in groups])
        found = sentence_similarity.compute_correlations(nats_N[chosen_N], age_N[chosen_N], ("surprisals", "ages"))
        correlations[name] = {"words": int(chosen_N.sum()), **found}
    return {"nats": dict(zip(words, nats_N.tolist(), strict=True)), "correlations": correlations}


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """Spearman's correlation of surprisal and age, of all words and of each group."""
    for result in get_results(contents, "age_of_acquisition").values():
        for group, found in result["correlations"].items():
            note, sha256 = f"{found['words']:,} words, each alone, by {sentence_scores.METRIC_TITLE}", result["sha256"]
            metric = EvaluationMetric(f"aoa_{group}", "Spearman, surprisal and age", sha256, group, bounds=(-1.0, 1.0))
            yield EvaluationScore(metric, found["spearman"], found["spearman_se"], note, found.get("undefined", ""))


def build_tables(contents: Mapping[str, Any]) -> Iterator[EvaluationTable]:
    """The correlations, a row for each group."""
    columns = [Column("group", "group"), Column("words", "words", ",d")]
    columns += [Column(name, name.title(), ".3f") for name in ("spearman", "pearson")]
    for result in get_results(contents, "age_of_acquisition").values():
        yield EvaluationTable([{"group": name, **one} for name, one in result["correlations"].items()], columns)
