"""Hands the points of a sweep that are not done to a cluster: points of one program in one command, an array of those.

Each command is `mlm.launch.sweep run --points=...` of the code as it is now, copied beside the runs (on several hosts
`mlm.cli.train`, a point each). What kills it, or sends it back to the queue, costs the steps since the last checkpoint.
What is queued or running, by the cluster's word, or held by a process, or done, is left out: called again, it adds
what is missing. Once all has ended, one more job makes the table and the report.
"""
import contextlib
import csv
import hashlib
import io
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

_ON = flags.DEFINE_string("on", "", "submit: the kind of cluster, one of mlm/launch/cluster/registry.py's.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "submit: show the files that would be submitted, and write nothing.")
_KIND = flags.DEFINE_string("kind", "",
                            "submit: the kind of device, one of mlm/launch/cluster/accelerators.py's; none: no accelerator.")
_HOSTS = flags.DEFINE_integer("hosts", 0, "submit: hosts that train each point together; 0: as many as the kind of "
                              "device has.", lower_bound=0, upper_bound=2**16)
_HOURS = flags.DEFINE_float("hours", 24.0, "submit: after which the cluster may end a command; it is queued again.")
_RUNNING = flags.DEFINE_integer("running", 8, "submit: commands at work at the same time, at most.", lower_bound=1,
                                upper_bound=10_000)
_EACH = flags.DEFINE_integer("each", 0, "submit: points of a command at most; 0: all of a program, or fewer where "
                             "--running allows as many commands.", lower_bound=0, upper_bound=10_000)
_OPTION = flags.DEFINE_multi_string("option", [], "submit: what a kind of cluster is told besides, as NAME=VALUE; may "
                                    "be repeated. A wrong name shows the right ones.")


def grouped(points: Sequence, running: int, each: int) -> list[list]:
    """Points of one program together, in their order, as at most `each` (0: any number) and as many groups as may run.
    """
    from mlm.train.step import program

    by_program: dict = {}
    for cfg in points:
        by_program.setdefault(program.blank(cfg), []).append(cfg)
    found = [group[i:i + (each or len(group))] for group in by_program.values()
             for i in range(0, len(group), each or len(group))]
    while len(found) < running and len(largest := max(found, key=len, default=[])) > 1:
        place, half = found.index(largest), (len(largest) + 1) // 2
        found[place:place + 1] = [largest[:half], largest[half:]]
    return found


def flag(name: str, value) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--config.{name}={text}"


def sweep_command(verb: str, experiment: str, settings: Sequence[str], points: Sequence = ()) -> tuple[str, ...]:
    """A command like the one that submits; points: those that it is to select."""
    from mlm.launch.sweep import sweep_points as names

    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(names.name, points))
    return (sys.executable, "-m", "mlm.launch.sweep", verb, experiment, *settings,
            *([f"--points={line.getvalue()}"] if points else []))


def run_command(cfg, base, recipe: Sequence[str]) -> tuple[str, ...]:
    """mlm.cli.train of a point: the fields that are not the base's. Raises ConfigError where that would be another run.
    """
    from mlm.base import errors, fields
    from mlm.train.run import initialization

    there = fields.flatten(base)
    differ = {name: value for name, value in fields.flatten(cfg).items() if value != there[name]}
    errors.require(initialization.resolve(base, differ) == cfg, "--hosts", hosts(),
                  f"1 for {cfg.workdir}, of which flags cannot tell mlm.cli.train")
    return (sys.executable, "-m", "mlm.cli.train", *(f"--config={path}" for path in recipe), "--distributed",
            *expected(), *(flag(name, value) for name, value in differ.items()))


def hosts() -> int:
    """Of each command."""
    from mlm.launch.cluster.accelerators import KINDS

    return _HOSTS.value or (KINDS[_KIND.value].hosts if _KIND.value in KINDS else 1)


def expected() -> list[str]:
    """What mlm.cli.train compares with what it finds: hosts that do not see each other would train alone."""
    from mlm.launch.cluster.accelerators import KINDS

    found = [f"--expect_processes={hosts()}"]
    if kind := KINDS.get(_KIND.value):
        found.append(f"--expect_devices={kind.chips * hosts() // kind.hosts}")
    return found


class Sweep(NamedTuple):
    """A sweep as a command line asks for it."""

    experiment: str            # the file
    root: Path
    configs: list              # of its points, those selected
    settings: tuple[str, ...]  # flags of the command line that say which points these are
    base: object               # the config that --config's file makes
    recipe: str                # that file, with ":ARGUMENT" where it takes one; "": none was given


def submit(sweep: Sweep) -> None:
    """Submits the points that are nowhere, and says what it did.

    Raises ConfigError for what cannot be asked of the cluster, before anything is written.
    """
    from mlm.base import errors
    from mlm.launch.cluster import registry
    from mlm.launch.sweep import code_snapshot, job_registry

    errors.require_one_of("--on", _ON.value, list(registry.CLUSTERS))
    unknown = [cfg for cfg in sweep.configs if not cfg.train.steps]
    errors.require(not unknown, "--budget", "seconds", "step times, which decide how long points are; to measure them, "
                  "run one point (--points) on a machine of the kind")
    code = code_snapshot.code(sweep.root, (sweep.experiment, *([file(sweep.recipe)] if sweep.recipe else [])))
    if dry():
        for job, _ in jobs(sweep, code):
            print(f"\n==> {job.folder / cluster().file} <==\n{cluster().text(job)}", end="")
        return
    cluster().ready()
    with job_registry.alone(sweep.root):
        for job, members in jobs(sweep, code):
            code_snapshot.write(code)
            write(sweep.root, job, members)


