"""Zero-shot classification with prompts: a task as a text with a masked word, and a word for each label.

The method is that of Gao et al. 2021 (LM-BFF). Letters in array names: N examples, C labels.
"""

import argparse
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlm import objectives
from mlm.base import errors
from mlm.base.estimates import PERCENT, Estimate, ItemInterval, SeedRange, compute_score, wilson_interval
from mlm.base.evaluation_score import EvaluationMetric, EvaluationScore
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES
from mlm.data.tasks import splits, task_file, tasks
from mlm.data.tasks.examples import require_column
from mlm.evaluation import prompt_queries, sentence_scores
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_results, get_summary
from mlm.evaluation.prompt_queries import MASK_PLACE, SECOND_PLACE, TEXT_PLACE
from mlm.inference import masked_queries
from mlm.objectives import scores
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

FORMAT = 1  # of the results: raise it when their meaning changes
get_unsupported_reason = sentence_scores.get_unsupported_reason


class Prompt(NamedTuple):
    """A task as a text. The pattern's words are separated by spaces; the places stand for the texts and the mask."""

    pattern: str
    verbalizers: Mapping[str, str]  # a word for each label, by the label's name in the files


# From Gao et al. 2021 (arXiv:2012.15723), table 1, for entries of TASKS. Texts stay as they are; the paper's code
# removes the full stop of a pair's first text and lowercases the first letter of the second.
PROMPTS = {
    "sst2": Prompt("{text} It was [MASK] .", {"0": "terrible", "1": "great"}),
    "cola": Prompt("{text} This is [MASK] .", {"0": "incorrect", "1": "correct"}),
    "rte": Prompt("{text} ? [MASK] , {second}", {"entailment": "Yes", "not_entailment": "No"}),
    "mrpc": Prompt("{text} [MASK] , {second}", {"0": "No", "1": "Yes"}),
}
SCORE_NAMES = ("accuracy", "f1", "matthews")


class PromptTask(NamedTuple):
    """A task's prompt and examples; an example is a list of its texts and the index of its label."""

    name: str
    prompt: Prompt
    train: list
    dev: list
    scores: tuple[str, ...]  # in addition to accuracy


def read_task(name: str, folder: str = "", pattern: str = "", words: Sequence[str] = ()) -> PromptTask:
    """Reads a task from its files.

    Args:
        name: a classification task of TASKS, or a task file (.toml), whose table "prompt" may have a pattern and
            verbalizers.
        folder: the folder of the task's files; a task file says where they are.
        pattern: replaces that of the task file, or of PROMPTS.
        words: replace the verbalizers of these, as `parse_verbalizers` reads them.

    Raises:
        ConfigError: the task, its pattern or its verbalizers are wrong; and as splits.open_task does.
    """
    if name.endswith(task_file.SUFFIX):
        errors.require(not folder, "--task_path", folder, f"no folder, since {name} says where its files are")
        file, own = name, task_file.read_task_file("--prompt", name)
        name, settings, default = own.name, own.fields, Prompt(own.pattern, own.verbalizers)
    else:
        known = [task for task, row in tasks.TASKS.items() if LABELLED_OBJECTIVES[row.objective].classifies_texts]
        errors.require_one_of("--prompt", name, known)
        is_folder = os.path.isdir(os.path.expanduser(folder))
        errors.require(is_folder, "--task_path", folder, f"the folder of {name}'s files")
        file, default = "", PROMPTS.get(name, Prompt("", {}))
        settings = {"data.task": name, "data.task_path": folder}
        if default.verbalizers:
            settings["data.labelled.labels"] = ",".join(default.verbalizers)
    cfg = tasks.resolve_task(settings)
    expected = "classification, since it is prompted"
    classifies_texts = LABELLED_OBJECTIVES[cfg.objective].classifies_texts
    errors.require(classifies_texts, f"{file}: objective", cfg.objective, expected)
    labels = splits.list_classes(cfg)
    field = f"{file}: prompt.pattern" if file and default.pattern and not pattern else "--pattern"
    check_pattern(pattern or default.pattern, bool(cfg.data.labelled.text_pair_column), field)
    if words or not default.verbalizers:
        verbalizers = parse_verbalizers(words, labels, name)
    else:
        for label in default.verbalizers:
            require_column(label, labels, f"{file}: prompt.verbalizers", "label")
        missing = [label for label in labels if label not in default.verbalizers]
        errors.require(not missing, f"{file}: prompt.verbalizers", [*default.verbalizers], f"also {', '.join(missing)}")
        verbalizers = {label: default.verbalizers[label] for label in labels}
    source = splits.open_task(cfg)
    label_index = {label: index for index, label in enumerate(labels)}

    def read_examples(split):
        return [[*example.texts, label_index[example.label]] for example in source.splits[split]()]

    score_names = scores.parse_score_names(cfg, SCORE_NAMES)
    if "f1" in score_names:
        scores.build_score("f1", "weight", labels)  # of two labels alone
    other_scores = tuple(score for score in score_names if score != "accuracy")
    prompt = Prompt(pattern or default.pattern, verbalizers)
    return PromptTask(name, prompt, read_examples("train"), read_examples("validation"), other_scores)


