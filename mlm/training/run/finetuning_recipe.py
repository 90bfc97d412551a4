"""The config of a fine-tuning: that of the run it starts from, changed by a recipe."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from mlm.base import config, errors, fields, files, text_files
from mlm.data.rows import pack
from mlm.data.tasks import splits, tasks
from mlm.training.run import downstream, inheritance, pretrained_folder, resolution
from mlm.training.run.directory import CHECKPOINT_SCHEMES, RunDirectory

# As in Devlin et al. 2019, appendix A.3, with the 6% warm-up of Liu et al. 2019: a few epochs (they choose among 2, 3
# and 4) at the best of three learning rates. Their rates are for models of a hundred million parameters; the smallest
# models need larger ones, and more epochs of few examples: docs/guides/finetune.md has the trials.
# Attention keeps the run's own dropout.
RECIPE = {"optim.schedule": "linear", "optim.warmup_fraction": 0.06, "optim.b2": 0.999, "model.dropout": 0.1}
EPOCHS, BATCH_SIZE = 3.0, 32
SMALL_WIDTH = 128  # up to this width the fewest of SMALL_EPOCHS that update the parameters MIN_UPDATES times
SMALL_EPOCHS, MIN_UPDATES = (EPOCHS, 10.0, 30.0), 300
SEED_STRIDE = 1000  # between the seeds of two pretrained runs' fine-tunings: no two fine-tunings share a seed
LEARNING_RATES = (2e-5, 3e-5, 5e-5)
LEARNING_RATES_BY_WIDTH = {128: (5e-4, 1e-3, 2e-3), 256: (3e-4, 5e-4, 1e-3)}  # up to this width
LANGUAGE_SEQ_LEN = 32  # of the built-in language's tasks


class Trial(NamedTuple):
    """One of the fine-tunings of config.downstream."""

    task: str
    variant: str  # one of config.downstream.variants
    learning_rate: float
    epochs: float
    batch_size: int
    seed: int  # 0, 1, ...


def get_learning_rates(width: int, otherwise: tuple[float, ...] = LEARNING_RATES) -> tuple[float, ...]:
    """The learning rates to choose from for a model of this width; otherwise: those of models as wide as BERT's."""
    return next((rates for limit, rates in LEARNING_RATES_BY_WIDTH.items() if width <= limit), otherwise)


def choose_epochs(width: int, num_examples: int, batch_size: int) -> float:
    """The passes over the examples of a fine-tuning that sets none; width: the model's."""
    if width > SMALL_WIDTH:
        return EPOCHS
    enough = (epochs for epochs in SMALL_EPOCHS if num_examples * epochs / batch_size >= MIN_UPDATES)
    return next(enough, SMALL_EPOCHS[-1])


def list_trials(cfg: config.Config) -> list[Trial]:
    """All fine-tunings of config.downstream; those that share a program are next to each other."""
    settings = cfg.downstream
    return [
        Trial(task, variant, rate, epochs, size, seed)
        for task, variant, size, epochs, rate, seed in itertools.product(
            text_files.split_names(cfg.downstream.tasks),
            downstream.parse_variants(settings.variants),
            settings.batch_sizes,
            settings.epochs,
            settings.learning_rates or get_learning_rates(cfg.model.width),
            range(settings.seeds),
        )
    ]


