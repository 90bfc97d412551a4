"""The workloads of the chaos tests: a run and its fine-tuning, a sweep with fine-tunings, a run of the language.

Each has all phases of a large one, in seconds.
"""

import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.cli import entry
from tests.chaos import experiment

LANGUAGE = {
    "data.language.train_documents": 2000,
    "data.language.validation_documents": 40,
    "data.language.num_topics": 2,
    "data.language.num_names": 4,
}
TASK = {
    "data.task": "sst2",
    "data.task_path": "tasks/sst2",
    "train.steps": 6,
    "train.batch_size": 8,
    "train.checkpoint_every": 3,
}
RUNS = "runs"  # in a trial's folder: the runs
CACHE = "cache"  # packed examples and vocabularies
COLD_CACHE = "compiled"  # compiled programs, of a trial that does not share them


class Workload(NamedTuple):
    """Commands, one after the other. After a kill, the same command continues."""

    name: str
    commands: Sequence[Sequence[str]]  # arguments of Python, to run in a trial's folder


def format_flags(values: Mapping) -> list[str]:
    return [f"--config.{name}={value}" for name, value in values.items()]


def make_workloads() -> list[Workload]:
    cache = {"data.cache_dir": CACHE}
    sweep_flags, run = format_flags(cache | {"workdir": RUNS}), cache | {"workdir": f"{RUNS}/run"}
    train = experiment.SMALL | experiment.TEXT | {"eval.mask_rates": 0.5} | run
    return [
        Workload(
            "run",
            (
                ("-m", "mlm", "train", *format_flags(train)),
                ("-m", "mlm", "finetune", f"{RUNS}/run", *format_flags(TASK | cache)),
            ),
        ),
        Workload("sweep", (("-m", "mlm", "sweep", "run", experiment.__file__, *sweep_flags),)),
        Workload("language", (("-m", "mlm", "train", *format_flags(experiment.SMALL | LANGUAGE | run)),)),
    ]


def write_inputs(folder: Path) -> None:
    """Writes the text and the task that the workloads read: random, but always the same."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(200)]

    def sentence(low=0, high=200):
        return " ".join(rng.choices(words[low:high], k=rng.randint(5, 12)))

    (folder / "text.txt").write_text("".join(f"{sentence()}. {sentence()}.\n" for _ in range(1500)))
    (folder / "tasks" / "sst2").mkdir(parents=True)
    for split, count in (("train", 60), ("dev", 20)):
        examples = [(f"{sentence(100 * label, 100 * label + 150)}.", label) for label in rng.choices((0, 1), k=count)]
        lines = "".join(f"{text}\t{label}\n" for text, label in examples)
        (folder / "tasks" / "sst2" / f"{split}.tsv").write_text("sentence\tlabel\n" + lines)


def make_environment(folder: Path, compiled: Path) -> dict[str, str]:
    """Of a trial's processes: `compiled` holds all compiled programs, and they import from this checkout."""
    root = Path(__file__).parents[2]
    return (
        os.environ
        | entry.compilation_cache_settings()
        | {
            "JAX_COMPILATION_CACHE_DIR": str(compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PLATFORMS": "cpu",
            "MPLBACKEND": "agg",
            "PYTHONPATH": str(root),
            "PYTHONUNBUFFERED": "1",
        }
    )


def python_command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, *arguments]
