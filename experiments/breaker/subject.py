"""What the breaker breaks: a run and its fine-tuning, a sweep with fine-tunings, and a run of the built-in language.

Each has all the phases that a large one has, in seconds. This file is the sweep's experiment, too.
"""
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.breaker import queue
from mlm.cli import process_environment
from mlm.experiment.grid import axis, named
from mlm.report.table import Column

SMALL = {"model.family": "feedforward", "model.cell": "bag", "model.num_layers": 1, "model.width": 8,
         "model.mlp_dim": 8, "pack.seq_len": 16, "train.steps": 12, "train.batch_size": 8, "train.checkpoint_every": 3,
         "train.eval_every": 6, "train.log_every": 1, "eval.batch_size": 8, "eval.max_examples": 32}
TEXT = {"data.path": "text.txt", "data.document_boundary": "line", "tokenizer.kind": "unigram",
        "tokenizer.vocab_size": 120}
LANGUAGE = {"data.language.train_documents": 2000, "data.language.validation_documents": 40,
            "data.language.num_topics": 2, "data.language.num_names": 4}
TASK = {"data.task": "sst2", "data.task_path": "tasks/sst2", "train.steps": 6, "train.batch_size": 8,
        "train.checkpoint_every": 3}
DOWNSTREAM = {"downstream.tasks": "sst2", "downstream.path": "tasks", "downstream.learning_rates": (1e-3,),
              "downstream.epochs": (1.0,)}
SCALES = {"quick": SMALL | TEXT | DOWNSTREAM}
RUNS = "runs"        # in a trial's folder: what is made there
CACHE = "cache"      # the same of rows and vocabularies
COLD = "compiled"    # compiled programs, of a trial that shares none


class Subject(NamedTuple):
    """Commands, one after the other, each of which the same command continues when it was killed."""

    name: str
    commands: Sequence[Sequence[str]]   # arguments of Python, for the folder of a trial as the current one


def sweep(scale: str) -> dict[str, dict]:
    return {name: SCALES[scale] | point for name, point in named(axis("seed", 0, 1, name="seed{}")).items()}


def table(results: Sequence[dict]) -> tuple[list[dict], list[Column]]:
    return ([{"seed": one["config"]["seed"], "loss": one["evaluation"]["loss"], "predictions": one["predictions"]}
             for one in results], [Column(name, name, ".9g") for name in ("seed", "loss", "predictions")])


def said(values: Mapping) -> list[str]:
    return [f"--config.{name}={value}" for name, value in values.items()]


def subjects() -> list[Subject]:
    cache = {"data.cache": CACHE}
    here, run = cache | {"workdir": RUNS}, cache | {"workdir": f"{RUNS}/run"}
    return [
        Subject("run", (("-m", "mlm.cli.train", *said(SMALL | TEXT | {"eval.mask_rates": 0.5} | run)),
                        ("-m", "mlm.cli.finetune", f"{RUNS}/run", *said(TASK | cache)))),
        Subject("sweep", (("-m", "mlm.launch.sweep", "run", str(Path(__file__).resolve()), *said(here)),)),
        Subject("language", (("-m", "mlm.cli.train", *said(SMALL | LANGUAGE | run)),)),
        Subject("submitted", (("-m", "mlm.launch.sweep", "submit", str(Path(__file__).resolve()), *said(here),
                               "--on=slurm", "--running=1"), ("-m", "experiments.breaker.queue")))]


def write(folder: Path) -> None:
    """The text and the task that `run` reads: of chance, but always the same."""
    queue.write(folder)
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(200)]

    def sentence(low=0, high=200):
        return " ".join(rng.choices(words[low:high], k=rng.randint(5, 12)))

    (folder / "text.txt").write_text("".join(f"{sentence()}. {sentence()}.\n" for _ in range(1500)))
    (folder / "tasks" / "sst2").mkdir(parents=True)
    for split, count in (("train", 60), ("dev", 20)):
        examples = [(f"{sentence(100 * label, 100 * label + 150)}.", label) for label in rng.choices((0, 1), k=count)]
        (folder / "tasks" / "sst2" / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n"
                                                                             for text, label in examples))


def environment(folder: Path, compiled: Path) -> dict[str, str]:
    """Of the processes of a trial in a folder: compiled programs, however small, are kept in another; the repository is
    where they import."""
    root = Path(__file__).parents[2]
    return os.environ | process_environment.compiled() | {
        "JAX_COMPILATION_CACHE_DIR": str(compiled), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg", "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"}


def python(words: Sequence[str]) -> list[str]:
    return [sys.executable, *words]
