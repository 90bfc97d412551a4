"""The metrics of a run, from the devices to metrics.jsonl, the trackers and the terminal."""

import contextlib
import functools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from absl import logging
from tqdm import tqdm

from mlm.base import config, files, machine, phases, storage, types
from mlm.base.estimates import SCORE_FUNCTIONS, Score
from mlm.data.rows import mixture
from mlm.training.compilation import cost
from mlm.training.run import trackers
from mlm.training.run.directory import RunDirectory
from mlm.training.run.hooks import Hook
from mlm.training.step import parallel
from mlm.training.validation.split_scores import name_sums

TIMING_TOTALS = ("timed_tokens", "timed_seconds")
STALE_SECONDS = 30  # without a line of progress, after which the next step prints one
SETTLE_STEPS = 32  # after the first one, among which some compile a batch of another length
SLOW = 10  # times the median step of these: a step that compiles


def compute_throughput(totals: dict) -> float | None:
    """Tokens per second over the timed steps; None if no step was timed."""
    return totals["timed_tokens"] / totals["timed_seconds"] if totals["timed_seconds"] else None


def compute_scores(scores: Sequence[Score], sums: dict) -> dict[str, Any]:
    """The scores whose sums are there; 0 where nothing was counted."""

    def compute(score):
        values = [sums[name] for name in score.columns]
        return SCORE_FUNCTIONS[score.function](*values) if values[-1] else 0.0

    return {score.name: compute(score) for score in scores if set(score.columns) <= sums.keys()}


def format_evaluation(evaluation: dict, scores: Sequence[Score], shown: Collection[str] = ()) -> str:
    """The model's scores with their errors, the references of the first, and the labels without a prediction.

    shown: parts of earlier evaluations, which are left out; so references, which stay as they are, stand once.
    """
    show = lambda score: f"{score.title} {evaluation[score.name]:.4f}"
    parts = [f"{show(score)} ± {evaluation[f'{score.name}_se']:.4f}" for score in scores if score.chart]
    constants = [show(score) for score in scores if score.reference_for == scores[0].name]
    if evaluation.get("unscored"):
        constants.append(f"{evaluation['unscored']:,} labels not scored")
    return ", ".join((*parts, *(part for part in constants if part not in shown)))


