"""The tasks of the built-in language as a source of examples."""

import dataclasses
import functools
import hashlib
import json

from mlm.base import config
from mlm.base.labelled_objectives import has_classes
from mlm.base.rng_versions import RNG_VERSIONS
from mlm.data.language import tasks

SPLITS = {"train": "train", "validation": "dev", "test": "test"}  # names there, by split
UNUSED_FIELDS = ("train_documents", "validation_documents", "words")  # fields of the language that no task reads


def hash_content(data: config.Data) -> str:
    """SHA-256 (hexadecimal) of all that the examples follow from."""
    language = {name: value for name, value in dataclasses.asdict(data.language).items() if name not in UNUSED_FIELDS}
    parts = [data.task, tasks.FORMAT, RNG_VERSIONS["language"], language]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def list_classes(cfg: config.Config) -> tuple[str, ...]:
    """The names of the labels in their order; () for spans."""
    return tasks.TASKS[cfg.data.task].list_labels(cfg.data.language) if has_classes(cfg.objective) else ()


def make_readers(cfg: config.Config) -> dict:
    """For each split a function that gives its examples anew."""
    generate = tasks.TASKS[cfg.data.task].generate_examples
    return {split: functools.partial(generate, cfg.data.language, name, None) for split, name in SPLITS.items()}
