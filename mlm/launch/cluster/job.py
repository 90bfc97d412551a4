"""What is handed to a cluster, whatever kind of cluster it is, and what it is asked."""
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from mlm.base import errors

NONE = MappingProxyType({})
NAME = re.compile(r"[a-z][a-z0-9-]{0,38}[a-z0-9]")


class Job(NamedTuple):
    """Commands that a cluster starts, each on `hosts` hosts at once."""

    name: str                            # its own: letters of a to z, digits and -, at most 40
    commands: tuple[tuple[str, ...], ...]  # the words of each, as here: see `elsewhere`
    folder: Path                         # FOLDER/NAME of its own: its file lies here, and what its commands print
    code: Path                           # a copy of the project, which no later change reaches: see `environment`
    place: Path                          # where it was submitted: commands start there where that folder is, since
                                         # they may name relative paths, else in the copy
    kind: str                            # row of KINDS (kinds.py); "": no accelerator
    hosts: int = 1                       # of each command: its processes find each other by --distributed
    hours: float = 24.0                  # after which the cluster may end a command
    running: int = 8                     # commands at work at the same time, at most
    after: tuple[Path, ...] = ()         # files of jobs that must have ended first, however they did
    runs: str = ""                       # where the commands keep their runs: a path on all hosts, or gs://...
    options: Mapping[str, str] = NONE    # what its kind of cluster asks for besides, by name: all of Cluster.options


class Option(NamedTuple):
    """What a kind of cluster is told besides the Job, by --option=NAME=VALUE."""

    meaning: str
    default: str | None = None   # None: it must be given


class Cluster(NamedTuple):
    """A kind of cluster: a row of CLUSTERS (clusters.py).

    A job is known by the path of its file, FOLDER/NAME/`file`, which is written down before it is submitted: who is
    killed while it submits has lost no job.
    """

    file: str          # what a job's file is called
    ready: Callable    # () -> None; raises ConfigError where nothing can be submitted from here
    check: Callable    # (job) -> None; raises ConfigError for what it cannot start
    text: Callable     # (job) -> the file by which it is started, complete and readable
    submit: Callable   # (job, path of that file) -> the cluster's own word for what is queued, for a person
    states: Callable   # (paths) -> {path: {number of a command: "queued" | "running"}}; one that is in neither is not
                       # there any longer
    cancel: Callable   # (paths) -> None; runs are told by SIGTERM, and save. What is not there is none to cancel
    options: Mapping[str, Option] = NONE


def environment(job: Job) -> dict[str, str]:
    """What commands are to find set, beside all else: the copied code is theirs, whatever lies where they start."""
    return {"PYTHONPATH": str(job.code), "PYTHONSAFEPATH": "1"}


def elsewhere(job: Job, python: str, code: str) -> list[list[str]]:
    """The commands where Python and the copied code have other paths than here."""
    return [[python, *(word.replace(str(job.code), code) for word in words[1:])] for words in job.commands]


def readable(words: Sequence[str], indent: str) -> str:
    """A command as one would write it in a shell, a line for each flag."""
    flags = [f" \\\n{indent}" if word.startswith("--") else " " for word in words]
    return "".join(flag + shlex.quote(word) for flag, word in zip(flags, words, strict=True)).strip()


def log(path: Path, number: int) -> Path:
    """What a command prints, of the job of a file."""
    return path.with_name(f"{number}.log")


def check(job: Job) -> None:
    """Raises ConfigError for what no kind of cluster can be asked for."""
    errors.require(NAME.fullmatch(job.name) is not None, "a job's name", job.name,
                  "at most 40 letters of a to z, digits and -")
    errors.require_number("--hours", job.hours, 0.05, 24 * 365)
    for path in (job.folder, job.code, job.place):
        errors.require(str(path).isprintable(), "a job's folder", str(path), "a path that can be printed")


def options(known: Mapping[str, Option], asked: Sequence[str]) -> dict[str, str]:
    """All options of a cluster by name, as asked ("zone=us-east5-a") or by default. Raises ConfigError for a name that
    is not known, or is given twice, and for one that is missing."""
    given: dict[str, str] = {}
    for word in asked:
        name, sign, value = word.partition("=")
        errors.require_one_of("--option", name, list(known) or ["none"])
        errors.require(bool(sign) and name not in given, "--option", word, "NAME=VALUE, each name once")
        given[name] = value
    for name, option in known.items():
        if given.setdefault(name, option.default) is None:
            raise errors.ConfigError(f"--option={name}=... is missing: {option.meaning}")
    return given
