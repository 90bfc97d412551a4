"""config.downstream: the tasks on which a run is fine-tuned after its training."""

from typing import Any

from mlm.base import config, errors, fields, text_files
from mlm.data.tasks import tasks

GRID_FIELDS = ("learning_rates", "epochs", "batch_sizes")
# Fields that each fine-tuning sets itself, so no variant may.
RESERVED_FIELDS = (
    *("workdir", "seed", "optim.learning_rate", "train.batch_size", "train.steps", "eval.batch_size", "parallel.mode"),
    *("data.task", "data.task_path", "data.cache_dir", "tokenizer.path"),
    *("init.run", "init.run_sha256", "init.hub", "init.hub_sha256"),
)
FROM_SCRATCH = "from_scratch"  # stands in a variant like NAME=VALUE: without the run's parameters


def parse_variants(variants: str) -> tuple[str, ...]:
    """The variants of config.downstream.variants, in their order: what each sets besides the recipe, "" for nothing."""
    return tuple(" ".join(variant.split()) for variant in variants.split(","))


def parse_variant(variant: str) -> dict[str, Any]:
    """The fields that a variant sets, by dotted name. Raises ConfigError for a bad field or value."""
    field, settings = "config.downstream.variants", {}
    for word in (words := variant.split()):
        if word == FROM_SCRATCH:
            settings |= {"init.run": "", "init.run_sha256": ""}
            continue
        name, equals, text = word.partition("=")
        errors.require(bool(equals), field, word, f"NAME=VALUE, such as finetune.trainable_layers=0, or {FROM_SCRATCH}")
        fields.check_name(name)
        is_settable = name not in (*RESERVED_FIELDS, *settings) and not isinstance(fields.DEFAULT[name], tuple)
        errors.require(is_settable, field, word, "a field that may be set here, once")
        is_architecture = name.startswith("model.") and not name.endswith("dropout")
        is_free = FROM_SCRATCH in words or not is_architecture
        errors.require(is_free, field, word, f"{FROM_SCRATCH} beside it: the model of a trained run cannot be changed")
        errors.require("/" not in text, field, word, "a value without /")
        settings[name] = fields.parse_value(name, text)
    return settings


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.downstream that no run could use; reads no file."""
    settings, field = cfg.downstream, "config.downstream"
    task_names = text_files.split_names(settings.tasks)
    for name in task_names:
        errors.require_one_of(f"{field}.tasks", name, [*tasks.LANGUAGE_TASKS, *tasks.TASKS])
    for name, values in (("tasks", task_names), ("variants", parse_variants(settings.variants))):
        errors.require(len({*values}) == len(values), f"{field}.{name}", getattr(settings, name), "each once")
    file_task = next((name for name in task_names if name not in tasks.LANGUAGE_TASKS), None)
    expected = f"the folder that holds a folder {file_task!r} with the task's files, since {field}.tasks has it"
    errors.require_field(cfg, "downstream.path", file_task is None or bool(settings.path.strip()), expected)
    for name in GRID_FIELDS:
        values = getattr(settings, name)
        is_valid = len({*values}) == len(values) and (bool(values) or name == "learning_rates")
        errors.require(is_valid, f"{field}.{name}", values, "at least one value, each once")
    for variant in parse_variants(settings.variants):
        parse_variant(variant)
