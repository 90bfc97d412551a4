"""What a person sees of a sweep: each point's state, step, losses and time left; on a terminal a table that lives."""
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from mlm.base import config, errors, fields, files
from mlm.base.estimates import scores_of
from mlm.evaluation import evaluation_tasks
from mlm.train.run import directory, log

LINES = (30, 60, 120, 240, 480, 600)  # seconds between two lines about a point's steps, where there is no terminal
LOOK = 10     # seconds between two looks at a point that this runner does not train
AGAIN = "run makes it again"


class State(NamedTuple):
    """Where a point stands, by its directory alone. Losses in nats, None before the first record of them."""

    name: str           # done | damaged | failed | elsewhere (some process is at it) | stopped | not started | not
                        # measured, where a budget's steps are not known
    step: int
    steps: int
    loss: float | None       # of training
    held_out: float | None
    error: str               # how it failed, or what of it is damaged

    def __str__(self):
        step = f"step {self.step:,} of {self.steps:,}"
        return {"stopped": step, "elsewhere": f"{step}, at work", "failed": f"failed at {step}: {self.error}",
                "damaged": f"damaged: {self.error}", "not measured": "steps not measured yet; run measures",
                }.get(self.name, self.name)


def read(cfg: config.Config) -> tuple[dict | None, str]:
    """A point as reports read it, None where it is not done or damaged; and what of its files is damaged, in a line."""
    try:
        directory.read_identity(cfg.workdir)
        found = directory.read_result(cfg.workdir)
        if found is None:
            files.read_lines(directory.metrics(cfg.workdir))
            directory.read_provenance(cfg.workdir)
        elif found["fingerprint"] != fields.fingerprint(cfg):
            return None, f"{cfg.workdir}: its result is that of another config; move it away"
        if found := directory.reported(cfg.workdir):  # what is asked of it now, not when it was trained
            found["config"] |= {name: value for name, value in fields.flatten(cfg).items() if "downstream." in name}
    except files.Damaged as damaged:
        return None, f"{damaged}; {AGAIN}"
    return found, ""


def how(cfg: config.Config) -> tuple[str, str]:
    """How a point failed, "" where nothing says so; and what of its account is damaged."""
    path = directory.failure(cfg.workdir)
    try:
        said = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return "", ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"{path} is damaged: {files.brief(error)}; {AGAIN}"
    return said, "" if said else f"{path} is damaged: it is empty; {AGAIN}"


def state(cfg: config.Config) -> State:
    if not cfg.train.steps:
        return State("not measured", 0, 0, None, None, "")
    records, _ = files.complete_lines(directory.metrics(cfg.workdir))
    (found, fault), (error, doubt) = read(cfg), how(cfg)
    if found is not None and answered(cfg):
        name, error = "done", ""
    elif directory.held(cfg):
        name = "elsewhere"
    elif fault or doubt:
        name, error = "damaged", fault or doubt
    else:
        name = "failed" if error else "stopped" if records else "not started"

    def last(key):
        return next((record[key] for record in reversed(records) if key in record), None)

    return State(name, last("step") or 0, cfg.train.steps, last("loss"), last("eval_loss"), error)


def answered(cfg: config.Config) -> bool:
    """Whether a trained point has answered all that its config asks of it, as far as the files that decide this are
    here; else `run` says what is missing."""
    try:
        return not evaluation_tasks.missing(cfg)
    except files.Damaged:
        raise
    except errors.ConfigError:
        return False


def finished(points: Sequence[config.Config]) -> tuple[list[dict], list[str]]:
    """The points that are trained, as reports read them, and a line for each that is damaged."""
    each = [read(cfg) for cfg in points]
    return [run for run, _ in each if run], [fault for _, fault in each if fault]


def score(cfg: config.Config) -> str:
    """What a point that is done is judged by, in words."""
    found = directory.read_result(cfg.workdir)
    return log.brief(found["evaluation"], scores_of(found)[:1])


class Told(NamedTuple):
    """The last line about a point."""

    when: float
    name: str     # its state
    step: int
    times: int    # lines about its steps in that state


