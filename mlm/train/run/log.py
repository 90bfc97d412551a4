"""A run's metrics on their way from the devices to metrics.jsonl and to a person's eye."""
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from absl import logging

from mlm.base import config, files, types
from mlm.base.estimates import FUNCTIONS, Score
from mlm.train.run import directory
from mlm.train.run.progress import Progress
from mlm.train.step import parallel
from mlm.train.step.evaluation import named

SIZES = ("loss", "gradient_norm", "parameter_norm")  # metrics of a step that are finite, or the run has diverged
TIMED = ("timed_tokens", "timed_seconds")


class Diverged(Exception):
    """A loss or gradient was not finite."""


def speed(totals: dict) -> float | None:
    """Tokens a second over the steps that were timed; None where none was."""
    return totals["timed_tokens"] / totals["timed_seconds"] if totals["timed_seconds"] else None


def said(scores: Sequence[Score], sums: dict) -> dict[str, float]:
    """The scores of some sums; 0 where nothing was counted, none of a score whose sums are not there."""
    there = [score for score in scores if set(score.columns) <= sums.keys()]
    return {score.name: FUNCTIONS[score.of](*(sums[name] for name in score.columns)) if sums[score.columns[-1]] else 0.0
            for score in there}


def brief(evaluation: dict, scores: Sequence[Score]) -> str:
    """An evaluation in one line, for a person: the model's scores with their errors, then what the first stands by."""
    parts = [f"{score.title} {evaluation[score.name]:.4f} ± {evaluation[f'{score.name}_se']:.4f}"
             for score in scores if score.chart]
    parts += [f"{score.title} {evaluation[score.name]:.4f}" for score in scores if score.beside == scores[0].name]
    return ", ".join(parts)


class Log:
    """Collects the metrics of steps, writes a record every log_every steps, and shows progress.

    Records carry running totals: tokens, predictions (the weight of what the objective is judged by) and what else it
    counts. totals: those of a run that is continued, {} of a new one.
    """

    def __init__(self, cfg: config.Config, objective: types.Objective, step_now: int, totals: Mapping[str, float]):
        self.cfg, self.objective, self.workdir = cfg, objective, files.path(cfg.workdir)
        self.weight = objective.scores[0].columns[-1]
        first = parallel.is_primary()
        self.writer = Writer(self.workdir, step_now) if first else None
        self.progress = Progress(step_now, cfg.train.steps, self.workdir.name) if first else None
        names = ("predictions", *objective.counts, *TIMED)
        self.totals = {name: totals.get(name, 0.0) for name in names}
        self.recorded, self.pending, self.clock = dict(self.totals), [], None
        if first:
            self.progress.say(f"results in {self.workdir}"
                              + (f", continuing from step {step_now:,}" if step_now else ""))

    def add(self, number: int, values: dict, checkpoints, flush: bool = False) -> None:
        """Takes the metrics of a step. Raises Diverged, naming the last good checkpoint, where they are not finite."""
        size = {name: float(values[name]) for name in SIZES}
        if not all(map(math.isfinite, size.values())):
            checkpoints.wait_until_finished()
            good = checkpoints.latest_step()
            raise Diverged(f"step {number:,}: {', '.join(f'{name} {value:.4g}' for name, value in size.items())}; "
                           + (f"last good checkpoint: {directory.checkpoints(self.workdir)}/{good}"
                              if good is not None else "there is no checkpoint yet"))
        if self.progress is None:
            return
        sums = {name: float(value) for name, value in named(values["sums"]).items()}
        new = {"predictions": sums[self.weight], **{name: sums[name] for name in self.objective.counts}}
        now = time.monotonic()
        if self.clock is not None:  # the first step after a start or pause is not timed: one compiles, or waits
            new |= {"timed_tokens": sums["tokens"], "timed_seconds": now - self.clock}
        for name, value in new.items():
            self.totals[name] += value
        self.pending.append((values, sums))
        self.clock = now
        self.progress.advance(number)
        if flush or number % self.cfg.train.log_every == 0:
            self.record(number, flush)

    def note(self, number: int, records: Iterable[dict]) -> None:
        """Writes what else is to be known of a step, before what is recorded of it."""
        for record in records if self.writer is not None else ():
            self.writer.write(number, record)

    def record(self, number: int, flush: bool) -> None:
        since, last = Counter(), self.pending[-1][0]
        for _, sums in self.pending:
            since.update(sums)
        timed = {name: self.totals[name] - self.recorded[name] for name in TIMED}
        record = {"loss": statistics.fmean(float(values["loss"]) for values, _ in self.pending),
                  **said(self.objective.training, since),
                  **{name: float(last[name]) for name in ("gradient_norm", "parameter_norm", "learning_rate")},
                  "tokens_per_second": speed(timed), **self.totals}
        if len(terms := last["sums"].loss_B) > 1:
            record |= {f"{term}_loss": since[f"{term}_nats"] / max(since[f"{term}_weight"], 1) for term in terms}
        self.recorded, self.pending = dict(self.totals), []
        self.writer.write(number, record, flush)
        self.progress.log(record)

    def evaluation(self, number: int, values: dict, scores: Sequence[Score]) -> None:
        if self.progress is not None:
            self.writer.write(number, {f"eval_{name}": value for name, value in values.items()}, True)
            self.progress.say(f"step {number:,}: {brief(values, scores)}")
        self.pause()

    def say(self, text: str) -> None:
        if self.progress is not None:
            self.progress.say(text)

    def pause(self) -> None:
        """What comes next is not training and is not timed."""
        self.clock = None

    def summary(self) -> dict:
        """The run's totals, its speed, and those of the objective's training scores that totals are kept for."""
        return {**self.totals, "tokens_per_second": speed(self.totals),
                **said(self.objective.training, self.totals | {self.weight: self.totals["predictions"]})}

    def close(self) -> None:
        if self.progress is not None:
            self.progress.close()
            self.writer.close()


class Writer:
    """Appends records, each with its step, to metrics.jsonl and to TensorBoard events in the same folder.

    Opened at a step, it first drops the records after it, which the steps to come write again.
    """

    def __init__(self, workdir: Path, step: int):
        path = directory.metrics(workdir)
        records, faults = files.complete_lines(path)
        for fault in faults:
            logging.warning("%s; it is left out", fault)
        self.lines = files.Lines(path, [record for record in records if record["step"] <= step])
        self.mirror = files.Mirror(directory.events(workdir))
        self.events = Events(self.mirror.here, step)

    def write(self, step: int, values: dict, flush: bool = False) -> None:
        """flush: whether others are to see at once what was written, wherever that is."""
        put = self.lines.add({"step": step, **values}, flush)
        self.events.write(step, values)
        if put:
            self.mirror.put()

    def close(self) -> None:
        self.lines.close()
        self.events.close()
        self.mirror.close()


class Events:
    """TensorBoard's events, in a folder. tensorboardX's SummaryWriter has a thread for them: where the disk is full it
    ends, and who trains waits for it, for ever.

    Opened at a step, those after it that are there are no longer shown.
    """

    def __init__(self, folder: Path, step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self.file = EventsWriter(str(folder / "events"))
        self.add(step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, **what) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self.file.write_event(Event(wall_time=time.time(), step=step, **what))

    def write(self, step: int, values: dict) -> None:
        """Those of a record that are numbers."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            if isinstance(value, int | float):
                self.add(step, summary=scalar(name, value))
        self.file.flush()

    def close(self) -> None:
        self.file.close()
