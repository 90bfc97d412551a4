"""How a process joins the others of its run, through JAX's coordination service."""

import errno
import socket
import sys
from typing import NamedTuple

from mlm.base import errors
from mlm.training.run import heartbeat

HEARTBEAT_TIMEOUT = 20  # seconds without a heartbeat after which JAX takes a process for dead, and aborts the others
LOOPBACK_HOSTS = ("127.0.0.1", "[::1]")
NO_SERVER = "Failed to start RPC server"  # JAX's words where process 0 cannot listen at its address
PEER_END = "another process of this run ended"


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
    try:
        socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        errors.require(False, field, address, f"a host whose address can be found ({error.strerror})")


def join_processes(config: RendezvousConfig) -> None:
    """Joins the other processes, if the run has any. Raises ConfigError if JAX cannot, OSError if the port is taken.

    Where JAX aborts this process, because the others do not come in time or because one of them ends later, its parent
    says so in a line.
    """
    if not config.is_multiprocess:
        return
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
