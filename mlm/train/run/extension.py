"""A run trained for more steps than it was begun with, which is bit for bit the longer run from scratch.

That holds where what a step does hangs on the number of all steps only from some step on. The longer run has as many
steps of warm-up as the shorter, and decays over its configured share of the new length.
"""
from collections.abc import Mapping
from typing import Any

from mlm.base import config, errors, fields
from mlm.train.step import optim

CHANGED = STEPS, WARMUP = "train.steps", "optim.warmup_fraction"  # what a run and its longer one differ in
# Values of fields under which what an objective asks for does not hang on the share of the steps that is over.
ALIKE = {"mask.schedule": ("constant",), "hybrid.causal_first_fraction": (0.0, 1.0)}


def stable(cfg: config.Config) -> int:
    """How many of a run's first steps are made the same, however many follow them."""
    said = fields.flatten(cfg)
    return optim.stable(cfg.optim, cfg.train.steps) if all(said[name] in can for name, can in ALIKE.items()) else 0


def behind(cfg: config.Config, saved: Mapping[str, Any], step: int) -> config.Config:
    """cfg with the steps and the warm-up of an identity, where a run of those comes to `step` as one of cfg; else cfg.

    saved: an identity (base/fields.py), or that of a checkpoint: a spike at a step that the two do not share may have
    sent its run back to before one that they do, to come to that again by other batches.
    """
    then = fields.override(cfg, {name: saved["config"][name] for name in CHANGED})
    same = optim.warmup(then.optim, then.train.steps) == optim.warmup(cfg.optim, cfg.train.steps)
    shared = min(stable(then), stable(cfg))
    found = saved.get("totals", {}).get("spikes", ())
    return then if same and max([step, *(spike["step"] for spike in found)]) <= shared else cfg


def begun(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What the run of an identity was first begun with, of the fields that change when it is made longer."""
    return saved.get("begun") or {name: saved["config"][name] for name in CHANGED}


def resolve(cfg: config.Config, data: Mapping[str, Any], saved: Mapping[str, Any]) -> config.Config:
    """The config of the run of an identity, made as long as cfg; its own where it is that long already.

    cfg gives the warm-up as the run has it, or had it when it was begun. data: the identity of the rows. Raises
    ConfigError where cfg differs in more than the steps, has fewer, or has a schedule that spreads over them all.
    """
    now = {name: saved["config"][name] for name in CHANGED}
    as_begun = cfg.optim.warmup_fraction == begun(saved)[WARMUP]
    then = fields.override(cfg, now if as_begun else {STEPS: now[STEPS]})
    fields.check_same(then, data, saved, cfg.workdir)
    errors.require_at_least(then.train.steps, f"config.{STEPS}", cfg.train.steps)
    if cfg.train.steps == then.train.steps:
        return then
    said = fields.flatten(cfg)
    for name, can in {"optim.schedule": optim.STABLE, **ALIKE}.items():
        errors.require(said[name] in can, f"config.{name}", said[name], f"{' or '.join(map(str, can))} of a run to be "
                      f"trained longer; {said[name]} spreads over all steps, so that more of them are another run: "
                      "choose another config.workdir")
    return fields.override(cfg, {WARMUP: optim.warmup(then.optim, then.train.steps) / cfg.train.steps})
