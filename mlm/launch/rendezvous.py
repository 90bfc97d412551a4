"""How a process joins the others of its run: checked beforehand, waited for with a word, and never for ever."""
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from mlm.base import errors

HEARTBEAT = 20          # seconds without a sign after which a process is taken for dead
RESOLVE = 5             # seconds for a host's address
HELLO, GO = "mlm", "go"  # what processes say to each other before JAX does
tried = threading.Event()  # whether this process has called or waited for the others


class Asked(NamedTuple):
    """The flags of mlm.cli.train."""

    coordinator: str
    processes: int
    process: int
    distributed: bool
    timeout: int          # seconds


def check(asked: Asked) -> None:
    """Raises ConfigError for flags that no run could start with, without waiting for another process."""
    if not asked.coordinator:
        if (asked.processes, asked.process) != (1, 0):
            raise errors.ConfigError("--processes and --process need --coordinator=HOST:PORT, the address of process 0")
        return
    errors.require(not asked.distributed, "--coordinator", asked.coordinator,
                  "none beside --distributed, where the cluster tells")
    errors.require(asked.process < asked.processes, "--process", asked.process,
                  f"less than --processes = {asked.processes}, counted from 0")
    host, port = address(asked.coordinator)
    known = within(RESOLVE, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    errors.require(bool(known) and not isinstance(known, Exception), "--coordinator", asked.coordinator,
                  f"a host whose address can be found ({known or f'no answer within {RESOLVE} s'})")


def address(coordinator: str) -> tuple[str, int]:
    """Host and port. Raises ConfigError for what is not HOST:PORT."""
    host, colon, port = coordinator.rpartition(":")
    errors.require(bool(colon and host.strip("[]")) and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16,
                  "--coordinator", coordinator, "HOST:PORT, a port from 1 to 65535")
    return host.strip("[]"), int(port)


def join(asked: Asked) -> None:
    """Joins the other processes, if the run has any. Raises ConfigError where they are not there in time.

    They meet at the coordinator's port first: where one is missing then, JAX would abort with a page of C++.
    """
    tried.set()
    if asked.coordinator:
        began = time.monotonic()
        (meet if asked.process else gather)(asked, began + asked.timeout)
        arguments = (asked.coordinator, asked.processes, asked.process)
        wrong = f"--coordinator = {asked.coordinator!r}: expected all {asked.processes} processes to join"
    elif asked.distributed:
        arguments = ()
        wrong = ("--distributed: expected a cluster that tells JAX who the processes are, as TPU pods and SLURM do, "
                 "else --coordinator=HOST:PORT")
    else:
        return
    import jax

    done = within(asked.timeout, lambda: jax.distributed.initialize(
        *arguments, initialization_timeout=asked.timeout + 60, heartbeat_timeout_seconds=HEARTBEAT) or True)
    if done is not True:
        raise errors.ConfigError(f"{wrong} ({errors.first_line(done)[:150] if done else f'not within {asked.timeout} s'})")


def gather(asked: Asked, until: float) -> None:
    """Process 0: returns when each of the others has called, and tells them so."""
    _, port = address(asked.coordinator)
    there: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise errors.ConfigError(f"--coordinator = {asked.coordinator!r}: process 0 cannot listen at port {port} "
                                     f"({error.strerror})") from None
        wrong = ""
        while len(there) < asked.processes - 1 and not wrong:
            missing = [str(number) for number in range(1, asked.processes) if number not in there]
            wrong = f"not there within {asked.timeout} s: process {', '.join(missing[:8])} of {asked.processes}"
            if (left := until - time.monotonic()) > 0:
                server.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    caller = stack.enter_context(server.accept()[0])
                    wrong = greet(caller, asked, there)
        for caller in there.values():
            with contextlib.suppress(OSError):
                caller.sendall(f"{wrong or GO}\n".encode())
                caller.settimeout(2)
                caller.recv(1)  # the caller closes first, which leaves the port free for JAX
    if wrong:
        raise errors.ConfigError(f"--coordinator = {asked.coordinator!r}: {wrong}")


def greet(caller: socket.socket, asked: Asked, there: dict[int, socket.socket]) -> str:
    """Takes down who called; returns what is wrong with it, "" where nothing is. Strangers are not heard."""
    caller.settimeout(2)
    with contextlib.suppress(OSError, ValueError):
        word, number, processes = caller.recv(64).decode().split()
        number, processes = int(number), int(processes)
        if word != HELLO:
            return ""
        wrong = ""
        if processes != asked.processes:
            wrong = f"process {number} has --processes={processes}, process 0 has {asked.processes}"
        elif number in there and waits(there[number]):
            wrong = f"two processes have --process={number}"
        there[-len(there) - 1 if wrong else number] = caller
        return wrong
    return ""


def waits(caller: socket.socket) -> bool:
    """Whether one that called is still there: it has not hung up, as one does that was stopped and started again."""
    caller.setblocking(False)
    try:
        return caller.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def meet(asked: Asked, until: float) -> None:
    """Another process: calls process 0 until it answers that all are there."""
    heard = "nobody answers"
    while (left := until - time.monotonic()) > 0:
        try:
            with socket.create_connection(address(asked.coordinator), timeout=min(2, left)) as call:
                call.sendall(f"{HELLO} {asked.process} {asked.processes}\n".encode())
                call.settimeout(max(until - time.monotonic(), 1))
                heard = call.recv(200).decode("utf-8", "replace").strip() or "process 0 hung up"
            if heard == GO:
                return
            break
        except OSError as error:
            heard = error.strerror or str(error)
            time.sleep(0.3)
    raise errors.ConfigError(f"--coordinator = {asked.coordinator!r}: expected process 0 to answer there within "
                             f"{asked.timeout} s ({heard})")


def within(seconds: float, call: Callable):
    """What call() returns or raises, or None where it takes longer; Ctrl-C is heard meanwhile."""
    found = []

    def work():
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
