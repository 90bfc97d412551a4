"""What is handed to a cluster, whatever kind of cluster it is, and what it is asked."""
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mlm.base import errors

NAME = re.compile(r"[a-z][a-z0-9-]{0,38}[a-z0-9]")


class Job(NamedTuple):
    """Commands that a cluster starts, each on `hosts` hosts at once."""

    name: str                            # its own, under which the cluster is asked for it: letters of a to z, digits
                                         # and -, at most 40
    commands: tuple[tuple[str, ...], ...]  # the words of each; the first is this machine's Python
    folder: Path                         # which all hosts see: the job's file lies here, and what commands print
    code: Path                           # a copy of the project, which no later change reaches: see `environment`
    place: Path                          # where commands are started: what was submitted there may name relative paths
    kind: str                            # row of KINDS (kinds.py); "": no accelerator
    hosts: int = 1                       # of each command: its processes find each other by --distributed
    devices: int = 1                     # of that kind, a host: the H200 in it; a TPU's slice is one
    hours: float = 24.0                  # after which the cluster may end a command
    running: int = 8                     # commands at work at the same time, at most
    after: tuple[str, ...] = ()          # names of jobs that must have ended first, however they did
    options: tuple[str, ...] = ()        # in the cluster's own words, such as --partition=gpu: see README


class Cluster(NamedTuple):
    """A kind of cluster: a row of CLUSTERS (clusters.py).

    Jobs are known by their names, which are written down before they are submitted: who is killed while it submits has
    lost none.
    """

    file: str          # what a job's file is called
    ready: Callable    # () -> None; raises ConfigError where nothing can be submitted from here
    check: Callable    # (job) -> None; raises ConfigError for what it cannot start
    text: Callable     # (job) -> the file by which it is started, complete and readable
    submit: Callable   # (job, path of that file) -> the cluster's own word for what is queued, for a person
    states: Callable   # (names) -> {name: {number of a command: "queued" | "running"}}; one that is in neither is not
                       # there any longer
    cancel: Callable   # (names) -> None; runs are told by SIGTERM, and save. One that is not there is none to cancel


def environment(job: Job) -> dict[str, str]:
    """What commands are to find set, beside all else: the copied code is theirs, whatever lies where they start."""
    return {"PYTHONPATH": str(job.code), "PYTHONSAFEPATH": "1"}


def log(folder: Path, number: int) -> Path:
    """The file of what a command of the job in a folder prints."""
    return folder / f"{number}.log"


def check(job: Job) -> None:
    """Raises ConfigError for what no kind of cluster can be asked for."""
    errors.expect(NAME.fullmatch(job.name) is not None, "a job's name", job.name,
                  "at most 40 letters of a to z, digits and -")
    errors.number("--hours", job.hours, 0.05, 24 * 365)
    for path in (job.folder, job.code, job.place):
        errors.expect(str(path).isprintable(), "a job's folder", str(path), "a path that can be printed")
