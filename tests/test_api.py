"""The functions of `import mlm`: they are there by name, cheap to import, and do what the commands do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small import environment, get_refusal, make_run_config

import mlm
from mlm.base import fields


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    changes = fields.find_changes(make_run_config(folder / "cache", folder / "run", eval__max_examples=8))
    return changes, mlm.train(changes)


def test_the_import_is_cheap_and_all_names_are_there():
    code = "import sys, mlm, mlm.data.rows.pack; assert 'jax' not in sys.modules; from mlm import *"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="it has Config, LanguageModel, Result"):
        mlm.fit  # noqa: B018


def test_a_result_is_that_of_result_json(trained):
    changes, result = trained
    content = json.loads(Path(result.workdir, "result.json").read_text())
    assert result.workdir == changes["workdir"] and result.steps == content["steps"] == 6
    assert result.loss == content["evaluation"]["loss"] and result.metrics == content["evaluation"]
    assert "evaluation" not in repr(result)


def test_the_same_call_trains_nothing_again(trained):
    changes, result = trained
    before = Path(result.workdir, "result.json").stat().st_mtime_ns
    assert mlm.train(changes).loss == result.loss
    assert Path(result.workdir, "result.json").stat().st_mtime_ns == before
    base = mlm.Config()
    assert mlm.train(fields.override(base, changes)).loss == result.loss


def test_an_evaluation_is_that_of_the_command(trained):
    model = mlm.load(trained[1].workdir)
    found = mlm.evaluate(model, max_sentences=3)
    stored = json.loads(Path(trained[1].workdir, "evaluations.json").read_text())
    assert "pseudo_likelihood" in found["evaluations"]
    assert (
        stored["evaluations"]["pseudo_likelihood"] == json.loads(json.dumps(found["evaluations"]))["pseudo_likelihood"]
    )


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: mlm.train({"model.widht": 3}), "did you mean config.model.width"),
        (lambda: mlm.train({"train.steps": "3"}), "config.train.steps = '3': expected a value of type int"),
        (lambda: mlm.load("no/such/folder"), "no/such/folder"),
        (lambda: mlm.evaluate("no/such/folder", max_sentence=3), "did you mean 'max_sentences'"),
        (lambda: mlm.evaluate("no/such/folder", max_sentences="3"), "max_sentences = '3': expected int"),
        (lambda: mlm.evaluate("no/such/folder", beams=["a"]), "beams = ['a']: expected tuple"),
        (lambda: mlm.evaluate("no/such/folder"), "no/such/folder"),
    ],
)
def test_bad_input_is_one_line(call, line):
    assert line in get_refusal(call)
