"""The progress of a long run: a bar on a terminal, plain lines elsewhere."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm

STALE_SECONDS = 30  # without a line, after which the next step prints one
SETTLE_STEPS = 32  # after the first one, among which some compile a batch of another length
SLOW = 10  # times the median step of these: a step that compiles


class Progress:
    """Shows step, loss, tokens/s and the time left. The bar moves with every step; lines come with every record.

    The time left counts from the end of the first step, which compiles, and leaves out early steps that do. It is
    proportional to the work that is left: count_work gives that of steps, counted from 0.
    """

    def __init__(
        self, step: int, steps: int, title: str, unit: str = "step", count_work: Callable[[range], float] = len
    ):
        self.step, self.steps, self.title, self.unit, self.count_work = step, steps, title, unit, count_work
        self.first_step, self.start_time, self.last_shown = step, time.monotonic(), -float("inf")
        self.last_time, self.early = self.start_time, list[tuple[float, float]]()  # (seconds, work) of a step
        layout = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]"  # the time left is in the status
        settings = {"desc": title, "unit": unit, "dynamic_ncols": True, "bar_format": layout}
        self.bar = tqdm(total=steps, initial=step, **settings) if sys.stderr.isatty() else None

    def announce(self, activity: str) -> None:
        """Shows beside the bar what happens before its first step, such as compiling."""
        if self.bar is not None:
            self.bar.set_postfix_str(activity)

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
            return
        print(f"{self.title}: {self.unit} {self.step:,}/{self.steps:,}, {status}", flush=True)

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
