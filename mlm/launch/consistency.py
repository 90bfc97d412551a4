"""The processes of one run check that they agree; where they differ, all end with a line that names the difference.

They communicate through the key-value store of JAX's coordination service, which process 0 hosts.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlm.base import errors
from mlm.launch import rendezvous, supervisor

ENDED_KEY = "mlm/ended"
JOIN_TIMEOUT = 60  # seconds that a process which failed before it joined waits for the others
EXIT_DELAY = 3  # seconds that process 0 stays alive, so that the others can read how it ended
HOST_FIELDS = ("data.cache_dir", "data.path", "data.validation_path", "data.parallel_path", "data.tfds_dir")
PEER_ERROR = re.compile(r"gloo|nccl|coordination|heartbeat|connection|UNAVAILABLE|DEADLINE|ABORTED", re.IGNORECASE)


class PeerEnded(Exception):
    """Another process of the run ended, so this one must end too. exit_code: the other's, or 1."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


def get_distributed_state() -> Any:
    """JAX's connection to the other processes."""
    from jax._src import distributed  # JAX has no public access to its key-value store

    return distributed.global_state


def has_joined() -> bool:
    """Whether this process is connected to the others."""
    return "jax" in sys.modules and get_distributed_state().client is not None


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


def require_agreement(subject: str, facts: Mapping) -> None:
    """Returns once all processes have published the same facts about a subject; at once for a single process.

    Raises:
        ConfigError: the facts differ; names them and the processes.
        PeerEnded: another process ended before it published its facts.
    """
    if not has_joined():
        return
    state = get_distributed_state()
    state.client.key_value_set(f"mlm/{subject}/{state.process_id}", json.dumps(dict(facts)))
    facts_by_process = [json.loads(wait_for_key(f"mlm/{subject}/{i}")) for i in range(state.num_processes)]
    differences = []
    for name in facts_by_process[0]:
        values = [str(facts.get(name)) for facts in facts_by_process]
        if len(set(values)) > 1:
            other = next(i for i, value in enumerate(values) if value != values[0])
            differences.append(f"{name} is {values[0]} on process 0 and {values[other]} on process {other}")
    if differences:
        raise errors.ConfigError(f"the processes of this run differ: {'; '.join(differences)}")


def check_devices(expected_processes: int, expected_devices: int) -> None:
    """Prints the devices of a run that has several processes or expectations.

    Raises ConfigError if the number of processes, or of devices in all processes, is not as expected; 0: any number.
    """
    from mlm.training.step import parallel

    found, local_devices = parallel.describe_devices(), parallel.describe_local_devices()["local_devices"]
    summary = (
        f"{format_count(found['processes'], 'process', 'processes')}, {format_count(local_devices, 'device')} "
        f"here, {found['devices']:,} in all ({found['device']})"
    )
    if parallel.is_primary() and (parallel.is_multiprocess() or expected_processes or expected_devices):
        print(summary, flush=True)
    for flag, expected, count in (
        ("--expect_processes", expected_processes, found["processes"]),
        ("--expect_devices", expected_devices, found["devices"]),
    ):
        if expected not in (0, count):
            raise errors.ConfigError(f"{flag} = {expected:,}, but the run has {count:,}: {summary}")


def format_count(count: int, singular: str, plural: str = "") -> str:
    """A number with its noun, in singular or plural."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def wait_for_key(key: str) -> str:
    """The value of a key. Waits for it as long as all processes live; raises PeerEnded when one has ended."""
    while True:
        with contextlib.suppress(Exception):  # jaxlib's timeout error
            return get_distributed_state().client.blocking_key_value_get(key, 1000)
        if ended := read_peer_end():
            raise ended


def read_peer_end() -> PeerEnded | None:
    """How another process ended, if it published that."""
    try:
        reports = dict(get_distributed_state().client.key_value_dir_get(ENDED_KEY))
    except Exception as error:  # process 0, which hosts the store, is gone
        if PEER_ERROR.search(str(error)):
            return PeerEnded("process 0 of this run ended; restart all processes to continue")
        return None
    for key, value in sorted(reports.items()):
        process_id, (exit_code, line) = key.rpartition("/")[2], json.loads(value)
        if int(process_id) != get_distributed_state().process_id:
            return PeerEnded(f"process {process_id} of this run ended: {line}", exit_code)
    return None


def find_peer_failure(error: Exception) -> PeerEnded | None:
    """The end of another process that an error follows from; None if the error is this process's own.

    A ConfigError or OSError is always this process's own, whatever words it contains.
    """
    is_local = isinstance(error, errors.ConfigError | OSError) and not isinstance(error, ConnectionError)
    if is_local or not has_joined() or not PEER_ERROR.search(f"{type(error).__name__} {error}"):
        return None
    return read_peer_end() or PeerEnded("another process of this run ended; restart all processes to continue")


@contextlib.contextmanager
def exit_with_peers():
    """Ends this process with one line and the peer's exit code if the block fails because another process ended."""
    try:
        yield
    except Exception as error:
        ended = error if isinstance(error, PeerEnded) else find_peer_failure(error)
        if ended is None:
            raise
        print(f"error: {ended}", file=sys.stderr)
        exit_process(ended.exit_code, str(ended))


def report_failure(exit_code: int, line: str) -> None:
    """Reports this process's own error to the others and ends it; returns if there are no others.

    A process that fails before it has tried to join joins the others first.
    """
    if not has_joined() and not rendezvous.attempted.is_set() and supervisor.is_multiprocess_command(sys.argv[1:]):
        with contextlib.suppress(Exception):
            config = rendezvous.RendezvousConfig(**parse_process_flags(sys.argv[1:]), timeout_seconds=JOIN_TIMEOUT)
            rendezvous.check_config(config)
            rendezvous.join_processes(config)
    if has_joined():
        exit_process(exit_code, line)


def parse_process_flags(argv: Sequence[str]) -> dict:
    """The flags that identify a process, from a command line that may be wrong elsewhere."""
    flags = dict(re.findall(r"^--?(\w+)[=\n](?!-)(.*)", "\n".join(argv), re.MULTILINE))
    return {
        "coordinator": flags.get("coordinator", ""),
        "num_processes": int(flags.get("processes", 1)),
        "process_id": int(flags.get("process", 0)),
        "distributed": "--distributed" in argv,
    }


def exit_process(exit_code: int, line: str) -> None:
    """Publishes how this process ends, and ends it at once, without waiting for the others."""
    with contextlib.suppress(Exception):
        state = get_distributed_state()
        state.client.key_value_set(f"{ENDED_KEY}/{state.process_id}", json.dumps([exit_code, line]))
        if state.process_id == 0:
            time.sleep(EXIT_DELAY)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
