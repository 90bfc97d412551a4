"""Pseudo-log-likelihoods of a case's sentences, which are its inputs, and their pseudo-perplexity."""

import argparse
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mlm import objectives
from mlm.base import config, errors, types
from mlm.base.estimates import Estimate, EvaluationMetric, EvaluationScore, ItemInterval
from mlm.base.special import UNK
from mlm.data.text import corpus, files
from mlm.evaluation import evaluations
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_results
from mlm.inference import forward_passes, pseudo_likelihood, surprisal
from mlm.inference.pseudo_likelihood import SentenceScores
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

METRIC = "pll_word_l2r"  # whose scores tables of several runs show
METRIC_TITLE = "PLL-word-l2r (Kauf & Ivanova 2023)"
TITLES = dict(zip(pseudo_likelihood.METRICS, ("PLL", "PLL-word-l2r"), strict=True))


def read_flags(args: argparse.Namespace):
    """Finds the files of --sentences; returns the function from a run to its case."""
    if args.sentences:
        files.find_files("--sentences", args.sentences)
    return functools.partial(list_cases, args)


def list_cases(args: argparse.Namespace, run: TrainedRun) -> list[EvaluationCase]:
    """The case of all sentences; none if there are no sentences."""
    sentences = read_sentences(run.cfg.data, args)
    return [EvaluationCase("pseudo_likelihood", "all", sentences)] * bool(sentences)


def read_sentences(data: config.Data, args: argparse.Namespace) -> list[str]:
    """The sentences to evaluate: those of --sentences, else of the held-out documents."""
    if args.sentences:
        paths, boundary = files.find_files("--sentences", args.sentences), files.make_boundary("--sentences", "file")
        texts = [document.text for document in files.read_documents(paths, boundary)]
        errors.require(bool(texts), "--sentences", args.sentences, "text; there is none in it")
    else:
        is_run = data.corpus != "auto"
        errors.require(is_run, "--sentences", "", "text files, since a Hugging Face folder has no held-out text")
        texts = corpus.read_documents(data, "validation")
    sentences = itertools.chain.from_iterable(map(corpus.split_sentences, texts))
    return list(itertools.islice(sentences, args.max_sentences or None))


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    if objectives.get_visibility(cfg) == types.Visibility.UNMASKED:
        return ""
    return f"config.objective is {cfg.objective}, which masks nothing"


def score_case(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> SentenceScores:
    """The pseudo-log-likelihoods of a case's sentences; each token is masked and predicted.

    Of a model that reads from left to right it is the log-likelihood, in both metrics.
    """
    if objectives.get_visibility(run.cfg) in surprisal.LEFT_TO_RIGHT:
        return _score_left_to_right(run, case, progress)
    model = objectives.shift_states(run.cfg, run.program.model)
    score = forward_passes.make_scorer(model, run.program.partitioner, run.state)
    queries = pseudo_likelihood.build_queries(run.tokenizer, case.inputs, run.cfg.pack.seq_len)
    return pseudo_likelihood.score_sentences(score, queries, run.cfg.eval.batch_size, progress)


def _score_left_to_right(run, case, progress):
    ids_by_text, compute_nats = run.tokenizer.encode_batch(list(case.inputs)), surprisal.compute_next_nats
    map_sequences = functools.partial(evaluations.map_sequences, run, function=compute_nats, progress=progress)
    nats = surprisal.compute_left_to_right(run.cfg, ids_by_text, None, map_sequences)
    log_prob_S = -np.array([np.nansum(nats_T) for nats_T in nats])
    tokens_S = np.array([np.isfinite(nats_T).sum() for nats_T in nats])
    unknown_S = np.array([ids.count(UNK) for ids in ids_by_text])
    words_S = np.array([len(text.split()) for text in case.inputs])
    return SentenceScores(log_prob_S, log_prob_S, tokens_S, words_S, unknown_S, np.ones(len(nats), int))


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The pseudo-perplexity of a case's sentences, and their bits per byte."""
    return pseudo_likelihood.compute_pseudo_perplexity(score_case(run, case, progress), case.inputs)


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """The pseudo-perplexity per word."""
    for result in get_results(contents, "pseudo_likelihood").values():
        values, name, title = result[METRIC], "pseudo_perplexity", "pseudo-perplexity per word"
        yield EvaluationScore(
            EvaluationMetric(name, title, result["sha256"], format=".2f", better=-1, log_scale=True),
            values["word_perplexity"],
            values["word_perplexity_se"] if result["sentences"] > 1 else None,
            f"{result['sentences']:,} sentences, by {METRIC_TITLE}",
        )


def build_tables(contents: Mapping[str, Any]) -> Iterator[EvaluationTable]:
    """The pseudo-perplexity per token and per word, and the bits per byte, by either metric."""
    columns = (Column("token", "per token", ",.2f"), Column("word", "per word", ",.2f"))
    for result in get_results(contents, "pseudo_likelihood").values():
        rows = []
        for metric, title in TITLES.items():
            perplexities = {one.name: _estimate(result, metric, f"{one.name}_nats", math.exp) for one in columns}
            rows.append({"metric": title, **perplexities, "bits": _estimate(result, metric, "bits_per_byte")})
        yield EvaluationTable(
            rows,
            [Column("metric", "pseudo-perplexity"), *columns, Column("bits", "bits per byte", ".3f")],
            f"{result['sentences']:,} sentences: {result['words']:,} words, {result['tokens']:,} tokens, "
            f"without {result['unknown_tokens']:,} unknown tokens",
        )


def _estimate(result: dict, metric: str, name: str, scale: Callable[[float], float] = float) -> Estimate | None:
    """A value with an interval over sentences that is symmetric before `scale`; None: an older result has none."""
    if name not in result[metric]:
        return None
    mean, half_width = result[metric][name], 1.96 * result[metric][f"{name}_se"]
    if result["sentences"] < 2:
        return Estimate(scale(mean), None, None)
    return ItemInterval(*map(scale, (mean, mean - half_width, mean + half_width)))
