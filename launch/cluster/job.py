"""What is handed to a cluster, whatever kind of cluster it is, and what it is asked."""
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    """Commands that a cluster starts, each on `hosts` hosts at once."""

    name: str                            # letters of a to z, digits and -, at most 40
    commands: tuple[tuple[str, ...], ...]  # the words of each, started in `code`
    folder: Path                         # which all hosts see: the job's file lies here, and what it prints
    code: Path                           # a copy of the project, which no later change reaches
    kind: str                            # row of KINDS (kinds.py)
    hosts: int = 1                       # of each command: its processes find each other by --distributed
    hours: float = 24.0                  # after which the cluster may end a command
    running: int = 8                     # commands at work at the same time, at most
    after: tuple[str, ...] = ()          # what `submit` returned for jobs that must have ended first


class Cluster(NamedTuple):
    """A kind of cluster: a row of CLUSTERS (clusters.py)."""

    check: Callable    # (job) -> None; raises ConfigError for what it cannot start
    text: Callable     # (job) -> the file by which it is started, complete and readable
    submit: Callable   # (job, path of that file) -> the cluster's own name for what is queued
    states: Callable   # (those names) -> {name: {number of a command: "queued" | "running"}}; one that is in neither is
                       # not there any longer
    cancel: Callable   # (those names) -> None