def strangers(points: Sequence[config.Config]) -> str:
    """A line that names the runs beside a sweep's points that are none of them, with why; "" where there are none."""
    found: dict[str, list[str]] = {}
    for workdir in sorted(set(directory.beside(points[0].workdir)) - {cfg.workdir for cfg in points}):
        try:
            other = fields.drawn_otherwise(directory.read_identity(workdir) or {})
            why = f"another version's, which drew otherwise ({other})" if other else "of other settings"
        except files.Damaged:
            why = "damaged, or another version's"
        found.setdefault(why, []).append(Path(workdir).name)
    return "; ".join(f"left out, {why}: {', '.join(names[:5])}" + (f" and {more} more" if (more := len(names) - 5) > 0
                                                                    else "") for why, names in found.items())


class Overview:
    """Shows the points of a call of `run`, as often as it is asked to."""

    def __init__(self, points: Sequence[config.Config]):
        self.points, self.states = points, {cfg.workdir: state(cfg) for cfg in points}
        self.looked = self.drawn = time.monotonic()
        self.training: set[str] = set()
        self.began: dict[str, tuple[float, int]] = {}   # when the first record came that this runner saw come, its step
        self.kept: dict[str, int] = {}                  # the step of a point when this runner gave it to a worker
        self.told: dict[str, Told] = {}
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
        for workdir in self.training - set(training):
            self.began.pop(workdir, None)
            self.kept.pop(workdir, None)
        self.looked, self.training = now if look else self.looked, set(training)
        if self.live:
            self.live.update(self.table(training, now), refresh=True)
        else:
            self.lines(training, now)

    def name(self, workdir: str, training: Collection[str]) -> str:
        return "training" if workdir in training else self.states[workdir].name

    def left(self, workdir: str, now: float) -> str:
        """The time left to a point that is being trained, by the steps since its first record, before which the worker
        packs and compiles."""
        at = self.states[workdir]
        if at.step == self.kept.setdefault(workdir, at.step):
            return ""
        since, first = self.began.setdefault(workdir, (now, at.step))
        if at.step <= first:
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
        order = ("training", "failed", "damaged", "elsewhere", "stopped", "not started", "done")
        for cfg, name in sorted(zip(self.points, names, strict=True), key=lambda pair: order.index(pair[1])):
            at = self.states[cfg.workdir]
            losses = ("" if value is None else f"{value:.3f}" for value in (at.loss, at.held_out))
            table.add_row(Path(cfg.workdir).name, name, f"{at.step:,}/{at.steps:,}", *losses,
                          self.left(cfg.workdir, now) if name == "training" else "",
                          style={"failed": "red", "damaged": "red", "training": "bold", "done": "green"}.get(name, ""))
        return table

    def lines(self, training: Collection[str], now: float) -> None:
        """A line for each point that changed its state, and for one that is being trained when it has made steps and
        was not spoken of for a while, which grows."""
        for cfg in self.points:
            name, at = self.name(cfg.workdir, training), self.states[cfg.workdir]
            told = self.told.setdefault(cfg.workdir, Told(now, at.name, at.step, 0))
            left = self.left(cfg.workdir, now) if name == "training" else ""
            if name == told.name:
                wait = LINES[min(told.times, len(LINES) - 1)]
                if name != "training" or at.step == told.step or now - told.when < wait:
                    continue
            self.told[cfg.workdir] = Told(now, name, at.step, told.times + 1 if name == told.name else 0)
            said = [f"step {at.step:,}/{at.steps:,}"] if at.step and name != "done" else []
            said += [f"{title} {value:.3f}" for title, value in (("loss", at.loss), ("held-out", at.held_out))
                     if value is not None and name != "done"]
            said += [score(cfg)] if name == "done" else [f"{left} left"] if left else []
            self.say(f"{Path(cfg.workdir).name}: {', '.join([name, *said])}"
                     + (f": {at.error}" if name in ("failed", "damaged") else ""))
