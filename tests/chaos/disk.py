"""A disk that is full."""

import contextlib
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from tests.chaos import digests, workloads
from tests.chaos.workspace import BAD, NAMED, SKIPPED, TrialResult, Workspace, find_damaged_files, find_error_line

LARGE_SIZE = "1g"


@contextlib.contextmanager
def mount_small_disk(workspace: Workspace, size: int) -> Iterator[bool]:
    """Mounts a file system of so many bytes as the trial's folder; its files remain when the block ends.

    Yields False if none can be mounted.
    """
    workspace.folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "chaos", str(workspace.folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            copy = workspace.save_copy("unmounted")
            subprocess.run(["umount", str(workspace.folder)], check=True)
            shutil.rmtree(workspace.folder)
            copy.rename(workspace.folder)


def fill_disk(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    """A disk that is too small for the workload, by a random size; it grows after the error line."""
    workspace.reset()
    size = 2**18 + rng.randrange(2**19)
    with mount_small_disk(workspace, size) as mounted:
        if not mounted:
            return TrialResult(SKIPPED, "no file system may be mounted here")
        workloads.write_inputs(workspace.folder)
        line = ""
        for arguments in workload.commands:
            exit_code, output = workspace.run_command(arguments)
            if exit_code == 0:
                continue
            try:
                line = find_error_line(exit_code, output)
            except ValueError as error:
                return TrialResult(BAD, f"{size} bytes: {error}")
            if damaged := find_damaged_files(workspace.folder):
                return TrialResult(BAD, f"{size} bytes: half-written: {damaged}")
            break
        subprocess.run(["mount", "-o", f"remount,size={LARGE_SIZE}", str(workspace.folder)], check=True)
        result = workspace.finish_workload(workload, expected)
        if leftovers := digests.list_leftovers(workspace.folder):
            return TrialResult(BAD, f"{size} bytes: left behind: {leftovers}")
        return result if result.verdict == BAD or not line else TrialResult(NAMED, line)
