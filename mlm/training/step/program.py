"""The one place where a config becomes a model, an objective and a step, built once for all runs that share them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlm.base import config, fields, types
from mlm.base.static_config import StaticConfig, fill_hidden_fields, hide_fields
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES
from mlm.training.step import parallel, update

# Fields that reach the compiled functions as traced values only, besides those of the objective: a new field that
# `make_train_hparams` hands over belongs here.
TRACED_FIELDS = ("seed", "optim.learning_rate", "optim.weight_decay")
# Fields that no compiled function of a run reads. A new field that is missing here costs a program for each of its
# values, and nothing else.
UNCOMPILED_FIELDS = (
    "workdir",
    "init.run",
    "init.run_sha256",
    "init.hub",
    "init.hub_sha256",
    "eval.mask_seed",
    "eval.max_examples",
    "eval.mask_rates",
    "eval.ngram_order",
    "eval.context_range",
    "eval.beams",
    "eval.bleu_tokenizer",
    "eval.baseline",
    "train.group_by_length",
    "train.eval_every",
    "train.checkpoint_every",
    "train.milestones",
    "train.log_every",
    "train.profile",
    "train.trackers",
    "downstream.tasks",
    "downstream.path",
    "downstream.learning_rates",
    "downstream.epochs",
    "downstream.batch_sizes",
    "downstream.seeds",
    "downstream.variants",
)


class Program(NamedTuple):
    """The pure functions of a run, and the compiled ones."""

    model: types.Model
    objective: types.Objective
    init_state: Callable[..., Any]  # (hparams) -> state at step 0, compiled
    train_step: Callable[..., Any]  # (sharding, state, batch, hparams), not compiled
    partitioner: parallel.Partitioner


def make_train_hparams(cfg: config.Config) -> types.TracedHparams:
    """The traced values of a run's training."""
    return types.TracedHparams(
        np.uint32(cfg.seed),
        np.float32(cfg.optim.learning_rate),
        np.float32(cfg.optim.weight_decay),
        OBJECTIVES[cfg.objective].train_hparams(cfg),
    )


def make_eval_hparams(cfg: config.Config) -> types.TracedHparams:
    """The traced values of a run's evaluation. Its seed is config.eval.mask_seed: the same for every model."""
    zero = np.float32(0)
    return types.TracedHparams(np.uint32(cfg.eval.mask_seed), zero, zero, OBJECTIVES[cfg.objective].eval_hparams(cfg))


def make_placeholder_hparams(cfg: StaticConfig) -> types.TracedHparams:
    """Traced values of the right types, but of no run: to trace, lower or time a program without one."""
    return make_train_hparams(fill_hidden_fields(cfg))


def make_static_config(cfg: config.Config) -> StaticConfig:
    """What the compiled functions of a config may read: it hides the fields that are traced or that no program reads.

    Runs with equal ones share a program.
    """
    return hide_fields(cfg, (*TRACED_FIELDS, *UNCOMPILED_FIELDS, *OBJECTIVES[cfg.objective].traced_fields))


def build_model_and_objective(
    cfg: config.Config, dataset_info: types.DatasetInfo
) -> tuple[types.Model, types.Objective]:
    """The model and the objective of a config for this dataset."""
    build_model, spec = MODELS[cfg.model.family].build, OBJECTIVES[cfg.objective]
    auxiliary = spec.auxiliary_model(cfg)
    extra = () if auxiliary is None else (build_model(auxiliary, dataset_info.vocab_size),)
    return build_model(cfg.model, dataset_info.vocab_size), spec.build(make_static_config(cfg), dataset_info, *extra)


def build_program(cfg: config.Config, dataset_info: types.DatasetInfo, devices: Sequence[Any] | None = None) -> Program:
    """The program of a run for this dataset, on all devices or the given ones; runs that can share one get the same."""
    key = clear_tokenizer_path(make_static_config(cfg))
    return _build_cached(key, dataset_info, None if devices is None else tuple(devices))


def clear_tokenizer_path(cfg: StaticConfig) -> StaticConfig:
    """The config without the path of its tokenizer: compiled functions depend on the vocabulary's size alone."""
    return fields.override(cfg, {"tokenizer.path": ""})


# Compiled programs hold memory. Runs that share one alternate with their evaluations, such as a fine-tuning, and with
# the run that a fine-tuning starts from.
@functools.lru_cache(maxsize=3)
def _build_cached(cfg: StaticConfig, dataset_info: types.DatasetInfo, devices: tuple[Any, ...] | None) -> Program:
    model, objective = build_model_and_objective(cfg, dataset_info)
    train_step = functools.partial(update.train_step, cfg, model, objective)
    partitioner = parallel.MODES[cfg.parallel.mode].build(train_step, devices, cfg.parallel)
    init_state = partitioner.jit_init(functools.partial(update.init_state, cfg, model, objective))
    return Program(model, objective, init_state, train_step, partitioner)
