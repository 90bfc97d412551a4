"""Committed figures: what differs from them is reported in standard errors, and pages show them between markers."""

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_search import write_experiment

from mlm.base import config, errors, fields
from mlm.cli import sweep as command
from mlm.cli import sweep_compare
from mlm.cli.command import extract_config_flags
from mlm.launch.sweep import sweep_points, table_rehearsal
from mlm.report import reproduction

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "experiments" / "figures"


@pytest.fixture
def sweep_files(tmp_path, monkeypatch):
    """An experiment of two rows with two seeds each, whose made-up results the command reads."""
    experiment = command.load_experiment(str(write_experiment(tmp_path)))
    resolved = sweep_points.resolve_points(config.Config(), experiment.sweep("quick"), {})
    configs = [fields.override(cfg, {"workdir": f"runs/{name}-012345"}) for name, cfg in resolved.items()]
    results = [table_rehearsal.make_result(cfg, number) for number, cfg in enumerate(configs)]
    for result in results:
        times = {"time": "2026-11-25T10:00:00Z", "ended": "2026-11-25T10:06:00Z"}
        versions = {"python": "3.11", "versions": {}, "device": "a chip", "devices": 1, "processes": 1}
        result["provenance"] = [{"step": 0, "commit": "abcdef0123", "changed_files": "", **times, **versions}]
    monkeypatch.setattr(command.Sweep, "load_results", lambda sweep: results)

    def call(*flags):
        command.main(["sweep", "compare", str(tmp_path / "families.py"), f"workdir={tmp_path / 'runs'}", *flags])

    return tmp_path, results, call


def load_sweep(path):
    """The experiment, the config flags and the flags of the command in a file of figures."""
    figures = reproduction.read_figures(path)
    assert figures.command.startswith("mlm sweep run ")
    config_flags, others = extract_config_flags(shlex.split(figures.command)[3:])
    args = command.make_parser("list").parse_words(others)
    return command.load_experiment(str(ROOT / args.experiment)), config_flags, args


def test_figures_come_back_as_they_were_and_say_where_they_come_from(sweep_files, capsys):
    folder, results, call = sweep_files
    call("--write")
    figures = reproduction.read_figures(folder / "figures" / "families-quick.json")
    assert (figures.commit, figures.date, figures.device, figures.hours, figures.seeds) == (
        ("abcdef0", "2026-11-25", "a chip", 0.4, 2)
    )
    losses = [result["evaluation"]["loss"] for result in results[:2]]
    mean, error = figures.rows["lstm"]["loss"]
    assert mean == pytest.approx(sum(losses) / 2) and error == pytest.approx(abs(losses[0] - losses[1]) / 2)
    assert figures.rows["lstm"]["floor"].error == 0
    call()
    assert "0 differ by more than 3 standard errors" in capsys.readouterr().out
    assert figures.command == "mlm sweep run experiments/families.py --scale=quick"


def test_a_changed_figure_is_reported_by_how_many_standard_errors(sweep_files, capsys):
    folder, _, call = sweep_files
    call("--write")
    path = folder / "figures" / "families-quick.json"
    saved = json.loads(path.read_text())
    mean, error = saved["rows"]["lstm"]["loss"]
    saved["rows"]["lstm"]["loss"] = [mean + 4 * math.hypot(error, error), error]
    path.write_text(json.dumps(saved))
    with pytest.raises(SystemExit, match="1"):
        call()
    out, err = capsys.readouterr()
    assert "1 differ by more than 3" in out and f"lstm, loss: {mean:.4f}, committed" in err
    assert "(4.0 standard errors)" in err
    saved["rows"]["lstm"]["loss"][0] = mean + 2 * math.hypot(error, error)
    path.write_text(json.dumps(saved))
    call()
    saved["rows"]["lstm"]["floor"][0] += 0.01
    del saved["rows"]["transformer"]["accuracy"]
    saved["rows"]["gru"] = {"loss": [1.0, 0.1]}
    path.write_text(json.dumps(saved))
    with pytest.raises(SystemExit, match="1"):
        call()
    err = capsys.readouterr().err
    assert "lstm, floor: 2.0000, committed 2.0100 (an exact figure differs)" in err
    assert "transformer, accuracy: not among the committed figures" in err and "gru, loss: missing" in err


