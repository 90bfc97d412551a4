"""Two processes that write the same, and one that is suspended or told to stop."""

import random
import signal
import time
from collections.abc import Mapping

from tests.chaos import workloads
from tests.chaos.workspace import BAD, EQUAL, NAMED, TrialResult, Workspace


def run_twice(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    """Each command twice at nearly the same time; one of them may refuse with an error line."""
    workspace.reset()
    line = ""
    for arguments in workload.commands:
        first = workspace.start(arguments)
        time.sleep(rng.choice((0, rng.uniform(0, 5))))
        second = workspace.start(arguments)
        exit_codes = first.wait(), second.wait()
        if exit_codes == (0, 0):
            continue
        failures = [code for code in exit_codes if code]
        error_lines = [text for text in first.read_output().splitlines() if text.startswith("error: ")]
        if failures != [2] or len(error_lines) != 1:
            return TrialResult(BAD, f"exit codes {exit_codes}: {first.read_output().strip()[-500:]}")
        line = error_lines[0]
    result = workspace.finish_workload(workload, expected)
    return TrialResult(NAMED, line) if line and result.verdict == EQUAL else result


def suspend_repeatedly(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    """Suspends and continues the processes again and again, as on an overloaded machine."""
    workspace.reset()
    for arguments in workload.commands:
        session = workspace.start(arguments)
        while session.process.poll() is None:
            time.sleep(rng.uniform(0.05, 0.8))
            pids = session.list_pids()
            session.send_signal(signal.SIGSTOP, pids)
            time.sleep(rng.uniform(0.05, 0.8))
            session.send_signal(signal.SIGCONT, pids)
        session.wait_for_all()
        if (exit_code := session.wait()) != 0:
            return TrialResult(BAD, f"exit code {exit_code}: {session.read_output().strip()[-500:]}")
    return workspace.compare(expected)


def stop_by_signal(
    workspace: Workspace, workload: workloads.Workload, expected: Mapping[str, str], rng: random.Random
) -> TrialResult:
    """SIGTERM or SIGINT at random moments. The log may then differ by a record of the step at which a run stopped."""
    workspace.reset()
    line = ""
    for arguments in workload.commands:
        exit_code, signals_left = 1, 2
        while exit_code != 0:
            session, number = workspace.start(arguments), rng.choice((signal.SIGTERM, signal.SIGINT))
            if signals_left:
                time.sleep(rng.uniform(1, 12))
                session.send_signal(number, session.list_pids()[:1])
                signals_left -= 1
            exit_code, output = session.wait(), session.read_output()
            if exit_code == 0:
                continue
            if exit_code not in (128 + number, -number) or "Traceback" in output:
                name = signal.Signals(number).name
                return TrialResult(BAD, f"{name}: exit code {exit_code}: {output.strip()[-500:]}")
            line = output.strip().splitlines()[-1] if exit_code > 0 and output.strip() else line
    result = workspace.compare(expected, ": history")
    return TrialResult(NAMED, line) if line and result.verdict == EQUAL else result
