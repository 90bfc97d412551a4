"""The notebooks run from their first cell to their last, on what is trained in seconds, and say what Python says."""

import json
from pathlib import Path

import pytest
from small import drawn_config, train_config
from test_docs import load_hooks

import mlm

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "experiments" / "use.ipynb"


def test_it_is_kept_without_outputs():
    for cell in [cell for path in NOTEBOOK.parent.glob("*.ipynb") for cell in json.loads(path.read_text())["cells"]]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_cell_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbformat = pytest.importorskip("nbformat")
    cfg = drawn_config(
        tmp_path / "cache",
        workdir=str(tmp_path / "run"),
        train__steps=3,
        train__batch_size=8,
        eval__batch_size=8,
        eval__max_examples=8,
    )
    train_config(cfg)
    monkeypatch.setenv("MLM_RUN", cfg.workdir)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    said = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert "('transformer', '', '2 layers of 16', 'mlm')" in said[0][0]["data"]["text/plain"]
    expected = mlm.load(cfg.workdir).fill_mask("the [MASK] milks the old cow .", top_k=3)[0]
    printed = [output for output in said[1] if output.get("name") == "stdout"]  # a vocabulary this small lacks words
    assert printed[0]["text"] == "".join(f"{one.probability:.3f}  {one.text}\n" for one in expected)
    assert all(len(outputs) > 0 for outputs in said) and "image/png" in said[-1][-1]["data"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_corpus_becomes_a_table():
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    *cells, table = load_hooks().run_notebook(NOTEBOOK.with_name("own_corpus.ipynb"))
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert outputs and all(output.get("name") == "stdout" for output in outputs)  # no value of a last expression
    rows = table.outputs[0]["data"]["text/markdown"]
    assert "| 15% " in rows and "| 40% " in rows