def test_a_page_s_generated_parts_are_written_and_its_sentences_stay(sweep_files):
    folder, _, call = sweep_files
    page = folder / "page.md"
    page.write_text("# A\n\n<!-- figures: families-quick -->\nold\n<!-- end of figures -->\n\nBy hand.\n")
    call("--write", f"--pages={page}")
    text = page.read_text()
    assert text.startswith("# A\n") and text.endswith("By hand.\n") and "\nold\n" not in text
    assert "mlm sweep run experiments/families.py --scale=quick" in text and "Commit abcdef0" in text
    assert re.search(
        r"\*\*rnn is ahead: .* the other \(transformer\) .*\*\*\n\n\| model .*\n.*\n\| \*\*rnn\*\* ", text
    )  # the best first
    assert (folder / "figures" / "families-quick.csv").read_text().startswith("model,")
    call(f"--pages={page}")
    assert page.read_text() == text
    for wrong, message in (
        ("<!-- figures: families-quik -->\n<!-- end of figures -->", "did you mean 'families-quick'?"),
        ("<!-- figures: families-quick -->\n", "<!-- end of figures --> after each"),
    ):
        page.write_text(wrong)
        with pytest.raises(errors.ConfigError, match=message):
            call(f"--pages={page}")
        assert page.read_text() == wrong


def test_a_page_shows_the_headline_between_the_experiment_s_own_tables_and_others(sweep_files, monkeypatch):
    folder, results, call = sweep_files
    source = folder / "families.py"
    further = (
        "from mlm.report.table import Column, NamedTable\n"
        "def tables(results):\n"
        "    columns = [Column('law', 'law')]\n"
        "    return [NamedTable('laws', 'Laws', 'Of all.', [{'law': 'falls'}], columns),\n"
        "        NamedTable('more', 'More', 'Not asked for.', [{'law': 'rises'}], columns)]\n"
        "def claims(names): return [('lstm', 'transformer')]\n"
    )
    source.write_text(f"{source.read_text()}\n{further}\nRESULT_TABLES = ('claims', 'laws', 'no')\n")
    results[0]["provenance"][0]["commit"] = "0123456789"
    page = folder / "page.md"
    page.write_text("<!-- figures: families-quick -->\n<!-- end of figures -->\n")
    call("--write", f"--pages={page}")
    text = page.read_text()
    assert re.search(r"\| model +\| +loss above the floor \(nats\) \|.* seeds \|\n", text)
    assert "Commit abcdef0 (3 runs), 0123456 (1 run)" in text
    assert "\n**Laws** Of all.\n\n| law   |\n" in text and "| falls |" in text and "rises" not in text
    assert re.search(
        r"\*\*Claims\*\* Held-out .*\n\n\| verdict +\| is this better +\|.*\n.*\n\| \w+ +\| lstm +\| transformer +\| planned",
        text,
    )
    call(f"--pages={page}")
    assert page.read_text() == text  # from the file of figures alone
    assert text.index("**Laws**") < text.index("loss above the floor (nats) |") < text.index("**Claims**")
    assert "<details" not in text
    monkeypatch.setattr(reproduction, "MAX_ROWS", 3)
    call("--write", f"--pages={page}")
    folds = re.findall(r"<summary>Table of (\d+) rows</summary>\n\n(.*?)\n\n</details>", page.read_text(), re.DOTALL)
    assert folds[0][1].startswith("| model ") and "| falls |" not in "".join(text for _, text in folds)
    assert all(len(re.findall(r"\n\|.*\w", text)) == int(count) > 3 for count, text in folds)


