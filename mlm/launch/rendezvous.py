"""How a process joins the others of its run: the addresses are checked first, and every wait has a limit."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mlm.base import errors

HEARTBEAT_TIMEOUT = 20  # seconds without a heartbeat after which JAX takes a process for dead
RESOLVE_TIMEOUT = 5  # seconds to look up a host's address
HELLO, GO = "mlm", "go"  # what processes send each other before JAX does
attempted = threading.Event()  # set once this process has called or waited for the others


class RendezvousConfig(NamedTuple):
    """Options of `mlm train` that say which of several processes this is."""

    coordinator: str  # HOST:PORT of process 0; "": none
    num_processes: int
    process_id: int
    distributed: bool  # the cluster's environment describes the processes
    timeout_seconds: int


def check_config(config: RendezvousConfig) -> None:
    """Raises ConfigError for options with which no run could start, without waiting for another process."""
    if not config.coordinator:
        if (config.num_processes, config.process_id) != (1, 0):
            raise errors.ConfigError("--processes and --process need --coordinator=HOST:PORT, the address of process 0")
        return
    errors.require(
        not config.distributed,
        "--coordinator",
        config.coordinator,
        "none with --distributed, where the cluster provides it",
    )
    errors.require(
        config.process_id < config.num_processes,
        "--process",
        config.process_id,
        f"less than --processes = {config.num_processes}, counted from 0",
    )
    host, port = parse_address(config.coordinator)
    found = call_within(RESOLVE_TIMEOUT, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    errors.require(
        bool(found) and not isinstance(found, Exception),
        "--coordinator",
        config.coordinator,
        f"a host whose address can be found ({found or f'no answer within {RESOLVE_TIMEOUT} s'})",
    )


def parse_address(coordinator: str) -> tuple[str, int]:
    """Host and port. Raises ConfigError for text that is not HOST:PORT."""
    host, colon, port = coordinator.rpartition(":")
    errors.require(
        bool(colon and host.strip("[]")) and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16,
        "--coordinator",
        coordinator,
        "HOST:PORT, a port from 1 to 65535",
    )
    return host.strip("[]"), int(port)


def join_processes(config: RendezvousConfig) -> None:
    """Joins the other processes, if the run has any. Raises ConfigError if they do not come in time.

    They first meet at the coordinator's port: if one were missing later, JAX would abort with a page of C++.
    """
    attempted.set()
    if config.coordinator:
        deadline = time.monotonic() + config.timeout_seconds
        if config.process_id:
            call_coordinator(config, deadline)
        else:
            wait_for_peers(config, deadline)
        arguments: dict[str, Any] = {
            "coordinator_address": config.coordinator,
            "num_processes": config.num_processes,
            "process_id": config.process_id,
        }
        message = f"--coordinator = {config.coordinator!r}: expected all {config.num_processes} processes to join"
    elif config.distributed:
        arguments = {}
        message = (
            "--distributed: expected a cluster whose environment describes the processes to JAX, as TPU pods "
            "and SLURM do, else --coordinator=HOST:PORT"
        )
    else:
        return
    import jax

    result = call_within(
        config.timeout_seconds,
        lambda: (
            jax.distributed.initialize(
                **arguments,
                initialization_timeout=config.timeout_seconds + 60,
                heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            )
            or True
        ),
    )
    if result is not True:
        reason = errors.first_line(result)[:150] if result else f"not within {config.timeout_seconds} s"
        raise errors.ConfigError(f"{message} ({reason})")


def wait_for_peers(config: RendezvousConfig, deadline: float) -> None:
    """Process 0: returns when all other processes have called, and answers them."""
    _, port = parse_address(config.coordinator)
    callers: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise errors.ConfigError(
                f"--coordinator = {config.coordinator!r}: process 0 cannot listen at port {port} ({error.strerror})"
            ) from None
        error = ""
        while len(callers) < config.num_processes - 1 and not error:
            missing = [str(i) for i in range(1, config.num_processes) if i not in callers]
            error = (
                f"not there within {config.timeout_seconds} s: process {', '.join(missing[:8])} of "
                f"{config.num_processes}"
            )
            if (seconds_left := deadline - time.monotonic()) > 0:
                server.settimeout(seconds_left)
                with contextlib.suppress(TimeoutError):
                    caller = stack.enter_context(server.accept()[0])
                    error = read_greeting(caller, config, callers)
        for caller in callers.values():
            with contextlib.suppress(OSError):
                caller.sendall(f"{error or GO}\n".encode())
                caller.settimeout(2)
                caller.recv(1)  # the caller closes first, which leaves the port free for JAX
    if error:
        raise errors.ConfigError(f"--coordinator = {config.coordinator!r}: {error}")


def read_greeting(caller: socket.socket, config: RendezvousConfig, callers: dict[int, socket.socket]) -> str:
    """Registers a caller; returns what is wrong with it, "" if nothing is. Ignores callers of other programs."""
    caller.settimeout(2)
    with contextlib.suppress(OSError, ValueError):
        hello, process_id, num_processes = caller.recv(64).decode().split()
        process_id, num_processes = int(process_id), int(num_processes)
        if hello != HELLO:
            return ""
        error = ""
        if num_processes != config.num_processes:
            error = f"process {process_id} has --processes={num_processes}, process 0 has {config.num_processes}"
        elif process_id in callers and is_waiting(callers[process_id]):
            error = f"two processes have --process={process_id}"
        callers[-len(callers) - 1 if error else process_id] = caller
        return error
    return ""


def is_waiting(caller: socket.socket) -> bool:
    """Whether a process that called is still connected. One that was stopped and started again is not."""
    caller.setblocking(False)
    try:
        return caller.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def call_coordinator(config: RendezvousConfig, deadline: float) -> None:
    """Any other process: calls process 0 until it answers that all processes are there."""
    answer = "nobody answers"
    while (seconds_left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(parse_address(config.coordinator), timeout=min(2, seconds_left)) as call:
                call.sendall(f"{HELLO} {config.process_id} {config.num_processes}\n".encode())
                call.settimeout(max(deadline - time.monotonic(), 1))
                answer = call.recv(200).decode("utf-8", "replace").strip() or "process 0 hung up"
            if answer == GO:
                return
            break
        except OSError as error:
            answer = error.strerror or str(error)
            time.sleep(0.3)
    raise errors.ConfigError(
        f"--coordinator = {config.coordinator!r}: expected process 0 to answer there within "
        f"{config.timeout_seconds} s ({answer})"
    )


def call_within(seconds: float, function: Callable):
    """What function() returns or raises, or None if it takes longer. Ctrl-C interrupts the wait."""
    results = []

    def work():
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
