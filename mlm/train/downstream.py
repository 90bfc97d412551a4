"""What a run is fine-tuned for once its training ended, as its config says it: config.downstream."""
from typing import Any

from mlm.base import config, errors, fields
from mlm.base.conditional_fields import FieldCondition
from mlm.data.tasks import tasks

GRID = ("learning_rates", "epochs", "batch_sizes")
READ = (FieldCondition(tuple(f"downstream.{field}" for field in ("path", *GRID, "seeds", "variants")),
                       "downstream.tasks", unless=("",)),)
# What each fine-tuning has of its own, which no variant sets.
TAKEN = ("workdir", "seed", "data.task", "data.task_path", "optim.learning_rate", "train.batch_size", "train.steps",
         "init.run", "init.run_sha256", "init.hub", "init.hub_sha256", "data.cache", "tokenizer.path",
         "eval.batch_size", "parallel.mode")
DRAWN = "from_scratch"  # in the place of NAME=VALUE: not with the run's parameters
KINDS = {str: str, int: int, float: float, bool: {"True": True, "False": False}.__getitem__}


def names(cfg: config.Config) -> tuple[str, ...]:
    """The tasks, in the order they are named."""
    return tuple(name.strip() for name in cfg.downstream.tasks.split(",")) if cfg.downstream.tasks.strip() else ()


def variants(cfg: config.Config) -> tuple[str, ...]:
    """What is set beside the recipe, "" where nothing is, in the order it is named."""
    return tuple(" ".join(variant.split()) for variant in cfg.downstream.variants.split(","))


def settings(variant: str) -> dict[str, Any]:
    """The fields that a variant sets, by dotted name. Raises ConfigError for what is no field or no value of it."""
    field, found = "config.downstream.variants", {}
    for word in (words := variant.split()):
        if word == DRAWN:
            found |= {"init.run": "", "init.run_sha256": ""}
            continue
        name, equals, text = word.partition("=")
        errors.require(bool(equals), field, word, f"NAME=VALUE, such as finetune.trainable_layers=0, or {DRAWN}")
        fields.check_name(name)
        kind = type(fields.DEFAULT[name])
        errors.require(name not in (*TAKEN, *found) and kind in KINDS, field, word,
                       "a field that may be set here, once")
        shape = name.startswith("model.") and not name.endswith("dropout")
        errors.require(DRAWN in words or not shape, field, word, f"{DRAWN} beside it: a run's model is as it is")
        errors.require("/" not in text, field, word, "a value without /")
        try:
            found[name] = KINDS[kind](text)
        except (ValueError, KeyError):
            errors.require(False, field, word, f"a value of type {kind.__name__}")
    return found


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.downstream that no run could use; looks for no file."""
    said, field = cfg.downstream, "config.downstream"
    for name in names(cfg):
        errors.require_one_of(f"{field}.tasks", name, [*tasks.DRAWN, *tasks.TASKS])
    for name, values in (("tasks", names(cfg)), ("variants", variants(cfg))):
        errors.require(len({*values}) == len(values), f"{field}.{name}", getattr(said, name), "each once")
    of_files = next((name for name in names(cfg) if name not in tasks.DRAWN), None)
    errors.require(of_files is None or bool(said.path.strip()), f"{field}.path", said.path,
                  f"the folder that holds a folder {of_files!r} with the task's files, since {field}.tasks has it")
    for name in GRID:
        values = getattr(said, name)
        errors.require(len({*values}) == len(values) and (bool(values) or name == "learning_rates"), f"{field}.{name}",
                      values, "each value once, one at least")
        errors.require(all(value > 0 for value in values), f"{field}.{name}", values, "numbers above 0")
    for variant in variants(cfg):
        settings(variant)
    errors.require_at_least(1, f"{field}.seeds", said.seeds)
