"""Part growth: time and memory of a Transformer's step against length, width, depth and vocabulary.

One field varies, the others stay at the middle point. The exponent is the slope of a line fitted to the logarithms: 1
means linear growth. Constant costs lower the exponent of small sizes.
"""

from collections.abc import Iterator

import jax
import numpy as np

from experiments.benchmark import mlm_step, timing
from mlm.base import config

SECONDS = 6  # of rounds for each field
MIDDLE = {"pack.seq_len": 128, "model.width": 128, "model.num_layers": 2, "tokenizer.vocab_size": 8192}
AXES = {
    "pack.seq_len": (64, 128, 256, 512, 1024),
    "model.width": (128, 256, 512),
    "model.num_layers": (2, 4, 8),
    "tokenizer.vocab_size": (2048, 8192, 32_768),
}


def make_config(field: str, value: int) -> config.Config:
    fields = MIDDLE | {field: value}
    width = fields["model.width"]
    batch_size = 4 if jax.default_backend() == "cpu" else 64
    fields |= {
        "model.mlp_dim": 4 * width,
        "model.num_heads": width // 64,
        "model.max_positions": 1024,
        "train.batch_size": batch_size,
    }
    return mlm_step.make_config(fields)


def fit_exponent(sizes, values) -> float:
    """The p of the power law values = c * sizes ** p, fitted to the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measure() -> Iterator[dict]:
    for field, values in AXES.items():
        steps = {value: mlm_step.build_timed_step(make_config(field, value)) for value in values}
        times = timing.measure_times({value: side.step for value, side in steps.items()}, SECONDS)
        memory = [side.memory / 2**20 for side in steps.values()]
        for value, mebibytes in zip(values, memory, strict=True):
            case = f"{field} = {value:,}"
            yield timing.make_row(case, "ms", times[value])
            yield timing.make_size_row(case, "MiB", mebibytes)
        span = f"{field} from {values[0]:,} to {values[-1]:,}"
        seconds = [float(np.median(times[value])) for value in values]
        yield timing.make_size_row(f"{span}: time", "exponent", fit_exponent(values, seconds))
        if all(memory):
            yield timing.make_size_row(f"{span}: memory", "exponent", fit_exponent(values, memory))
        del steps
        jax.clear_caches()