def make_overrides(
    cfg: config.Config, trial: Trial, task_fields: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The fields, by dotted name, that a trial of the pretrained run of cfg sets.

    task_fields: what says the task; {}: that of its name, in its folder below config.downstream.path.
    """
    is_file_task = not task_fields and trial.task not in tasks.LANGUAGE_TASKS
    path = {"data.task_path": f"{cfg.downstream.path}/{trial.task}"} if is_file_task else {}
    overrides = {
        **(task_fields or {"data.task": trial.task}),
        "train.batch_size": trial.batch_size,
        "optim.learning_rate": trial.learning_rate,
        "seed": (cfg.seed * SEED_STRIDE + trial.seed) % 2**32,
    }
    return path | overrides | downstream.parse_variant(trial.variant)


def plan_config(
    cfg: config.Config, trial: Trial, task_fields: Mapping[str, Any] = MappingProxyType({})
) -> config.Config:
    """The config of a trial of cfg's run before that is trained; raises ConfigError if it cannot be fine-tuned so."""
    inherited = inheritance.select_inherited_fields(fields.flatten(cfg), cfg.workdir) | {"init.run": cfg.workdir}
    overrides = fields.Layer("config.downstream", make_overrides(cfg, trial, task_fields))
    layers = [fields.Layer(cfg.workdir, inherited), make_recipe(inherited, overrides.values["data.task"]), overrides]
    return resolution.merge_layers(layers).config


def check(cfg: config.Config) -> None:
    """Raises ConfigError if config.downstream asks for an impossible fine-tuning, or names files that do not exist."""
    for trial in {(trial.task, trial.variant, trial.batch_size): trial for trial in list_trials(cfg)}.values():
        with errors.name_place(f"config.downstream, {trial.task}"):
            trial_cfg = plan_config(cfg, trial)
            if trial.task not in tasks.LANGUAGE_TASKS:
                splits.find_files(trial_cfg.data)


def choose_finetuning_folder(source: str, name: str) -> Path:
    """The directory of a fine-tuning of a run or of a Hugging Face folder; nothing is written into the latter."""
    is_external = pretrained_folder.is_pretrained_folder(source) or not files.make_path(source).exists()
    return RunDirectory(pretrained_folder.choose_workdir(source) if is_external else source).tasks / name


def prepare_finetuning(
    run: str,
    overrides: Sequence[fields.Layer],
    *,
    base: Sequence[fields.Layer] = (),
    from_scratch: bool = False,
    epochs: float | None = None,
    name: str = "",
) -> tuple[resolution.ResolvedConfig, pack.PackedDataset]:
    """The resolved and checked config of a fine-tuning of a run, or of a Hugging Face folder, and its data.

    overrides: layers that set data.task, and more; they override the recipe, that the run, the run `base`. epochs: in
    place of train.steps; None: `choose_epochs` does. name: of the directory; empty: data.task. Raises ConfigError.
    """
    changes = {field: value for layer in overrides for field, value in layer.values.items()}
    task = changes.get("data.task", "")
    errors.require(bool(task), "config.data.task", task, "the task to fine-tune for: data.task=NAME, or --task=FILE")
    is_free = epochs is None or "train.steps" not in changes
    errors.require(is_free, "--epochs", epochs, "no --epochs, since config.train.steps is set")
    is_number = epochs is None or (math.isfinite(epochs) and epochs > 0)
    errors.require(is_number, "--epochs", epochs, "a finite number of passes, above 0")
    folder = choose_finetuning_folder(run, (name or task) + ("-from_scratch" if from_scratch else ""))
    workdir = fields.Layer("run and task", {"workdir": str(folder)})
    source_cfg = config.Config()
    for layer in (*base, workdir, *overrides):
        source_cfg = fields.override(source_cfg, layer.values)
    inherited = inheritance.read_source_fields(run, source_cfg, from_scratch=from_scratch)
    layers = [*base, fields.Layer(run, inherited), workdir, make_recipe(inherited, task), *overrides]
    cfg = resolution.merge_layers(layers, {} if from_scratch else inherited).config
    files.check_folder("config.workdir", cfg.workdir, schemes=CHECKPOINT_SCHEMES)
    packed = pack.load_dataset(cfg)
    if "train.steps" not in changes:
        num_examples, batch_size = len(packed.train["ids"]), cfg.train.batch_size
        epochs = choose_epochs(cfg.model.width, num_examples, batch_size) if epochs is None else epochs
        steps = max(1, math.ceil(num_examples * epochs / batch_size))
        layers.append(fields.Layer(f"epochs = {epochs:g}", {"train.steps": steps}))
    return resolution.merge_layers(layers), packed


def make_recipe(inherited: Mapping[str, Any], task: str) -> fields.Layer:
    """The recipe for a task; inherited: the fields of the run that the fine-tuning starts from."""
    seq_len = tasks.TASKS[task].seq_len if task in tasks.TASKS else LANGUAGE_SEQ_LEN * (task in tasks.LANGUAGE_TASKS)
    changes = {
        "train.batch_size": BATCH_SIZE,
        "optim.learning_rate": get_learning_rates(inherited["model.width"])[1],
        "pack.seq_len": min(inherited["pack.seq_len"], seq_len or math.inf),
    }
    return fields.Layer("fine-tuning recipe", RECIPE | changes)
