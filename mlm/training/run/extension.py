"""Extending a run to more steps than it began with, bit for bit equal to the longer run from scratch.

This holds where only the later steps depend on the total number of steps. The longer run has as many warm-up steps as
the shorter one, and decays over its configured share of the new length.
"""

from collections.abc import Mapping
from typing import Any

from mlm.base import config, errors, fields, phases
from mlm.training.step import optim

EXTENDABLE_FIELDS = STEPS, WARMUP = "train.steps", "optim.warmup_fraction"  # that an extension changes
# Field values with which a step does not depend on the fraction of the steps that are done.
STEP_INDEPENDENT_VALUES = {
    "mask.schedule": ("constant",),
    "hybrid.causal_first_fraction": (0.0, 1.0),
    "train.batch_warmup_fraction": (0.0,),
}


def count_stable_steps(cfg: config.Config) -> int:
    """How many of a run's first steps are the same, however many follow."""
    values = fields.flatten(cfg)
    if any(values[name] not in allowed for name, allowed in STEP_INDEPENDENT_VALUES.items()):
        return 0
    return min(phases.list_phases(cfg)[0].end_step, optim.count_stable_steps(cfg.optim, cfg.train.steps))


def match_saved_length(cfg: config.Config, saved: Mapping[str, Any], step: int) -> config.Config:
    """cfg with the length of a saved identity (run or checkpoint), if both are equal up to `step`; else cfg."""
    saved_cfg = fields.override(cfg, {name: saved["config"][name] for name in EXTENDABLE_FIELDS})
    warmups = {optim.count_warmup_steps(one.optim, one.train.steps) for one in (saved_cfg, cfg)}
    num_shared = min(count_stable_steps(saved_cfg), count_stable_steps(cfg))
    return saved_cfg if len(warmups) == 1 and step <= num_shared else cfg


def get_original_values(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the run of an identity began with, of the fields that an extension changes."""
    return saved.get("original") or {name: saved["config"][name] for name in EXTENDABLE_FIELDS}


def extend_config(cfg: config.Config, data: Mapping[str, Any], saved: Mapping[str, Any]) -> config.Config:
    """The config of the run of the identity `saved`, extended to cfg's steps; its own config if it has as many already.

    cfg has the warm-up that the run has, or that it began with. Raises ConfigError if cfg differs in more than the
    steps, has fewer, or has a schedule that depends on all steps.
    """
    values = {name: saved["config"][name] for name in EXTENDABLE_FIELDS}
    has_original_warmup = cfg.optim.warmup_fraction == get_original_values(saved)[WARMUP]
    saved_cfg = fields.override(cfg, values if has_original_warmup else {STEPS: values[STEPS]})
    fields.check_identity(saved_cfg, data, saved, cfg.workdir)
    errors.require_number(f"config.{STEPS}", cfg.train.steps, saved_cfg.train.steps)
    if cfg.train.steps == saved_cfg.train.steps:
        return saved_cfg
    values = fields.flatten(cfg)
    for name, allowed in {"optim.schedule": optim.EXTENDABLE_SCHEDULES, **STEP_INDEPENDENT_VALUES}.items():
        expected = (
            f"{' or '.join(map(str, allowed))} for a run to be extended; with {values[name]} every step "
            "depends on the number of all steps, so a longer run is another run: choose another "
            "config.workdir"
        )
        errors.require(values[name] in allowed, f"config.{name}", values[name], expected)
    num_warmup = optim.count_warmup_steps(saved_cfg.optim, saved_cfg.train.steps)
    return fields.override(cfg, {WARMUP: num_warmup / cfg.train.steps})
