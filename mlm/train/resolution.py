"""A config on its way to a run: what follows from other fields is filled, and each room checks what it will read."""
from collections.abc import Mapping
from typing import Any

from mlm import models, objectives
from mlm.base import conditional_fields, errors, fields
from mlm.base.config import Config
from mlm.data.language import grammar
from mlm.data.rows import pack
from mlm.data.text import corpus
from mlm.train import downstream
from mlm.train.run import spikes
from mlm.train.step import ngrams, optim, parallel, trainable

READ = (*corpus.READ, *pack.READ, *models.READ, *objectives.READ, *optim.READ, *trainable.READ,
        *downstream.READ, *spikes.READ, *ngrams.READ)


def resolve(cfg: Config, *above: Mapping[str, Any]) -> Config:
    """Fills what follows from other fields, room by room. What is set and read is never changed.

    above: fields by dotted name that win over cfg's, each mapping over those before it. Where one of them leaves a
    field that was set below it without a reader, that returns to its default: `--config.data.path` over a recipe for
    the built-in language. Raises ConfigError for a field that is set though nothing reads it beside what it was set
    with.
    """
    upto = [cfg]
    for changes in above:
        upto.append(fields.override(upto[-1], changes))
    moot = {}
    for name, why in unread(upto[-1]).items():
        level = max((i for i, changes in enumerate(above, 1) if name in changes), default=0)
        if name in unread(upto[level]):
            check(_filled(upto[-1]))  # where the reader's own field is wrong, it is that which is to be mended
            value = fields.flatten(upto[level])[name]
            raise errors.ConfigError(f"config.{name} = {value!r}: nothing reads it, since {why}; leave it out")
        moot[name] = fields.DEFAULT[name]
    return _filled(fields.override(upto[-1], moot))


def unread(cfg: Config) -> dict[str, str]:
    """The fields that cfg sets, to other than follows from the rest, though nothing reads them; each with why."""
    fields.check_values(cfg)
    found = {}
    said, filled = fields.flatten(cfg), _filled(cfg)
    for name, why in conditional_fields.find_unread_fields(READ, fields.flatten(filled)).items():
        if said[name] != fields.DEFAULT[name]:
            without = _filled(fields.override(cfg, {name: fields.DEFAULT[name]}))
            if said[name] != fields.flatten(without)[name]:
                found[name] = why
    return found


def _filled(cfg):
    return objectives.resolve(models.resolve(pack.resolve(cfg)))


def check(cfg: Config) -> None:
    """Raises ConfigError for the first value of a resolved config that no run could use; compiles nothing."""
    fields.check_values(cfg)
    corpus.check(cfg.data)
    pack.check(cfg)
    grammar.check(cfg.data.language)
    models.check(cfg)
    objectives.check(cfg)
    _check_source(cfg)
    optim.check(cfg.optim, cfg.train.steps)
    trainable.check(cfg)
    downstream.check(cfg)
    parallel.check_mode(cfg)
    for name in ("steps", "batch_size", "grad_accum_steps", "checkpoint_every", "log_every"):
        errors.require_at_least(1, f"config.train.{name}", getattr(cfg.train, name))
    errors.require_at_least(0, "config.train.eval_every", cfg.train.eval_every)
    spikes.check(cfg)
    errors.require(cfg.train.batch_size % cfg.train.grad_accum_steps == 0, "config.train.grad_accum_steps",
                  cfg.train.grad_accum_steps, f"a divisor of config.train.batch_size = {cfg.train.batch_size}")
    errors.require_at_least(1, "config.eval.batch_size", cfg.eval.batch_size)
    errors.require_at_least(0, "config.eval.max_examples", cfg.eval.max_examples)
    errors.require_number("config.eval.mask_rate", cfg.eval.mask_rate, 0, 1, low_open=True, high_open=True)
    ngrams.check(cfg)
    for rate in cfg.eval.mask_rates:
        errors.require_number("config.eval.mask_rates", rate, 0, 1, low_open=True, high_open=True)


def _check_source(cfg):
    """Rows have a source where the model reads one: their corpus brings it, or the objective makes it of the row."""
    aligned, made, read = cfg.data.corpus == "aligned", objectives.source(cfg), models.source(cfg)
    errors.require(not (aligned and made), "config.objective", cfg.objective,
                  "one that makes no source of a row, since config.data.corpus is aligned")
    why = "config.data.corpus is aligned" if aligned else f"config.objective is {cfg.objective}"
    errors.require(read or not (aligned or made), "config.model.family", cfg.model.family,
                  f"one that reads a source beside each row, such as encoder_decoder, since {why}")
    errors.require(aligned or made or not read, "config.model.family", cfg.model.family,
                  "one that reads no source; rows have one where config.data.corpus is aligned, or config.objective "
                  "denoise")
