"""The state of a sweep for people: each point's state, step, losses and time left; on a terminal a live table."""

import contextlib
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from mlm.base import conditional_fields, config, errors, fields, files, groups, phases
from mlm.base.estimates import read_scores
from mlm.evaluation import evaluation_tasks
from mlm.training.run import log, resolution
from mlm.training.run.directory import RunDirectory

LINE_INTERVALS = (30, 60, 120, 240, 480, 600)  # seconds between two lines about a point's steps, without a terminal
REFRESH_SECONDS = 10  # between two looks at a point that this runner does not train
REDO_HINT = "run makes it again"
LOG_PREFIX = " (log: "  # between an error and the path of its worker's log


class PointState(NamedTuple):
    """The state of a point, from its directory alone. Losses in nats, None before their first record."""

    name: str  # done | damaged | failed | in use (by some process) | stopped | not started | not measured (a
    # budget's steps are not known)
    step: int
    num_steps: int
    loss: float | None  # of training
    held_out_loss: float | None
    error: str = ""  # how it failed, or what is damaged
    time_left: str = ""  # at the speed of the recorded steps; "": none is

    def __str__(self):
        step = f"step {self.step:,} of {self.num_steps:,}"
        return {
            "stopped": step,
            "in use": f"{step}, in use",
            "failed": f"failed at {step}: {self.error}",
            "damaged": f"damaged: {self.error}",
            "not measured": "steps not measured yet; run measures them",
        }.get(self.name, self.name)


def read_point(cfg: config.Config) -> tuple[dict | None, str]:
    """A point's run for reports, None if it is not done or damaged; and a line about damaged files."""
    directory = RunDirectory(cfg.workdir)
    try:
        directory.read_identity()
        run = directory.read_result()
        if run is None:
            files.read_records(directory.metrics)
            directory.read_provenance()
        elif run["fingerprint"] != fields.fingerprint(cfg):
            return None, f"{cfg.workdir}: its result is that of another config; move it away"
        if run := directory.read_finished():  # with today's evaluation settings, and fields that are newer than the run
            now = fields.flatten(cfg)
            run["config"] = now | run["config"] | {name: now[name] for name in now if "downstream." in name}
            run["unread"] = sorted(conditional_fields.find_unread_fields(resolution.FIELD_CONDITIONS, now))
    except files.DamagedFile as damaged:
        return None, f"{damaged}; {REDO_HINT}"
    return run, ""


def read_failure(cfg: config.Config) -> tuple[str, str]:
    """The error of a failed point, "" if there is none; and a line if the error's file is damaged."""
    path = RunDirectory(cfg.workdir).error
    try:
        message = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return "", ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"{path} is damaged: {errors.describe_error(error)}; {REDO_HINT}"
    return message, "" if message else f"{path} is damaged: it is empty; {REDO_HINT}"


def read_state(cfg: config.Config) -> PointState:
    """The state of a point, from its directory alone."""
    if not cfg.train.steps:
        return PointState("not measured", 0, 0, None, None)
    records, _ = files.read_complete_lines(RunDirectory(cfg.workdir).metrics)
    (run, run_damage), (error, error_damage) = read_point(cfg), read_failure(cfg)
    if run is not None and is_evaluated(cfg):
        name, error = "done", ""
    elif RunDirectory(cfg.workdir).is_locked():
        name = "in use"
    elif run_damage or error_damage:
        name, error = "damaged", run_damage or error_damage
    else:
        name = "failed" if error else "stopped" if records else "not started"

    def last(key):
        return next((record[key] for record in reversed(records) if key in record), None)

    step, left = last("step") or 0, ""
    if seconds := last("timed_seconds"):
        steps_left = range(step, cfg.train.steps)
        seconds *= phases.count_work(cfg, steps_left) / phases.count_work(cfg, range(step))
        left = format_duration(int(seconds))
    return PointState(name, step, cfg.train.steps, last("loss"), last("eval_loss"), error, left)


def is_done(cfg: config.Config) -> bool:
    """Whether a point has its result. Asks its result.json alone, and no other file of its directory."""
    with contextlib.suppress(errors.ConfigError):
        result = RunDirectory(cfg.workdir).read_result()
        return result is not None and result["fingerprint"] == fields.fingerprint(cfg)
    return False


