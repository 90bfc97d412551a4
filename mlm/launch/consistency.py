"""The processes of one run are about to do the same, or all end with a line that says who differs.

They speak through the key-value store of JAX's coordination service, which process 0 has.
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

from mlm.base import errors
from mlm.launch import rendezvous, supervisor

ENDED = "mlm/ended"
SOON = 60       # seconds that one which failed before it joined waits for the others
LINGER = 3  # seconds that process 0 stays for the others to hear how it ended
OWN = ("data.cache", "data.path", "data.validation_path", "data.parallel_path", "data.tfds_dir")  # a host's
LOST = re.compile(r"gloo|nccl|coordination|heartbeat|connection|UNAVAILABLE|DEADLINE|ABORTED", re.IGNORECASE)


class Ended(Exception):
    """Another process of the run ended, so that this one must; code: its exit code, or 1."""

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.code = code


def state():
    from jax._src import distributed  # JAX has no public way to its key-value store

    return distributed.global_state


def joined() -> bool:
    return "jax" in sys.modules and state().client is not None


def program() -> dict[str, str]:
    """What the code of a process is known by."""
    from importlib import metadata

    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.glob("mlm/**/*.py")):
        digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return {"the code of mlm (SHA-256)": digest.hexdigest()[:12], "the version of Python": sys.version.split()[0]} | {
        f"the version of {name}": metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")}


def shared(said: Mapping) -> dict:
    """The fields, by dotted name, that are the same on all hosts; what the others hold is "rows"."""
    return {f"config.{name}": value for name, value in said.items() if name not in OWN}


def agree(subject: str, facts: Mapping) -> None:
    """Returns once all processes have said the same facts about a subject; at once where there is one process.

    Raises ConfigError where they differ, naming what and who, and Ended where another ended before it said them.
    """
    if not joined():
        return
    me, count = state().process_id, state().num_processes
    state().client.key_value_set(f"mlm/{subject}/{me}", json.dumps(dict(facts)))
    said = [json.loads(hear(f"mlm/{subject}/{number}")) for number in range(count)]
    differing = []
    for name in said[0]:
        values = [str(one.get(name)) for one in said]
        if len(set(values)) > 1:
            other = next(number for number, value in enumerate(values) if value != values[0])
            differing.append(f"{name} is {values[0]} on process 0 and {values[other]} on process {other}")
    if differing:
        raise errors.ConfigError(f"the processes of this run differ: {'; '.join(differing)}")


def count(processes: int, devices: int) -> None:
    """Says what a run of several processes, or one that something is expected of, has to compute on.

    Raises ConfigError where it has another number of processes, or of devices in all, than these; 0: any will do.
    """
    from mlm.train.step import parallel

    found, here = parallel.describe(), parallel.local()["the number of devices"]
    there = (f"{many(found['processes'], 'process', 'processes')}, {many(here, 'device')} here, "
             f"{found['devices']:,} in all ({found['device']})")
    if parallel.is_primary() and (parallel.is_multiprocess() or processes or devices):
        print(there, flush=True)
    for flag, expected, has in (("--expect_processes", processes, found["processes"]),
                                ("--expect_devices", devices, found["devices"])):
        if expected not in (0, has):
            raise errors.ConfigError(f"{flag} = {expected:,}, and there are {has:,}: {there}")


def many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def hear(key: str) -> str:
    """The value of a key, waited for as long as all processes live."""
    while True:
        with contextlib.suppress(Exception):  # jaxlib's error of a time-out
            return state().client.blocking_key_value_get(key, 1000)
        if ended := how():
            raise ended


def how() -> Ended | None:
    """How another process ended, where it said so."""
    try:
        said = dict(state().client.key_value_dir_get(ENDED))
    except Exception as error:  # process 0, who has the store, is gone
        return Ended("process 0 of this run ended; start all again, they continue") if LOST.search(str(error)) else None
    for key, value in sorted(said.items()):
        number, (code, line) = key.rpartition("/")[2], json.loads(value)
        if int(number) != state().process_id:
            return Ended(f"process {number} of this run ended: {line}", code)
    return None


def lost(error: Exception) -> Ended | None:
    """What an error says of another process; None where it is this one's own, as bad input is whatever it names."""
    own = isinstance(error, errors.ConfigError | OSError) and not isinstance(error, ConnectionError)
    if own or not joined() or not LOST.search(f"{type(error).__name__} {error}"):
        return None
    return how() or Ended("another process of this run ended; start all again, they continue")


@contextlib.contextmanager
def bound():
    """Ends this process in a line, by an exit code of theirs, where the block fails because another process ended."""
    try:
        yield
    except Exception as error:
        gone = error if isinstance(error, Ended) else lost(error)
        if gone is None:
            raise
        print(f"error: {gone}", file=sys.stderr)
        leave(gone.code, str(gone))


def tell(code: int, line: str) -> None:
    """Ends this process by an error of its own, after the others were told; returns where there are none.

    One that fails before it tried to join joins for that, where the others are there.
    """
    if not joined() and not rendezvous.tried.is_set() and supervisor.several(sys.argv[1:]):
        with contextlib.suppress(Exception):
            asked = rendezvous.Asked(**given(sys.argv[1:]), timeout=SOON)
            rendezvous.check(asked)
            rendezvous.join(asked)
    if joined():
        leave(code, line)


def given(argv: Sequence[str]) -> dict:
    """The flags that say which of several processes this is, of a command line that may be wrong elsewhere."""
    found = dict(re.findall(r"^--?(\w+)[=\n](?!-)(.*)", "\n".join(argv), re.MULTILINE))
    return {"coordinator": found.get("coordinator", ""), "processes": int(found.get("processes", 1)),
            "process": int(found.get("process", 0)), "distributed": "--distributed" in argv}


def leave(code: int, line: str) -> None:
    """Ends this process at once, after the others were told how; waits for none of them."""
    with contextlib.suppress(Exception):
        state().client.key_value_set(f"{ENDED}/{state().process_id}", json.dumps([code, line]))
        if state().process_id == 0:
            time.sleep(LINGER)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
