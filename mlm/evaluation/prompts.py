"""Zero-shot by cloze: a task put as a text with a hidden word, and a word for each label (Gao et al. 2021, LM-BFF).

Letters in array names: N examples, C labels.
"""
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, errors, fields, types
from mlm.base.estimates import Score, measure
from mlm.base.special import CLS, MASK, PAD, SEP, UNK
from mlm.data.tasks import splits, tasks
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.evaluation.evaluations import EvaluationCase
from mlm.inference import batching, masked_queries
from mlm.inference.masked_queries import Cloze
from mlm.objectives import scores
from mlm.train.run.trained_run import Trained
from mlm.train.step import parallel

HIDDEN, TEXT, SECOND = "[MASK]", "{text}", "{second}"
FORMAT = 1  # of the answers: a change of what they mean must change this number


class Prompt(NamedTuple):
    """How a task is asked: words apart by spaces, three of which stand for the texts and for what is hidden."""

    pattern: str
    verbalisers: Mapping[str, str]  # a word for each label, by its name in the files


# Of Gao et al. 2021 (arXiv:2012.15723), table 1, for rows of TASKS. Texts stay as they are: the paper's code takes the
# full stop off the first text of a pair, and the capital off the second.
PROMPTS = {
    "sst2": Prompt("{text} It was [MASK] .", {"0": "terrible", "1": "great"}),
    "cola": Prompt("{text} This is [MASK] .", {"0": "incorrect", "1": "correct"}),
    "rte": Prompt("{text} ? [MASK] , {second}", {"entailment": "Yes", "not_entailment": "No"}),
    "mrpc": Prompt("{text} [MASK] , {second}", {"0": "No", "1": "Yes"}),
}


class Task(NamedTuple):
    """A task's examples as they are asked: (texts, number of the label) each."""

    name: str
    prompt: Prompt
    train: list
    dev: list
    scores: tuple[str, ...]   # beside accuracy


def read(name: str, folder: str, pattern: str = "", words: Sequence[str] = ()) -> Task:
    """A row of PROMPTS with its files; pattern and words, in the order of the labels, where they are given.

    Raises ConfigError for an unknown task, a pattern that lacks a place, and as splits.source does.
    """
    errors.require_one_of("--prompt", name, list(PROMPTS))
    errors.require(Path(folder).expanduser().is_dir() and bool(folder), "--task_path", folder,
                  f"the folder of {name}'s files")
    cfg = tasks.resolve(fields.override(config.Config(), {
        "data.corpus": "task", "data.task": name, "data.task_path": folder}))
    said = PROMPTS[name]
    labels = tuple(said.verbalisers)
    cfg = fields.override(cfg, {"data.labelled.labels": ",".join(labels)})
    check(pattern or said.pattern, bool(cfg.data.labelled.text_pair_column))
    errors.require(len(words) in (0, len(labels)), "--verbalisers", ",".join(words),
                  f"a word for each label of {name}, in this order: {', '.join(labels)}")
    source = splits.source(cfg)
    number = {label: place for place, label in enumerate(labels)}

    def examples(split):
        return [[*one.texts, number[one.label]] for one in source.splits[split]()]

    beside = tuple(score for score in cfg.data.labelled.scores.split(",") if score != "accuracy")
    prompt = Prompt(pattern or said.pattern, dict(zip(labels, words, strict=True)) if words else said.verbalisers)
    return Task(name, prompt, examples("train"), examples("validation"), beside)


def check(pattern: str, pair: bool) -> None:
    """Raises ConfigError for a pattern that has not each of its places once, as a word of its own."""
    places = (TEXT, SECOND, HIDDEN) if pair else (TEXT, HIDDEN)
    words = pattern.split()
    for place in places:
        errors.require(words.count(place) == 1, "--pattern", pattern, f"{place} once, with spaces around it")
    for word in words:
        errors.require(word in places or not ("{" in word or HIDDEN in word), "--pattern", pattern,
                      f"words, and of places {', '.join(places)}, not {word!r}")


def zero_shot(task: Task) -> EvaluationCase:
    """What a task's dev split asks. Another pattern or other words are another part, beside it."""
    (most, _), = Counter(number for *_, number in task.train).most_common(1)
    how = {"pattern": task.prompt.pattern, "verbalisers": dict(task.prompt.verbalisers)}
    return EvaluationCase("zero_shot", key(task), how | {"examples": task.dev, "majority": most, "scores": task.scores,
                                               "format": FORMAT}, {"task": task.name, **how})


def key(task: Task) -> str:
    asked = json.dumps([task.prompt.pattern, dict(task.prompt.verbalisers)])
    return f"{task.name}-{hashlib.sha256(asked.encode()).hexdigest()[:6]}"


def entries(words: Tokenizer, verbalisers: Mapping[str, str]) -> np.ndarray:
    """id_C of the verbalisers. Raises ConfigError for one that is not one entry of the vocabulary, or another's."""
    found: dict[int, str] = {}
    for label, word in verbalisers.items():
        ids, field = words.encode(word), f"verbaliser of label {label}"
        pieces = ", ".join(repr(words.pieces[i]) for i in ids)
        errors.require(len(ids) > 0 and UNK not in ids, field, word,
                      f"a word that the run's vocabulary knows; there its pieces are {pieces or 'none'}")
        errors.require(len(ids) == 1, field, word, "one entry of the run's vocabulary, where it has "
                      f"{len(ids)} pieces: {pieces}")
        errors.require(ids[0] not in found, field, word, f"another than that of label {found.get(ids[0])}")
        found[ids[0]] = label
    return np.array(list(found), np.int32)


