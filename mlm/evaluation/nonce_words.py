"""Nouns of adjectives that nobody has seen (Hofmann et al. 2025): whether -ity is preferred to -ness as people do."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mlm.base import errors
from mlm.base.estimates import EvaluationMetric, EvaluationScore
from mlm.data.tasks import examples
from mlm.data.text import records
from mlm.evaluation import minimal_pairs, sentence_scores, sentence_similarity
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_results
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

KEYS = ("sentences", "ratio")  # two sentences with a tab between, and the share of people who chose the first

get_unsupported_reason = minimal_pairs.get_unsupported_reason


def read_flags(args: argparse.Namespace):
    """Reads the file; returns the function from a run to its case."""
    sentences, ratios = [], []
    for where, values in records.read_records(args.wug, records.JSON):
        examples.require_keys(KEYS, values, where)
        pair = str(values["sentences"]).split("\t")
        errors.require(len(pair) == 2, f"{where}: sentences", values["sentences"], "two sentences, a tab between them")
        sentences += [examples.require_text(text, where) for text in pair]
        ratios.append(examples.parse_number(values["ratio"], f"{where}: ratio"))
    errors.require(len(ratios) > 1, "--wug", args.wug, "a file of two pairs of sentences or more")
    case = EvaluationCase("nonce_words", "all", sentences, {"ratios": ratios})
    return lambda run: [case]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Correlates the probability of the first of two sentences, given that it is one of them, with people's share."""
    scores = sentence_scores.score_case(run, case, progress)
    score_Px2 = getattr(scores, f"{sentence_scores.METRIC}_S").reshape(-1, 2)
    share_P = 1 / (1 + np.exp(np.clip(score_Px2[:, 1] - score_Px2[:, 0], -700, 700)))
    found = sentence_similarity.compute_correlations(share_P, np.array(case.metadata["ratios"]), ("shares", "ratios"))
    return {"pairs": len(share_P), "shares": share_P.tolist(), **found}


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """Spearman's correlation with people's choices."""
    for result in get_results(contents, "nonce_words").values():
        metric = EvaluationMetric("nonce_words", "Spearman", result["sha256"], "wug", bounds=(-1.0, 1.0))
        note = f"{result['pairs']:,} pairs of nouns, by {sentence_scores.METRIC_TITLE}"
        yield EvaluationScore(metric, result["spearman"], result["spearman_se"], note, result.get("undefined", ""))


def build_tables(contents: Mapping[str, Any]) -> list[EvaluationTable]:
    """The correlations."""
    columns = [Column("pairs", "pairs of nouns", ",d"), *(Column(n, n.title(), ".3f") for n in ("spearman", "pearson"))]
    return [EvaluationTable([*get_results(contents, "nonce_words").values()], columns)]