class Progress:
    """A bar on a terminal, which moves with every step; elsewhere lines with every record: loss, tokens/s, time left.

    The time left counts from the end of the first step, which compiles, and leaves out early steps that do. It is
    proportional to the work that is left: count_work gives that of steps, counted from 0.
    """

    def __init__(self, step: int, steps: int, title: str, count_work: Callable[[range], float] = len):
        self.step, self.steps, self.title, self.count_work = step, steps, title, count_work
        self.first_step, self.start_time, self.last_shown = step, time.monotonic(), -float("inf")
        self.last_time, self.early = self.start_time, list[tuple[float, float]]()  # (seconds, work) of a step
        layout = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]"  # the time left is in the status
        settings = {"desc": title, "unit": "step", "dynamic_ncols": True, "bar_format": layout}
        self.bar = tqdm(total=steps, initial=step, **settings) if sys.stderr.isatty() else None

    def advance(self, step: int) -> None:
        """Moves the bar to a step."""
        if self.bar is not None:
            self.bar.update(step - self.step)
        now = time.monotonic()
        if self.step == self.first_step and step > self.step and self.last_shown < 0:
            self.first_step, self.start_time = step, now
        elif len(self.early) < SETTLE_STEPS and step > self.step:
            self.early.append((now - self.last_time, self.count_work(range(self.step, step))))
        self.step, self.last_time = step, now

    def is_stale(self) -> bool:
        """Whether a line is due: after the first step, and when the last line is old."""
        return time.monotonic() - self.last_shown > STALE_SECONDS

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Shows the loss and the throughput."""
        status = f"loss {metrics['loss']:.3f}"
        if metrics.get("tokens_per_second"):
            status += f", {metrics['tokens_per_second']:,.0f} tokens/s"
        if "mfu" in metrics:
            status += f", MFU {metrics['mfu']:.1%}"
        self.show(status)

    def show(self, status: str) -> None:
        """Shows a status beside the step."""
        self.last_shown = time.monotonic()
        if self.step > self.first_step:
            limit = SLOW * statistics.median(seconds / work for seconds, work in self.early)
            slow = [(seconds, work) for seconds, work in self.early if seconds > limit * work]
            slow_seconds, slow_work = map(sum, zip((0, 0), *slow, strict=True))
            work = self.count_work(range(self.first_step, self.step)) - slow_work
            seconds = self.last_shown - self.start_time - slow_seconds
            seconds *= self.count_work(range(self.step, self.steps)) / work
            status += f", {int(seconds // 60)}:{int(seconds % 60):02d} left"
        if self.bar is not None:
            self.bar.set_postfix_str(status)
        else:
            print(f"{self.title}: step {self.step:,}/{self.steps:,}, {status}", flush=True)

    def write_message(self, text: str) -> None:
        """Shows a line of text above the bar."""
        if self.bar is not None:
            self.bar.write(f"{self.title}: {text}")
        else:
            print(f"{self.title}: {text}", flush=True)

    def close(self) -> None:
        """Ends the bar."""
        if self.bar is not None:
            self.bar.close()


class Log(Hook):
    """Collects the metrics of steps, writes a record every log_every steps, and shows progress.

    Records have running totals: predictions (the weight of the objective's first score) and the objective's own.
    totals: those of the checkpoint from which the run continues, {} for a new run. segments: the phases of the run.
    """

    def __init__(
        self,
        directory: RunDirectory,
        cfg: config.Config,
        objective: types.Objective,
        start_step: int,
        totals,
        segments: Sequence[mixture.Segment],
    ):
        self.cfg, self.objective, self.segments = cfg, objective, segments
        self.weight = objective.scores[0].columns[-1]
        self.status = trackers.RunStatus.FAILED  # until the run has come further
        self.shown_parts = set[str]()  # of the lines of evaluations
        is_primary = parallel.is_primary()
        self.writer = MetricsWriter(directory, cfg, start_step) if is_primary else None
        name, count_work = directory.path.name, functools.partial(phases.count_work, cfg)
        self.progress = Progress(start_step, cfg.train.steps, name, count_work=count_work) if is_primary else None
        names = ("predictions", *objective.totals, *TIMING_TOTALS)
        self.totals = {name: totals.get(name, 0.0) for name in names}
        self.recorded_totals, self.pending, self.last_time = dict(self.totals), [], None
        if self.progress is not None:
            start = f"continuing from step {start_step:,}" if start_step else "training"
            self.progress.write_message(f"{start} in {directory.path}; the first step compiles")
            if self.progress.bar is not None:
                self.progress.bar.set_postfix_str("compiling the first step")

    def on_metrics(self, step: int, metrics: Mapping[str, Any], pause: bool) -> None:
        """Adds the metrics of a step; writes a record every log_every steps and before a pause."""
        if self.progress is None:
            return
        sums = {name: float(value) for name, value in name_sums(metrics["sums"]).items()}
        new_totals = {"predictions": sums[self.weight], **{name: sums[name] for name in self.objective.totals}}
        now = time.monotonic()
        if self.last_time is not None:  # the first step after a start or a pause is not timed: it compiles, or waits
            new_totals |= {"timed_tokens": sums["tokens"], "timed_seconds": now - self.last_time}
        for name, value in new_totals.items():
            self.totals[name] += value
        self.pending.append((metrics, sums))
        self.last_time = now
        self.progress.advance(step)
        if pause or step % self.cfg.train.log_every == 0:
            self.write_record(step, flush=pause)
        elif self.progress.is_stale():
            self.progress.log(metrics)

    def on_pause(self, step: int, state, due: bool, stop: bool) -> None:
        """Leaves the pause out of the throughput."""
        self.pause_timing()

    @functools.cached_property
    def step_flops(self) -> float | None:
        """FLOPs of an update, as `cost.count_step_flops` counts them."""
        return cost.count_step_flops(self.cfg, self.segments[-1].packed.dataset_info.vocab_size)

    def compute_utilisation(
        self, tokens_per_second: float | None, tokens_per_step: float, steps: range
    ) -> dict[str, float]:
        """The FLOPs of these steps over the peak of the devices, as "mfu"; {} where a part of it is not known."""
        devices = parallel.describe_devices()
        peak = (machine.find_peak_flops(devices["device"]) or 0) * devices["devices"]
        if not peak or not tokens_per_second or not tokens_per_step or not self.step_flops:
            return {}
        mean, own = (phases.count_work(self.cfg, part) / len(part) for part in (range(self.cfg.train.steps), steps))
        return {"mfu": self.step_flops * own / mean * tokens_per_second / tokens_per_step / peak}

    def write_record(self, number: int, flush: bool) -> None:
        """Writes the means and totals since the last record."""
        sums_since, last_metrics = Counter(), self.pending[-1][0]
        for _, sums in self.pending:
            sums_since.update(sums)
        timed = {name: self.totals[name] - self.recorded_totals[name] for name in TIMING_TOTALS}
        throughput, steps = compute_throughput(timed), range(number - len(self.pending), number)
        record = {
            "loss": statistics.fmean(float(values["loss"]) for values, _ in self.pending),
            **compute_scores(self.objective.train_scores, sums_since),
            **{name: float(last_metrics[name]) for name in ("gradient_norm", "parameter_norm", "learning_rate")},
            "tokens_per_second": throughput,
            **self.compute_utilisation(throughput, sums_since["tokens"] / len(steps), steps),
            **self.totals,
        }
        for source, values in mixture.describe_sources(self.segments, number).items():
            record |= {f"{source}_{name}": values[name] for name in ("share", "epochs")}
        terms = last_metrics["sums"].loss
        for term in terms if len(terms) > 1 else ():
            record[f"{term}_loss"] = sums_since[f"{term}_nats"] / max(sums_since[f"{term}_weight"], 1)
        self.recorded_totals, self.pending = dict(self.totals), []
        assert self.writer is not None and self.progress is not None
        self.writer.write(number, record, flush)
        self.progress.log(record)

    def write_evaluation(self, number: int, values: dict, scores: Sequence[Score]) -> None:
        """Writes and shows the scores of an evaluation."""
        if self.writer is not None and self.progress is not None:
            self.writer.write(number, {f"eval_{name}": value for name, value in values.items()}, True)
            line = format_evaluation(values, scores, self.shown_parts)
            self.shown_parts.update(line.split(", "))
            self.progress.write_message(f"step {number:,}: {line}")
        self.pause_timing()

    def write_message(self, text: str) -> None:
        """Shows a line of text."""
        if self.progress is not None:
            self.progress.write_message(text)

    def pause_timing(self) -> None:
        """Leaves the time until the next step out of the throughput."""
        self.last_time = None

    def get_totals(self) -> dict[str, float]:
        """The running totals."""
        return self.totals

    def summarize(self) -> dict:
        """The run's totals, its throughput, and the training scores that follow from the totals."""
        throughput, num_steps = compute_throughput(self.totals), self.cfg.train.steps
        return {
            **self.totals,
            "tokens_per_second": throughput,
            **self.compute_utilisation(throughput, self.totals.get("tokens", 0) / num_steps, range(num_steps)),
            **compute_scores(self.objective.train_scores, self.totals | {self.weight: self.totals["predictions"]}),
        }

    def close(self) -> None:
        """Closes the progress line and the writer; does nothing in a process that is not the primary one."""
        if self.progress is not None and self.writer is not None:
            self.progress.close()
            self.writer.close(self.status)


class MetricsWriter:
    """Appends records to metrics.jsonl and the trackers, first without those after its step, which come again."""

    def __init__(self, directory: RunDirectory, cfg: config.Config, step: int):
        records, faults = files.read_complete_lines(directory.metrics)
        for fault in faults:
            logging.warning("%s; it is skipped", fault)
        self.folder = storage.GrowingFolder(directory.path)
        local = RunDirectory(self.folder.local)
        self.trackers = trackers.Trackers(directory.trackers, cfg, step, local.tensorboard, records)
        is_trained = step == cfg.train.steps  # then the last evaluation is made again

        def is_kept(record):
            is_evaluation = any(name.startswith("eval_") for name in record)
            return record["step"] < step + (not is_trained or not is_evaluation)

        files.write_records(local.metrics, list(filter(is_kept, records)))
        self.lines = local.metrics.open("a", buffering=1, encoding="utf-8")
        self.folder.upload()

    def write(self, step: int, values: dict, flush: bool = False) -> None:
        """Writes a record; flush: make it visible to other processes at once, on a bucket too."""
        self.lines.write(json.dumps({"step": step, **values}) + "\n")
        self.trackers.log(step, {name: value for name, value in values.items() if isinstance(value, int | float)})
        self.folder.upload(now=flush)

    def close(self, status: trackers.RunStatus = trackers.RunStatus.FAILED) -> None:
        """Closes the file, and the trackers with the run's status; uploads what a bucket lacks of them."""
        with contextlib.ExitStack() as stack:  # each is closed even if another fails
            stack.callback(self.folder.close)
            stack.callback(self.trackers.close, status)
            stack.callback(self.lines.close)