def rows(words: Tokenizer, pattern: str, examples: Sequence, length: int) -> tuple[Cloze, int]:
    """The examples in their pattern, a row each, and how many were cut so that the pattern fits: the longer text first.

    Raises ConfigError for a pattern that leaves no room.
    """
    parts: list = [[]]  # ids between the places, which stand by their names
    for word in pattern.split():
        if word in (TEXT, SECOND, HIDDEN):
            parts += [word, []]
        else:
            parts[-1].append(word)
    parts = [part if isinstance(part, str) else words.encode(" ".join(part)) if part else [] for part in parts]
    room = length - 3 - sum(len(part) for part in parts if not isinstance(part, str))
    pair = SECOND in parts
    errors.require(room > pair, "--pattern", pattern, f"one that leaves room for texts in rows of {length} tokens")
    first = words.encode_batch([one[0] for one in examples])
    second = words.encode_batch([one[1] for one in examples]) if pair else [[]] * len(examples)
    ids_NxL, place_N, cut = np.full((len(examples), length), PAD, np.int32), [], 0
    for ids_L, a, b in zip(ids_NxL, first, second, strict=True):
        keep_b = min(len(b), max(room - len(a), room // 2))
        keep_a = min(len(a), room - keep_b)
        cut += keep_a + keep_b < len(a) + len(b)
        put = {TEXT: a[:keep_a], SECOND: b[:keep_b], HIDDEN: [MASK]}
        row = [CLS, *(i for part in parts for i in (put[part] if isinstance(part, str) else part)), SEP]
        ids_L[:len(row)] = row
        place_N.append(row.index(MASK))
    place_N = np.array(place_N, np.int32)
    return Cloze(ids_NxL, place_N, place_N + 1), cut


def by_label(model: types.Model, verbalisers: bytes, params, asked: Cloze, knobs=None) -> jax.Array:
    """log_prob_BxC of the verbalisers at the hidden place, among the whole vocabulary.

    verbalisers: id_C, as bytes, since what is compiled is known by it. knobs: unused.
    """
    return masked_queries.log_probs(model, params, asked)[:, jnp.asarray(np.frombuffer(verbalisers, np.int32))]


def answered(ask: Callable[[Cloze], np.ndarray], asked: Cloze, batch_size: int, told: Callable) -> np.ndarray:
    """log_prob_NxC, a batch of rows of like lengths at a time; batch_size: rows of full length in a batch."""
    found: list = [None] * len(asked.place_B)
    for mine, ids_BxL in _batches(asked, batch_size):
        at_B = np.pad(mine, (0, len(ids_BxL) - len(mine)), "edge")
        answer_BxC = ask(Cloze(ids_BxL, asked.place_B[at_B], asked.end_B[at_B]))
        for number, answer_C in zip(mine, answer_BxC, strict=False):  # what fills the batch up is not asked for
            found[number] = answer_C
        told()
    return np.stack(found)


def _batches(asked, batch_size):
    return batching.batched([ids_L[ids_L != PAD] for ids_L in asked.ids_BxL], asked.ids_BxL.shape[1], batch_size,
                           whole=True)


def ask(run: Trained, part: EvaluationCase, told: Callable) -> dict:
    """What the likeliest verbaliser gets right of a dev split, with nothing trained.

    "accuracy" and the task's own scores, each with its standard error over examples ("_se"); beside them "majority",
    the accuracy of the train split's most frequent label, the share of the "predicted" by label, and how many texts
    were "cut". Raises ConfigError for verbalisers that are not one entry each.
    """
    said = part.asked
    verbaliser_C = entries(run.tokenizer, said["verbalisers"])
    asked, cut = rows(run.tokenizer, said["pattern"], said["examples"], run.cfg.pack.seq_len)
    answer = run.program.run.per_row(by_label, objectives.telling(run.cfg, run.program.model),
                                     verbaliser_C.tobytes())

    def score(one):
        mine = parallel.is_local(len(one.place_B))
        return answer(run.state, run.program.run.put_batch(Cloze(*(x[mine] for x in one))), None)

    log_prob_NxC = answered(score, asked, run.cfg.eval.batch_size, told)
    label_N = np.array([number for *_, number in said["examples"]])
    return {"examples": len(label_N), "cut": cut, **judged(log_prob_NxC.argmax(-1), label_N, said)}


def judged(predicted_N, label_N, said: Mapping) -> dict:
    """The scores of `ask`. said: what the part asks."""
    labels, one_N = tuple(said["verbalisers"]), np.ones(len(label_N))
    columns = {"correct": (predicted_N == label_N) * one_N, "weight": one_N,
               **scores.counts(predicted_N, label_N, one_N, len(labels))}
    made: dict[str, Callable[[], Score]] = {
        "accuracy": lambda: scores.accuracy("weight"), "f1": lambda: scores.f1(labels, "weight"),
        "matthews": lambda: scores.matthews(labels, "weight")}
    result: dict = {}
    for name in ("accuracy", *said["scores"]):
        result[name], result[f"{name}_se"] = measure(made[name](), columns)
    shares = {label: float((predicted_N == number).mean()) for number, label in enumerate(labels)}
    return result | {"majority": float((label_N == said["majority"]).mean()), "predicted": shares}


def work(run: Trained, part: EvaluationCase) -> int:
    """Batches that a part's examples take."""
    asked, _ = rows(run.tokenizer, part.asked["pattern"], part.asked["examples"], run.cfg.pack.seq_len)
    return sum(1 for _ in _batches(asked, run.cfg.eval.batch_size))
