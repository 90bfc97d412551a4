"""Asking a trained run: what it answered is kept in judged.json, part by part, and is not asked again."""
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import config, errors, fields
from mlm.data.rows import pack
from mlm.train.run import directory, trained_run
from mlm.train.run.progress import Progress
from mlm.train.run.trained_run import Trained
from mlm.train.step import parallel

EVERY = 5.0  # seconds between lines of progress


class EvaluationTask(NamedTuple):
    """A row of QUESTIONS."""

    can: Callable                  # (cfg) -> "" or why it cannot be asked of such a run
    ask: Callable                  # (run, part, told) -> a dict of values; told() after each unit of work
    work: Callable = lambda run, part: 1   # (run, part) -> units of work
    summary: Callable = lambda answers: {}  # (answers by part) -> what follows from them all


class EvaluationCase(NamedTuple):
    """What is asked and kept as one."""

    question: str
    name: str
    asked: Any                     # JSON, whose SHA-256 says what was answered
    about: dict = {}               # to keep beside the answer  # noqa: RUF012

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.asked).encode()).hexdigest()


def unanswered(kept: Mapping, parts: Sequence[EvaluationCase]) -> list[EvaluationCase]:
    """The parts that these contents of judged.json do not answer."""
    answers = kept.get("answers", {})
    return [part for part in parts if answers.get(part.question, {}).get(part.name, {}).get("sha256") != part.sha256]


def missing(cfg: config.Config, parts: Sequence[EvaluationCase]) -> list[EvaluationCase]:
    """Those of the parts that a finished run has not answered yet. Raises Damaged where its answers are."""
    kept = directory.read_evaluations(cfg.workdir)
    if (kept.get("fingerprint"), kept.get("step")) != (fields.fingerprint(cfg), cfg.train.steps):
        return list(parts)
    return unanswered(kept, parts)


def finish(questions: Mapping[str, EvaluationTask], cfg: config.Config, parts: Sequence[EvaluationCase],
           packed: pack.Packed | None = None) -> dict:
    """Asks a finished run those of the parts that it has not answered yet, and returns all its answers.

    packed: its rows, if at hand. Raises ConfigError where a part cannot be asked of the run, Taken where another
    process is at work in its directory.
    """
    todo = list(parts)
    with directory.mended():
        todo = missing(cfg, parts)
    if not todo:
        return directory.read_evaluations(cfg.workdir)
    here = {name: value for name, value in fields.flatten(cfg).items()
            if name == "data.cache" or name.startswith("downstream.")}
    run = trained_run.load(cfg.workdir, here, packed or pack.load(cfg))
    with directory.claim(cfg) if parallel.is_primary() else contextlib.nullcontext():
        return ask(questions, run, todo)


def ask(questions: Mapping[str, EvaluationTask], run: Trained, parts: Sequence[EvaluationCase]) -> dict:
    """The contents of judged.json once these parts are answered in it.

    "fingerprint" and "step" say what was asked; "answers" has each question's answers by part, and "summary" what
    follows from them. What it holds already of the same step is not asked again, and each answer is written as soon as
    it is there. Raises ConfigError for what cannot be asked of the run.
    """
    for name in {part.question for part in parts}:
        why = questions[name].can(run.cfg)
        if why:
            raise errors.ConfigError(f"run {run.cfg.workdir!r}: cannot be asked for {name}: {why}")
    found = {"fingerprint": fields.fingerprint(run.cfg), "step": run.step, "answers": {}, "summary": {}}
    kept = {}
    with directory.mended():
        kept = directory.read_evaluations(run.cfg.workdir)
    if all(kept.get(name) == found[name] for name in ("fingerprint", "step")):
        found = kept
    todo = unanswered(found, parts)
    units = sum(questions[part.question].work(run, part) for part in todo)
    progress = Progress(0, units, Path(run.cfg.workdir).name, "part") if parallel.is_primary() and todo else None
    heard = time.monotonic()

    def told(name):
        nonlocal heard
        if progress is not None:
            progress.advance(progress.step + 1)
            if time.monotonic() - heard > EVERY:
                heard = time.monotonic()
                progress.show(name)

    try:
        for part in todo:
            question = questions[part.question]
            answer = question.ask(run, part, lambda part=part: told(part.name))
            of_question = found["answers"].setdefault(part.question, {})
            of_question[part.name] = {"sha256": part.sha256, **part.about, **answer}
            if summary := question.summary(of_question):
                found["summary"][part.question] = summary
            if parallel.is_primary():
                directory.keep_judged(run.cfg.workdir, found)
    finally:
        if progress is not None:
            progress.close()
    return found