def parse_verbalizers(words: Sequence[str], labels: Sequence[str], task: str) -> dict[str, str]:
    """The words of --verbalizers by label, of which each has one: LABEL=WORD, or WORD in the order of the labels."""
    named = {label: word for label, _, word in (given.rpartition("=") for given in words)}
    if words and "" not in named:
        for label in named:
            errors.require_one_of("--verbalizers", label, labels)
        words = [named[label] for label in labels if label in named]
    expected = f"a word for each label of {task}, in this order, or LABEL=WORD of each: {', '.join(labels)}"
    errors.require(len(words) == len(labels), "--verbalizers", ",".join(words), expected)
    return dict(zip(labels, words, strict=True))


def read_flagged_task(args: argparse.Namespace) -> PromptTask:
    """The task that the flags name."""
    return read_task(args.prompt, args.task_path, args.pattern, args.verbalizers)


def read_flags(args: argparse.Namespace):
    """Reads the task; returns the function from a run to its case."""
    case = make_zero_shot_case(read_flagged_task(args))
    return lambda run: [case]


def check_pattern(pattern: str, is_pair: bool, field: str = "--pattern") -> None:
    """Raises ConfigError for a pattern that does not hold each of its places once, as a word of its own.

    field: the setting that has it, for errors.
    """
    places = (TEXT_PLACE, SECOND_PLACE, MASK_PLACE) if is_pair else (TEXT_PLACE, MASK_PLACE)
    words = pattern.split()
    for place in places:
        errors.require(words.count(place) == 1, field, pattern, f"{place} once, with spaces around it")
    for word in words:
        is_known = word in places or not ("{" in word or MASK_PLACE in word)
        errors.require(is_known, field, pattern, f"words and the places {', '.join(places)}, not {word!r}")


def make_zero_shot_case(task: PromptTask) -> EvaluationCase:
    """The case of a task's dev split. Another pattern or other verbalizers make another case."""
    ((majority, _),) = Counter(label for *_, label in task.train).most_common(1)
    prompt = {"pattern": task.prompt.pattern, "verbalizers": dict(task.prompt.verbalizers)}
    inputs = prompt | {"examples": task.dev, "majority": majority, "scores": task.scores, "format": FORMAT}
    words = ", ".join(f"{label}={word}" for label, word in prompt["verbalizers"].items())
    announcement = f"prompt: {prompt['pattern']!r}, verbalizers: {words}"
    return EvaluationCase("zero_shot", format_key(task), inputs, {"task": task.name, **prompt}, announcement)


