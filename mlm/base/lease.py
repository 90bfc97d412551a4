"""Exclusive ownership of a folder by one process: a file lock on a disk, a lease on a bucket.

A lease is a numbered object in the folder's .lease/ that names its owner; the highest number counts. A process takes a
lease by writing the next number, which only one process can do. It may do so if the owner has released the lease, if
the owner is a process of this machine that has ended, or if the owner has not renewed the lease for EXPIRY_SECONDS by
the bucket's clock; it keeps watching the lease until that time is over. The owner rewrites the lease every
RENEW_SECONDS. Once the owner has not managed to for EXPIRY_SECONDS of its own clock, or a higher number exists, it
writes nothing more to the folder.
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

RENEW_SECONDS, EXPIRY_SECONDS = 15.0, 60.0
POLL_SECONDS = 2.0  # between two looks at another process's lease
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # CLOCK_BOOTTIME also counts while the machine sleeps
HELD_LEASES: dict[str, "Lease"] = {}  # by folder: the leases of this process


class FolderInUse(errors.ConfigError):
    """Another process holds the folder."""


def acquire(folder, message: str):
    """Makes a folder and holds it, by `.lock` or `.lease` in it, until the returned object is closed.

    Raises FolderInUse with this message if another process holds the folder.
    """
    if buckets.is_bucket_path(folder):
        return Lease(folder, message)
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUse(message) from None
    return lock


@contextlib.contextmanager
def wait_for_lock(folder):
    """Makes a folder, waits until no other process holds it, and holds it in this block."""
    if buckets.is_bucket_path(folder):
        while True:
            with contextlib.suppress(FolderInUse):
                lease = Lease(folder, "")
                break
            time.sleep(POLL_SECONDS)
        with lease:
            yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_held(folder) -> bool:
    """Whether some process holds a folder; on a bucket this trusts the machine's clock."""
    if buckets.is_bucket_path(folder):
        number, record = read_newest(folder)
        return number > 0 and not is_free(record) and time.time() - write_time(folder, number) < EXPIRY_SECONDS
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or a file system without locks
        return False
    return False


def check_held(path: PurePath | str) -> None:
    """Raises FolderInUse if this process has lost its lease on a folder that contains this path on a bucket."""
    for folder, lease in list(HELD_LEASES.items()):
        if str(path).startswith(f"{folder}/"):
            lease.check()


class Lease:
    """A lease on a folder of a bucket, renewed by a thread until it is closed."""

    def __init__(self, folder, message: str):
        """Raises FolderInUse with this message if another process holds the folder."""
        self.folder, self.lost, self.renewals = folder, False, 0
        self.owner = {"owner": uuid.uuid4().hex, "machine": machine_id(), "pid": os.getpid(), "host": platform.node()}
        self.number = self._take(message)
        self.ended, self.lock = threading.Event(), threading.Lock()
        HELD_LEASES[str(folder)] = self
        threading.Thread(target=self._renew_until_closed, daemon=True).start()

    def _take(self, message) -> int:
        number, record = read_newest(self.folder)
        if number and not is_free(record):
            self._wait_for_expiry(number, record, message)
        self.renewed = time.clock_gettime(CLOCK)
        try:
            buckets.write(lease_path(self.folder, number + 1), self._serialize(), exclusive=True)
        except FileExistsError:
            raise FolderInUse(message) from None
        if not self._is_newest(number + 1):  # a store that ignores `exclusive`: the last writer has the lease
            raise FolderInUse(message)
        for old in list_numbers(self.folder):
            if old <= number:
                buckets.remove(lease_path(self.folder, old))
        return number + 1

    def _wait_for_expiry(self, number, record, message) -> None:
        """Returns once another process's lease has expired. Raises FolderInUse if it is renewed meanwhile."""
        probe = f"{self.folder}/.lease/now-{uuid.uuid4().hex}"
        buckets.write(probe, b"")
        try:
            age = buckets.modification_time(probe).timestamp() - write_time(self.folder, number)
        finally:
            buckets.remove(probe)
        deadline = time.monotonic() + EXPIRY_SECONDS - age
        if age < EXPIRY_SECONDS:
            logging.warning(
                "%s: held by process %s on %s %.0f s ago; waiting up to %.0f s to see whether it still is",
                self.folder,
                record.get("pid"),
                record.get("host"),
                max(age, 0),
                EXPIRY_SECONDS - age,
            )
        while (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, remaining))
            newest_number, newest_record = read_newest(self.folder)
            if newest_number == number and is_free(newest_record):
                return
            if (newest_number, newest_record) != (number, record):
                raise FolderInUse(message)

    def _serialize(self, **extra) -> bytes:
        return json.dumps({**self.owner, "renewals": self.renewals, **extra}).encode()

    def _is_newest(self, number: int) -> bool:
        newest_number, record = read_newest(self.folder)
        return newest_number == number and record.get("owner") == self.owner["owner"]

    def _renew_until_closed(self) -> None:
        while not self.ended.wait(RENEW_SECONDS) and not self.lost:
            with contextlib.suppress(buckets.BucketError):  # the next round tries again
                self.renew()

    def renew(self) -> None:
        """Rewrites the lease, or marks it as lost if it no longer counts. Raises BucketError if the bucket fails."""
        with self.lock:
            start = time.clock_gettime(CLOCK)
            if self.lost or not self._is_newest(self.number):
                self.lost = True
            elif not self.ended.is_set():
                self.renewals += 1
                buckets.write(lease_path(self.folder, self.number), self._serialize())
                self.renewed = start

    def check(self) -> None:
        """Raises FolderInUse if another process has the lease now, BucketError if that cannot be known."""
        if not self.lost and time.clock_gettime(CLOCK) - self.renewed > EXPIRY_SECONDS - RENEW_SECONDS:
            self.renew()
        if self.lost:
            raise FolderInUse(f"{self.folder}: another process has taken over; this one stops without writing more")

    def close(self) -> None:
        """Releases the lease."""
        if self.ended.is_set():
            return
        self.ended.set()
        HELD_LEASES.pop(str(self.folder), None)
        with self.lock, contextlib.suppress(buckets.BucketError):  # the lease then expires
            if self._is_newest(self.number):
                buckets.write(lease_path(self.folder, self.number), self._serialize(free=True))

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()


def lease_path(folder, number: int) -> str:
    """The path of a folder's lease of this number."""
    return f"{folder}/.lease/{number:08d}"


def list_numbers(folder) -> list[int]:
    """The numbers of a folder's leases, in no order; the highest one holds the folder."""
    return [int(name) for name in buckets.list_names(f"{folder}/.lease") if name.isdigit()]


def read_newest(folder) -> tuple[int, dict]:
    """The number and the record of the lease that counts; 0 and {} if there is none."""
    number = max(list_numbers(folder), default=0)
    try:
        return number, json.loads(buckets.read(lease_path(folder, number))) if number else {}
    except FileNotFoundError:  # a newer lease replaced it in between
        return read_newest(folder)


def write_time(folder, number: int) -> float:
    """When a lease was last written, in seconds since the epoch by the bucket's clock."""
    try:
        return buckets.modification_time(lease_path(folder, number)).timestamp()
    except FileNotFoundError:  # a newer lease replaced it
        return time.time()


def is_free(record: dict) -> bool:
    """Whether a lease was released, or its owner is a process of this machine that has ended."""
    is_local = record["machine"] == machine_id() != ""
    return "free" in record or (is_local and not os.path.exists(f"/proc/{record['pid']}"))


def machine_id() -> str:
    """Identifies this boot of this machine and its process namespace; "" where that is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
