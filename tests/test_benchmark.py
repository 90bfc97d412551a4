"""The benchmark pairs rounds before it takes a median, its peers do the same work, and what is wrong is one line."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import objectives
from experiments.benchmark import accelerator, accelerator_sides, card, compiled, growth, matmul_limit, mlm_step, timing
from mlm.base import config, fields, files, recipe_constants
from mlm.experiment import recipes
from mlm.launch.cluster import accelerators
from mlm.training.run import resolution
from mlm.training.step import program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CELLS = ("elman", "gru", "lstm")


def transformer(**fields):
    return mlm_step.make_config(
        {
            "model.size": "tiny",
            "model.scan_unroll": 1,
            "train.batch_size": 2,
            "pack.seq_len": 32,
            "tokenizer.vocab_size": 300,
        }
        | fields
    )


def recurrent(cell):
    return mlm_step.make_config(
        {
            "model.family": "rnn",
            "model.cell": cell,
            "model.num_layers": 2,
            "model.scan_unroll": 1,
            "model.width": 24,
            "model.rnn_dim": 16,
            "train.batch_size": 2,
            "pack.seq_len": 16,
            "tokenizer.vocab_size": 300,
        }
    )


def test_a_transformer_is_bert_whatever_our_defaults_are():
    bert = {name: value for name, value in recipes.BERT.items() if name in ("model.positions", "model.norm_placement")}
    for size in ("tiny", "mini", "base"):
        model = mlm_step.make_config({"model.size": size, "pack.seq_len": 32}).model
        assert {f"model.{name}": getattr(model, name) for name in ("positions", "norm_placement")} == bert
        assert model.dropout == model.attention_dropout == recipe_constants.BERT_DROPOUT


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    ours_R, peer_R = np.array([1.0, 10.0, 100.0]), np.array([3.0, 20.0, 100.0])  # the machine slows down as they go
    assert timing.compute_ratio(ours_R, peer_R) == 2.0
    assert timing.compute_ratio(ours_R, ours_R[::-1]) == 1.0
    assert timing.make_row("c", "ms", ours_R, peer_R, "peer") == {
        "case": "c",
        "ours": 10_000.0,
        "peer": 20_000.0,
        "peer_name": "peer",
        "unit": "ms",
        "ratio": 2.0,
    }
    rate = timing.make_row("c", "tokens/s", ours_R, peer_R, "peer", work=40)
    assert (rate["ours"], rate["peer"], rate["ratio"]) == (4.0, 2.0, 2.0)  # more is better here, and the ratio agrees
    assert timing.make_size_row("c", "MiB", 10, 30.0)["ratio"] == 3.0


def test_peers_get_rows_masked_at_the_rate_and_the_step_learns_on_the_same():
    cfg = transformer(**{"train.batch_size": 8})
    batches, masked = mlm_step.make_batches(cfg), mlm_step.make_masked_batches(cfg)
    assert len(batches) == len(masked) == mlm_step.NUM_BATCHES
    for batch, rows in zip(batches, masked, strict=True):
        used = rows.weights_BxK > 0
        at = np.take_along_axis(batch.text.ids_BxL, rows.positions_BxK, 1)
        np.testing.assert_array_equal(at[used], rows.targets_BxK[used])
        assert set(used.sum(1)) <= {4, 5}  # 0.15 * 30
    assert (rows.ids_BxL != batch.text.ids_BxL).sum() > 10


def test_the_products_of_the_limit_are_the_models_own():
    cfg = transformer(**{"tokenizer.vocab_size": 4000, "model.dropout": 0.0, "model.attention_dropout": 0.0})
    products = matmul_limit.list_products(cfg)
    dense = cfg.model.num_layers * matmul_limit.count_flops(products["layer"]) + matmul_limit.count_flops(
        products["head"]
    )
    assert dense == pytest.approx(mlm_step.count_flops(cfg), rel=0.1)  # which has attention and what is no product too


def test_the_exponent_of_a_power_law_is_found():
    sizes = np.array([64, 128, 256, 512])
    assert growth.fit_exponent(sizes, 3.0 * sizes**1.7) == pytest.approx(1.7)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell", CELLS)
def test_torch_nets_have_our_parameters_and_the_same_ones_give_our_loss(cell):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e .[bench]")
    from experiments.benchmark import rnn

    assert "equal parameters give loss" in rnn.check_equal_work(recurrent(cell))


@pytest.mark.parametrize(("words", "expected"), [(["--only=rnn,transfomer"], "did you mean 'transformer'?")])
def test_a_wrong_part_or_flag_is_one_line(words, expected, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmark", *words, f"--workdir={tmp_path}/none"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 2 and not (tmp_path / "none").exists()
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and expected in done.stderr


def test_a_card_has_ours_first_and_what_its_peers_compile_last():
    sides = card.list_sides(accelerator_sides.FULL, is_smallest=False)
    ours = [side for side in sides if not side.name]
    assert sides[: len(ours)] == ours and {side.part for side in ours} == {"transformer", "lstm"}
    shapes = ("base 32 x 512", "base 128 x 128", "large 16 x 512")
    cases = [f"{shape} bfloat16{rest}" for shape in shapes for rest in (", no attention dropout", "")]
    assert [side.case for side in ours][:-1] == cases
    assert {side.case for side in sides if side.name} == {side.case for side in ours}
    names = [side.name for side in sides if side.name]
    assert [", compiled" in name for name in names] == sorted(", compiled" in name for name in names)


def test_a_card_writes_its_page_and_goes_on_without_its_tests(tmp_path, monkeypatch):
    """The tests' last line and the failures stand on the page; a second command does not run the tests again."""
    notes = ["1 failed, 2 passed in 3 s", "never run"]
    monkeypatch.setattr(card, "run_tests", lambda *_: {"part": "tests", "case": "fused_norm", "note": notes.pop(0)})

    def measure(folder, sides, parts, *, needs_accelerator, limit):
        assert needs_accelerator and 0 < limit <= card.LIMIT
        files.write_json_with_digest(folder / "machine.json", {"device": "H1", "versions": {"jax": "1", "torch": None}})
        files.write_text(folder / "table.md", "| part |\n")
        return ["a side: it ended"]

    monkeypatch.setattr(accelerator, "run", measure)
    for _ in range(2):
        assert card.run(tmp_path, is_smallest=False) == ["tests: 1 failed, 2 passed in 3 s", "a side: it ended"]
    page = (tmp_path / "results.md").read_text()
    for text in ("# H1\n", "jax 1.", "1 failed, 2 passed", "Failed: a side: it ended.", "| part |"):
        assert text in page


def test_each_compiled_case_is_a_config_and_an_accelerator():
    for case in compiled.list_cases():
        assert resolution.resolve(fields.override(config.Config(), case.changes)).tokenizer.vocab_size
        _, name = accelerators.split_count(case.devices)
        assert accelerators.find_accelerator("devices", name) in accelerators.ACCELERATORS


def test_the_compiled_cases_have_the_program_of_each_objective_at_scale_paper():
    def make_static(point):
        return program.make_static_config(resolution.resolve(fields.override(config.Config(), point)))

    compiled_programs = {make_static(point) for point in compiled.list_paper_points().values()}
    missing = [name for name, point in objectives.sweep("paper").items() if make_static(point) not in compiled_programs]
    assert not missing
