"""The one place where a config becomes model, objective and step: made once for all runs that can share them."""
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mlm.base import config, fields, types
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES
from mlm.train.step import parallel, update

# Fields that reach the compiled functions as knobs alone, beside the objective's own.
TRACED = ("seed", "optim.learning_rate", "optim.weight_decay")
# Fields that no compiled function of a run reads.
OUTSIDE = ("workdir", "init.run", "init.run_sha256", "init.hub", "init.hub_sha256", "eval.mask_seed",
           "eval.max_examples", "eval.mask_rates", "eval.ngram_order", "eval.context_range", "eval.beams",
           "train.group_by_length", "train.spike_threshold", "train.spike_rewind_steps", "train.spike_max_rewinds",
           "train.eval_every", "train.checkpoint_every", "train.log_every", "downstream.tasks", "downstream.path",
           "downstream.learning_rates", "downstream.epochs", "downstream.batch_sizes", "downstream.seeds",
           "downstream.variants")


class Program(NamedTuple):
    """A run's pure functions, and those of them that are compiled."""

    model: types.Model
    objective: types.Objective
    initial: Callable          # (knobs) -> state at step 0, compiled
    train_step: Callable       # (total, state, batch, knobs), not compiled
    run: parallel.Parallel


def knobs(cfg: config.Config) -> types.TracedHparams:
    """The traced values of a run's training."""
    return types.TracedHparams(np.uint32(cfg.seed), np.float32(cfg.optim.learning_rate),
                               np.float32(cfg.optim.weight_decay), OBJECTIVES[cfg.objective].knobs(cfg))


def frozen(cfg: config.Config) -> types.TracedHparams:
    """Those of its evaluation, drawn from config.eval.mask_seed: the same for every model."""
    zero = np.float32(0)
    return types.TracedHparams(np.uint32(cfg.eval.mask_seed), zero, zero, OBJECTIVES[cfg.objective].frozen(cfg))


def blank(cfg: config.Config) -> config.Config:
    """The config without what is traced or not compiled: equal for two runs where one program serves both."""
    without = (*TRACED, *OUTSIDE, *OBJECTIVES[cfg.objective].traced)
    return fields.override(cfg, {name: fields.DEFAULT[name] for name in without})


def parts(cfg: config.Config, about: types.DatasetInfo) -> tuple[types.Model, types.Objective]:
    """The model and the objective of a config on rows like these."""
    build, goal = MODELS[cfg.model.family].build, OBJECTIVES[cfg.objective]
    further = [build(model, about.vocab_size) for model in (goal.further(cfg),) if model is not None]
    return build(cfg.model, about.vocab_size), goal.build(blank(cfg), about, *further)


def build(cfg: config.Config, about: types.DatasetInfo, devices=None) -> Program:
    """The program of a run on rows like these, on all devices or those given; of runs that can share it, the same."""
    return _build(unnamed(blank(cfg)), about, None if devices is None else tuple(devices))


def unnamed(cfg: config.Config) -> config.Config:
    """The config without where its vocabulary stands, of which a compiled function reads the size alone."""
    return fields.override(cfg, {"tokenizer.path": ""})


# Compiled programs hold memory. Runs that share one take turns with their questions, such as a fine-tuning, and with
# what that starts from.
@functools.lru_cache(maxsize=3)
def _build(cfg, about, devices) -> Program:
    model, objective = parts(cfg, about)
    train_step = functools.partial(update.train_step, cfg, model, objective)
    run = parallel.MODES[cfg.parallel.mode](train_step, devices)
    initial = run.initial(functools.partial(update.init_state, cfg, model, objective))
    return Program(model, objective, initial, train_step, run)
