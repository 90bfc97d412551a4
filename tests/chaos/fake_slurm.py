"""Replacements of SLURM's commands, whose queue is one file; this module, as a program, runs the queued jobs.

python -m tests.chaos.fake_slurm
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

QUEUE_FILE = "queue"  # in a trial's folder: a line for each job, the path of its file
COMMANDS = {  # sbatch takes a while before and after the job is in the queue
    "sbatch": 'for job; do :; done\nsleep 0.1\necho "$job" >> {queue}\nsleep 0.2\nwc -l < {queue}',
    "squeue": 'test -f {queue} || exit 0\nwhile read -r job; do name=$(basename "$(dirname "$job")"); '
    'echo "$name|1|0|PENDING"; done < {queue}',
}


def write_commands(folder: Path) -> None:
    """Writes the commands into the folder "bin" of a trial's folder."""
    (folder / "bin").mkdir()
    for name, text in COMMANDS.items():
        (folder / "bin" / name).write_text("#!/bin/sh\n" + text.format(queue=folder / QUEUE_FILE) + "\n")
        (folder / "bin" / name).chmod(0o755)


def run_queue() -> None:
    """Runs the queued jobs; ends with 1 if a point is queued twice."""
    jobs = Path(QUEUE_FILE).read_text().split()
    points = Counter(word for job in jobs for word in Path(job).read_text().split() if word.startswith("--points="))
    num_tables = sum("-table/" in job for job in jobs)
    if len({*jobs}) < len(jobs) or max(points.values()) > 1 or num_tables != 1:
        sys.exit(f"error: queued twice: {jobs}")
    for job in jobs:
        environment = os.environ | {"SLURM_ARRAY_TASK_ID": "0"}
        if exit_code := subprocess.run(["bash", job], env=environment, check=False).returncode:
            sys.exit(exit_code)


if __name__ == "__main__":
    run_queue()
