"""Where each point of a sweep stands, its directory and the clusters asked; and how what was submitted is cancelled."""
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, files
from mlm.launch.cluster import job, registry
from mlm.launch.sweep import job_registry, sweep_points, sweep_state
from mlm.train.run import directory

ENDED = ("done", "damaged", "failed")


class Standing(NamedTuple):
    """A line of the table."""

    point: str
    state: str        # queued | running | lost (it was submitted, is in no queue and not done), else as overview.State
    step: str
    left: str         # of its time, as long as it runs
    where: str        # job and number of its command
    more: str         # score, or last error


def read(root: Path, configs: Sequence[config.Config]) -> list[Standing]:
    """Asks the clusters for the jobs of points that are not done. Raises ConfigError where that cannot be."""
    sent, at = job_registry.read(root), {Path(cfg.workdir).name: sweep_state.state(cfg) for cfg in configs}
    open_ = [one for one in sent if any(at[name].name != "done" for names in one.members for name in names
                                        if name in at)]
    places = job_registry.places(sent, job_registry.asked(open_))
    turns = taking(at, places)
    return [standing(cfg, at[name := Path(cfg.workdir).name], places.get(name), name in turns) for cfg in configs]


def taking(at: dict, places: dict) -> set[str]:
    """Of each command at work the point that it is at: one that is held, else the first that has not ended, since
    some disks do not say on one host what is held on another."""
    found: set[str] = set()
    there = {(place.file, place.number) for place in places.values() if place.said == "running"}
    for file, number in there:
        names = [name for name, place in places.items() if (place.file, place.number) == (file, number) and name in at]
        held = [name for name in names if at[name].name == "elsewhere"]
        found |= set(held or [name for name in names if at[name].name not in ENDED][:1])
    return found


def standing(cfg: config.Config, at: sweep_state.State, place: job_registry.Place | None, turn: bool) -> Standing:
    where = f"{place.file.parent.name} {place.number}" if place else ""
    ended, state, more = at.name in (*ENDED, "elsewhere"), at.name, at.error
    if state == "done":
        more = sweep_state.score(cfg)
    elif turn:
        state = "running"
    elif place and (place.said == "queued" or (place.said == "running" and not ended)):  # behind others of its command
        state = "queued"
    elif place and not place.said and not ended:
        state, more = "lost", last_line(job.log(place.file, place.number))
    step = f"{at.step:,}/{at.steps:,}" if at.steps else ""
    return Standing(sweep_points.name(cfg), state, step, left(cfg, at) if turn else "", where, more)


def left(cfg: config.Config, at: sweep_state.State) -> str:
    """The time that the steps to come take, as those did that are on record."""
    timed = [record for record in files.complete_lines(directory.metrics(cfg.workdir))[0] if record.get("timed_seconds")]
    if not timed:
        return ""
    seconds = int(timed[-1]["timed_seconds"] / timed[-1]["step"] * (at.steps - at.step))
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "it printed nothing"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")[:200]


def show(root: Path, configs: Sequence[config.Config]) -> None:
    from tabulate import tabulate

    found = read(root, configs)
    print(tabulate(found, headers=Standing._fields, tablefmt="plain", disable_numparse=True))
    states = [one.state for one in found]
    print("\n" + ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    if sent := job_registry.read(root):
        print(f"what commands print: {Path(sent[-1].file).parents[1]}/JOB/NUMBER.log")


def cancel(root: Path) -> None:
    """Cancels all that was submitted of a sweep; returns at once, those at work save and end."""
    said: list[str] = []
    if job_registry.read(root):
        with job_registry.alone(root):
            sent = job_registry.read(root)
            states = job_registry.asked(sent)
            live = [one for one in sent if states.get(one.file)]
            said = [word for one in live for word in states[one.file].values()]
            for name in dict.fromkeys(one.cluster for one in live):
                registry.CLUSTERS[name].cancel([Path(one.file) for one in live if one.cluster == name])
            job_registry.write(root, [one._replace(cancelled=one.cancelled or one in live) for one in sent])
    if not said:
        print("nothing of this sweep is queued or running")
        return
    print(f"cancelled: {said.count('queued')} queued commands, and {said.count('running')} at work, which save and "
          "end; submit goes on from there")