def format_key(task: PromptTask) -> str:
    """The name of a prompted task in evaluations.json, with a digest of its prompt."""
    prompt = json.dumps([task.prompt.pattern, dict(task.prompt.verbalizers)])
    return f"{task.name}-{hashlib.sha256(prompt.encode()).hexdigest()[:6]}"


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Scores of the likeliest verbalizer on the dev split, without any training.

    "accuracy" and the task's other scores have standard errors over examples ("_se"). "majority" is the accuracy of the
    train split's most frequent label, "predicted" the share of each label among the predictions, and "truncated" counts
    truncated examples. Raises ConfigError for verbalizers that are not one entry of the vocabulary each.
    """
    inputs = case.inputs
    verbalizer_C = prompt_queries.encode_verbalizers(run.tokenizer, inputs["pattern"], inputs["verbalizers"])
    queries, label_N, truncated = prompt_queries.read_queries(run, inputs, "examples")
    model = objectives.shift_states(run.cfg, run.program.model)
    score = masked_queries.make_scorer(
        model, run.program.partitioner, run.state, prompt_queries.compute_label_log_probs, verbalizer_C.tobytes()
    )
    log_prob_NxC = prompt_queries.score_queries(score, queries, run.cfg.eval.batch_size, progress)
    values = compute_scores(log_prob_NxC.argmax(-1), label_N, inputs)
    return {"examples": len(label_N), "truncated": truncated, **values}


def compute_scores(predicted_N, label_N, inputs: Mapping) -> dict:
    """The scores of `evaluate`. inputs: those of the case."""
    labels, one_N = tuple(inputs["verbalizers"]), np.ones(len(label_N))
    columns = {
        "correct": (predicted_N == label_N) * one_N,
        "weight": one_N,
        **scores.count_classes(predicted_N, label_N, one_N, len(labels)),
    }
    result: dict = {}
    for name in ("accuracy", *inputs["scores"]):
        result[name], result[f"{name}_se"] = compute_score(scores.build_score(name, "weight", labels), columns)
    shares = {label: float((predicted_N == index).mean()) for index, label in enumerate(labels)}
    return result | {"majority": float((label_N == inputs["majority"]).mean()), "predicted": shares}


def count_units(run: TrainedRun, case: EvaluationCase) -> int:
    """The number of batches."""
    queries, *_ = prompt_queries.read_queries(run, case.inputs, "examples")
    return sum(1 for _ in prompt_queries.iterate_batches(queries, run.cfg.eval.batch_size))


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """The accuracy of each task as a prompt."""
    for result in get_results(contents, "zero_shot").values():
        yield EvaluationScore(
            make_metric("zero_shot", "zero-shot", result),
            100 * result["accuracy"],
            100 * result["accuracy_se"],
            f"{result['examples']:,} examples of dev, {result['majority']:.1%} of the majority class",
        )


def make_metric(evaluation: str, title: str, result: Mapping) -> EvaluationMetric:
    """The accuracy, in per cent, of a task as a prompt."""
    task = result["task"]
    return EvaluationMetric(f"{evaluation}_{task}", title, result["sha256"], task, "%", ".1f", PERCENT)


def build_tables(contents: Mapping[str, Any]) -> list[EvaluationTable]:
    """A table with a row for each task, pattern and verbalizers; few-shot accuracy stands beside zero-shot's."""
    few_shot, rows = get_summary(contents, "few_shot"), []
    for key, result in get_results(contents, "zero_shot").items():
        accuracy = result["accuracy"]
        row = {name: result[name] for name in ("task", "pattern", "examples", "truncated", "majority")}
        row |= {
            "words": " / ".join(result["verbalizers"].values()),
            "zero_shot": ItemInterval(accuracy, *wilson_interval(accuracy, result["examples"])),
        }
        if key in few_shot:
            means = few_shot[key]
            estimate_class = Estimate if means["samples"] != 2 else SeedRange
            row["few_shot"] = estimate_class(means["accuracy"], means["accuracy_low"], means["accuracy_high"])
        rows.append(row)
    columns = (
        Column("task", "prompt"),
        Column("pattern", "pattern"),
        Column("words", "words"),
        Column("examples", "examples", ",d"),
        Column("truncated", "truncated", ",d"),
        Column("majority", "majority", ".3f"),
        Column("zero_shot", "zero-shot accuracy", ".3f"),
        Column("few_shot", "few-shot accuracy", ".3f"),
    )
    return [EvaluationTable(rows, [column for column in columns if any(column.name in row for row in rows)])]
