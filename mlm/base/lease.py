"""The hold that one process has on a folder: a lock on a disk, a lease on a bucket.

A lease is a numbered object in the folder's .lease/, which says whose it is; the highest number counts. To take it is
to write the next number, which only one can, where it was given back, where its holder is a process of this machine
that is no more, or where it was not renewed for OLD seconds: by the bucket's clock, and whoever comes looks on for the
rest of that time. Its holder writes it again every RENEW seconds; once it has not for OLD of its own seconds, or there
is a higher number, it writes nothing more.
"""
import contextlib
import fcntl
import json
import os
import platform
import threading
import time
import uuid
from pathlib import PurePath

from absl import logging

from mlm.base import buckets, errors

RENEW, OLD = 15.0, 60.0  # seconds
LOOK = 2.0               # seconds between two looks at another's lease
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first goes on while the machine sleeps
HELD: dict[str, "Lease"] = {}  # by folder, those of this process


class Taken(errors.ConfigError):
    """Another process is at work in the folder."""


def hold(folder, told: str):
    """Makes a folder and holds it until what is returned is closed; `.lock` or `.lease` in it says so.

    Raises Taken, which says `told`, where another process holds it.
    """
    if buckets.is_one(folder):
        return Lease(folder, told)
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Taken(told) from None
    return lock


@contextlib.contextmanager
def alone(folder):
    """Makes a folder and holds it in this block, once nobody else does."""
    if buckets.is_one(folder):
        while True:
            with contextlib.suppress(Taken):
                mine = Lease(folder, "")
                break
            time.sleep(LOOK)
        with mine:
            yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def held(folder) -> bool:
    """Whether some process holds a folder; on a bucket as far as this machine's clock is right."""
    if buckets.is_one(folder):
        number, its = newest(folder)
        return number > 0 and not free(its) and time.time() - written(folder, number) < OLD
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or nothing that can be held
        return False
    return False


def check(path: PurePath | str) -> None:
    """Raises Taken where this process held a folder above a path on a bucket, and holds it no more."""
    for folder, mine in list(HELD.items()):
        if str(path).startswith(f"{folder}/"):
            mine.check()


class Lease:
    """A lease on a folder of a bucket, renewed until it is closed."""

    def __init__(self, folder, told: str):
        self.folder, self.lost, self.beat = folder, False, 0
        self.owner = {"owner": uuid.uuid4().hex, "machine": machine(), "pid": os.getpid(), "host": platform.node()}
        self.number = self._take(told)
        self.ended, self.lock = threading.Event(), threading.Lock()
        HELD[str(folder)] = self
        threading.Thread(target=self._keep, daemon=True).start()

    def _take(self, told) -> int:
        number, its = newest(self.folder)
        if number and not free(its):
            self._outlast(number, its, told)
        self.renewed = time.clock_gettime(CLOCK)
        try:
            buckets.write(at(self.folder, number + 1), self._says(), new=True)
        except FileExistsError:
            raise Taken(told) from None
        if not self._mine(number + 1):  # of a store that does not heed the condition, the last to write has it
            raise Taken(told)
        for old in numbers(self.folder):
            if old <= number:
                buckets.remove(at(self.folder, old))
        return number + 1

    def _outlast(self, number, its, told) -> None:
        """Returns once another's lease is old. Raises Taken where it is renewed meanwhile."""
        probe = f"{self.folder}/.lease/now-{uuid.uuid4().hex}"
        buckets.write(probe, b"")
        try:
            age = buckets.changed(probe).timestamp() - written(self.folder, number)
        finally:
            buckets.remove(probe)
        until = time.monotonic() + OLD - age
        if age < OLD:
            logging.warning("%s: held by process %s on %s %.0f s ago; waiting at most %.0f s whether it still is",
                            self.folder, its.get("pid"), its.get("host"), max(age, 0), OLD - age)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(LOOK, left))
            now, found = newest(self.folder)
            if now == number and free(found):
                return
            if (now, found) != (number, its):
                raise Taken(told)

    def _says(self, **more) -> bytes:
        return json.dumps({**self.owner, "beat": self.beat, **more}).encode()

    def _mine(self, number: int) -> bool:
        now, its = newest(self.folder)
        return now == number and its.get("owner") == self.owner["owner"]

    def _keep(self) -> None:
        while not self.ended.wait(RENEW) and not self.lost:
            with contextlib.suppress(buckets.Unreachable):  # until it is too late, there is another time
                self.renew()

    def renew(self) -> None:
        with self.lock:
            began = time.clock_gettime(CLOCK)
            if self.lost or not self._mine(self.number):
                self.lost = True
            elif not self.ended.is_set():
                self.beat += 1
                buckets.write(at(self.folder, self.number), self._says())
                self.renewed = began

    def check(self) -> None:
        """Raises Taken where the lease is another's now, and Unreachable where that cannot be known."""
        if not self.lost and time.clock_gettime(CLOCK) - self.renewed > OLD - RENEW:
            self.renew()
        if self.lost:
            raise Taken(f"{self.folder}: another process has taken over; this one stops without writing more")

    def close(self) -> None:
        """Gives the lease back."""
        if self.ended.is_set():
            return
        self.ended.set()
        HELD.pop(str(self.folder), None)
        with self.lock, contextlib.suppress(buckets.Unreachable):  # then it grows old
            if self._mine(self.number):
                buckets.write(at(self.folder, self.number), self._says(free=True))

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()


def at(folder, number: int) -> str:
    return f"{folder}/.lease/{number:08d}"


def numbers(folder) -> list[int]:
    return [int(name) for name in buckets.names(f"{folder}/.lease") if name.isdigit()]


def newest(folder) -> tuple[int, dict]:
    """The lease that counts, and what it says; 0 where there is none."""
    number = max(numbers(folder), default=0)
    try:
        return number, json.loads(buckets.read(at(folder, number))) if number else {}
    except FileNotFoundError:  # another came between
        return newest(folder)


def written(folder, number: int) -> float:
    try:
        return buckets.changed(at(folder, number)).timestamp()
    except FileNotFoundError:  # a newer one has come
        return time.time()


def free(its: dict) -> bool:
    """Whether a lease was given back, or is a process's of this machine that is no more."""
    return "free" in its or (its["machine"] == machine() != "" and not os.path.exists(f"/proc/{its['pid']}"))


def machine() -> str:
    """This start of this machine, and whose processes are seen here; "" where that cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
