"""Table columns for the evaluations of trained runs (evaluations.json).

A column holds results on identical texts or tasks; a group has a number in it only if all its seeds were evaluated.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base.estimates import FRACTION, PERCENT, UNBOUNDED, Estimate, Score, estimate_mean
from mlm.report import series
from mlm.report.table import Column

METRIC = "pll_word_l2r"
METRIC_TITLE = "PLL-word-l2r (Kauf & Ivanova 2023)"
MAX_NAMED = 3  # failed fine-tunings
PROBES = (
    Column("near", "agreement, 1-3 words", ".3f"),
    Column("far", "agreement, 9-16 words", ".3f"),
    Column("recall", "name recall", ".3f"),
)
# Titles of settings of a fine-tuning; other settings are shown as they are.
VARIANT_TITLES = {
    "finetune.trainable_layers=0": "head only",
    "finetune.trainable_layers=1": "last layer",
    "from_scratch": "no pretraining",
}


class EvaluationKey(NamedTuple):
    """An evaluation that runs can have in common."""

    column: str  # key of the table's column
    title: str
    sha256: str  # of the texts and settings of the evaluation
    format: str = ".1f"
    bounds: tuple[float, float] = PERCENT  # lowest and highest possible value


class EvaluationValue(NamedTuple):
    """The result of an evaluation of one run."""

    value: float | None  # None: undefined
    error: float | None  # standard error over examples
    description: str  # of the evaluation, for the note below the table
    failed: tuple[str, ...] = ()  # fine-tunings without success
    values: tuple[float, ...] = ()  # over fine-tuning seeds, whose mean is `value`
    references: tuple[tuple[str, float], ...] = ()  # values that need no model, by name
    undefined: str = ""  # why it is undefined
    below: str = ""  # the run, where its value is below that of a classifier without a network


def iterate_evaluations(result: dict) -> Iterator[tuple[EvaluationKey, EvaluationValue]]:
    """All evaluations of a run: pseudo-perplexity and minimal pairs by PLL-word-l2r, fine-tuned tasks, embeddings and
    prompts.
    """
    evaluation = result["evaluations"].get("pseudo_likelihood", {}).get("all")
    if evaluation:
        values = evaluation[METRIC]
        yield (
            EvaluationKey("pseudo_perplexity", "pseudo-perplexity per word", evaluation["sha256"], ".2f", UNBOUNDED),
            EvaluationValue(
                values["word_perplexity"],
                values["word_perplexity_se"] if evaluation["sentences"] > 1 else None,
                f"{evaluation['sentences']:,} sentences, by {METRIC_TITLE}",
            ),
        )
    for suite in result["summary"].get("minimal_pairs", {}).values():
        overall = suite["overall"]
        yield (
            EvaluationKey(f"pairs_{suite['suite']}", f"{suite['suite']}: accuracy on pairs (%)", suite["sha256"]),
            EvaluationValue(
                100 * overall[f"{METRIC}_accuracy"],
                None,
                f"mean of {overall['paradigms']:,} paradigms, {overall['pairs']:,} pairs in all, by {METRIC_TITLE}",
            ),
        )
    for task in result["summary"].get("finetuned_tasks", {}).values():
        yield read_finetuned_task(result, task)
    yield from iterate_embeddings(result)
    yield from iterate_prompts(result)


def read_finetuned_task(result: dict, task: dict) -> tuple[EvaluationKey, EvaluationValue]:
    """The score of a task (mlm/evaluation/finetuned_tasks.py) on dev: the mean over fine-tuning seeds.

    The standard error over examples is given for a single seed.
    """
    variant: list[str] = task["variant"].split()
    score, seeds = Score(**task["score"]), task["seeds"]
    factor, form, bounds = (100, ".1f", PERCENT) if score.share else (1, score.format, UNBOUNDED)
    name = "_".join((f"task_{task['task']}", *variant))
    title = (
        ", ".join((task["title"], *(VARIANT_TITLES.get(word, word) for word in variant)))
        + f": {score.title.removeprefix('held-out ')}"
        + (" (%)" if score.share else "")
    )
    trials = (
        f"the best of {task['trials']} trials (learning rate x epochs x batch size)"
        if task["trials"] > 1
        else "one trial"
    )
    description = f"dev, {'mean of ' if len(seeds) > 1 else ''}{format_count(len(seeds), 'fine-tuning seed')}, {trials}"
    if "unscored" in task:
        description += f"; {format_count(task['unscored'], 'label')} not scored"
    run = Path(result["config"]["workdir"]).name
    mean, references = sum(task["values"]) / len(seeds), dict(task["references"])
    baseline = result["evaluations"].get("text_baseline", {}).get(task["task"], {})
    below = ""
    if score.name in baseline.get("scores", {}):
        references[baseline["title"]] = value = baseline["scores"][score.name]
        below = run if score.better * (mean - value) < 0 else ""
    return (
        EvaluationKey(name, title, task["sha256"], form, bounds),
        EvaluationValue(
            factor * mean,
            factor * task["error"] if "error" in task else None,
            f"{description}; {task['note']}" if task["note"] else description,
            tuple(f"{run} s{seed}" for seed in task["failed"]),
            tuple(factor * value for value in task["values"]),
            tuple((name, factor * value) for name, value in references.items()),
            below=below,
        ),
    )


def split_variants(result: dict, names: Mapping[str, str]) -> Iterator[dict]:
    """For each of config.downstream.variants, a copy of the run that has only the results of this variant.

    Its "variant" is the name of the variant: its last setting by `names`, if no other variant ends with it, or else the
    variant itself.
    """
    folder, _, run = result["config"]["workdir"].rpartition("/")
    variants = [variant.split() or [""] for variant in result["config"]["downstream.variants"].split(",")]
    for words in variants:
        is_unique = [other[-1] for other in variants].count(words[-1]) == 1
        variant_name = names.get(words[-1], " ".join(words)) if is_unique else " ".join(words)
        tasks = {
            name: task | {"variant": ""}
            for name, task in result["summary"].get("finetuned_tasks", {}).items()
            if task["variant"] == " ".join(words)
        }
        yield result | {
            "variant": variant_name,
            "summary": result["summary"] | {"finetuned_tasks": tasks},
            "config": result["config"] | {"workdir": f"{folder}/{variant_name} {run}"},
        }


def format_count(count: int, noun: str) -> str:
    """A number with its noun, which gets an s unless the number is 1."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def iterate_embeddings(result: dict) -> Iterator[tuple[EvaluationKey, EvaluationValue]]:
    """Anisotropy of held-out states, and how well embeddings predict sentence similarity, at the last layer."""
    if evaluation := result["evaluations"].get("anisotropy", {}).get("held-out"):
        last = evaluation["layers"][-1]
        description = f"{evaluation['words']:,} words in {evaluation['examples']:,} held-out examples"
        for name, title in GEOMETRY.items():
            yield (
                EvaluationKey(name, title, evaluation["sha256"], ".3f", UNBOUNDED),
                EvaluationValue(last[name], last[f"{name}_se"], description),
            )
    for split, evaluation in result["evaluations"].get("sts", {}).items():
        for pooling, values in {"static": evaluation["static"], **evaluation["layers"][-1]}.items():
            yield (
                EvaluationKey(
                    f"{split.replace('/', '_')}_{pooling}",
                    f"{split}: Spearman of {POOLINGS[pooling]}",
                    evaluation["sha256"],
                    ".3f",
                    (-1.0, 1.0),
                ),
                EvaluationValue(
                    values["spearman"],
                    values["spearman_se"],
                    f"{evaluation['pairs']:,} pairs of sentences",
                    undefined=values.get("undefined", ""),
                ),
            )


