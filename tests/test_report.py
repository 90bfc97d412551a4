"""The log survives a kill; tables carry the right intervals; FLOPs are all counted."""

import csv

import numpy as np
import pytest
from small import VOCAB, small_config

from experiments import architectures
from mlm.base import config, fields, files
from mlm.objectives import mlm
from mlm.report import table
from mlm.training.compilation import cost
from mlm.training.run import log
from mlm.training.run.directory import RunDirectory


def test_a_torn_last_line_is_left_out_and_a_changed_one_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    files.write_records(path, [{"step": 1, "loss": 2.5}, {"step": 2}, {"step": 3}])
    whole = path.read_text()
    path.write_text(whole[:-5])
    assert files.read_records(path) == [{"step": 1, "loss": 2.5}, {"step": 2}]
    path.write_text(whole.replace("}", ', "crc32": "0"}'))  # of an earlier version
    assert files.read_records(path) == [{"step": 1, "loss": 2.5}, {"step": 2}, {"step": 3}]
    for spoilt in (whole.replace("step", "stop", 1), whole.replace('"step": 1', '"step" 1'), "{}\n" + whole):
        path.write_text(spoilt)
        with pytest.raises(files.DamagedFile, match="line 1"):
            files.read_records(path)
        assert files.read_complete_lines(path)[0][-2:] == [{"step": 2}, {"step": 3}]


def test_a_continued_run_drops_the_records_that_it_writes_again(tmp_path):
    writer = log.MetricsWriter(RunDirectory(tmp_path), config.Config(), 0)
    for step in (10, 20, 30):
        writer.write(step, {"loss": 1.0 * step})
    writer.close()
    with RunDirectory(tmp_path).metrics.open("a") as file:
        file.write('{"step": 40, "lo')
    writer = log.MetricsWriter(RunDirectory(tmp_path), config.Config(), 20)
    writer.write(30, {"loss": 5.0})
    writer.close()
    records = files.read_records(RunDirectory(tmp_path).metrics)
    assert [(record["step"], record["loss"]) for record in records] == [(10, 10), (20, 20), (30, 5)]


def test_a_run_is_reported_with_what_it_was_asked_when_it_ended_and_where_it_lies_now(tmp_path):
    assert RunDirectory(tmp_path).read_finished() is None
    identity = {"config": {"workdir": "before", "seed": 1}, "format": fields.RUN_FORMAT}
    result = identity | {"fingerprint": "a", "steps": 4}
    columns = {"mlm_nats": np.array([2.0, 3.0])}
    files.write_records(RunDirectory(tmp_path).metrics, [{"step": 4, "eval_loss": 2.5}])
    RunDirectory(tmp_path).write_result(result, columns)
    asked = {"fingerprint": "a", "step": 4, "evaluations": {"mask_rates": {}}, "summary": {"minimal_pairs": {}}}
    for kept, found in ((asked, asked), (asked | {"step": 2}, {"evaluations": {}, "summary": {}})):
        RunDirectory(tmp_path).write_evaluations(kept)
        run = RunDirectory(tmp_path).read_finished()
        assert {name: run[name] for name in ("evaluations", "summary")} == {
            name: found[name] for name in ("evaluations", "summary")
        }
    assert run["config"] == {"workdir": str(tmp_path), "seed": 1} and run["history"] == [{"step": 4, "eval_loss": 2.5}]
    assert run["held_out"].keys() == columns.keys() and run["held_out"]["mlm_nats"].tolist() == [2, 3]


def run(model, seed, loss, scores=mlm.SCORES, **more):
    family = architectures.FAMILIES[model]
    return {
        "config": {
            "model.cell": "" if family == "transformer" else model,
            "model.family": family,
            "model.size": "tiny",
            "model.window": 5,
            "optim.learning_rate": 1e-3,
            "seed": seed,
            "train.batch_size": 32,
            "workdir": f"{model}-seed{seed}",
        },
        "history": [],
        "parameters": 10,
        "non_embedding": 5,
        "flops": 2e9,
        "tokens": 100.0,
        "tokens_per_second": 50.0,
        "predictions": 15.0,
        "scores": [score._asdict() for score in scores],
        "evaluations": {},
        "summary": {},
        "evaluation": {
            "loss": loss,
            "loss_se": 0.01,
            "perplexity": np.exp(loss),
            "perplexity_se": 0.1,
            "accuracy": 0.5,
            "accuracy_se": 0.02,
            "realised_rate": 0.15,
            "unigram_loss": 6.0,
            "unigram_perplexity": np.exp(6),
            "unigram_accuracy": 0.1,
            **more,
        },
    }


