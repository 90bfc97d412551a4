"""Minimal pairs: how often the acceptable sentence of a pair scores above the other.

Of BLiMP (Warstadt et al. 2020), and of other suites of its form.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlm import models, objectives
from mlm.base import config, errors, estimates, files, groups, warnings_
from mlm.data.tasks import examples
from mlm.data.text import records
from mlm.evaluation import evaluations, sentence_scores
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_summary, group_results
from mlm.evaluation.sentence_scores import METRIC, METRIC_TITLE, TITLES
from mlm.inference import surprisal
from mlm.inference.pseudo_likelihood import METRICS, SentenceScores
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

BENCHMARK, NUM_PARADIGMS, NUM_PAIRS = "blimp", 67, 1000  # of the benchmark
SAMPLE_PARADIGMS = {"adjunct_island", "npi_present_1", "wh_island"}  # of its paradigms
# Accuracy over all of it, in percent (Warstadt et al. 2020): by the likelihood of the whole sentence, and for RoBERTa
# by its pseudo-log-likelihood.
PAPER_ACCURACY = {"5-gram": 61.2, "LSTM": 69.8, "Transformer-XL": 69.6, "GPT-2": 83.0}
PAPER_ACCURACY |= {"RoBERTa-large": 86.5, "human": 88.6}
# The files have a term of their own for two paradigms that the paper counts to argument structure.
PHENOMENON_BY_TERM = {"s-selection": "argument_structure"}
TERM_COLUMNS = ["UID", "linguistics_term"]  # of paradigms.tsv


class Paradigm(NamedTuple):
    """A paradigm of minimal pairs."""

    name: str
    phenomenon: str
    sentences: list[str]  # good, bad, good, bad, ...


class Suite(NamedTuple):
    """A benchmark's name, the selected paradigms, and the SHA-256 of all its sentences."""

    name: str
    sha256: str
    paradigms: list[Paradigm]


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    is_left_to_right = objectives.get_visibility(cfg) in surprisal.LEFT_TO_RIGHT and not models.reads_source(cfg)
    return "" if is_left_to_right else sentence_scores.get_unsupported_reason(cfg)


def read_flags(args: argparse.Namespace):
    """Reads the pairs; returns the function from a run to its cases."""
    cases = list_cases(read_suite(args.blimp, args.paradigms, args.max_pairs, args.suite))
    return lambda run: cases


def read_suite(folder: Path | str, names: Sequence[str] = (), max_pairs: int = 0, suite_name: str = "") -> Suite:
    """The suite in a folder of BLiMP's NAME.jsonl files: the paradigms named, or all, sorted by name.

    A line is an object with sentence_good, sentence_bad and linguistics_term; this last may stand in a table
    paradigms.tsv (columns UID, linguistics_term) beside the files instead, which then also says which files are read;
    where it stands nowhere, each file is a phenomenon of its own.
    max_pairs: the first so many of each; 0 for all. suite_name: if empty, that of the folder, or "blimp" for all of
    BLiMP. Raises ConfigError for a folder, name or line that is wrong, selected or not.
    """
    folder = Path(folder)
    errors.require(folder.is_dir(), "blimp", str(folder), "a folder of BLiMP's .jsonl files")
    is_name = not suite_name or suite_name == _make_suite_name(suite_name)
    errors.require(is_name, "--suite", suite_name, "a name of letters, digits, '.', '_' and '-'")
    table = folder / "paradigms.tsv"

    def select_columns(names):
        return examples.require_columns(TERM_COLUMNS, names, str(table))

    rows = records.read_records(str(table), "tsv", select_columns, quoted=False) if table.exists() else ()
    terms = {row["UID"]: row["linguistics_term"] for _, row in rows}
    existing = {path.stem for path in folder.glob("*.jsonl")}
    available = sorted(existing & terms.keys() or terms or existing)
    errors.require(bool(available), "blimp", str(folder), "a folder of BLiMP's .jsonl files; this one has none")
    if missing := sorted(terms.keys() - existing):
        lacks = f"{folder} lacks {len(missing)} of its {len(terms)} paradigms: {', '.join(missing)}"
        warnings_.warn_once(lacks)  # two suites may read it
    for name in names:
        errors.require_one_of("paradigm", name, available)
    paradigms = [_read_paradigm(folder / f"{name}.jsonl", terms) for name in available]
    sizes = [len(one.sentences) for one in paradigms]
    is_benchmark = set(available) >= SAMPLE_PARADIGMS and sizes == NUM_PARADIGMS * [2 * NUM_PAIRS]
    name = suite_name or (BENCHMARK if is_benchmark else _make_suite_name(folder.resolve().name) or "pairs")
    digest = files.json_sha256([(one.name, one.sentences) for one in paradigms])
    chosen = [one for one in paradigms if not names or one.name in names]
    return Suite(name, digest, [one._replace(sentences=one.sentences[: 2 * max_pairs or None]) for one in chosen])


