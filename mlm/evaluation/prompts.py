"""Zero-shot classification with prompts: a task as a text with a masked word, and a word for each label.

The method is that of Gao et al. 2021 (LM-BFF). Letters in array names: N examples, C labels.
"""

import argparse
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import errors, types
from mlm.base.estimates import PERCENT, Estimate, ItemInterval, Score, SeedRange, compute_score, wilson_interval
from mlm.base.evaluation_score import EvaluationMetric, EvaluationScore
from mlm.base.special import CLS, PAD, SEP, UNK
from mlm.data.tasks import splits, task_file, task_specs, tasks
from mlm.data.tasks.examples import require_column
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.evaluation import sentence_scores
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_results, get_summary
from mlm.inference import batching, masked_queries
from mlm.inference.masked_queries import MaskedQueries
from mlm.objectives import scores
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

MASK_PLACE, TEXT_PLACE, SECOND_PLACE = "[MASK]", "{text}", "{second}"
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
SCORE_BUILDERS: dict[str, Callable[[Sequence[str]], Score]] = {
    "accuracy": lambda labels: scores.build_accuracy_score("weight"),
    "f1": lambda labels: scores.build_f1_score(labels, "weight"),
    "matthews": lambda labels: scores.build_matthews_score(labels, "weight"),
}  # from the labels


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
        words: replace the verbalizers of these: LABEL=WORD of each label, or the words in the order of the labels.

    Raises:
        ConfigError: for an unknown task, for a pattern that lacks a place, for a label without a verbalizer, and as
            task_file.read_task_file and splits.open_task do.
    """
    if name.endswith(task_file.SUFFIX):
        errors.require(not folder, "--task_path", folder, f"no folder, since {name} says where its files are")
        file, own = name, task_file.read_task_file("--prompt", name)
        name, settings, default = own.name, own.fields, Prompt(own.pattern, own.verbalizers)
    else:
        known = [task for task, row in task_specs.TASKS.items() if row.objective == "classification"]
        errors.require_one_of("--prompt", name, known)
        is_folder = os.path.isdir(os.path.expanduser(folder))
        errors.require(is_folder, "--task_path", folder, f"the folder of {name}'s files")
        file, default = "", PROMPTS.get(name, Prompt("", {}))
        settings = {"data.task": name, "data.task_path": folder}
        if default.verbalizers:
            settings["data.labelled.labels"] = ",".join(default.verbalizers)
    cfg = tasks.resolve_task(settings)
    errors.require(
        cfg.objective == "classification", f"{file}: objective", cfg.objective, "classification, since it is prompted"
    )
    labels = splits.list_classes(cfg)
    check_pattern(
        pattern or default.pattern,
        bool(cfg.data.labelled.text_pair_column),
        f"{file}: prompt.pattern" if file and default.pattern and not pattern else "--pattern",
    )
    named = {label: word for label, _, word in (given.rpartition("=") for given in words)}
    if words and "" not in named:
        for label in named:
            errors.require_one_of("--verbalizers", label, labels)
        words = [named[label] for label in labels if label in named]
    if words or not default.verbalizers:
        errors.require(
            len(words) == len(labels),
            "--verbalizers",
            ",".join(words),
            f"a word for each label of {name}, in this order, or LABEL=WORD of each: {', '.join(labels)}",
        )
    else:
        for label in default.verbalizers:
            require_column(label, labels, f"{file}: prompt.verbalizers", "label")
        missing = [label for label in labels if label not in default.verbalizers]
        errors.require(not missing, f"{file}: prompt.verbalizers", [*default.verbalizers], f"also {', '.join(missing)}")
    verbalizers = dict(zip(labels, words, strict=True)) if words else {one: default.verbalizers[one] for one in labels}
    source = splits.open_task(cfg)
    label_index = {label: index for index, label in enumerate(labels)}

    def read_examples(split):
        return [[*example.texts, label_index[example.label]] for example in source.splits[split]()]

    score_names = scores.parse_score_names(cfg, tuple(SCORE_BUILDERS))
    if "f1" in score_names:
        scores.build_f1_score(labels, "weight")  # of two labels alone
    return PromptTask(
        name,
        Prompt(pattern or default.pattern, verbalizers),
        read_examples("train"),
        read_examples("validation"),
        tuple(score for score in score_names if score != "accuracy"),
    )


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
        errors.require(
            word in places or not ("{" in word or MASK_PLACE in word),
            field,
            pattern,
            f"words and the places {', '.join(places)}, not {word!r}",
        )


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


def encode_pattern(
    tokenizer: Tokenizer, pattern: str, texts: Mapping[str, str]
) -> tuple[list[int], dict[str, list[int]]]:
    """The ids of a pattern whose places have these texts, encoded as one, and the indices of each place's tokens."""
    filled, places = [], {}
    for word in pattern.split():
        filled.append(texts.get(word, word))
        if word in (TEXT_PLACE, SECOND_PLACE, MASK_PLACE):
            end = len(" ".join(filled))
            places[word] = (end - len(filled[-1]), end)
    ids, spans = batching.encode_masked(tokenizer, " ".join(filled))
    return ids, {
        place: [i for i, (start, end) in enumerate(spans) if start < last and first < end]
        for place, (first, last) in places.items()
    }


