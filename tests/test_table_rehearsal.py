"""A bug in an experiment's table is told before anything trains; what only real results show is not taken for one.

That no experiment of the project is refused: test_experiments.py.
"""

import contextlib

import pytest
from small import get_refusal

from mlm.base import config, errors, fields
from mlm.cli import sweep as command
from mlm.launch.sweep import runner, sweep_points, table_rehearsal

EXPERIMENT = """from mlm.experiment.recipes import QUICK
from mlm.report import summary
from mlm.report.table import Column

SCALES = {{"quick": QUICK}}

def sweep(scale):
    return {{f"width{{width}}-seed0": QUICK | {{"model.width": width}} for width in (16, 32)}}

def describe(seeds):
    return {{"width": {cell}}}

def table(results):
    return summary.build_table(results, [Column("width", "width")], describe)
"""


def load(folder, cell):
    path = folder / "experiment.py"
    path.write_text(EXPERIMENT.format(cell=cell))
    return command.load_experiment(str(path))


def resolve(experiment, scale):
    points = sweep_points.resolve_points(config.Config(), experiment.sweep(scale), {})
    return [fields.override(cfg, {"workdir": f"runs/{name}-012345"}) for name, cfg in points.items()]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("seeds[0]['config']['model.widht']", "KeyError: 'model.widht'"),
        ("seeds[0]['evaluatoin']", "KeyError: 'evaluatoin'"),
        ("seed[0]", "NameError: name 'seed' is not defined"),
        ("seeds[0].config", "AttributeError: 'dict' object has no attribute 'config'"),
        ("1 + str(seeds)", "TypeError: unsupported operand"),
        ("f\"{seeds[0]['steps']:.2q}\"", "ValueError: "),
    ],
)
def test_a_bug_is_one_line_with_the_user_s_line(tmp_path, cell, message):
    experiment = load(tmp_path, cell)
    line = get_refusal(table_rehearsal.check_table, experiment, resolve(experiment, "quick"))
    assert f"experiment.py', line 11: {message}" in line and "before anything is trained" in line


def test_a_bug_of_a_further_table_is_found_too(tmp_path):
    path = tmp_path / "experiment.py"
    path.write_text(EXPERIMENT.format(cell="1") + "\ndef tables(results):\n    return [results.rows]\n")
    experiment = command.load_experiment(str(path))
    with pytest.raises(errors.ConfigError, match="line 17: AttributeError: 'list' object has no attribute 'rows'"):
        table_rehearsal.check_table(experiment, resolve(experiment, "quick"))


@pytest.mark.parametrize(("name", "is_row"), [("width80", True), ("width64", True), ("widht80", False)])
def test_a_claim_is_about_a_row_of_some_scale(tmp_path, name, is_row):
    text = EXPERIMENT.format(cell="1").replace("{", '{"wide": QUICK, ', 1).replace("16", "16 * len(scale)")
    path = tmp_path / "experiment.py"
    path.write_text(f"{text}\ndef claims(names):\n    return [('width32', '{name}')]\n")
    experiment = command.load_experiment(str(path))
    message = f"that claims.. names = '{name}': expected one of width32, width64, width80; did you mean 'width80'"
    with contextlib.nullcontext() if is_row else pytest.raises(errors.ConfigError, match=message):
        table_rehearsal.check_table(experiment, resolve(experiment, "quick"))


def test_claims_may_name_groups_of_other_scales(tmp_path):
    text = EXPERIMENT.format(cell="1") + "\ndef group(result):\n    return str(result['config']['model.width'])\n"
    path = tmp_path / "experiment.py"
    path.write_text(f"{text}\ndef claims(names):\n    return [('32', '16'), ('64', '32')]\n")
    experiment = command.load_experiment(str(path))
    table_rehearsal.check_table(experiment, resolve(experiment, "quick"))


@pytest.mark.parametrize(
    ("cell", "columns", "message"),
    [
        ("1", "run_columns.select_columns('size', 'lerning_rate')", "'lerning_rate': .*did you mean 'learning_rate'"),
        ("1", "[Column('width', 'width', '.3q')]", "ValueError: "),
        ("1", "['width']", "AttributeError: 'str' object has no attribute 'name'"),
    ],
)
def test_columns_that_no_results_would_fill_are_one_line_before_training(tmp_path, cell, columns, message):
    load(tmp_path, cell)
    text = (tmp_path / "experiment.py").read_text().replace('[Column("width", "width")]', columns)
    (tmp_path / "experiment.py").write_text(text.replace("import summary", "import run_columns, summary"))
    experiment = command.load_experiment(str(tmp_path / "experiment.py"))
    with pytest.raises(errors.ConfigError, match=f"{message}.*before anything is trained"):
        table_rehearsal.check_table(experiment, resolve(experiment, "quick"))


@pytest.mark.parametrize(
    "cell",
    [
        "seeds[0]['history'][7]['loss']",
        "seeds[0]['evaluations']['grammar_probes']['agreement']['distance'][0]",
        "seeds[0]['evaluation']['word_loss']",
        "seeds[0]['summary'].get('finetuned_tasks', {})",
        "1 / (seeds[0]['evaluation']['loss'] - seeds[0]['evaluation']['loss'])",
    ],
)
def test_what_only_real_results_show_is_no_bug(tmp_path, cell):
    experiment = load(tmp_path, cell)
    table_rehearsal.check_table(experiment, resolve(experiment, "quick"))


def test_a_run_is_refused_before_a_worker_starts(tmp_path, monkeypatch):
    load(tmp_path, "undefined")
    monkeypatch.setattr(runner, "SweepRunner", lambda *_, **__: pytest.fail("it began"))
    words = [str(tmp_path / "experiment.py"), f"workdir={tmp_path / 'runs'}"]
    for verb in ("run", "submit"):
        with pytest.raises(errors.ConfigError, match=r"line 11: NameError: name 'undefined' is not defined"):
            command.main(["sweep", verb, *words, *(["--cluster=slurm"] if verb == "submit" else [])])
    assert not (tmp_path / "runs").exists()
