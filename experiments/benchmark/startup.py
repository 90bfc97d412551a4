"""Part startup: seconds from `mlm train` to its first step, with and without a compilation cache, and to its help."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiments.benchmark import timing

SECONDS = 25  # of rounds
MIN_ROUNDS = 2  # each round starts Python, and compiles, for every case
ROOT = Path(__file__).parents[2]


def run_first_step(folder: Path, cache: Path) -> None:
    """Starts a run in a new folder and kills it after its first step. Raises RuntimeError if there is none."""
    with tempfile.TemporaryDirectory(dir=folder) as workdir, open(Path(workdir, "errors"), "w+") as errors:
        command = [
            sys.executable,
            "-m",
            "mlm",
            "train",
            f"--config.workdir={workdir}/run",
            f"--config.data.cache_dir={folder}/rows",
            "--config.train.log_every=1",
        ]
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as run:
            has_stepped = any(re.search(r"step 1/", line) for line in run.stdout)
            run.kill()
        if not has_stepped:
            errors.seek(0)
            raise RuntimeError(f"no step was made by {' '.join(command)}: {errors.read()[-500:]}")


def measure() -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as name:
        folder, warm_cache = Path(name), Path(name, "warm")

        def run_cold():
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                run_first_step(folder, Path(cache))

        def print_help():
            process = subprocess.run(
                [sys.executable, "-m", "mlm", "train", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
            )
            if "--config" not in process.stdout:
                raise RuntimeError(f"mlm train --help shows no help: {process.stderr[-500:]}")

        first_seconds = timing.time_calls(lambda: run_first_step(folder, warm_cache))
        times = timing.measure_times(
            {"cold": run_cold, "warm": lambda: run_first_step(folder, warm_cache), "help": print_help},
            SECONDS,
            min_rounds=MIN_ROUNDS,
            warm_up=0,
        )
    yield timing.make_row("first step, text not packed", "s", [first_seconds])
    yield timing.make_row("first step, compiled before", "s", times["warm"], times["cold"], "not compiled")
    yield timing.make_row("mlm train --help", "s", times["help"])
