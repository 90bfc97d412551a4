"""The one place where a config becomes a model, an objective and a step, built once for all runs that share them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mlm.base import config, fields, types
from mlm.data.language import grammar, posterior
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES, distillation
from mlm.training.step import parallel, update

HIDDEN_FIELDS = tuple(
    name
    for name, declared in fields.DECLARATIONS.items()
    if declared.facts.get("role") in (config.Role.TRACED, config.Role.HOST)
)


class HiddenField:
    """Stands for a value that no compiled function may read: any use but the comparison of two raises TypeError."""

    def __init__(self, name: str):
        self.name = name  # dotted

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"config.{self.name}: a compiled function cannot read it, since runs that differ in it share the program; "
            "what is traced is in hparams"
        )

    __bool__ = __int__ = __float__ = __index__ = __str__ = __format__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __add__ = __radd__ = __sub__ = __rsub__ = _refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __rpow__ = _refuse

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HiddenField):
            self._refuse()
        return self.name == other.name

    def __hash__(self) -> int:
        return hash((HiddenField, self.name))

    def __repr__(self) -> str:
        return f"HiddenField({self.name!r})"


class Program(NamedTuple):
    """The pure functions of a run, and the compiled ones."""

    model: types.Model
    objective: types.Objective
    init_state: Callable[..., Any]  # (hparams) -> state at step 0, compiled
    train_step: Callable[..., Any]  # (sharding, state, batch, hparams), not compiled
    partitioner: parallel.Partitioner


def make_train_hparams(cfg: config.Config) -> types.TracedHparams:
    """The traced values of a run's training."""
    objective_hparams = OBJECTIVES[cfg.objective].train_hparams(cfg)
    rates = np.float32(cfg.optim.learning_rate), np.float32(cfg.optim.weight_decay)
    return types.TracedHparams(np.uint32(cfg.seed), *rates, objective_hparams)


def make_eval_hparams(cfg: config.Config) -> types.TracedHparams:
    """The traced values of a run's evaluation. Its seed is config.eval.mask_seed: the same for every model."""
    zero = np.float32(0)
    return types.TracedHparams(np.uint32(cfg.eval.mask_seed), zero, zero, OBJECTIVES[cfg.objective].eval_hparams(cfg))


def make_placeholder_hparams(cfg: types.StaticConfig) -> types.TracedHparams:
    """Traced values of the right types, but of no run: to trace, lower or time a program without one."""
    return make_train_hparams(fill_hidden_fields(cfg))


def make_static_config(cfg: config.Config) -> types.StaticConfig:
    """What the compiled functions of a config may read, HIDDEN_FIELDS hidden; runs with equal ones share a program."""
    return types.StaticConfig(fields.replace_values(cfg, {name: HiddenField(name) for name in HIDDEN_FIELDS}))


def fill_hidden_fields(cfg: types.StaticConfig) -> config.Config:
    """A config of the same program, with the defaults in place of what is hidden."""
    return fields.replace_values(cfg, {name: fields.DEFAULT[name] for name in HIDDEN_FIELDS})


def build_model_and_objective(
    cfg: config.Config, info: types.DatasetInfo, teacher: config.Model | None = None
) -> tuple[types.Model, types.Objective]:
    """The model and the objective of a config for this dataset; teacher: the model of a trained one."""
    build_model, spec = MODELS[cfg.model.family].build, OBJECTIVES[cfg.objective]
    auxiliary = spec.auxiliary_model(cfg)
    extra = () if auxiliary is None else (build_model(auxiliary, info.vocab_size),)
    if info.language is not None:
        hmm = grammar.build_grammar(info.language).hmm
        extra = (posterior.build_teacher(hmm, np.frombuffer(info.language_words, np.int32)),)
    if teacher is not None:
        extra = (MODELS[teacher.family].build(teacher, info.vocab_size),)
    return build_model(cfg.model, info.vocab_size), spec.build(make_static_config(cfg), info, *extra)


def build_program(
    cfg: config.Config,
    dataset_info: types.DatasetInfo,
    devices: Sequence[Any] | None = None,
    teacher: config.Model | None = None,
) -> Program:
    """The program of a run for this dataset, on all devices or the given ones; runs that can share one get the same.

    teacher: the model of config.distillation.teacher, which training alone needs; None: of a program that does not
    train, or of a run whose teacher is no model.
    """
    key = clear_paths(make_static_config(cfg))
    return _build_cached(key, dataset_info, None if devices is None else tuple(devices), teacher)


def clear_paths(cfg: types.StaticConfig) -> types.StaticConfig:
    """The config without the paths of tokenizer and teacher: compiled functions depend on their sizes alone."""
    teacher = "" if distillation.has_model(cfg.distillation) else cfg.distillation.teacher
    return fields.override(cfg, {"tokenizer.path": "", "distillation.teacher": teacher})


# Compiled programs hold memory. Runs that share one alternate with their evaluations, such as a fine-tuning, and with
# the run that a fine-tuning starts from.
@functools.lru_cache(maxsize=3)
def _build_cached(
    cfg: types.StaticConfig,
    dataset_info: types.DatasetInfo,
    devices: tuple[Any, ...] | None,
    teacher: config.Model | None,
) -> Program:
    model, objective = build_model_and_objective(cfg, dataset_info, teacher)
    train_step = functools.partial(update.train_step, cfg, model, objective)
    partitioner = parallel.MODES[cfg.parallel.mode].build(train_step, devices, cfg.parallel)
    init_state = partitioner.jit_init(functools.partial(update.init_state, cfg, model, objective))
    return Program(model, objective, init_state, train_step, partitioner)
