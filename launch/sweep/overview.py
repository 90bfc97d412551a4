"""What a person sees of a sweep: each point's state, step, losses and time left; on a terminal a table that lives."""
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from mlm.base import config, files
from mlm.judge import questions
from mlm.train.run import directory

LINE = 30     # seconds between two lines about a point, where there is no terminal
LOOK = 10     # seconds between two looks at a point that this runner does not train


class State(NamedTuple):
    """Where a point stands, by its directory alone. Losses in nats, None before the first record of them."""

    name: str           # done | failed | elsewhere (some process is at it) | stopped | not started
    step: int
    steps: int
    loss: float | None       # of training
    held_out: float | None
    error: str               # how it failed

    def __str__(self):
        step = f"step {self.step:,} of {self.steps:,}"
        return {"stopped": step, "elsewhere": f"{step}, at work", "failed": f"failed at {step}: {self.error}"}.get(
            self.name, self.name)


def done(cfg: config.Config) -> bool:
    """Whether a point is trained, and has answered what every run is asked then."""
    return directory.result(cfg.workdir) is not None and not questions.missing(cfg)


def state(cfg: config.Config) -> State:
    records = files.read_lines(directory.metrics(cfg.workdir))
    failure = directory.failure(cfg.workdir)
    error = failure.read_text().strip() if failure.exists() else ""
    if done(cfg):
        name = "done"
    elif directory.held(cfg):
        name = "elsewhere"
    else:
        name = "failed" if error else "stopped" if records else "not started"

    def last(key):
        return next((record[key] for record in reversed(records) if key in record), None)

    return State(name, last("step") or 0, cfg.train.steps, last("loss"), last("eval_loss"), error)


def finished(points: Sequence[config.Config]) -> list[dict]:
    """The points that are done, as reports read them."""
    return [run for run in (directory.reported(cfg.workdir) for cfg in points) if run]


class Overview:
    """Shows the points of a call of `run`, as often as it is asked to."""

    def __init__(self, points: Sequence[config.Config]):
        self.points, self.states = points, {cfg.workdir: state(cfg) for cfg in points}
        self.looked = self.drawn = time.monotonic()
        self.training: set[str] = set()
        self.began: dict[str, tuple[float, int]] = {}   # when this runner first saw a step of the point, and which
        self.told: dict[str, tuple[float, str]] = {}    # when a line was last printed of the point, and in what state
        console = Console()
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self):
        if self.live:
            self.live.__enter__()
        return self

    def __exit__(self, *failure):
        if self.live:
            self.live.__exit__(*failure)

    def say(self, text: str) -> None:
        if self.live:
            self.live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def show(self, training: Collection[str], *, last: bool = False) -> None:
        """training: the workdirs of the points that this runner's workers are at; last: nothing more will come."""
        now = time.monotonic()
        if now - self.drawn < 1 and not last:
            return
        self.drawn = now
        look = last or now - self.looked > LOOK
        for cfg in self.points:
            if cfg.workdir in self.training | set(training) or (look and self.states[cfg.workdir].name != "done"):
                self.states[cfg.workdir] = state(cfg)
        self.looked, self.training = now if look else self.looked, set(training)
        if self.live:
            self.live.update(self.table(training, now), refresh=True)
        else:
            self.lines(training, now)

    def name(self, workdir: str, training: Collection[str]) -> str:
        return "training" if workdir in training else self.states[workdir].name

    def left(self, workdir: str, now: float) -> str:
        """The time left to a point that is being trained, by the steps since this runner first saw one."""
        at = self.states[workdir]
        since, first = self.began.setdefault(workdir, (now, at.step))
        if at.step <= first:
            self.began[workdir] = (now, at.step) if at.step == 0 else (since, first)
            return ""
        seconds = int((now - since) / (at.step - first) * (at.steps - at.step))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def table(self, training: Collection[str], now: float) -> Table:
        """All points; those at work and those that failed come first, since a terminal may hold no more."""
        names = [self.name(cfg.workdir, training) for cfg in self.points]
        table = Table(title=", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(sorted(names))),
                      title_justify="left", box=None, pad_edge=False)
        for title in ("point", "state", "step", "loss", "held-out", "left"):
            table.add_column(title, justify="left" if title in ("point", "state") else "right", no_wrap=True)
        order = ("training", "failed", "elsewhere", "stopped", "not started", "done")
        for cfg, name in sorted(zip(self.points, names, strict=True), key=lambda pair: order.index(pair[1])):
            at = self.states[cfg.workdir]
            losses = ("" if value is None else f"{value:.3f}" for value in (at.loss, at.held_out))
            table.add_row(Path(cfg.workdir).name, name, f"{at.step:,}/{at.steps:,}", *losses,
                          self.left(cfg.workdir, now) if name == "training" else "",
                          style={"failed": "red", "training": "bold", "done": "green"}.get(name, ""))
        return table

    def lines(self, training: Collection[str], now: float) -> None:
        """A line for each point that is being trained, now and then, and one for each that changed its state."""
        for cfg in self.points:
            name, at = self.name(cfg.workdir, training), self.states[cfg.workdir]
            when, before = self.told.get(cfg.workdir, (now, at.name))
            left = self.left(cfg.workdir, now) if name == "training" else ""
            if name == before and not (name == "training" and now - when > LINE):
                self.told.setdefault(cfg.workdir, (now, at.name))
                continue
            self.told[cfg.workdir] = (now, name)
            said = [f"step {at.step:,}/{at.steps:,}"] if at.step else []
            said += [f"{title} {value:.3f}" for title, value in (("loss", at.loss), ("held-out", at.held_out))
                     if value is not None]
            self.say(f"{Path(cfg.workdir).name}: {name}" + "".join(f", {part}" for part in said)
                     + (f", {left} left" if left else "") + (f": {at.error}" if name == "failed" else ""))
