"""A cluster of one file, in the place of SLURM's commands: what is queued there works when this module is called.

    python -m experiments.breaker.queue
"""
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

FILE = "queue"   # in a trial's folder: a line for each job, the path of its file
TOOLS = {        # sbatch takes a while before and after the job is in the queue
    "sbatch": 'for job; do :; done\nsleep 0.1\necho "$job" >> {queue}\nsleep 0.2\nwc -l < {queue}',
    "squeue": 'test -f {queue} || exit 0\nwhile read -r job; do name=$(basename "$(dirname "$job")"); '
              'echo "$name|1|0|PENDING"; done < {queue}'}


def write(folder: Path) -> None:
    """Puts the commands into the folder "bin" of a trial's."""
    (folder / "bin").mkdir()
    for name, text in TOOLS.items():
        (folder / "bin" / name).write_text("#!/bin/sh\n" + text.format(queue=folder / FILE) + "\n")
        (folder / "bin" / name).chmod(0o755)


def main() -> None:
    """Works off the queue; ends with 1 where a point is in it twice."""
    jobs = Path(FILE).read_text().split()
    points = Counter(word for job in jobs for word in Path(job).read_text().split() if word.startswith("--points="))
    tables = sum("-table/" in job for job in jobs)
    if len({*jobs}) < len(jobs) or max(points.values()) > 1 or tables != 1:
        sys.exit(f"error: queued twice: {jobs}")
    for job in jobs:
        if code := subprocess.run(["bash", job], env=os.environ | {"SLURM_ARRAY_TASK_ID": "0"}, check=False).returncode:
            sys.exit(code)


if __name__ == "__main__":
    main()
