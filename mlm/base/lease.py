"""A lease: exclusive ownership of a folder on a bucket by one process.

Leases are numbered objects in the folder's .lease/; the newest counts until it expires. A process takes the folder by
creating the next number, which only one process can do. It may do so if there is no lease, or the newest has expired:
its owner has released it, was a process of this machine that has ended, or has not renewed it for EXPIRY_SECONDS. The
owner renews it every RENEW_SECONDS. Once it has not managed to for EXPIRY_SECONDS, or a higher number exists, it writes
nothing more to the folder. The machines' clocks must agree up to EXPIRY_SECONDS - RENEW_SECONDS.
"""

import contextlib
import json
import os
import platform
import threading
import time
from pathlib import PurePath
from typing import Any

from absl import logging

from mlm.base import buckets, errors

RENEW_SECONDS, EXPIRY_SECONDS = 15.0, 60.0
POLL_SECONDS = 2.0  # between two looks at another process's lease
HELD_LEASES: dict[str, "Lease"] = {}  # by folder: the leases of this process


class FolderInUse(errors.ConfigError):
    """Another process holds the folder."""


class Lease(contextlib.AbstractContextManager["Lease"]):
    """A lease on a folder, renewed by a thread until it is closed. bucket: the folder's storage (storage.py)."""

    def __init__(self, bucket: Any, folder: PurePath | str, message: str):
        """Waits for a lease that may be a killed process's. Raises FolderInUse, with this message, if it is renewed."""
        self.bucket, self.folder, self.lost, self.expires = bucket, str(folder), False, 0.0
        self.ended, self.mutex = threading.Event(), threading.Lock()
        self.number = wait_for_expiry(bucket, folder, message) + 1
        try:
            self._write(exclusive=True)
        except FileExistsError:
            raise FolderInUse(message) from None
        HELD_LEASES[self.folder] = self
        threading.Thread(target=self._renew_until_closed, daemon=True).start()

    def _write(self, *, release: bool = False, exclusive: bool = False) -> None:
        expires = 0.0 if release else time.time() + EXPIRY_SECONDS
        record = {"machine": machine_id(), "pid": os.getpid(), "host": platform.node(), "expires": expires}
        self.bucket.write(make_lease_path(self.folder, self.number), json.dumps(record).encode(), exclusive=exclusive)
        self.expires = expires

    def _renew_until_closed(self) -> None:
        while not self.ended.wait(RENEW_SECONDS) and not self.lost:
            with contextlib.suppress(buckets.BucketError):  # the next round tries again
                self.renew()

    def renew(self, *, release: bool = False) -> None:
        """Rewrites the lease, to expire at once if `release`, or marks it as lost. Raises BucketError."""
        with self.mutex:
            self.lost = self.lost or read_newest(self.bucket, self.folder)[0] != self.number
            if not self.lost and (release or not self.ended.is_set()):
                self._write(release=release)

    def check(self) -> None:
        """Raises FolderInUse if another process has the lease now, BucketError if that cannot be known."""
        if not self.lost and time.time() > self.expires - RENEW_SECONDS:
            self.renew()
        if self.lost:
            raise FolderInUse(f"{self.folder}: another process has taken over; this one stops without writing more")

    def close(self) -> None:
        """Releases the lease."""
        if not self.ended.is_set():
            self.ended.set()
            HELD_LEASES.pop(self.folder, None)
            with contextlib.suppress(buckets.BucketError):  # the lease then expires
                self.renew(release=True)

    def __exit__(self, *failure: object) -> None:
        self.close()


def check_held(path: PurePath | str) -> None:
    """Raises FolderInUse if this process has lost its lease on a folder that contains this path."""
    for folder, lease in list(HELD_LEASES.items()):
        if str(path).startswith(f"{folder}/"):
            lease.check()


def wait_for_expiry(bucket: Any, folder: PurePath | str, message: str) -> int:
    """The number of the newest lease, or 0, once it has expired. Raises FolderInUse if its owner renews it."""
    number, record = first = read_newest(bucket, folder)
    if not has_expired(record):
        holder, seconds = f"process {record['pid']} on {record['host']}", record["expires"] - time.time()
        logging.warning("%s: held by %s; waiting up to %.0f s to see whether it still is", folder, holder, seconds)
    while not has_expired(record):
        time.sleep(POLL_SECONDS)
        newest = _, record = read_newest(bucket, folder)
        if newest != first and not (newest[0] == number and has_expired(record)):
            raise FolderInUse(message)
    return number


def make_lease_path(folder: PurePath | str, number: int) -> str:
    """The path of a folder's lease of this number."""
    return f"{folder}/.lease/{number:08d}"


def read_newest(bucket: Any, folder: PurePath | str) -> tuple[int, dict[str, Any]]:
    """The number and the record of the lease that counts; 0 and {} if there is none."""
    number = max((int(name) for name in bucket.list(f"{folder}/.lease") if name.isdigit()), default=0)
    return number, json.loads(bucket.read(make_lease_path(folder, number))) if number else {}


def has_expired(record: dict[str, Any]) -> bool:
    """Whether there is no lease, or it has expired, or its owner is a process of this machine that has ended."""
    if time.time() > record.get("expires", 0.0):
        return True
    return record["machine"] == machine_id() != "" and not os.path.exists(f"/proc/{record['pid']}")


def machine_id() -> str:
    """Identifies this boot of this machine and its process namespace; "" where that is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
