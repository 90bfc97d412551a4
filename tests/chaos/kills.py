"""Kills: a workload is killed at random moments of chosen phases and restarted until it ends, and its outcome is
compared with an undisturbed one."""

import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos import digests, workloads
from tests.chaos.phases import PhaseObserver
from tests.chaos.processes import CommandSession, HangError
from tests.chaos.workspace import Workspace

POLL_SECONDS = 0.003  # between two looks at the phase
VICTIMS = {"sweep": ("all", "all", "runner", "worker")}  # drawn for each kill


class PhaseStats(NamedTuple):
    """A phase of an undisturbed run."""

    count: int
    seconds: float  # each time, on average


class Kill(NamedTuple):
    phase: str  # in which it died, by the files that it left
    target: str
    victims: str
    seconds: float  # after its start


def run_undisturbed(workspace: Workspace, workload: workloads.Workload) -> tuple[dict[str, str], dict[str, PhaseStats]]:
    """A workload's digests and phases. Raises RuntimeError if it fails."""
    workspace.reset()
    counts, seconds = Counter(), Counter()
    for arguments in workload.commands:
        observer, previous, last = PhaseObserver(workspace.folder, arguments), "", time.monotonic()
        session = workspace.start(arguments)
        while session.process.poll() is None:
            phase, now = observer.find_phase(), time.monotonic()
            counts[phase] += phase != previous
            seconds[previous or phase] += now - last
            previous, last = phase, now
            time.sleep(POLL_SECONDS)
        if session.wait() != 0:
            raise RuntimeError(f"{workload.name} does not run at all:\n{session.read_output()}")
    return digests.collect_digests(workspace.folder), {
        phase: PhaseStats(counts[phase], seconds[phase] / counts[phase]) for phase in counts
    }


def kill_in_phase(
    session: CommandSession,
    observer: PhaseObserver,
    targets: Sequence[str],
    phases: Mapping[str, PhaseStats],
    rng: random.Random,
    victims: str,
) -> Kill | None:
    """Kills a command at a random moment of the first target phase that comes; None if it ended before."""
    visits_left = {target: rng.choice((1, rng.randint(1, phases[target].count))) for target in targets}
    previous = phase = ""
    while session.process.poll() is None:
        phase = observer.find_phase()
        if phase != previous and phase in visits_left:
            visits_left[phase] -= 1
            if visits_left[phase] == 0:
                time.sleep(rng.random() * phases[phase].seconds)
                break
        previous = phase
        time.sleep(POLL_SECONDS)
    pids = session.list_pids()
    if session.process.poll() is not None or not pids:
        return None
    elapsed = time.monotonic() - session.start_time
    killed = {"all": pids, "runner": pids[:1], "worker": find_workers(pids)[:1]}[victims]
    if victims == "all" or not killed:
        session.kill()
        victims = "all"
    else:
        session.send_signal(signal.SIGKILL, killed)
    if victims == "runner":
        session.process.wait()
    return Kill(observer.find_phase(), phase, victims, round(elapsed, 3))


def find_workers(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def run_trial(
    workspace: Workspace,
    workload: workloads.Workload,
    targets: Sequence[str],
    expected: Mapping[str, str],
    phases: Mapping[str, PhaseStats],
    rng: random.Random,
) -> dict:
    """One fresh folder, with a kill in each target phase, then undisturbed."""
    workspace.reset()
    targets, cold, kills, problems = list(targets), rng.random() < 0.5, [], []
    start = time.monotonic()
    try:
        for arguments in workload.commands:
            problems += run_with_kills(workspace, workload, arguments, targets, kills, phases, rng, cold)
            if problems:
                break
        else:
            problems = digests.list_differences(digests.collect_digests(workspace.folder), expected)
    except (HangError, Exception) as error:
        problems = [f"{type(error).__name__}: {error}"]
    return {
        "workload": workload.name,
        "kills": [kill._asdict() for kill in kills],
        "problems": problems,
        "leftovers": digests.list_leftovers(workspace.folder),
        "seconds": round(time.monotonic() - start, 1),
    }


def run_with_kills(workspace, workload, arguments, targets, kills, phases, rng, cold) -> list[str]:
    """Restarts a command until it ends, with a kill in each target phase that comes; returns problems of its end."""
    while True:
        observer = PhaseObserver(workspace.folder, arguments)
        session, kill = workspace.start(arguments, cold=cold and "compiling" in targets), None
        if targets:
            victims = rng.choice(VICTIMS.get(workload.name, ("all",)))
            kill = kill_in_phase(session, observer, targets, phases, rng, victims)
        if kill is not None:
            kills.append(kill)
            targets.remove(kill.target)
        exit_code = session.wait()
        if kill is None or kill.victims == "worker":
            session.wait_for_all()
        if kill is None and exit_code != 0:
            return [f"exit code {exit_code}: {session.read_output()[-2000:]}"]
        if exit_code == 0:
            return []