def _make_suite_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")


def _read_paradigm(path, terms):
    sentences, term = [], terms.get(path.stem)
    for where, pair in records.read_records(str(path), records.JSON):
        sentences += [_get_text(pair, key, where) for key in ("sentence_good", "sentence_bad")]
        if "linguistics_term" in pair:
            term = term or _get_text(pair, "linguistics_term", where)
    term = term or path.stem
    errors.require(bool(sentences), "blimp", str(path), "a file of minimal pairs; this one is empty")
    return Paradigm(path.stem, PHENOMENON_BY_TERM.get(term, term), sentences)


def _get_text(pair: Mapping, key: str, where: str) -> str:
    examples.require_keys([key], pair, where)
    examples.require_text(pair[key], f"{where}: {key}")
    return pair[key]


def list_cases(suite: Suite) -> list[EvaluationCase]:
    """A case for each paradigm. Two suites of one name that differ in any sentence have no case in common."""
    return [
        EvaluationCase(
            "minimal_pairs",
            f"{format_key(suite)}/{paradigm.name}",
            paradigm.sentences,
            {"suite": suite.name, "phenomenon": paradigm.phenomenon},
        )
        for paradigm in suite.paradigms
    ]


def format_key(suite: Suite) -> str:
    """The name of a suite in evaluations.json, with a digest of its sentences."""
    return f"{suite.name}-{suite.sha256[:6]}"


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The accuracies on a paradigm. The case's inputs are its sentences: good, bad, good, bad, ..."""
    return compute_accuracy(sentence_scores.score_case(run, case, progress))


def compute_accuracy(scores: SentenceScores) -> dict:
    """How often the first sentence of a pair scores above the second, for each metric. Pairs follow one another.

    Ties count half. So do pairs whose sentences hold unequal numbers of unknown tokens ("incomparable"): unknown tokens
    are not scored, so the sentence that has more of them would win by it. "split_sentences" counts the
    sentences that are longer than an example.
    """
    unknown_Px2 = scores.unknown_S.reshape(-1, 2)
    comparable_P = unknown_Px2[:, 0] == unknown_Px2[:, 1]
    result: dict[str, float] = {
        "pairs": len(comparable_P),
        "incomparable": int((~comparable_P).sum()),
        "split_sentences": int((scores.sequences_S > 1).sum()),
    }
    for metric in METRICS:
        score_Px2 = getattr(scores, f"{metric}_S").reshape(-1, 2)
        correct_P = np.where(comparable_P, (1 + np.sign(score_Px2[:, 0] - score_Px2[:, 1])) / 2, 0.5)
        result[f"{metric}_accuracy"] = float(correct_P.mean())
    return result


def summarize(results: Mapping[str, dict]) -> dict:
    """The accuracies of each suite, by its key: overall and by phenomenon, with the SHA-256 of all sentences.

    results: those of the paradigms, by "KEY/PARADIGM". A mean is over paradigms of equal weight, as in the paper. Its
    95% interval ("_low", "_high") takes the paradigms as fixed and their pairs as sampled.
    """
    return {suite: _summarize_suite(paradigms) for suite, paradigms in group_results(results).items()}