def encode_verbalizers(tokenizer: Tokenizer, pattern: str, verbalizers: Mapping[str, str]) -> np.ndarray:
    """id_C of the verbalizers as they stand in the pattern.

    Raises ConfigError for one that is not one entry of the vocabulary there, or is not unique.
    """
    labels: dict[int, str] = {}
    for label, word in verbalizers.items():
        ids, places = encode_pattern(tokenizer, pattern, {TEXT_PLACE: ".", SECOND_PLACE: ".", MASK_PLACE: word})
        ids, field = [ids[i] for i in places[MASK_PLACE]], f"verbalizer of label {label}"
        pieces = ", ".join(repr(tokenizer.pieces[i]) for i in ids)
        errors.require(
            len(ids) > 0 and UNK not in ids,
            field,
            word,
            f"a word of the run's vocabulary; its pieces there are {pieces or 'none'}",
        )
        errors.require(
            len(ids) == 1, field, word, f"one entry of the run's vocabulary, where it has {len(ids)} pieces: {pieces}"
        )
        errors.require(ids[0] not in labels, field, word, f"another word than that of label {labels.get(ids[0])}")
        labels[ids[0]] = label
    return np.array(list(labels), np.int32)


def build_queries(tokenizer: Tokenizer, pattern: str, examples: Sequence, length: int) -> tuple[MaskedQueries, int]:
    """The examples in their pattern, and how many of them had to be truncated, the longer text first.

    Raises ConfigError for a pattern that leaves no room for the texts.
    """
    names = [place for place in (TEXT_PLACE, SECOND_PLACE) if place in pattern.split()]
    ids, places = encode_pattern(tokenizer, pattern, dict.fromkeys(names, "."))
    num_free = length - 2 - len(ids) + sum(len(places[name]) for name in names)
    errors.require(
        num_free >= len(names),
        "--pattern",
        pattern,
        f"a pattern that leaves room for texts in sequences of {length} tokens",
    )
    ids_NxL, positions, num_truncated = np.full((len(examples), length), PAD, np.int32), [], 0
    for ids_L, example in zip(ids_NxL, examples, strict=True):
        ids, places = encode_pattern(tokenizer, pattern, dict(zip(names, example, strict=False)))
        first, second = (places.get(name, []) for name in (TEXT_PLACE, SECOND_PLACE))
        num_free = length - 2 - len(ids) + len(first) + len(second)
        length_b = min(len(second), max(num_free - len(first), num_free // 2))
        length_a = min(len(first), num_free - length_b)
        cut = {*first[length_a:], *second[length_b:]}
        num_truncated += bool(cut)
        kept = [i for i in range(len(ids)) if i not in cut]
        ids_L[: len(kept) + 2] = [CLS, *(ids[i] for i in kept), SEP]
        positions.append(1 + kept.index(places[MASK_PLACE][0]))
    position_N = np.array(positions, np.int32)
    return MaskedQueries(ids_NxL, position_N, position_N + 1), num_truncated


def compute_label_log_probs(
    model: types.Model, verbalizers: bytes, params, queries: MaskedQueries, hparams=None
) -> jax.Array:
    """log_prob_BxC of the verbalizers at the masked position, among the whole vocabulary.

    verbalizers: id_C, as bytes, so that they can be hashed. hparams: unused.
    """
    verbalizer_C = jnp.asarray(np.frombuffer(verbalizers, np.int32))
    return masked_queries.compute_log_probs(model, params, queries)[:, verbalizer_C]


def score_queries(
    score: Callable[[MaskedQueries], np.ndarray], queries: MaskedQueries, batch_size: int, progress: ReportProgress
) -> np.ndarray:
    """log_prob_NxC of all queries, in batches of similar lengths; batch_size: queries of full length in a batch."""
    log_probs: list = [None] * len(queries.position_B)
    for indices, ids_BxL in _iterate_batches(queries, batch_size):
        index_B = np.pad(indices, (0, len(ids_BxL) - len(indices)), "edge")
        log_prob_BxC = score(MaskedQueries(ids_BxL, queries.position_B[index_B], queries.end_B[index_B]))
        for index, log_prob_C in zip(indices, log_prob_BxC, strict=False):  # leaves out the batch's padding
            log_probs[index] = log_prob_C
        progress()
    return np.stack(log_probs)


def _iterate_batches(queries, batch_size):
    return batching.iterate_batches(
        [ids_L[ids_L != PAD] for ids_L in queries.ids_BxL], queries.ids_BxL.shape[1], batch_size, full_batches=True
    )


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Scores of the likeliest verbalizer on the dev split, without any training.

    "accuracy" and the task's other scores have standard errors over examples ("_se"). "majority" is the accuracy of the
    train split's most frequent label, "predicted" the share of each label among the predictions, and "truncated" counts
    truncated examples. Raises ConfigError for verbalizers that are not one entry of the vocabulary each.
    """
    inputs, partitioner = case.inputs, run.program.partitioner
    verbalizer_C = encode_verbalizers(run.tokenizer, inputs["pattern"], inputs["verbalizers"])
    queries, truncated = build_queries(run.tokenizer, inputs["pattern"], inputs["examples"], run.cfg.pack.seq_len)
    model = objectives.shift_states(run.cfg, run.program.model)
    score_batch = partitioner.jit_per_example(compute_label_log_probs, model, verbalizer_C.tobytes())

    def score(batch):
        local_slice = parallel.process_slice(len(batch.position_B))
        return score_batch(run.state, partitioner.put_batch(MaskedQueries(*(x[local_slice] for x in batch))), None)

    log_prob_NxC = score_queries(score, queries, run.cfg.eval.batch_size, progress)
    label_N = np.array([label for *_, label in inputs["examples"]])
    return {
        "examples": len(label_N),
        "truncated": truncated,
        **compute_scores(log_prob_NxC.argmax(-1), label_N, inputs),
    }


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
        result[name], result[f"{name}_se"] = compute_score(SCORE_BUILDERS[name](labels), columns)
    shares = {label: float((predicted_N == index).mean()) for index, label in enumerate(labels)}
    return result | {"majority": float((label_N == inputs["majority"]).mean()), "predicted": shares}


def count_units(run: TrainedRun, case: EvaluationCase) -> int:
    """The number of batches."""
    inputs = case.inputs
    queries, _ = build_queries(run.tokenizer, inputs["pattern"], inputs["examples"], run.cfg.pack.seq_len)
    return sum(1 for _ in _iterate_batches(queries, run.cfg.eval.batch_size))


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
            row["few_shot"] = estimate_over_samples(few_shot[key])
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


def estimate_over_samples(summary: Mapping) -> Estimate:
    """The mean accuracy over several samples of training examples."""
    estimate_class = Estimate if summary["samples"] != 2 else SeedRange
    return estimate_class(*(summary[f"accuracy{suffix}"] for suffix in ("", "_low", "_high")))
