"""What is compiled for a run: made once in a process for all runs that differ in nothing but traced values."""
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from mlm.base import config, fields, types
from mlm.data.rows import pack
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES, masking
from mlm.train.step import parallel, update

# Fields that reach the compiled functions as knobs alone.
TRACED = ("seed", "mask.rate", "mask.final_rate", "mask.schedule", "mask.predict", "mask.copies", "mask.mask_share",
          "mask.random_share", "optim.learning_rate", "optim.weight_decay")
# Fields that no compiled function of a run reads.
OUTSIDE = ("workdir", "eval.seed", "eval.max_rows", "eval.rates", "train.eval_every", "train.checkpoint_every",
           "train.log_every")


class Program(NamedTuple):
    """A run's pure functions, and those of them that are compiled."""

    model: types.Model
    objective: Callable        # (rate) -> the objective with the slots of that rate; the same one when asked again
    initial: Callable          # (knobs) -> state at step 0, compiled
    train_step: Callable       # update.train_step of this model and objective, not compiled
    run: parallel.Parallel


def training_knobs(cfg: config.Config) -> types.Knobs:
    mask = cfg.mask
    return types.Knobs(
        seed=np.uint32(cfg.seed), mask_rate=np.float32(mask.rate), mask_final_rate=np.float32(mask.final_rate),
        mask_cosine=np.float32(mask.schedule == "cosine"), mask_predict=np.float32(mask.predict),
        mask_copies=np.int32(mask.copies), mask_share=np.float32(mask.mask_share),
        random_share=np.float32(mask.random_share), learning_rate=np.float32(cfg.optim.learning_rate),
        weight_decay=np.float32(cfg.optim.weight_decay))


def blank(cfg: config.Config) -> config.Config:
    """The config without what is traced or not compiled: equal for two runs where one program serves both."""
    default = fields.flatten(config.Config())
    return fields.override(cfg, {name: default[name] for name in TRACED + OUTSIDE})


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

    train_step = functools.partial(update.train_step, cfg, model, objective(cfg.mask.max_rate))
    initial = jax.jit(functools.partial(update.init_state, cfg, model, objective(cfg.mask.max_rate)))
    return Program(model, objective, initial, train_step, parallel.MODES[cfg.parallel.mode](train_step))


def frozen_knobs(cfg: config.Config) -> types.Knobs:
    """Pure [MASK] at config.eval.rate, drawn from config.eval.seed: the same masks for every model."""
    zero = np.float32(0)
    return types.Knobs(seed=np.uint32(cfg.eval.seed), mask_rate=np.float32(cfg.eval.rate), mask_final_rate=zero,
                       mask_predict=zero, mask_copies=np.int32(0), mask_cosine=zero, mask_share=np.float32(1),
                       random_share=zero, learning_rate=zero, weight_decay=zero)
