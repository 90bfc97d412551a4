"""The wheel, installed without the checkout and without any extra: the command trains, fills and runs a sweep."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from small import environment

import mlm

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # minutes of building and installing

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".*", "__pycache__", "*.egg-info", "build", "dist", "node_modules", "runs", "shared", "site")
# Modules of packages that extras alone install, which a plain installation is without.
EXTRAS = ("jinja2", "mlflow", "pyphen", "sacrebleu", "tensorboardX", "vl_convert", "wandb")
TINY = {
    "model.family": "feedforward",
    "model.width": 8,
    "model.mlp_dim": 8,
    "model.num_layers": 1,
    "model.window": 1,
    "data.language.train_documents": 200,
    "data.language.validation_documents": 20,
    "pack.seq_len": 32,
    "train.batch_size": 4,
    "train.steps": 10,
    "train.eval_every": 10,
}
EXPERIMENT = f'''"""Does the seed matter?"""

from mlm.report import summary
from mlm.report.table import Column

TINY = {TINY}
SCALES = {{"quick": TINY}}


def sweep(scale):
    return {{f"seed{{seed}}": SCALES[scale] | {{"seed": seed}} for seed in (0,)}}


def table(results):
    return summary.build_table(results, [Column("steps", "steps")], lambda seeds: {{"steps": seeds[0]["steps"]}})
'''


def copy_tree(folder):
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_tree(folder / "tree")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", f"--outdir={folder}", str(folder / "tree")]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def call(wheel, tmp_path_factory):
    """Calls a program with the wheel and no extra in an empty folder; returns what it prints, and how it ended."""
    folder = tmp_path_factory.mktemp("installed")
    site, work, plain = (folder / name for name in ("site", "work", "plain"))
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", f"--target={site}", str(wheel)]
    subprocess.run(pip, check=True)
    work.mkdir()
    plain.mkdir()
    (plain / "sitecustomize.py").write_text(f"import sys\n\nsys.modules.update(dict.fromkeys({EXTRAS}))\n")
    variables = environment(PYTHONPATH=os.pathsep.join([str(site), str(plain)]))

    def call(*words, code=0):
        words = [str(site / "bin" / "mlm") if word == "mlm" else word for word in words]
        done = subprocess.run(words, cwd=work, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
        return done

    call.site, call.work = site, work
    return call


def test_nothing_but_the_package_is_installed_and_all_of_its_files(call):
    assert {path.name for path in call.site.iterdir()} == {"mlm", f"mlm-{mlm.__version__}.dist-info", "bin"}
    assert [path.name for path in (call.site / "bin").iterdir()] == ["mlm"]
    assert list_files(call.site / "mlm") == list_files(ROOT / "mlm")


def list_files(folder):
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__"} & {*path.parts} and not path.name.startswith(".")
    }


def test_its_metadata_are_those_of_the_project(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        header, _, readme = archive.read(name).decode().partition("\n\n")
    lines = header.splitlines()
    assert {f"Version: {mlm.__version__}", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"} <= {*lines}
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if line.startswith("Provides-Extra")}
    assert extras == {name.replace("_", "-") for name in project["optional-dependencies"]}
    assert readme.strip() == (ROOT / "README.md").read_text().strip()


def test_the_command_trains_fills_and_runs_a_sweep_without_the_checkout(call):
    (call.work / "seeds.py").write_text(EXPERIMENT)
    done = call("mlm", "sweep", "run", "seeds.py")
    assert "1 of 1 points are done" in done.stdout and "no figures; they need the package vl_convert: " in done.stdout
    folder = call.work / "runs" / "seeds-quick"
    assert "| 10" in (folder / "table.md").read_text() and not (folder / "figures").exists()
    (log,) = (folder / "logs").iterdir()
    assert "TensorBoard" not in log.read_text()  # the extra is not installed, and nothing that would show its files
    (result,) = folder.glob("seed0-*/result.json")
    assert len(call("mlm", "fill", result.parent, "the [MASK] milks the old cow .").stdout.splitlines()) > 2


def test_what_needs_an_extra_ends_at_its_start_in_one_line_that_names_the_extra(call):
    line = 'error: mlm serve: expected the package jinja2: pip install "mlm[serve]"'
    assert call("mlm", "serve", "runs/a", code=2).stderr.splitlines() == [line]


@pytest.mark.parametrize("name", ["mlm", "clone", "orbax"])
def test_a_clone_of_any_name_is_imported_from_the_folder_beside_it_and_logs_its_own_lines_alone(tmp_path, name):
    copy_tree(tmp_path / name)
    (site := tmp_path / "site").mkdir()
    build = f"from setuptools import build_meta; print(build_meta.build_editable({str(site)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path / name, check=True, capture_output=True)
    with zipfile.ZipFile(*site.glob("*.whl")) as archive:
        archive.extractall(site)
    code = f"""
import logging, runpy, site, sys
count = len(sys.path)
site.addsitedir({str(site)!r})
sys.path[1:1] = sys.path[count:]  # before those of another installation
sys.argv = ["mlm", "--version"]
runpy.run_module("mlm")
from mlm.cli import command
command.configure_logs(has_progress=True)
for folder, level in (("mlm", "INFO"), (".venv/orbax", "INFO"), (".venv/orbax", "WARNING")):
    values = {{"name": "", "msg": folder, "levelname": level, "levelno": getattr(logging, level)}}
    values["pathname"] = {str(tmp_path / name)!r} + f"/{{folder}}/file.py"
    logging.getLogger().handle(logging.makeLogRecord(values))
import mlm
print(mlm.__file__)
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, env=environment(PYTHONPATH=""), capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(tmp_path / name / "mlm" / "__init__.py"), done.stderr
    assert done.stderr.splitlines() == ["mlm", "warning: .venv/orbax"]
