"""The quickstart is a sweep, with the flags that it was given."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[1] / "launch"
PYTHON = """#!/bin/sh
echo "$@" >> calls
exit "${FAILS:-0}"
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
        ["bash", str(project / "launch" / "quickstart.sh"), "--workers=1", "--config.seed=a b"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_quickstart_trains_with_its_flags_and_ends_as_the_sweep_does(project):
    flags = "experiments/architectures.py --scale=quick --workers=2 --workers=1 --config.seed=a b"
    for code in (0, 1, 130):
        assert call(project, FAILS=str(code)).returncode == code
    assert (project / "calls").read_text().splitlines() == [f"-m mlm sweep run {flags}"] * 3
