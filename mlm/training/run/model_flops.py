"""The model FLOPs utilisation (MFU) of a run: its counted FLOPs, over what its devices could do at their peak."""

import functools

from mlm.base import batch_warmup, config, device_peaks
from mlm.training.compilation import cost
from mlm.training.step import parallel


class ModelFlops:
    """Counts a run's FLOPs where the peak of its devices is known: on accelerators, and never on a CPU."""

    def __init__(self, cfg: config.Config, vocab_size: int):
        self.cfg, self.vocab_size = cfg, vocab_size
        devices = parallel.describe_devices()
        self.peak = (device_peaks.find_peak_flops(devices["device"]) or 0) * devices["devices"]

    @functools.cached_property
    def step_flops(self) -> float | None:
        """Of an update, as `cost.count_step_flops` counts them: what rematerialization repeats is not counted."""
        return cost.count_step_flops(self.cfg, self.vocab_size)

    def compute_utilisation(
        self, tokens_per_second: float | None, tokens_per_step: float, steps: range | None = None
    ) -> dict[str, float]:
        """The share of the dense bfloat16 peak, as "mfu"; {} where that is not known or nothing was timed.

        tokens_per_step: mean over these steps, counted from 0; None: over the run.
        """
        if not self.peak or not tokens_per_second or not tokens_per_step or not self.step_flops:
            return {}
        fraction, mean = (batch_warmup.compute_mean_fraction(self.cfg.train, part) for part in (steps, None))
        return {"mfu": self.step_flops * fraction / mean * tokens_per_second / tokens_per_step / self.peak}