GEOMETRY = {
    "anisotropy": "cosine of two words' states",
    "self_similarity_adjusted": "cosine of one word in two examples, minus that of two words",
    "explained_adjusted": "variance explained by a static vector, minus random",
}
POOLINGS = {"static": "static vectors", "cls": "[CLS]", "mean": "mean states"}


def iterate_prompts(result: dict) -> Iterator[tuple[EvaluationKey, EvaluationValue]]:
    """The accuracy of each task as a prompt; few-shot is the mean over samples of training examples."""
    for evaluation in result["evaluations"].get("zero_shot", {}).values():
        description = f"{evaluation['examples']:,} examples of dev, {evaluation['majority']:.1%} of the majority class"
        yield (
            EvaluationKey(
                f"zero_shot_{evaluation['task']}", f"{evaluation['task']}: zero-shot (%)", evaluation["sha256"]
            ),
            EvaluationValue(100 * evaluation["accuracy"], 100 * evaluation["accuracy_se"], description),
        )
    for evaluation in result["summary"].get("few_shot", {}).values():
        yield (
            EvaluationKey(
                f"few_shot_{evaluation['task']}", f"{evaluation['task']}: few-shot (%)", evaluation["sha256"]
            ),
            EvaluationValue(
                100 * evaluation["accuracy"], None, f"mean of {evaluation['samples']} samples of training examples"
            ),
        )