@pytest.mark.exhaustive(but=("default_recipe-check", "small_bert-milestones"))
@pytest.mark.parametrize("name", [path.name.removesuffix(".tar.xz") for path in sorted(FIGURES.glob("*.tar.xz"))])
def test_committed_figures_of_a_kept_sweep_come_from_its_archive(tmp_path, capsys, name):
    """A point's name has a digest of its config: an archive of other recipes than the experiment's would fail."""
    shutil.unpack_archive(FIGURES / f"{name}.tar.xz", tmp_path, filter="data")
    path, *flags = shlex.split(reproduction.read_figures(FIGURES / f"{name}.json").command)[3:]
    sweep = [str(ROOT / path), *flags, f"workdir={tmp_path / name}"]
    evaluate = reproduction.read_figures(FIGURES / f"{name}.json").evaluate.partition("/*/ ")[2]
    command.main(["sweep", "compare", *sweep, "--write", f"--figures={tmp_path / name}.json", f"--evaluate={evaluate}"])
    assert (tmp_path / f"{name}.json").read_text() == (FIGURES / f"{name}.json").read_text()
    assert capsys.readouterr().err == ""  # the archive has no run of another sweep
    assert all((point / "result.json").exists() for point in (tmp_path / name).iterdir() if point.is_dir())


def test_committed_figures_are_of_experiments_and_the_script_names_its_parts(tmp_path):
    for path in FIGURES.glob("*.json"):
        figures = reproduction.read_figures(path)
        experiment, _, args = load_sweep(path)
        assert path.stem == sweep_compare.name_sweep(experiment, args)
        assert (figures.experiment, figures.scale) == (Path(args.experiment).stem, args.scale)
        points = {name.rpartition("-seed")[0] or name for name in experiment.sweep(figures.scale)}
        assert set(figures.rows) == points
    fake = tmp_path / "experiments"
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "environment.sh").write_text("")
    (fake / "figures").mkdir(parents=True)
    recorded = {
        "command": "mlm sweep run experiments/scaling.py --scale=quick data.document_boundary=' = [a b] = '",
        "evaluate": "mlm evaluate runs/scaling-quick/*/ --blimp='a b'",
    }
    (tmp_path / "runs" / "reproduce" / "scaling-quick" / "row").mkdir(parents=True)
    (fake / "figures" / "scaling-quick.json").write_text(json.dumps(recorded))
    script = fake / "reproduce.sh"
    script.write_text((ROOT / "experiments" / "reproduce.sh").read_text())
    wrong = subprocess.run(["bash", script, "scalin"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and wrong.stderr == (
        "error: PART = 'scalin': expected quick, text, all, an experiment, or one of scaling-quick \n"
    )
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)

    def answer(failing, *parts):
        python.write_text(
            f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nprintf "<%s>" "$@"\n[ "$4" != {failing} ]\n'
        )
        python.chmod(0o755)
        return subprocess.run(["bash", script, *parts], capture_output=True, text=True, check=False)

    done = answer("compare")
    words = (
        "<experiments/scaling.py><--scale=quick><data.document_boundary= = [a b] = >"
        "<workdir=runs/reproduce/scaling-quick>"
    )
    start = "<-m><mlm><sweep>"
    run = f"{start}<run>{words}<--workers=2>"
    evaluate = "<-m><mlm><evaluate><runs/reproduce/scaling-quick/row/><--blimp=a b>"
    assert done.stdout == f"{run}{evaluate}{start}<compare>{words}" and done.returncode == 1
    recorded.pop("evaluate")
    (fake / "figures" / "scaling-quick.json").write_text(json.dumps(recorded))
    assert answer("compare").stdout == f"{run}{start}<compare>{words}"
    failed = answer("run")
    assert failed.stdout == run and failed.returncode == 1
    (fake / "scaling.py").write_text('SCALES = {\n    "text": {},\n}\n')
    (fake / "other.py").write_text('    Column("text", "text"),\n')
    words = "<experiments/scaling.py><--scale=text><workdir=runs/reproduce/scaling-text>"
    for part in ("text", "scaling-text"):  # without figures there is nothing to compare with
        assert answer("compare", part).stdout == f"{start}<run>{words}<--workers=2>"
    (fake / "figures" / "scaling-text.json").write_text(json.dumps({"command": recorded["command"]}))
    assert f"{start}<compare>" in answer("compare", "text").stdout
