"""The interface of the clusters: what a job is, and what every kind of cluster can do with it."""

import contextlib
import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from mlm.base import buckets, errors, fields, text_files
from mlm.launch.cluster.accelerators import ACCELERATORS, GPUS

NO_OPTIONS = MappingProxyType({})
GLOB_FIELDS = ("data.path", "data.validation_path")  # separated by commas
PATH_FIELDS = (
    *(*GLOB_FIELDS, "data.sources", "data.task_path", "data.parallel_path", "data.tfds_dir", "tokenizer.path"),
    *("init.run", "init.hub", "distillation.teacher", "downstream.path", "eval.sts"),
)


class Job(NamedTuple):
    """Commands that a cluster starts, each on `num_hosts` hosts at once."""

    name: str  # unique: letters of a to z, digits and -, at most 40
    commands: tuple[tuple[str, ...], ...]  # the words of each, for this machine: see `relocate_commands`
    folder: Path  # FOLDER/NAME: holds the job's file and the output of its commands
    code_folder: Path  # a copy of the project, which no later change reaches: see `job_environment`
    submit_folder: Path  # where it was submitted: commands start there if the folder exists, since they
    # may name relative paths, else in the copy of the code
    accelerator: str  # key of ACCELERATORS (accelerators.py); "": none
    num_hosts: int = 1  # of each command: its processes find each other by --distributed
    hours: float = 24.0  # after which the cluster may end a command
    max_running: int = 8  # commands that run at the same time
    after: tuple[Path, ...] = ()  # files of jobs that must have ended before, successfully or not
    output_folder: str = ""  # holds what the commands write: a path on all hosts, or gs://...
    options: Mapping[str, str] = NO_OPTIONS  # values of all Cluster.options, by name
    data_paths: tuple[tuple[str, str], ...] = ()  # (field, file or folder here that the commands read)
    output_field: str = "config.workdir"  # that names output_folder
    points: tuple[tuple[str, ...], ...] = ()  # of each command: names of the folders of the points that it trains
    content: str = ""  # a line about the commands


class ClusterOption(NamedTuple):
    """An option of one kind of cluster, --option=NAME=VALUE."""

    help: str
    default: str | None = ""  # None: the option is required


VARIABLES_OPTION = ClusterOption(
    "environment of the commands, as NAME=VALUE,NAME=VALUE, such as LIBTPU_INIT_ARGS=FLAGS or NCCL_DEBUG=INFO"
)
SETUP_OPTION = ClusterOption(
    "shell lines before the commands, where these run, such as 'module load cuda; source ~/venv/bin/activate'"
)


class Cluster(Protocol):
    """A kind of cluster: a module of this package with these names, and an entry of CLUSTERS.

    A job is identified by the path of its file, FOLDER/NAME/FILE, which is recorded before it is submitted: a process
    that is killed while it submits loses no job.
    """

    FILE: str
    TOOLS: Sequence[str]  # the commands with which this machine submits jobs
    OPTIONS: Mapping[str, ClusterOption]
    TABLE_OPTIONS: Mapping[str, str]
    # {option: the one whose value it has in the job of the table, which needs no accelerator; "": its default}

    def check_job(self, job: Job) -> None:
        """Raises ConfigError for a job that it cannot start."""

    def render_script(self, job: Job) -> str:
        """The file that starts the job, complete and readable."""
        ...

    def submit_job(self, job: Job, path: Path) -> str:
        """Submits a job, given its file's path; returns the cluster's name for it."""
        ...

    def query_states(self, paths: Sequence[Path]) -> dict[Path, dict[int, str]]:
        """{file: {index of a command: "queued" | "running"}}, without commands that have ended."""
        ...

    def cancel_jobs(self, paths: Sequence[Path]) -> None:
        """Sends runs SIGTERM, upon which they save; ignores jobs that have ended."""

    def format_submission(self, job: Job, path: Path) -> str:
        """The shell line of `submit_job`."""
        ...


def job_environment(job: Job) -> dict[str, str]:
    """Environment variables of the commands: they import the copied code, wherever they start."""
    demand = {"JAX_PLATFORMS": "cuda"} if job.accelerator.partition("-")[0] in GPUS else {}  # JAX ends without a GPU
    return {"PYTHONPATH": str(job.code_folder), "PYTHONSAFEPATH": "1"} | demand


def render_setup(job: Job) -> str:
    """The lines of --option=setup for a shell; "": none."""
    return f"{{ {job.options['setup'].rstrip('; ')}; }} || exit 1" if job.options["setup"].strip() else ""


def parse_pairs(option: str, text: str) -> dict[str, str]:
    """The values by name of an option's NAME=VALUE,NAME=VALUE."""
    parts = [word.partition("=") for word in text.split(",") if word]
    is_pairs = all(name and equals for name, equals, _ in parts)
    errors.require(is_pairs, f"--option={option}", text, "NAME=VALUE,NAME=VALUE")
    return {name: value for name, _, value in parts}


def parse_variables(job: Job) -> dict[str, str]:
    """The environment variables of --option=env. Raises ConfigError for a name that none has, or that is taken."""
    variables = parse_pairs("env", job.options["env"])
    for name in variables:
        is_free = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and name not in job_environment(job)
        errors.require(is_free, "--option=env", name, f"a name other than {', '.join(job_environment(job))}")
    return variables


