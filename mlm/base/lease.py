"""A lease: exclusive ownership of a folder on a bucket by one process.

Leases are numbered objects in the folder's .lease/; the highest number counts. A process takes the folder by creating
the next number, which only one process can do. It may do so if there is no lease, if the owner has released it, if the
owner is a process of this machine that has ended, or if the owner has not renewed it while this process watched it for
EXPIRY_SECONDS. The owner renews the lease every RENEW_SECONDS. Once it has not managed to for EXPIRY_SECONDS, or a
higher number exists, it writes nothing more to the folder.
"""

import contextlib
import json
import os
import platform
import threading
import time
from pathlib import PurePath
from typing import Any, Protocol

from absl import logging

from mlm.base import buckets, errors

RENEW_SECONDS, EXPIRY_SECONDS = 15.0, 60.0
POLL_SECONDS = 2.0  # between two looks at another process's lease
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # CLOCK_BOOTTIME also counts while the machine sleeps
HELD_LEASES: dict[str, "Lease"] = {}  # by folder: the leases of this process


class FolderInUse(errors.ConfigError):
    """Another process holds the folder."""


class Bucket(Protocol):
    """What a lease needs of a bucket's storage (storage.py)."""

    def list(self, folder: str) -> "list[str]":
        """The names in a folder; none if there is no folder."""
        ...

    def read(self, path: str) -> bytes:
        """The content of a file."""
        ...

    def write(self, path: str, content: bytes, *, exclusive: bool = False) -> None:
        """Writes a file; exclusive: raises FileExistsError if there is one."""
        ...


class Lease:
    """A lease on a folder, renewed by a thread until it is closed. bucket: the folder's storage."""

    def __init__(self, bucket: Bucket, folder: PurePath | str, message: str):
        """Raises FolderInUse with this message if another process holds the folder."""
        self.bucket, self.folder, self.lost, self.renewals = bucket, str(folder), False, 0
        self.ended, self.mutex = threading.Event(), threading.Lock()
        self.number, self.renewed = watch_lease(bucket, folder, message) + 1, time.clock_gettime(CLOCK)
        try:
            self._write(exclusive=True)
        except FileExistsError:
            raise FolderInUse(message) from None
        HELD_LEASES[self.folder] = self
        threading.Thread(target=self._renew_until_closed, daemon=True).start()

    def _write(self, *, free: bool = False, exclusive: bool = False) -> None:
        owner = {"machine": machine_id(), "pid": os.getpid(), "host": platform.node()}
        record = {**owner, "renewals": self.renewals, "time": time.time(), "free": free}
        path = lease_path(self.folder, self.number)
        self.bucket.write(path, json.dumps(record).encode(), exclusive=exclusive)

    def _renew_until_closed(self) -> None:
        while not self.ended.wait(RENEW_SECONDS) and not self.lost:
            with contextlib.suppress(buckets.BucketError):  # the next round tries again
                self.renew()

    def renew(self, *, free: bool = False) -> None:
        """Rewrites the lease, or marks it as lost if it no longer counts. Raises BucketError if the bucket fails.

        free: releases it, so that another process may take it at once.
        """
        with self.mutex:
            start = time.clock_gettime(CLOCK)
            self.lost = self.lost or find_newest(self.bucket, self.folder) != self.number
            if not self.lost and (free or not self.ended.is_set()):
                self.renewals += 1
                self._write(free=free)
                self.renewed = start

    def check(self) -> None:
        """Raises FolderInUse if another process has the lease now, BucketError if that cannot be known."""
        if not self.lost and time.clock_gettime(CLOCK) - self.renewed > EXPIRY_SECONDS - RENEW_SECONDS:
            self.renew()
        if self.lost:
            raise FolderInUse(f"{self.folder}: another process has taken over; this one stops without writing more")

    def close(self) -> None:
        """Releases the lease."""
        if not self.ended.is_set():
            self.ended.set()
            HELD_LEASES.pop(self.folder, None)
            with contextlib.suppress(buckets.BucketError):  # the lease then expires
                self.renew(free=True)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def check_held(path: PurePath | str) -> None:
    """Raises FolderInUse if this process has lost its lease on a folder that contains this path."""
    for folder, lease in list(HELD_LEASES.items()):
        if str(path).startswith(f"{folder}/"):
            lease.check()


def is_held(bucket: Bucket, folder: PurePath | str) -> bool:
    """Whether some process has the lease of a folder, if the machines' clocks agree."""
    record = read_lease(bucket, folder, find_newest(bucket, folder))
    return not is_free(record) and time.time() - record.get("time", 0.0) < EXPIRY_SECONDS


def watch_lease(bucket: Bucket, folder: PurePath | str, message: str) -> int:
    """The number of the newest lease, once that is free or has expired; 0 if there is none.

    Raises FolderInUse with this message if its owner renews it meanwhile, or another process takes the folder.
    """
    number, deadline = find_newest(bucket, folder), time.monotonic() + EXPIRY_SECONDS
    record = first = read_lease(bucket, folder, number)
    if not is_free(record):
        holder = f"process {record['pid']} on {record['host']}"
        logging.warning(
            "%s: held by %s; waiting up to %.0f s to see whether it still is", folder, holder, EXPIRY_SECONDS
        )
    while not is_free(record) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        record = read_lease(bucket, folder, number)
        if find_newest(bucket, folder) != number or (record != first and not is_free(record)):
            raise FolderInUse(message)
    return number


def lease_path(folder: PurePath | str, number: int) -> str:
    """The path of a folder's lease of this number."""
    return f"{folder}/.lease/{number:08d}"


def find_newest(bucket: Bucket, folder: PurePath | str) -> int:
    """The number of the lease that counts; 0 if there is none."""
    return max((int(name) for name in bucket.list(f"{folder}/.lease") if name.isdigit()), default=0)


def read_lease(bucket: Bucket, folder: PurePath | str, number: int) -> dict[str, Any]:
    """The record of the lease of this number; {} for 0."""
    return json.loads(bucket.read(lease_path(folder, number))) if number else {}


def is_free(record: dict[str, Any]) -> bool:
    """Whether there is no lease, it was released, or its owner is a process of this machine that has ended."""
    if not record or record.get("free"):
        return True
    return record["machine"] == machine_id() != "" and not os.path.exists(f"/proc/{record['pid']}")


def machine_id() -> str:
    """Identifies this boot of this machine and its process namespace; "" where that is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
