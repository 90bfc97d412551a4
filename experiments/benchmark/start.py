"""Part start: seconds from a command to its first training step, cold and warm, and to its help."""
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiments.benchmark import timing

SECONDS = 25   # of rounds
LEAST = 2      # rounds: each starts Python, and compiles, for every case
ROOT = Path(__file__).parents[2]


def first_step(folder: Path, cache: Path) -> None:
    """Starts a run in a new folder and ends it when it has made a step. Raises RuntimeError if it never does."""
    with tempfile.TemporaryDirectory(dir=folder) as workdir, open(Path(workdir, "errors"), "w+") as errors:
        command = [sys.executable, "-m", "mlm.cli.train", f"--config.workdir={workdir}/run",
                   f"--config.data.cache={folder}/rows", "--config.train.log_every=1"]
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors,
                              text=True) as run:
            made = any(re.search(r"step 1/", line) for line in run.stdout)
            run.kill()
        if not made:
            errors.seek(0)
            raise RuntimeError(f"no step was made by {' '.join(command)}: {errors.read()[-500:]}")


def rows() -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as name:
        folder, warm = Path(name), Path(name, "warm")

        def cold():
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                first_step(folder, Path(cache))

        def help_text():
            shown = subprocess.run([sys.executable, "-m", "mlm.cli.train", "--help"], cwd=ROOT, capture_output=True,
                                   text=True, check=False)  # absl ends it with 1
            if "--config" not in shown.stdout:
                raise RuntimeError(f"mlm.cli.train --help shows no help: {shown.stderr[-500:]}")

        nothing = timing.clock(lambda: first_step(folder, warm))
        times = timing.measure({"cold": cold, "warm": lambda: first_step(folder, warm), "help": help_text}, SECONDS,
                               least=LEAST, warm_up=0)
    yield timing.row("to the first step, text not packed", "s", [nothing])
    yield timing.row("to the first step, compiled before", "s", times["warm"], times["cold"], "not compiled")
    yield timing.row("python -m mlm.cli.train --help", "s", times["help"])
