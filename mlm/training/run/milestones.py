"""The moments of a run at which it keeps its parameters: config.train.milestones."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm.base import batch_warmup, config, errors
from mlm.data.rows import mixture

UNITS = {"": 0, "kw": 1000, "Mw": 1_000_000}  # after a number: steps, or so many words each
# The moments that the BabyLM challenge of 2025 asks for, in millions of words.
BABYLM = (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100))
EXPECTED = (
    "log:24 (so many, up to 9999, evenly spaced in the logarithm of the step), steps such as 100,1000, words such as "
    "500kw,1Mw, or babylm"
)


class Milestones(NamedTuple):
    """Moments of a run, as the config names them."""

    log_count: int = 0  # so many, evenly spaced in the logarithm of the step
    steps: Sequence[int] = ()
    words: Sequence[int] = ()  # numbers of words that the run has read, repetitions counted


def parse(text: str) -> Milestones:
    """The moments that a text names. Raises ConfigError if it names none that can be."""
    if text == "babylm":
        return Milestones(words=[UNITS["Mw"] * count for count in BABYLM])
    if (match := re.fullmatch("log:([1-9][0-9]*)", text)) and len(match[1]) <= 4:
        return Milestones(log_count=int(match[1]))
    steps, words = [], []
    for part in text.split(",") if text else ():
        match = re.fullmatch("([1-9][0-9]{0,11})(|kw|Mw)", part.strip())
        if match is None:
            raise errors.ConfigError(f"config.train.milestones = {errors.format_value(text)}: expected {EXPECTED}")
        steps += [] if match[2] else [int(match[1])]
        words += [int(match[1]) * UNITS[match[2]]] if match[2] else []
    return Milestones(steps=steps, words=words)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for milestones that the run cannot have."""
    milestones = parse(cfg.train.milestones)
    for step in milestones.steps:
        errors.require_field(
            cfg, "train.milestones", step <= cfg.train.steps, f"steps up to config.train.steps = {cfg.train.steps}"
        )
    has_words = not milestones.words or (
        cfg.tokenizer.kind != "characters" and cfg.data.corpus not in ("task", "parallel")
    )
    expected = "log:24 or steps: words are counted where the tokenizer has them, in text of one language"
    errors.require_field(cfg, "train.milestones", has_words, expected)


def list_steps(cfg: config.Config, segments: Sequence[mixture.Segment]) -> list[int]:
    """The steps after which the run keeps its parameters, in order; those after its end are left out.

    segments: the phases of the run.
    """
    milestones, last = parse(cfg.train.milestones), cfg.train.steps
    steps = {*milestones.steps}
    steps |= {round(last ** (number / milestones.log_count)) for number in range(1, milestones.log_count + 1)}
    if milestones.words:
        batches_N, sizes = batch_warmup.count_batches_read(cfg.train), [one.count_batch_words() for one in segments]
        if len(segments) > 1:  # in batches of the last phase
            lengths = [segment.phase.end_step - segment.phase.first_step for segment in segments]
            batches_N = np.cumsum(np.diff(batches_N, prepend=0) * np.repeat(np.divide(sizes, sizes[-1]), lengths))
        steps |= {int(np.searchsorted(batches_N, words / sizes[-1])) + 1 for words in milestones.words}
    return sorted(step for step in steps if step <= last)
