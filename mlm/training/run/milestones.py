"""The moments of a run at which it keeps its parameters: config.train.milestones."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm.base import batch_warmup, config, errors
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.data.rows.columns import PackedDataset

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


def list_steps(cfg: config.Config, packed: PackedDataset) -> list[int]:
    """The steps after which the run keeps its parameters, in order; those after its end are left out."""
    milestones, last = parse(cfg.train.milestones), cfg.train.steps
    steps = {*milestones.steps}
    steps |= {round(last ** (number / milestones.log_count)) for number in range(1, milestones.log_count + 1)}
    if milestones.words:
        words_per_batch = cfg.train.batch_size * count_words(packed) / len(packed.train["ids"])
        batches_N = batch_warmup.count_batches_read(cfg.train)
        steps |= {int(np.searchsorted(batches_N, words / words_per_batch)) + 1 for words in milestones.words}
    return sorted(step for step in steps if step <= last)


def count_words(packed: PackedDataset) -> int:
    """The words of the train split, as its tokenizer begins them: a mark of punctuation may be one of its own."""
    tokenizer = packed.tokenizer
    is_word_V = (tokenizer.starts_word_V if tokenizer.ends_word_V is None else tokenizer.ends_word_V).copy()
    is_word_V[:NUM_SPECIAL] = False
    is_word_V[UNK] = True
    return int(np.frombuffer(packed.dataset_info.unigram_counts, np.int64)[is_word_V].sum())