def make_job_name(subject: str, identity: object) -> str:
    """A job's name: `subject`, as far as it may stand there, and a digest of what tells the job from others."""
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:6]
    words = re.sub(r"[^a-z0-9]+", "-", f"mlm-{subject}".lower()).strip("-")[:26].strip("-")
    return f"{words}-{digest}"


def find_data_paths(configs: Sequence) -> tuple[tuple[str, str], ...]:
    """(field, path): the files and folders outside buckets that runs read, each once."""
    found = {}
    for cfg in configs:
        values = fields.flatten(cfg)
        for name in PATH_FIELDS:
            paths = text_files.split_paths(values[name]) if name in GLOB_FIELDS else [values[name].strip()]
            is_dataset = name == "data.task_path" and cfg.data.labelled.format == "tfds"
            if is_dataset or (name, paths) == ("distillation.teacher", ["posterior"]):  # no path, but a name
                paths = []
            for path in filter(None, paths):
                if not buckets.is_bucket_path(path) and not path.startswith("hf:"):
                    found[f"--config.{name}", path] = None
    return tuple(found)


def relocate_commands(job: Job, code_folder: str) -> list[list[str]]:
    """The commands for hosts where Python and the copied code have other paths than here."""
    code = str(job.code_folder)
    return [["python", *(word.replace(code, code_folder) for word in words[1:])] for words in job.commands]


def format_command(words: Sequence[str], indent: str) -> str:
    """A command for a shell, with a line for each flag."""
    separators = [f" \\\n{indent}" if word.startswith("--") else " " for word in words]
    return "".join(sep + shlex.quote(word) for sep, word in zip(separators, words, strict=True)).strip()


def log_path(path: Path, index: int) -> Path:
    """The output of a command, given the path of its job's file."""
    return path.with_name(f"{index}.log")


def check_job(job: Job) -> None:
    """Raises ConfigError for a job that no kind of cluster accepts."""
    errors.require_number("--hours", job.hours, 0.05, 24 * 365)
    for path in (job.folder, job.code_folder, job.submit_folder):
        errors.require(str(path).isprintable(), "a job's folder", str(path), "a path that can be printed")
    for name, value in job.options.items():
        errors.require(value.isprintable(), f"--option={name}", value, "text in one line")


def check_accelerator(job: Job, names: Sequence[str]) -> None:
    """Raises ConfigError unless a job has one of the accelerators, and its hosts, or a multiple of them."""
    errors.require_one_of("--accelerator", job.accelerator, names)
    num_hosts = ACCELERATORS[job.accelerator].num_hosts
    expected = f"{num_hosts}, the hosts of a {job.accelerator}, or a multiple for several slices"
    errors.require(job.num_hosts % num_hosts == 0, "--hosts", job.num_hosts, expected)


def split_flags(job: Job, name: str, dashes: str = "--") -> list[str]:
    """The flags of a tool in an option. Raises ConfigError for text that is no list of flags."""
    with contextlib.suppress(ValueError):  # an open quotation mark
        words = shlex.split(job.options[name])
        if all(word.startswith(dashes) for word in words):
            return words
    raise errors.ConfigError(
        f"--option={name} = {job.options[name]!r}: expected flags, each as --name=value, separated by spaces"
    )


def require_tools(names: Sequence[str]) -> None:
    """Raises ConfigError for a command of a cluster that is not on PATH."""
    for name in names:
        if shutil.which(name) is None:
            reason = "run this on a machine of the cluster; --dry_run shows the job's file here"
            raise errors.ConfigError(f"{name} is not on PATH: {reason}")


def call_tool(*words: str, shown: int = 2) -> str:
    """The output of a cluster's command. Raises ConfigError, which names its first words, if it fails or is missing."""
    require_tools(words[:1])
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-1:]  # those before it are a library's
        reason = errors.first_line(Exception(*lines))
        raise errors.ConfigError(f"{shlex.join(words[:shown])} failed: {reason}")
    return done.stdout


def check_count(job: Job, name: str, low: int) -> None:
    """Raises ConfigError unless an option is a whole number, in ASCII digits, of at least `low`."""
    text = job.options[name]
    is_count = text.isascii() and text.isdecimal() and int(text) >= low
    errors.require(is_count, f"--option={name}", text, f"a whole number of at least {low}")


def choose_table_options(cluster: Cluster, values: Mapping[str, str]) -> dict[str, str]:
    """The options of the job that makes the table of runs on an accelerator."""
    return {**values} | {
        name: values[other] if other else cluster.OPTIONS[name].default or ""
        for name, other in cluster.TABLE_OPTIONS.items()
    }


def parse_options(known: Mapping[str, ClusterOption], words: Sequence[str]) -> dict[str, str]:
    """A cluster's options by name, of words NAME=VALUE. Raises ConfigError for a wrong, double or missing one."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        errors.require_one_of("--option", name, list(known) or ["none"])
        errors.require(bool(equals) and name not in values, "--option", word, "NAME=VALUE, each name once")
        values[name] = value
    for name, option in known.items():
        if name not in values:
            if option.default is None:
                raise errors.ConfigError(f"--option={name}=... is missing: {option.help}")
            values[name] = option.default
    return values
