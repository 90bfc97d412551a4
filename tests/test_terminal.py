"""What a person reads in a terminal: help that fits it, flags that are there, completed fields, times left."""

import re
import subprocess

import pytest
from small import drawn_config
from test_docs import load_hooks

from mlm.base import errors, fields, files
from mlm.cli import completion, entry, sweep
from mlm.launch.sweep.sweep_state import SweepDisplay, read_state
from mlm.objectives import mlm
from mlm.training.run import log
from mlm.training.run.directory import RunDirectory

COMMANDS = [(name, "") for name in entry.COMMANDS] + [("sweep", verb) for verb in sweep.VERBS]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_the_terminal_and_names_flags_that_are_there(command, monkeypatch):
    parser = load_hooks().make_parser(*command)
    others = {option for other in COMMANDS for option in load_hooks().make_parser(*other)._option_string_actions}
    for columns in ("76", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        text = parser.format_help()
        assert [line for line in text.splitlines() if len(line) > int(columns) and " " in line.strip()] == []
    text = re.sub(
        r"mlm \w+ --\w+|^    mlm .*(?:\n        .*)*|mlm sweep (?!\w+ --help).*", "", text, flags=re.MULTILINE
    )
    named = set(re.findall(r"(?<![\w-])--[a-z_]+(?:-[a-z_]+)*", text)) & others
    assert named <= {*parser._option_string_actions}


@pytest.mark.parametrize(
    "line", ["train model.si", "sweep run a.py --scale=quick model.si", "evaluate runs/a model.si", "pack model.si"]
)
def test_a_bare_field_is_completed(line, capsys):
    pytest.importorskip("shtab", reason="the extra completion is not installed")
    completion.main(["completion", "bash"])
    words = ["mlm", *line.split()]
    code = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _mlm_complete mlm; echo ${{COMPREPLY[*]}}"
    done = subprocess.run(["bash"], input=capsys.readouterr().out + code, capture_output=True, text=True)
    assert done.stdout.strip() == "model.size="


def test_a_wrong_command_is_told_the_nearest():
    with pytest.raises(errors.ConfigError, match=r"^mlm trian: no such command; did you mean mlm train\?"):
        entry.run_command(["trian"])


def test_an_evaluation_s_line_says_references_once():
    values = {"loss": 2.0, "loss_se": 0.1, "accuracy": 0.5, "accuracy_se": 0.1, "unigram_loss": 4.0, "unscored": 3}
    scores = [score for score in mlm.SCORES if score.name in values]
    first = log.format_evaluation(values, scores)
    assert "3 labels not scored" in first
    later = log.format_evaluation(values | {"loss": 1.5}, scores, first.split(", "))
    assert "1.5000" in later and "not scored" not in later and "unigram" not in later


def test_the_time_left_of_a_sweep_follows_from_the_work_that_is_done(tmp_path):
    """Points that fail have done nothing by it; a phase of half as many examples takes half of the time."""
    points = [drawn_config(tmp_path, workdir=str(tmp_path / name), train__steps=100) for name in "abcde"]
    display = SweepDisplay(points)
    assert display.sweep_time_left(display.start_time + 60) == ""
    for cfg, step in zip(points, (100, 50, 0, 0, 0), strict=True):
        display.states[cfg.workdir] = display.states[cfg.workdir]._replace(step=step)
    display.states[points[-1].workdir] = display.states[points[-1].workdir]._replace(name="failed")
    assert display.sweep_time_left(display.start_time + 60) == "about 0:01:40 left"
    size = points[0].train.batch_size
    changes = {"phases.shares": (0.5, 0.5), "phases.batch_size": (2 * size, size)}
    cfg = fields.override(points[0], changes)
    files.write_records(RunDirectory(cfg.workdir).metrics, [{"step": 50, "timed_seconds": 60.0}])
    assert read_state(cfg).time_left == "0:00:30"