def _summarize_suite(paradigms):
    phenomena = groups.group_values((paradigm["phenomenon"], paradigm) for paradigm in paradigms.values())
    return {
        "suite": next(iter(paradigms.values()))["suite"],
        "sha256": files.json_sha256(sorted((name, paradigm["sha256"]) for name, paradigm in paradigms.items())),
        "phenomena": {name: _average_accuracies(group) for name, group in sorted(phenomena.items())},
        "overall": _average_accuracies(list(paradigms.values())),
    }


def _average_accuracies(paradigms):
    pairs = [paradigm["pairs"] for paradigm in paradigms]
    result: dict[str, float] = {"paradigms": len(paradigms), "pairs": sum(pairs)}
    for name in (f"{metric}_accuracy" for metric in METRICS):
        accuracies = [paradigm[name] for paradigm in paradigms]
        result[name] = float(np.mean(accuracies))
        result[f"{name}_low"], result[f"{name}_high"] = estimates.mean_share_interval(accuracies, pairs)
    return result


def list_scores(contents: Mapping[str, Any]) -> Iterator[estimates.EvaluationScore]:
    """The accuracy on each suite."""
    for suite in get_summary(contents, "minimal_pairs").values():
        overall, name = suite["overall"], suite["suite"]
        yield estimates.EvaluationScore(
            estimates.EvaluationMetric(
                f"pairs_{name}", "accuracy on pairs", suite["sha256"], name, "%", ".1f", estimates.PERCENT
            ),
            100 * overall[f"{METRIC}_accuracy"],
            note=f"mean of {overall['paradigms']:,} paradigms, {overall['pairs']:,} pairs in all, by {METRIC_TITLE}",
            references={"chance": 50.0},
            interval=(100 * overall[f"{METRIC}_accuracy_low"], 100 * overall[f"{METRIC}_accuracy_high"]),
        )


def build_tables(contents: Mapping[str, Any]) -> Iterator[EvaluationTable]:
    """A table for each suite: its paradigms by phenomenon, and the means."""
    results = group_results(evaluations.get_results(contents, "minimal_pairs"))
    for suite, means in get_summary(contents, "minimal_pairs").items():
        yield build_suite_table(suite, means, results[suite])


def build_suite_table(suite: str, means: dict, results: Mapping[str, dict]) -> EvaluationTable:
    """The table of a suite. means: its summary; results: of its paradigms, by name."""
    rows = []
    for phenomenon, phenomenon_mean in means["phenomena"].items():
        paradigms = {name: values for name, values in results.items() if values["phenomenon"] == phenomenon}
        rows += [build_row(phenomenon, name, values) for name, values in sorted(paradigms.items())]
        if len(paradigms) > 1:
            rows.append(build_row(phenomenon, f"mean of {len(paradigms)}", phenomenon_mean))
    overall = means["overall"]
    rows.append(build_row("overall", f"mean of {overall['paradigms']}", overall))
    columns = [
        Column("phenomenon", "phenomenon"),
        Column("paradigm", "paradigm"),
        Column("pairs", "pairs", ",d"),
        *(Column(metric, f"{title} (%)", ".1f") for metric, title in TITLES.items()),
    ]
    if means["suite"] == BENCHMARK and overall["pairs"] == NUM_PARADIGMS * NUM_PAIRS:
        papers = PAPER_ACCURACY.items()
        rows += [{"phenomenon": "overall", "paradigm": name, "paper": value} for name, value in papers]
        columns.append(Column("paper", "paper (%)", ".1f"))
    return EvaluationTable(rows, columns, suite)


def build_row(phenomenon: str, paradigm: str, result: Mapping) -> dict:
    """The row of a paradigm, or of the mean of several: the accuracy by each metric, with its interval over pairs."""
    row = {"phenomenon": phenomenon, "paradigm": paradigm, "pairs": result["pairs"]}
    for metric in TITLES:
        accuracy = result[f"{metric}_accuracy"]
        low, high = estimates.wilson_interval(accuracy, result["pairs"])
        if "paradigms" in result:
            low, high = (result[f"{metric}_accuracy_{end}"] for end in ("low", "high"))
        row[metric] = estimates.ItemInterval(100 * accuracy, 100 * low, 100 * high)
    return row
