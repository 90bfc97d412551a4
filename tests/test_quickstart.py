"""The quickstart trains, then writes its report, with the flags that it was given."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[1] / "launch"
PYTHON = """#!/bin/sh
echo "$@" >> calls
case "$*" in *"sweep run"*) exit "${FAILS:-0}";; *) echo "written: runs/report.html";; esac
"""


@pytest.fixture
def project(tmp_path):
    """A project's scripts, and a Python that only says what it was called with."""
    (tmp_path / "launch").mkdir()
    for name in ("quickstart.sh", "environment.sh"):
        shutil.copy(LAUNCH / name, tmp_path / "launch")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "pip"):
        (tmp_path / ".venv" / "bin" / name).write_text(PYTHON)
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    installed = tmp_path / ".venv" / "installed-report"
    installed.touch()
    os.utime(installed, (2**31, 2**31))
    return tmp_path


def call(project, **environment):
    return subprocess.run(
        ["bash", str(project / "launch" / "quickstart.sh"), "--workers=2", "--config.seed=a b"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_quickstart_ends_with_the_path_of_its_report(project):
    done = call(project)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "written: runs/report.html")
    flags = "experiments/architectures.py --scale=quick --workers=2 --config.seed=a b"
    assert (project / "calls").read_text().splitlines() == [f"-m mlm sweep run {flags}", f"-m mlm sweep report {flags}"]


@pytest.mark.parametrize(("code", "calls"), [("1", 2), ("2", 1), ("130", 1)], ids=["a point", "the flags", "Ctrl-C"])
def test_what_failed_is_the_quickstart_s_end_too_and_the_report_is_of_the_other_points(project, code, calls):
    assert call(project, FAILS=code).returncode == int(code)
    assert len((project / "calls").read_text().splitlines()) == calls