def test_table_groups_seeds_and_writes_three_forms(tmp_path):
    rows, columns = architectures.table([run("lstm", 0, 4.0), run("lstm", 1, 4.2), run("transformer", 0, 5.0)])
    table.write_table(tmp_path, rows, columns)
    assert [row["model"] for row in rows] == ["lstm", "transformer", "unigram"]
    assert [column.title for column in columns[-4:]] == ["loss (nats)", "perplexity", "accuracy", "nats below unigram"]
    with (tmp_path / "table.csv").open() as file:
        read = list(csv.DictReader(file))
    assert read[0]["seeds"] == "2"
    assert [float(read[0][name]) for name in ("loss", "loss_min", "loss_max")] == pytest.approx([4.1, 4.0, 4.2])
    assert float(read[0]["below_unigram"]) == pytest.approx(1.9)
    assert read[0]["loss_se"] == "" and float(read[1]["loss_se"]) == 0.01 and float(read[2]["loss"]) == 6.0
    assert read[1]["loss_min"] == "" and "loss_low" not in read[0]
    shown = (tmp_path / "table.md").read_text()
    assert "4.100 (4.000\N{EN DASH}4.200)" in shown and "±" not in shown
    assert "lowest and highest seed" in shown and "1 seed: no interval" in shown
    latex = (tmp_path / "table.tex").read_text()
    assert "\\toprule" in latex and "4.100 (4.000--4.200)" in latex and "% 1 seed" in latex


def count(**changes):
    return small_config(train__batch_size=4, **changes), VOCAB


@pytest.mark.exhaustive
def test_flops_of_a_second_view_of_the_rows_are_counted():
    one, two = (cost.count_step_flops(*count(mask__masks_per_example=views)) for views in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.02)


@pytest.mark.exhaustive(but=("17",))
@pytest.mark.parametrize("length", [16, 17])
def test_flops_of_a_loop_along_the_row_are_all_counted(length):
    arguments = count(family="rnn", cell="lstm", pack__seq_len=length, model__num_layers=1)
    assert cost.count_step_flops(*arguments) == pytest.approx(
        cost.count_lowered_flops(*arguments, rnn_unroll=length), rel=0.01
    )
    assert cost.count_step_flops(*arguments) > 1.4 * cost.count_lowered_flops(*arguments, rnn_unroll=1)


FROZEN = {
    "transformer": {},
    "encoder_decoder": {"family": "encoder_decoder", "cell": "transformer", "objective": "denoising"},
    "two_stack": {"objective": "causal", "model__directionality": "two_stack"},
    "replaced_token_detection": {"objective": "replaced_token_detection"},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FROZEN)
def test_flops_leave_out_the_gradients_of_frozen_layers(name):
    """Of a product, forward and both gradients take the same; a layer's products are those with its matrices."""
    size = {"model__num_layers": 3, "model__width": 64, "model__mlp_dim": 256, "model__num_heads": 2}
    size |= {"pack__seq_len": 16, "model__dropout": 0.0, "model__attention_dropout": 0.0}
    flops = {
        k: cost.count_step_flops(*count(**size, **FROZEN[name], finetune__trainable_layers=k)) for k in (-1, 0, 1, 2, 3)
    }
    tokens, attention = 4 * 16, 2 * 16 * 64
    frozen_layer = 2 * 2 * tokens * (12 * 64**2 + attention) * (2 if name == "two_stack" else 1)
    if name == "encoder_decoder":  # frozen layers of the decoder pass on the gradient of the encoder's layers
        frozen_layer += 2 * tokens * 16 * 64**2
    assert flops[2] - flops[1] == pytest.approx(frozen_layer, rel=0.1)
    assert flops[3] - flops[2] == pytest.approx(flops[2] - flops[1], rel=0.01)
    assert flops[0] < flops[1] and flops[-1] == pytest.approx(flops[3], rel=0.03)
