"""What is compiled for a run: made once in a process for all runs that differ in nothing but traced values."""
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from mlm import config, masking, parallel, step, types
from mlm.data import pack
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES

# Knob -> the field that it takes its value from, and its type.
KNOBS = {"seed": ("seed", np.uint32), "mask_rate": ("mask.rate", np.float32),
         "mask_share": ("mask.mask_share", np.float32), "random_share": ("mask.random_share", np.float32),
         "learning_rate": ("optim.learning_rate", np.float32), "weight_decay": ("optim.weight_decay", np.float32)}
# Fields that no compiled function of a run reads.
OUTSIDE = ("workdir", "eval.seed", "eval.max_rows", "eval.rates", "train.eval_every", "train.checkpoint_every",
           "train.log_every")


class Program(NamedTuple):
    """A run's pure functions, and those of them that are compiled."""

    model: types.Model
    objective: Callable        # (rate) -> the objective with the slots of that rate; the same one when asked again
    initial: Callable          # (knobs) -> state at step 0, compiled
    train_step: Callable       # step.train_step of this model and objective, not compiled
    run: parallel.Parallel


def training_knobs(cfg: config.Config) -> types.Knobs:
    flat = config.flatten(cfg)
    return types.Knobs(**{knob: kind(flat[field]) for knob, (field, kind) in KNOBS.items()})


def blank(cfg: config.Config) -> config.Config:
    """The config without what is traced or not compiled: equal for two runs where one program serves both."""
    default = config.flatten(config.Config())
    return config.override(cfg, {name: default[name] for name in (*(field for field, _ in KNOBS.values()), *OUTSIDE)})


def build(cfg: config.Config, rows: pack.Rows) -> Program:
    """The program of a run on these rows; of runs one after the other that can share it, the same one."""
    return _build(blank(cfg), rows.unigram_V.tobytes())


@functools.lru_cache(maxsize=1)  # compiled programs hold memory, and runs that share one come one after the other
def _build(cfg, unigram) -> Program:
    unigram_V = np.frombuffer(unigram, np.int64)
    model = MODELS[cfg.model.family](cfg.model, len(unigram_V))

    @functools.cache
    def objective(rate):
        return OBJECTIVES[cfg.objective](cfg.mask, masking.slots(rate, cfg.pack.length), unigram_V)

    train_step = functools.partial(step.train_step, cfg, model, objective(cfg.mask.max_rate))
    initial = jax.jit(functools.partial(step.init_state, cfg, model, objective(cfg.mask.max_rate)))
    return Program(model, objective, initial, train_step, parallel.MODES[cfg.parallel.mode](train_step))
