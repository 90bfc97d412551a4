"""The progress of a long run: a bar on a terminal, plain lines elsewhere."""

import sys
import time

from tqdm import tqdm


class Progress:
    """Shows step, loss, tokens/s and the time left. The bar moves with every step; lines come with every record."""

    def __init__(self, step: int, steps: int, title: str, unit: str = "step"):
        self.step, self.steps, self.first_step, self.start_time = step, steps, step, time.monotonic()
        self.title, self.unit = title, unit
        self.bar = (
            tqdm(total=steps, initial=step, desc=title, unit=unit, dynamic_ncols=True) if sys.stderr.isatty() else None
        )

    def advance(self, step: int) -> None:
        """Moves the bar to a step."""
        if self.bar is not None:
            self.bar.update(step - self.step)
        self.step = step

    def log(self, metrics: dict) -> None:
        """Shows the loss and the throughput."""
        status = f"loss {metrics['loss']:.3f}"
        if metrics["tokens_per_second"]:
            status += f", {metrics['tokens_per_second']:,.0f} tokens/s"
        self.show(status)

    def show(self, status: str) -> None:
        """Shows a status beside the step."""
        if self.bar is not None:
            self.bar.set_postfix_str(status)
            return
        elapsed = time.monotonic() - self.start_time
        seconds = elapsed / max(self.step - self.first_step, 1) * (self.steps - self.step)
        left = f"{int(seconds // 60)}:{int(seconds % 60):02d} left"
        print(f"{self.title}: {self.unit} {self.step:,}/{self.steps:,}, {status}, {left}", flush=True)

    def write_message(self, text: str) -> None:
        """Shows a line of text above the bar."""
        (self.bar.write if self.bar is not None else print)(f"{self.title}: {text}")

    def close(self) -> None:
        """Removes the bar."""
        if self.bar is not None:
            self.bar.close()
