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
from mlm.base import errors, estimates, types
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES
from mlm.base.special import CLS, PAD, SEP, UNK
from mlm.data.tasks import splits, task_file, tasks
from mlm.data.tasks.examples import require_columns
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.evaluation import sentence_scores
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTable, ReportProgress, get_results, get_summary
from mlm.inference import batching, forward_passes
from mlm.inference.forward_passes import MaskedQueries
from mlm.objectives import scores
from mlm.report.table import Column
from mlm.training.run.trained_run import TrainedRun

MASK_PLACE, TEXT_PLACE, SECOND_PLACE = "[MASK]", "{text}", "{second}"
FORMAT = 1  # of the results: raise it when their meaning changes
SCORE_NAMES = ("accuracy", "f1", "matthews")
get_unsupported_reason = sentence_scores.get_unsupported_reason


class PromptTask(NamedTuple):
    """A task as a text, and its examples; an example is a list of its texts and the index of its label."""

    name: str
    pattern: str  # words separated by spaces; the places stand for the texts and the mask
    verbalizers: Mapping[str, str]  # a word for each label, by the label's name in the files
    train: list
    dev: list
    scores: tuple[str, ...]  # in addition to accuracy


def read_task(name: str, folder: str = "", pattern: str = "", words: Sequence[str] = ()) -> PromptTask:
    """Reads a task from its files. Raises ConfigError for what is wrong in it, and as splits.open_task does.

    Args:
        name: a classification task of TASKS, or a task file (.toml), whose table "prompt" may have a pattern and
            verbalizers.
        folder: the folder of the task's files; a task file says where they are.
        pattern: replaces that of the task file, or of TASKS.
        words: replace the verbalizers of these, as `parse_verbalizers` reads them.
    """
    if name.endswith(task_file.SUFFIX):
        errors.require(not folder, "--task_path", folder, f"no folder, since {name} says where its files are")
        file, own = name, task_file.read_task_file("--prompt", name)
        name, settings, default_pattern, default_words = own.name, own.fields, own.pattern, own.verbalizers
    else:
        known = [task for task, row in tasks.TASKS.items() if LABELLED_OBJECTIVES[row.objective].classifies_texts]
        errors.require_one_of("--prompt", name, known)
        is_folder = os.path.isdir(os.path.expanduser(folder))
        errors.require(is_folder, "--task_path", folder, f"the folder of {name}'s files")
        file, prompt = "", tasks.TASKS[name].prompt
        default_pattern, default_words = prompt.get("pattern", ""), prompt.get("verbalizers", {})
        settings = {"data.task": name, "data.task_path": folder}
        if default_words:
            settings["data.labelled.labels"] = ",".join(default_words)
    cfg = tasks.resolve_task(settings)
    expected = "classification, since it is prompted"
    classifies_texts = LABELLED_OBJECTIVES[cfg.objective].classifies_texts
    errors.require(classifies_texts, f"{file}: objective", cfg.objective, expected)
    labels = splits.list_classes(cfg)
    field = f"{file}: prompt.pattern" if file and default_pattern and not pattern else "--pattern"
    pattern = pattern or default_pattern
    check_pattern(pattern, bool(cfg.data.labelled.text_pair_column), field)
    if words or not default_words:
        verbalizers = parse_verbalizers(words, labels, name)
    else:
        require_columns(default_words, labels, f"{file}: prompt.verbalizers", "label")
        missing = [label for label in labels if label not in default_words]
        errors.require(not missing, f"{file}: prompt.verbalizers", [*default_words], f"also {', '.join(missing)}")
        verbalizers = {label: default_words[label] for label in labels}
    source = splits.open_task(cfg)
    label_index = {label: index for index, label in enumerate(labels)}

    def read_examples(split):
        return [[*example.texts, label_index[example.label]] for example in source[split]()]

    score_names = scores.parse_score_names(cfg, SCORE_NAMES)
    if "f1" in score_names:
        scores.build_score("f1", "weight", labels)  # of two labels alone
    other_scores = tuple(score for score in score_names if score != "accuracy")
    return PromptTask(name, pattern, verbalizers, read_examples("train"), read_examples("validation"), other_scores)


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


def read_flags(args: argparse.Namespace):
    """Reads the task; returns the function from a run to its case."""
    case = make_zero_shot_case(read_task(args.prompt, args.task_path, args.pattern, args.verbalizers))
    return lambda run: [case]


def check_pattern(pattern: str, is_pair: bool, field: str = "--pattern") -> None:
    """Raises ConfigError for a pattern that does not hold each of its places once, as a word of its own."""
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
    prompt = {"pattern": task.pattern, "verbalizers": dict(task.verbalizers)}
    inputs = prompt | {"examples": task.dev, "majority": majority, "scores": task.scores, "format": FORMAT}
    words = ", ".join(f"{label}={word}" for label, word in prompt["verbalizers"].items())
    announcement = f"prompt: {prompt['pattern']!r}, verbalizers: {words}"
    return EvaluationCase("zero_shot", format_key(task), inputs, {"task": task.name, **prompt}, announcement)


