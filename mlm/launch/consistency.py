"""The processes of one run check that they agree; where they differ, all end with a line that names the difference."""

import contextlib
import errno
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlm.base import errors
from mlm.launch import rendezvous
from mlm.training.run import heartbeat

FAILURE_TIMEOUT = 60  # seconds that a process which failed before it joined waits for the others, to tell them
HOST_FIELDS = ("data.cache_dir", "data.path", "data.validation_path", "data.parallel_path", "data.tfds_dir")


def code_versions() -> dict[str, str]:
    """A digest of this project's code, and the versions of Python and of the libraries that compute."""
    from importlib import metadata

    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.glob("mlm/**/*.py")):
        digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return {"the code of mlm (SHA-256)": digest.hexdigest()[:12], "the version of Python": sys.version.split()[0]} | {
        f"the version of {name}": metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")
    }


def shared_fields(flat_config: Mapping) -> dict:
    """The config fields, by dotted name, that must be equal on all hosts: all except paths of a host."""
    return {f"config.{name}": value for name, value in flat_config.items() if name not in HOST_FIELDS}


@contextlib.contextmanager
def agreement(config: rendezvous.RendezvousConfig) -> Iterator[dict[str, Any]]:
    """Each process puts into the dict, in the block, what must be equal on all of them. They join at the first block.

    If the block fails on one process, all end, each with a line.

    Raises:
        ConfigError: the processes differ; names what, and the processes. Or a process of a bad config ended.
        ConnectionAbortedError: another process ended for another reason.
    """
    facts: dict[str, Any] = {}
    failure = None
    try:
        yield facts
    except Exception as error:
        failure = error
        if config.is_multiprocess and not rendezvous.has_joined():  # waiting for the others may end by an abort
            heartbeat.send_end(heartbeat.ERROR, *describe_failure(failure))
            config = config._replace(timeout_seconds=min(FAILURE_TIMEOUT, config.timeout_seconds))
    if config.is_multiprocess:
        try:
            disagreement = compare(config, facts, failure)
        except Exception as error:
            raise failure or error from None
        failure = failure or disagreement
        if failure:
            import jax

            jax.distributed.shutdown()  # all processes end here: none is aborted because another ends first
    if failure:
        raise failure


def compare(config: rendezvous.RendezvousConfig, facts: Mapping, failure: Exception | None) -> Exception | None:
    """Joins the other processes where that is due; returns the error that their failures or differences amount to."""
    from mlm.training.step import parallel

    if not rendezvous.has_joined():
        rendezvous.join_processes(config)
        # Not exchanged, because processes exchange arrays only if they have equally many devices.
        if differences := list_differences(parallel.describe_devices_by_process()):
            return errors.ConfigError(differences)
    reports = [
        json.loads(text)
        for text in parallel.gather_texts(json.dumps([describe_failure(failure) if failure else None, dict(facts)]))
    ]
    for process, (ended, _) in enumerate(reports):
        if ended:
            exit_code, line = ended
            line = f"process {process} of this run ended: {line}"
            return errors.ConfigError(line) if exit_code == 2 else ConnectionAbortedError(errno.ECONNABORTED, line)
    differences = list_differences([facts for _, facts in reports])
    return errors.ConfigError(differences) if differences else None


def list_differences(facts_by_process: Sequence[Mapping]) -> str:
    """A line about what differs between process 0 and others; "" if nothing does."""
    differences = []
    for name in facts_by_process[0]:
        values = [str(facts.get(name)) for facts in facts_by_process]
        if len(set(values)) > 1:
            other = next(i for i, value in enumerate(values) if value != values[0])
            differences.append(f"{name} is {values[0]} on process 0 and {values[other]} on process {other}")
    return f"the processes of this run differ: {'; '.join(differences)}" if differences else ""


def describe_failure(error: Exception) -> tuple[int, str]:
    """The exit code and the line of an error, for other processes."""
    if isinstance(error, errors.ConfigError):
        return 2, str(error)
    return 1, f"{type(error).__name__}: {errors.first_line(error)}"


def check_devices(expected_processes: int, expected_devices: int) -> None:
    """Prints the devices of such a run. Raises ConfigError for other numbers than those expected; 0: any number."""
    from mlm.training.step import parallel

    found = parallel.describe_devices()
    num_processes, num_devices = found["processes"], found["devices"]
    summary = (
        f"{num_processes:,} process{'es' * (num_processes > 1)}, {num_devices // num_processes:,} "
        f"device{'s' * (num_devices != num_processes)} here, {num_devices:,} in all ({found['device']})"
    )
    if parallel.is_primary() and (parallel.is_multiprocess() or expected_processes or expected_devices):
        print(summary, flush=True)
    expectations = ("processes", expected_processes, num_processes), ("devices", expected_devices, num_devices)
    for name, expected, count in expectations:
        if expected not in (0, count):
            raise errors.ConfigError(f"--expect_{name} = {expected:,}, but the run has {count:,}: {summary}")
