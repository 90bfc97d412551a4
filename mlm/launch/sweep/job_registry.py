"""What of a sweep was submitted to clusters, as its folder on this machine keeps it, and what those say of it now."""
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import files, lease
from mlm.launch.cluster import registry


class Sent(NamedTuple):
    """A job that was written down to be submitted; whether it was, its cluster knows."""

    file: str                            # of the job, by which its cluster knows it
    cluster: str                         # row of CLUSTERS
    members: tuple[tuple[str, ...], ...]  # of each command: names of the points' folders; none of the table's job
    when: str
    said: str = ""                       # the cluster's word for it
    cancelled: bool = False              # by `cancel`, whatever became of it then


class Place(NamedTuple):
    """Where a point stands on a cluster."""

    file: Path        # of the job
    number: int       # of the command
    said: str         # "queued", "running", or "" where it is in no queue any longer


def path(root: Path) -> Path:
    return files.here(root) / "submitted.json"


def alone(root: Path):
    """A context in which no other process submits or cancels; waits for one that does."""
    return lease.alone(files.here(root))


def read(root: Path) -> list[Sent]:
    """In the order in which they were submitted. Raises Damaged where what is kept is."""
    try:
        kept = files.read_sealed(path(root)) or {"jobs": []}
    except files.Damaged as damaged:
        raise files.Damaged(f"{damaged}; it says what is queued: see for yourself, cancel that, and remove it"
                            ) from None
    return [Sent(**one | {"members": tuple(map(tuple, one["members"]))}) for one in kept["jobs"]]


def write(root: Path, sent: Sequence[Sent]) -> None:
    files.write_sealed(path(root), {"jobs": [one._asdict() for one in sent]})


def asked(sent: Sequence[Sent]) -> dict[str, dict[int, str]]:
    """What the clusters say now of each job, by its file: its commands that are "queued" or "running"."""
    found: dict[str, dict[int, str]] = {}
    for name in dict.fromkeys(one.cluster for one in sent):
        said = registry.CLUSTERS[name].states([Path(one.file) for one in sent if one.cluster == name])
        found |= {str(path): states for path, states in said.items()}
    return found


def places(sent: Sequence[Sent], states: dict[str, dict[int, str]]) -> dict[str, Place]:
    """By the name of a point's folder, where it was submitted last; one that is in a queue counts before others."""
    found: dict[str, Place] = {}
    for one in sent:
        for number, names in enumerate(one.members):
            said = states.get(one.file, {}).get(number, "")
            if one.cancelled and not said:
                continue
            for name in names:
                if said or name not in found or not found[name].said:
                    found[name] = Place(Path(one.file), number, said)
    return found
