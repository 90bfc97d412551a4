"""Phases of a run: parts, one after the other, that differ in length, batch, masking rate or the weights of sources."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mlm.base import batch_warmup, errors, fields
from mlm.base.config import Config
from mlm.base.fields import DerivedField

# Of config.phases -> the field of which it has each phase's value.
PHASE_FIELDS = {
    "seq_len": "pack.seq_len",
    "batch_size": "train.batch_size",
    "mask_rate": "mask.rate",
    "learning_rate": "optim.learning_rate",
    "rope_theta": "model.rope_theta",
}
ONE_PHASE = {f"phases.{name}": () for name in ("shares", *PHASE_FIELDS)}
CORPORA = ("text", "tfds", "docstrings", "language")  # whose examples phases can pack


def _derive_last(field: str, name: str) -> DerivedField:
    def derive(cfg: Config) -> Any:
        return getattr(cfg.phases, name)[-1]

    def has_values(cfg: Config) -> bool:
        return bool(getattr(cfg.phases, name))

    return DerivedField(field, (f"phases.{name}",), derive, has_values, default_is_choice=True)


DERIVED_FIELDS = tuple(_derive_last(field, name) for name, field in PHASE_FIELDS.items())


class Phase(NamedTuple):
    """A phase of a run: the steps from first_step, counted from 0, up to before end_step."""

    number: int  # from 0
    first_step: int
    end_step: int
    cfg: Config  # of a run that is this phase alone; a run without phases has its own


def list_phases(cfg: Config) -> list[Phase]:
    """The phases of a run in order, at least one; the last has the run's own length, batch and masking rate."""
    shares, steps = cfg.phases.shares, cfg.train.steps
    if not shares:
        return [Phase(0, 0, steps, cfg)]
    bounds = [0, *(round(steps * math.fsum(shares[:number])) for number in range(1, len(shares))), steps]
    return [Phase(i, bounds[i], bounds[i + 1], _make_phase_config(cfg, i)) for i in range(len(shares))]


def _make_phase_config(cfg: Config, number: int) -> Config:
    changes: dict[str, Any] = {
        field: values[number] for name, field in PHASE_FIELDS.items() if (values := getattr(cfg.phases, name))
    }
    if "mask.rate" in changes and cfg.mask.max_rate == cfg.mask.rate:
        changes["mask.max_rate"] = changes["mask.rate"]
    return fields.override(cfg, changes | ONE_PHASE)


def average_rates(cfg: Config) -> list[Phase]:
    """The phases, each with the mean masking rate of its examples for good: it decides what a scheduled one costs."""
    averaged = list[Phase]()
    for phase in list_phases(cfg):
        mask, steps = phase.cfg.mask, np.arange(phase.first_step, max(phase.end_step, phase.first_step + 1))
        progress = (steps + 0.5) / max(cfg.train.steps, 1)  # the mean of a run is halfway
        progress = (1 - np.cos(np.pi * progress)) / 2 if mask.schedule == "cosine" else progress
        mean = float(np.average(progress, weights=batch_warmup.count_microbatches(cfg.train, steps)))
        rate = mask.rate + ((mask.final_rate or mask.rate) - mask.rate) * mean
        changes = {"mask.rate": rate, "mask.schedule": "constant", "mask.final_rate": 0.0}
        averaged.append(phase._replace(cfg=fields.override(phase.cfg, changes)))
    return averaged


def compute_mean_rate(cfg: Config) -> float:
    """The masking rate of a run, mean over its tokens."""
    rates = [phase.cfg.mask.rate for phase in average_rates(cfg)]
    parts = _split_batches(cfg, range(cfg.train.steps))
    tokens = [num * phase.cfg.train.batch_size * phase.cfg.pack.seq_len for phase, num in parts]
    return float(np.average(rates, weights=tokens))


def select_model(cfg: Config, step: int) -> Config:
    """The config with the model as it is in the phase of a step, counted from 1: phases may have their rotary bases."""
    *earlier, last = list_phases(cfg)
    phase = next((phase for phase in earlier if step <= phase.end_step), last)
    return fields.override(cfg, {"model.rope_theta": phase.cfg.model.rope_theta})


def count_work(cfg: Config, steps: range) -> float:
    """How many batches of the last phase's tokens these steps, counted from 0, use: their time is about as much."""
    last, parts = cfg.train.batch_size * cfg.pack.seq_len, _split_batches(cfg, steps)
    return sum(num * (phase.cfg.train.batch_size * phase.cfg.pack.seq_len) / last for phase, num in parts)


def count_examples(cfg: Config, steps: range) -> float:
    """How many examples these steps, counted from 0, use."""
    return sum(num_batches * phase.cfg.train.batch_size for phase, num_batches in _split_batches(cfg, steps))


def _split_batches(cfg: Config, steps: range) -> Iterator[tuple[Phase, float]]:
    """Each phase with how many of its full batches the steps use."""
    for phase in list_phases(cfg):
        overlap = range(max(steps.start, phase.first_step), max(min(steps.stop, phase.end_step), phase.first_step))
        yield phase, batch_warmup.count_batches(cfg.train, overlap)


def check(cfg: Config) -> None:
    """Raises ConfigError for phases that no run could have, whatever the fields are that they change."""
    phases = cfg.phases
    if not phases.shares:
        return
    errors.require_field(cfg, "phases.shares", cfg.data.corpus in CORPORA, "none for labelled tasks and parallel texts")
    total = math.fsum(phases.shares)
    expected = f"shares of the steps that add up to 1, not {total:g}"
    errors.require_field(cfg, "phases.shares", abs(total - 1) < 1e-6, expected)
    for name, field in PHASE_FIELDS.items():
        if values := getattr(cfg.phases, name):
            expected = f"a value for each of the {len(phases.shares)} shares of config.phases.shares"
            errors.require_field(cfg, f"phases.{name}", len(values) == len(phases.shares), expected)
            expected = f"{values[-1]!r}, the last of config.phases.{name} = {values!r}; set that, or leave it out"
            errors.require_field(cfg, field, fields.flatten(cfg)[field] == values[-1], expected)
