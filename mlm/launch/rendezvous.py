"""How a process joins the others of its run, through JAX's coordination service; where they differ, all end."""

import contextlib
import errno
import hashlib
import json
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import errors
from mlm.training.run import heartbeat

HEARTBEAT_TIMEOUT = 20  # seconds without a heartbeat after which JAX takes a process for dead, and aborts the others
LOOPBACK_HOSTS = ("127.0.0.1", "[::1]")
NO_SERVER = "Failed to start RPC server"  # JAX's words where process 0 cannot listen at its address
PEER_END = "another process of this run ended"
FAILURE_TIMEOUT = 60  # seconds that a process which failed before it joined waits for the others, to tell them
HOST_FIELDS = (
    *("data.cache_dir", "data.sources", "data.path", "data.validation_path"),
    *("data.parallel_path", "data.tfds_dir"),
)


class RendezvousConfig(NamedTuple):
    """Options of `mlm train` that say which of several processes this is."""

    coordinator: str  # HOST:PORT of process 0; "": none
    num_processes: int
    process_id: int
    distributed: bool  # the cluster's environment describes the processes
    timeout_seconds: int

    @property
    def is_multiprocess(self) -> bool:
        """Whether this is one process among several, or may be."""
        return bool(self.coordinator) or self.distributed


def has_joined() -> bool:
    """Whether this process is connected to the others."""
    if "jax" not in sys.modules:
        return False
    import jax

    return jax.distributed.is_initialized()


def check_config(config: RendezvousConfig) -> None:
    """Raises ConfigError for options with which no run could start, without waiting for another process."""
    if not config.coordinator:
        for flag, value, default in (("--processes", config.num_processes, 1), ("--process", config.process_id, 0)):
            errors.require(value == default, flag, value, "no such flag without --coordinator=HOST:PORT")
        return
    field, address = "--coordinator", config.coordinator
    errors.require(not config.distributed, field, address, "none with --distributed, where the cluster provides it")
    expected = f"less than --processes = {config.num_processes}, counted from 0"
    errors.require(config.process_id < config.num_processes, "--process", config.process_id, expected)
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16
    errors.require(bool(colon and host.strip("[]")) and is_port, field, address, "HOST:PORT, a port from 1 to 65535")
    with errors.explain(f"{field} = {address!r}", "a host whose address can be found", OSError):
        socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)


def join_processes(config: RendezvousConfig) -> None:
    """Joins the other processes. Raises ConfigError if JAX cannot, OSError if the port is taken."""
    arguments = {}
    expected = (
        "--distributed: expected a cluster whose environment describes the processes to JAX, as TPU pods and SLURM do, "
        "else --coordinator=HOST:PORT"
    )
    if address := config.coordinator:
        arguments = {"coordinator_address": address, "num_processes": config.num_processes}
        arguments["process_id"] = config.process_id
        if address.rpartition(":")[0] in LOOPBACK_HOSTS:  # else it listens to all networks
            arguments["coordinator_bind_address"] = address
        expected = f"--coordinator = {address!r}: expected all {config.num_processes} processes to join"
        print(
            f"process {config.process_id} of {config.num_processes} waits at {address} for the others, for up to "
            f"{config.timeout_seconds} s (--join_timeout)",
            flush=True,
        )
        if config.process_id == 0:
            require_free_port(address)
    import jax

    heartbeat.send_end(heartbeat.LAST_WORDS, 2, f"{expected} within {config.timeout_seconds} s (--join_timeout)")
    try:
        jax.distributed.initialize(
            **arguments, initialization_timeout=config.timeout_seconds, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        if config.coordinator and NO_SERVER in str(error):  # no bad input: the parent of a local run tries another port
            raise OSError(errno.EADDRINUSE, "the address is in use", config.coordinator) from None
        raise errors.ConfigError(f"{expected} ({errors.first_line(error)[:150]})") from None
    heartbeat.send_end(heartbeat.LAST_WORDS, 1, f"{PEER_END}; restart all processes to continue")


def require_free_port(coordinator: str) -> None:
    """Raises OSError if process 0 cannot listen at its address: JAX may end by a segmentation fault there."""
    host, _, port = coordinator.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    address = host.strip("[]") if host in LOOPBACK_HOSTS else ""
    try:
        socket.create_server((address, int(port)), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(errno.EADDRINUSE, "the address is in use", coordinator) from None


def code_versions() -> dict[str, str]:
    """A digest of this project's code, and the versions of Python and of the libraries that compute."""
    from importlib import metadata

    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(path for kind in ("py", "toml") for path in root.glob(f"mlm/**/*.{kind}")):
        digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return {"the code of mlm (SHA-256)": digest.hexdigest()[:12], "the version of Python": sys.version.split()[0]} | {
        f"the version of {name}": metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")
    }


def shared_fields(flat_config: Mapping) -> dict:
    """The config fields, by dotted name, that must be equal on all hosts: all except paths of a host."""
    return {f"config.{name}": value for name, value in flat_config.items() if name not in HOST_FIELDS}


@contextlib.contextmanager
def agreement(config: RendezvousConfig) -> Iterator[dict[str, Any]]:
    """Each process puts into the dict, in the block, what must be equal on all; they join at the first block.

    If the block fails on one process, all end, each with a line. Raises ConfigError if the processes differ or one
    ended for a bad config, ConnectionAbortedError if one ended for another reason.
    """
    facts: dict[str, Any] = {}
    failure = None
    try:
        yield facts
    except Exception as error:
        failure = error
        if config.is_multiprocess and not has_joined():  # waiting for the others may end by an abort
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


def compare(config: RendezvousConfig, facts: Mapping, failure: Exception | None) -> Exception | None:
    """Joins the other processes where that is due; returns the error that their failures or differences amount to."""
    from mlm.training.step import parallel

    if not has_joined():
        join_processes(config)
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
