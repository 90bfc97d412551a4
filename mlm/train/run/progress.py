"""What a person sees of a long run: a bar on a terminal, plain lines elsewhere."""
import sys
import time

from tqdm import tqdm


class Progress:
    """Shows step, loss, tokens/s and time left. Lines come with every call of `log`, the bar moves with every step."""

    def __init__(self, step: int, steps: int, title: str, unit: str = "step"):
        self.step, self.steps, self.first, self.began = step, steps, step, time.monotonic()
        self.title, self.unit = title, unit
        self.bar = tqdm(total=steps, initial=step, desc=title, unit=unit, dynamic_ncols=True) \
            if sys.stderr.isatty() else None

    def advance(self, step: int) -> None:
        if self.bar is not None:
            self.bar.update(step - self.step)
        self.step = step

    def log(self, values: dict) -> None:
        shown = f"loss {values['loss']:.3f}"
        if values["tokens_per_second"]:
            shown += f", {values['tokens_per_second']:,.0f} tokens/s"
        self.show(shown)

    def show(self, shown: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(shown)
            return
        seconds = (time.monotonic() - self.began) / max(self.step - self.first, 1) * (self.steps - self.step)
        left = f"{int(seconds // 60)}:{int(seconds % 60):02d} left"
        print(f"{self.title}: {self.unit} {self.step:,}/{self.steps:,}, {shown}, {left}", flush=True)

    def say(self, text: str) -> None:
        (self.bar.write if self.bar is not None else print)(f"{self.title}: {text}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