def is_evaluated(cfg: config.Config) -> bool:
    """Whether a trained point has all evaluations of its config; False if files that decide this are not here."""
    try:
        return not evaluation_tasks.list_missing_cases(cfg)
    except files.DamagedFile:
        raise
    except errors.ConfigError:
        return False


def load_results(points: Sequence[config.Config]) -> tuple[list[dict], list[str]]:
    """The runs of the trained points for reports, and a line for each damaged point."""
    found = [read_point(cfg) for cfg in points]
    return [evaluation_tasks.add_scores(run) for run, _ in found if run], [damage for _, damage in found if damage]


def format_score(cfg: config.Config) -> str:
    """The main score of a point that is done."""
    result = RunDirectory(cfg.workdir).read_result()
    assert result is not None
    return log.format_evaluation(result["evaluation"], read_scores(result)[:1])


def format_duration(seconds: int) -> str:
    """Seconds as hours:minutes:seconds."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class LastLine(NamedTuple):
    """The last printed line about a point."""

    time: float
    name: str  # of its state
    step: int
    count: int  # of lines about its steps in that state


def describe_unmatched_runs(points: Sequence[config.Config]) -> str:
    """A line that names the runs in a sweep's folder that are none of its points, with reasons; or ""."""
    names_by_reason: dict[str, list[str]] = {}
    for workdir in sorted(set(RunDirectory(points[0].workdir).list_siblings()) - {cfg.workdir for cfg in points}):
        try:
            change = fields.describe_rng_change(RunDirectory(workdir).read_identity() or {})
            reason = f"another version's, with other random draws ({change})" if change else "of other settings"
        except errors.ConfigError:
            reason = "damaged, or another version's"
        names_by_reason.setdefault(reason, []).append(Path(workdir).name)
    return "; ".join(
        f"left out, {reason}: {', '.join(names[:5])}" + (f" and {more} more" if (more := len(names) - 5) > 0 else "")
        for reason, names in names_by_reason.items()
    )


def describe_failures(failures: Mapping[str, str]) -> list[str]:
    """A title, and a line for each error (by workdir): the first point that it ended, and how many others."""
    by_error = groups.group_values((error.partition(LOG_PREFIX)[0], workdir) for workdir, error in failures.items())
    lines = [
        f"{workdirs[0]}{f' and {more:,} more' if (more := len(workdirs) - 1) else ''}: {failures[workdirs[0]]}"
        for workdirs in by_error.values()
    ]
    return [f"{len(failures)} failed; the same command tries again:", *lines] if failures else []