def build_columns(results: Sequence[dict]) -> dict[EvaluationKey, Column]:
    """A column for each evaluation of some run; columns with equal titles get the first digits of their SHA-256."""
    values_by_key: dict[EvaluationKey, list[EvaluationValue]] = {}
    for result in results:
        for key, value in iterate_evaluations(result):
            values_by_key.setdefault(key, []).append(value)
    names = [key.column for key in values_by_key]
    columns = {}
    for key, values in values_by_key.items():
        is_ambiguous, digits = names.count(key.column) > 1, key.sha256[:4]
        title = f"{key.title}, {digits}" if is_ambiguous else key.title
        columns[key] = Column(
            f"{key.column}_{digits}" if is_ambiguous else key.column,
            title,
            key.format,
            f"{title}: {values[-1].description}{describe_failures(values)}{describe_below(values)}.",
        )
    return columns


def describe_failures(values: Sequence[EvaluationValue]) -> str:
    """How many fine-tunings failed, with their names if they are few; empty if none did."""
    failed = [name for value in values for name in value.failed]
    if not failed:
        return ""
    total = sum(len(value.values) for value in values)
    names = f": {', '.join(failed)}" if len(failed) <= MAX_NAMED else ""
    return f"; failed (no better than the majority class, or 0, or not finite), {len(failed)} of {total}{names}"


def describe_below(values: Sequence[EvaluationValue]) -> str:
    """Which runs are below a classifier without a network; empty if none is."""
    below = [value.below for value in values if value.below]
    return f"; below TF-IDF with logistic regression: {', '.join(below)}" if below else ""


def build_cells(seeds: Sequence[dict], columns: dict[EvaluationKey, Column]) -> dict:
    """A group's cells: the mean over its runs if all have the evaluation, else the number of runs that have it.

    Where it is undefined for a run, the cell says why.
    The interval of a single run with several fine-tuning seeds is over these.
    """
    row, runs = {}, [dict(iterate_evaluations(result)) for result in seeds]
    for key, column in columns.items():
        values = [run[key] for run in runs if key in run]
        defined = [value.value for value in values if value.value is not None]
        if len(defined) < len(values):
            row[column.name] = f"undefined: {next(value.undefined for value in values if value.undefined)}"
        elif len(values) == len(seeds):
            row[column.name] = estimate_mean(
                values[0].values if len(values) == 1 and values[0].values else defined, key.bounds
            )
            if len(values) == 1 and values[0].error is not None:
                row[f"{column.name}_se"] = values[0].error
        elif values:
            row[column.name] = f"{len(values)} of {len(seeds)} seeds evaluated"
    return row


def build_reference_cells(results: Sequence[dict], columns: dict[EvaluationKey, Column]) -> dict[str, dict]:
    """The cells of the references, by name, such as the majority class and the Bayes optimum."""
    rows: dict[str, dict] = {}
    for result in results:
        for key, evaluation in iterate_evaluations(result):
            for name, value in evaluation.references:
                rows.setdefault(name, {})[columns[key].name] = value
    return rows


def build_paper_columns(titles: Mapping[str, str]) -> tuple[Column, ...]:
    """A column with a paper's scores for each task; titles: of the tasks, by name."""
    return tuple(Column(f"task_{task}_paper", f"paper's {title}", ".1f") for task, title in titles.items())


def build_paper_cells(titles: Mapping[str, str], values: Sequence[float]) -> dict[str, float]:
    """A row's cells in the columns of `build_paper_columns`."""
    return {f"task_{task}_paper": value for task, value in zip(titles, values, strict=True)}


def probe_accuracies(results: Sequence[dict], metric: str) -> dict[str, Estimate]:
    """The cells of PROBES: agreement of near and far verbs, and name recall.

    Args:
        results: the runs of a group.
        metric: "accuracy", of the models, or "optimum", of the Bayes optimum.
    """
    runs = [series.probe_results(result) for result in results]
    entries = {"recall": [probes["recall"] for probes in runs if metric in probes.get("recall", {})]}
    for name, low in (("near", 1), ("far", 9)):
        entries[name] = [
            entry for probes in runs for entry in probes.get("agreement", {}).get("distance", []) if entry["low"] == low
        ]
    return {
        name: estimate_mean((entry[metric] for entry in probe_entries), FRACTION)
        for name, probe_entries in entries.items()
        if probe_entries and len(probe_entries) == len(results)
    }
