"""A run of two hosts, here two processes, one of which is lost: the other ends with an error line, and both continue.

If `mlm train` itself started them on one host, it notices the loss, and restarts both.
"""

import contextlib
import json
import random
import signal
import socket
import time
from collections.abc import Mapping

from tests.chaos import digests, workloads
from tests.chaos.phases import PhaseObserver
from tests.chaos.processes import CommandSession, HangError
from tests.chaos.workspace import BAD, EQUAL, NAMED, TrialResult, Workspace, find_error_line

DETECTION_SECONDS = 60  # within which a host must notice that the other is lost
HANG_SECONDS = 10  # --hang_after


def start_pair(workspace: Workspace, arguments) -> list[CommandSession]:
    with contextlib.closing(socket.create_server(("localhost", 0))) as free:
        port = free.getsockname()[1]
    return [
        workspace.start([*arguments, f"--coordinator=localhost:{port}", "--processes=2", f"--process={i}"])
        for i in range(2)
    ]


def wait_for_pair(sessions: list[CommandSession]) -> list[int]:
    return [session.wait() for session in sessions]


def run_undisturbed(workspace: Workspace, arguments) -> dict[str, str]:
    """The digests of two hosts; those of one differ, as sums of floats have another order."""
    path = workspace.out / "hosts.json"
    if not path.exists():
        workspace.reset()
        sessions = start_pair(workspace, arguments)
        if any(exit_codes := wait_for_pair(sessions)):
            raise ValueError(f"exit codes {exit_codes}: {sessions[0].read_output().strip()[-500:]}")
        path.write_text(json.dumps(digests.collect_digests(workspace.folder)))
    return json.loads(path.read_text())


def lose_process(workspace: Workspace, workload: workloads.Workload, rng: random.Random, number: int) -> TrialResult:
    """Kills (SIGKILL) or suspends (SIGSTOP) one of them at a random moment."""
    arguments = workload.commands[0]
    expected = run_undisturbed(workspace, arguments)
    workspace.reset()
    observer, sessions = PhaseObserver(workspace.folder, arguments), start_pair(workspace, arguments)
    lost = rng.randrange(2)
    target, delay = rng.choice(("compiling", "training", "saving", "results")), rng.uniform(0, 0.3)
    while all(session.process.poll() is None for session in sessions) and observer.find_phase() != target:
        time.sleep(0.003)
    time.sleep(delay)
    description = f"process {lost} {signal.Signals(number).name} in {observer.find_phase()}"
    victim, other = sessions[lost], sessions[1 - lost]
    victim.send_signal(number, victim.list_pids())
    try:
        exit_code = other.wait(time.monotonic() - other.start_time + DETECTION_SECONDS)
    except HangError:
        return TrialResult(BAD, f"{description}: the other did not end within {DETECTION_SECONDS} s")
    finally:
        victim.kill()
    output = "\n".join(line for line in other.read_output().splitlines() if not line.startswith("$ "))
    if exit_code == 0:
        line = "it was done"
    else:
        try:
            line = find_error_line(exit_code, output)
        except ValueError as error:
            return TrialResult(BAD, f"{description}: {error}")
    sessions = start_pair(workspace, arguments)
    try:
        if any(exit_codes := wait_for_pair(sessions)):
            message = f"restarted: exit codes {exit_codes}: {sessions[0].read_output().strip()[-500:]}"
            return TrialResult(BAD, f"{description}: {message}")
    finally:
        for session in sessions:
            session.kill()
    result = workspace.compare(expected)
    return (
        TrialResult(NAMED, f"{description}: {line}")
        if result.verdict == EQUAL
        else TrialResult(BAD, f"{description}: {result.message}")
    )


def kill_host(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    return lose_process(workspace, workload, rng, signal.SIGKILL)


def suspend_host(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    return lose_process(workspace, workload, rng, signal.SIGSTOP)


def lose_local_process(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    """Kills or suspends one of the processes that `mlm train --local_processes` started."""
    arguments = workload.commands[0]
    expected = run_undisturbed(workspace, arguments)
    workspace.reset()
    observer = PhaseObserver(workspace.folder, arguments)
    session = workspace.start([*arguments, "--local_processes=2", f"--hang_after={HANG_SECONDS}"])
    target, delay = rng.choice(("compiling", "training", "saving", "results")), rng.uniform(0, 0.3)
    number = rng.choice((signal.SIGKILL, signal.SIGSTOP))
    while session.process.poll() is None and observer.find_phase() != target:
        time.sleep(0.003)
    time.sleep(delay)
    if len(pids := session.list_pids()) < 3:
        return TrialResult(BAD, f"not two processes: {session.read_output().strip()[-500:]}")
    description = f"{signal.Signals(number).name} in {observer.find_phase()}"
    session.send_signal(number, [rng.choice(pids[1:])])
    if (exit_code := session.wait()) != 0:
        return TrialResult(BAD, f"{description}: exit code {exit_code}: {session.read_output().strip()[-500:]}")
    session.wait_for_all()
    line = next((line for line in session.read_output().splitlines() if "restarting all processes" in line), "")
    result = workspace.compare(expected)
    return TrialResult(result.verdict, f"{description}: {result.message or line}")