class SweepDisplay:
    """Shows the points during a call of `run`."""

    def __init__(self, points: Sequence[config.Config]):
        self.points, self.states = points, {cfg.workdir: read_state(cfg) for cfg in points}
        self.last_refresh = self.last_update = self.start_time = time.monotonic()
        self.start_steps = {workdir: state.step for workdir, state in self.states.items()}
        self.training: set[str] = set()
        self.last_lines: dict[str, LastLine] = {}
        self.shown_errors: dict[str, str] = {}  # the first point that has it
        is_terminal = sys.stdout.isatty()  # not what rich says, which trusts FORCE_COLOR, and Jupyter sets that
        self.live = Live(console=Console(), auto_refresh=False) if is_terminal else None

    def __enter__(self):
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *failure):
        self.update((), last=True)
        if self.live:
            self.live.stop()

    def print_line(self, text: str) -> None:
        """Prints a line above the live table, or without a terminal to stdout."""
        if self.live:
            self.live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def update(self, training: Collection[str], *, last: bool = False) -> None:
        """training: workdirs of the points that this runner's workers train; last: this is the last update."""
        now = time.monotonic()
        if now - self.last_update < 1 and not last:
            return
        self.last_update = now
        refresh = last or now - self.last_refresh > REFRESH_SECONDS
        for cfg in self.points:
            if cfg.workdir in self.training | set(training) or (refresh and self.states[cfg.workdir].name != "done"):
                self.states[cfg.workdir] = read_state(cfg)
        self.last_refresh, self.training = now if refresh else self.last_refresh, set(training)
        if self.live:
            self.live.update(self.make_table(training, now), refresh=True)
        else:
            self.print_changes(training, now)

    def state_name(self, workdir: str, training: Collection[str]) -> str:
        """Returns "training" for a point of this runner's workers, else the name of its last read state."""
        return "training" if workdir in training else self.states[workdir].name

    def sweep_time_left(self, now: float) -> str:
        """About how long the points that are not done take, by the work done since this call started.

        A step's work counts as that of a Transformer of the point's depth and width. A point that failed has no more.
        """
        done, left = 0.0, 0.0
        for cfg in self.points:
            state, first = self.states[cfg.workdir], self.start_steps[cfg.workdir]
            batch_work = cfg.train.batch_size * cfg.pack.seq_len * cfg.model.num_layers * cfg.model.width**2
            done += batch_work * phases.count_work(cfg, range(first, max(first, state.step)))
            if state.name not in ("done", "failed"):
                left += batch_work * phases.count_work(cfg, range(state.step, cfg.train.steps))
        return f"about {format_duration(int((now - self.start_time) * left / done))} left" if done and left else ""

    def make_table(self, training: Collection[str], now: float) -> Table:
        """All points. Those in training and those that failed come first, since a terminal may show only a part."""
        names = [self.state_name(cfg.workdir, training) for cfg in self.points]
        sweep_left = self.sweep_time_left(now)
        table = Table(
            title=", ".join(
                filter(None, [*(f"{names.count(name)} {name}" for name in dict.fromkeys(sorted(names))), sweep_left])
            ),
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for title in ("point", "state", "step", "loss", "held-out", "left"):
            table.add_column(title, justify="left" if title in ("point", "state") else "right", no_wrap=True)
        order = ("training", "failed", "damaged", "in use", "stopped", "not started", "not measured", "done")
        styles = {"failed": "red", "damaged": "red", "training": "bold", "done": "green"}
        for cfg, name in sorted(zip(self.points, names, strict=True), key=lambda pair: order.index(pair[1])):
            state = self.states[cfg.workdir]
            losses = ("" if value is None else f"{value:.3f}" for value in (state.loss, state.held_out_loss))
            steps, left = f"{state.step:,}/{state.num_steps:,}", state.time_left if name == "training" else ""
            table.add_row(Path(cfg.workdir).name, name, steps, *losses, left, style=styles.get(name, ""))
        return table

    def print_changes(self, training: Collection[str], now: float) -> None:
        """Prints a line for each point whose state changed, and at growing intervals for those that make steps."""
        for cfg in self.points:
            name, state = self.state_name(cfg.workdir, training), self.states[cfg.workdir]
            last = self.last_lines.setdefault(cfg.workdir, LastLine(now, state.name, state.step, 0))
            time_left, count = state.time_left if name == "training" else "", 0
            if name == last.name:
                interval, count = LINE_INTERVALS[min(last.count, len(LINE_INTERVALS) - 1)], last.count + 1
                if name != "training" or state.step == last.step or now - last.time < interval:
                    continue
            self.last_lines[cfg.workdir] = LastLine(now, name, state.step, count)
            point, parts = Path(cfg.workdir).name, [name]
            if name == "done":
                num_done = sum(self.states[cfg.workdir].name == "done" for cfg in self.points)
                parts += [format_score(cfg), f"{num_done} of {len(self.points)} points"]
                parts += filter(None, [self.sweep_time_left(now)])
            else:
                losses = ("loss", state.loss), ("held-out", state.held_out_loss)
                parts += [f"step {state.step:,}/{state.num_steps:,}"] if state.step else []
                parts += [f"{title} {value:.3f}" for title, value in losses if value is not None]
                parts += [f"{time_left} left"] if time_left else []
            error = f": {self.format_error(state.error, point)}" if name in ("failed", "damaged") else ""
            self.print_line(f"{point}: {', '.join(parts)}{error}")

    def format_error(self, error: str, name: str) -> str:
        """The error of the point `name`: at the first one that has it itself, at others the name of that one."""
        cause = error.partition(LOG_PREFIX)[0]
        if cause in self.shown_errors:
            return f"the same error as {self.shown_errors[cause]}"
        self.shown_errors[cause] = name
        return error
