"""Part growth: time and memory of a Transformer's step against length, width, depth and vocabulary.

One field varies, the others stay at the middle point. The exponent is the slope of a line through the logarithms: 1 is
linear growth; over a range of sizes whose constant parts still count it lies below that of the largest term.
"""
from collections.abc import Iterator

import jax
import numpy as np

from experiments.benchmark import ours, timing
from mlm.base import config

SECONDS = 6    # of rounds, an axis
MIDDLE = {"pack.seq_len": 128, "model.width": 128, "model.num_layers": 2, "tokenizer.vocab_size": 8192}
AXES = {"pack.seq_len": (64, 128, 256, 512, 1024), "model.width": (128, 256, 512), "model.num_layers": (2, 4, 8),
        "tokenizer.vocab_size": (2048, 8192, 32_768)}


def recipe(field: str, value: int) -> config.Config:
    fields = MIDDLE | {field: value}
    width = fields["model.width"]
    rows = 4 if jax.default_backend() == "cpu" else 64
    fields |= {"model.mlp_dim": 4 * width, "model.num_heads": width // 64, "model.max_positions": 1024,
               "train.batch_size": rows}
    return ours.checked(fields)


def exponent(sizes, values) -> float:
    """The p of the power law values = c * sizes ** p that fits best in the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def rows() -> Iterator[dict]:
    for field, values in AXES.items():
        built = {value: ours.build(recipe(field, value)) for value in values}
        times = timing.measure({value: side.step for value, side in built.items()}, SECONDS)
        memory = [side.memory / 2**20 for side in built.values()]
        for value, held in zip(values, memory, strict=True):
            case = f"{field} = {value:,}"
            yield timing.row(case, "ms", times[value])
            yield timing.size_row(case, "MiB", held)
        span = f"{field} from {values[0]:,} to {values[-1]:,}"
        seconds = [float(np.median(times[value])) for value in values]
        yield timing.size_row(f"{span}: time", "exponent", exponent(values, seconds))
        if all(memory):
            yield timing.size_row(f"{span}: memory", "exponent", exponent(values, memory))
        del built
        jax.clear_caches()