def format_key(task: PromptTask) -> str:
    """The name of a prompted task in evaluations.json, with a digest of its prompt."""
    prompt = json.dumps([task.pattern, dict(task.verbalizers)])
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
        expected = f"a word of the run's vocabulary; its pieces there are {pieces or 'none'}"
        errors.require(len(ids) > 0 and UNK not in ids, field, word, expected)
        expected = f"one entry of the run's vocabulary, where it has {len(ids)} pieces: {pieces}"
        errors.require(len(ids) == 1, field, word, expected)
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
    expected = f"a pattern that leaves room for texts in sequences of {length} tokens"
    errors.require(num_free >= len(names), "--pattern", pattern, expected)
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


def read_queries(run: TrainedRun, inputs: Mapping, name: str) -> tuple[MaskedQueries, np.ndarray, int]:
    """The examples of this name among a case's inputs as queries, their label_N, and how many were truncated."""
    queries, num_truncated = build_queries(run.tokenizer, inputs["pattern"], inputs[name], run.cfg.pack.seq_len)
    return queries, np.array([label for *_, label in inputs[name]], np.int32), num_truncated


def compute_label_log_probs(
    model: types.Model, verbalizers: bytes, params, queries: MaskedQueries, hparams=None
) -> jax.Array:
    """log_prob_BxC of the verbalizers at the masked position, among the whole vocabulary.

    verbalizers: id_C, as bytes, so that they can be hashed. hparams: unused.
    """
    verbalizer_C = jnp.asarray(np.frombuffer(verbalizers, np.int32))
    return forward_passes.compute_log_probs(model, params, queries)[:, verbalizer_C]


def score_queries(
    score: Callable[[MaskedQueries], np.ndarray],
    queries: MaskedQueries,
    batch_size: int,
    progress: ReportProgress = lambda share: None,
) -> np.ndarray:
    """log_prob_NxC of all queries, in batches of similar lengths; batch_size: queries of full length in a batch."""

    def run_batch(indices, ids_BxL):
        index_B = np.pad(indices, (0, len(ids_BxL) - len(indices)), "edge")
        return score(MaskedQueries(ids_BxL, queries.position_B[index_B], queries.end_B[index_B]))

    sequences = [ids_L[ids_L != PAD] for ids_L in queries.ids_BxL]
    batches = batching.iterate_batches(sequences, queries.ids_BxL.shape[1], batch_size, full_batches=True)
    return np.stack(batching.collect_outputs(batches, run_batch, len(sequences), progress))


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Scores of the likeliest verbalizer on the dev split, without any training.

    "accuracy" and the task's other scores have standard errors over examples ("_se"). "majority" is the accuracy of the
    train split's most frequent label, "predicted" the share of each label among the predictions, and "truncated" counts
    truncated examples. Raises ConfigError for verbalizers that are not one entry of the vocabulary each.
    """
    inputs = case.inputs
    verbalizer_C = encode_verbalizers(run.tokenizer, inputs["pattern"], inputs["verbalizers"])
    queries, label_N, truncated = read_queries(run, inputs, "examples")
    model = objectives.shift_states(run.cfg, run.program.model)
    score = forward_passes.make_scorer(
        model, run.program.partitioner, run.state, compute_label_log_probs, verbalizer_C.tobytes()
    )
    log_prob_NxC = score_queries(score, queries, run.cfg.eval.batch_size, progress)
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
        result[name], result[f"{name}_se"] = estimates.compute_score(
            scores.build_score(name, "weight", labels), columns
        )
    shares = {label: float((predicted_N == index).mean()) for index, label in enumerate(labels)}
    return result | {"majority": float((label_N == inputs["majority"]).mean()), "predicted": shares}


def list_scores(contents: Mapping[str, Any]) -> Iterator[estimates.EvaluationScore]:
    """The accuracy of each task as a prompt."""
    for result in get_results(contents, "zero_shot").values():
        yield estimates.EvaluationScore(
            make_metric("zero_shot", "zero-shot", result),
            100 * result["accuracy"],
            100 * result["accuracy_se"],
            f"{result['examples']:,} examples of dev, {result['majority']:.1%} of the majority class",
            items=result["examples"],
        )


def make_metric(evaluation: str, title: str, result: Mapping) -> estimates.EvaluationMetric:
    """The accuracy, in per cent, of a task as a prompt."""
    task = result["task"]
    return estimates.EvaluationMetric(
        f"{evaluation}_{task}", title, result["sha256"], task, "%", ".1f", estimates.PERCENT
    )


def build_tables(contents: Mapping[str, Any]) -> list[EvaluationTable]:
    """A table with a row for each task, pattern and verbalizers; few-shot accuracy stands beside zero-shot's."""
    few_shot, rows = get_summary(contents, "few_shot"), []
    for key, result in get_results(contents, "zero_shot").items():
        accuracy = result["accuracy"]
        row = {name: result[name] for name in ("task", "pattern", "examples", "truncated", "majority")}
        row |= {
            "words": " / ".join(result["verbalizers"].values()),
            "zero_shot": estimates.ItemInterval(accuracy, *estimates.wilson_interval(accuracy, result["examples"])),
        }
        if key in few_shot:
            means = few_shot[key]
            estimate_class = estimates.Estimate if means["samples"] != 2 else estimates.SeedRange
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