def file(path: str) -> str:
    """The file of FILE:ARGUMENT, as command.recipe reads it."""
    return path if os.path.exists(path) else path.partition(":")[0]


def cluster():
    from mlm.launch.cluster import registry

    return registry.CLUSTERS[_ON.value]


def jobs(sweep: Sweep, code) -> list[tuple]:
    """What is to be submitted now, each job with the names of the points' folders of each of its commands."""
    from mlm.base import files
    from mlm.launch.cluster.job import Job, options
    from mlm.launch.sweep import code_snapshot, job_registry

    sent = job_registry.read(sweep.root)
    live = job_registry.asked(sent)
    left, told = unplaced(sweep.configs, job_registry.places(sent, live), not dry() or reached(sweep.root))
    print(f"{len(sweep.configs)} points: {told}", flush=True)
    trains = [Path(one.file) for one in sent if one.cluster == _ON.value and live.get(one.file) and any(one.members)]
    if not left and (not trains or any(live.get(one.file) for one in sent if not any(one.members))):
        return []

    experiment, *recipe = (f"{code.folder / code_snapshot.within(file(path))}{path.removeprefix(file(path))}"
                           for path in (sweep.experiment, sweep.recipe) if path)
    settings = [*(f"--config={path}" for path in recipe), *sweep.settings]
    if hosts() > 1:
        groups = [[cfg] for cfg in left]
        commands = [run_command(cfg, sweep.base, recipe) for cfg in left]
    else:
        groups = grouped(left, _RUNNING.value, _EACH.value)
        commands = [sweep_command("run", experiment, settings, group) for group in groups]
    members = tuple(tuple(Path(cfg.workdir).name for cfg in group) for group in groups)
    title = name(sweep.root, len(sent), members)
    folder = Path(files.here(sweep.root).absolute(), "jobs")
    train = Job(title, tuple(commands), folder / title, code.folder, Path.cwd(), _KIND.value, hosts(),
                _HOURS.value, max(1, min(_RUNNING.value, len(commands))), (), str(sweep.root),
                options(cluster().options, _OPTION.value))
    last = f"{title}-table"
    table = train._replace(name=last, commands=(sweep_command("report", experiment, settings),), kind="", hosts=1,
                           folder=folder / last, hours=min(1.0, _HOURS.value), running=1,
                           after=(*([train.folder / cluster().file] if left else []), *trains))
    found = [(train, members)] if left else []
    found.append((table, ((),)))
    for job, _ in found:
        cluster().check(job)
    return found


def dry() -> bool:
    """Whether files are to be shown alone."""
    return _DRY_RUN.value


def reached(root: Path) -> bool:
    """Whether it can be known what is done; where a bucket is out of reach from here, says so."""
    from mlm.base import buckets, files
    from mlm.train.run import directory

    try:
        files.check_folder("config.workdir", str(root), writing=False, schemes=directory.SCHEMES)
    except buckets.OutOfReach as error:
        print(f"{error}; shown as if nothing were there yet", file=sys.stderr)
        return False
    return True


def unplaced(configs: Sequence, places: dict, there: bool) -> tuple[list, str]:
    """The points that are neither done nor at work nor to be, and how many are what, in words; there: whether their
    folders can be looked into."""
    from mlm.launch.sweep import sweep_state

    left, out = [], {"done": 0, "queued or running": 0, "held by a process": 0}
    for cfg in configs:
        place, at = places.get(Path(cfg.workdir).name), sweep_state.state(cfg).name if there else ""
        why = ("done" if at == "done" else "queued or running" if place and place.said else
               "held by a process" if at == "elsewhere" else "")
        if why:
            out[why] += 1
        else:
            left.append(cfg)
    return left, ", ".join([*(f"{count} {why}" for why, count in out.items() if count), f"{len(left)} to submit"])


def write(root: Path, job, members: Sequence[Sequence[str]]) -> None:
    """Submits a job that is written down before: whoever is killed in between finds it by its name, or not there."""
    from mlm.base import files
    from mlm.launch.sweep import job_registry
    from mlm.train.run import directory

    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.folder / cluster().file
    files.write_text(path, cluster().text(job))
    sent = job_registry.read(root)
    new = job_registry.Sent(str(path), _ON.value, members, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    job_registry.write(root, [*sent, new])
    for name in (name for names in members for name in names):
        with contextlib.suppress(OSError):  # how it failed before; it is tried again
            directory.failure(root / name).unlink()
    said = cluster().submit(job, path)
    job_registry.write(root, [*sent, new._replace(said=said)])
    what = (f"{sum(map(len, members))} points in {len(job.commands)} commands, at most {job.running} at a time"
            if any(members) else "after them the table and the report")
    print(f"{said}: {what}; what is printed: {job.folder}", flush=True)


def name(root: Path, before: int, members) -> str:
    """A job's name: this sweep's alone, and no other job's of it."""
    from mlm.base import files

    digest = hashlib.sha256(repr((str(files.absolute(root)), before, members)).encode()).hexdigest()[:6]
    words = re.sub(r"[^a-z0-9]+", "-", f"mlm-{root.name}".lower()).strip("-")[:26].strip("-")
    return f"{words}-{digest}"
