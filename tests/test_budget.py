"""Under a budget every point spends what the first one does."""

import random

import jax
import numpy as np
import pytest
from small import params_of, small_config, train_config

from mlm.base import fields, files
from mlm.data.rows import loader, pack
from mlm.launch.sweep import budget, subprocess_worker
from mlm.training.compilation import cost
from mlm.training.step import program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    rng = random.Random(0)
    (folder / "text.txt").write_text(
        "\n\n".join(
            " ".join("".join(rng.choices("ab", k=3)) for _ in range(rng.randint(3, 30))) + "." for _ in range(400)
        )
    )
    return {
        "data__corpus": "text",
        "data__path": str(folder / "text.txt"),
        "data__document_boundary": "blank_line",
        "data__cache_dir": str(folder / "cache"),
        "tokenizer__kind": "words",
        "tokenizer__vocab_size": 12,
        "model__num_layers": 1,
        "train__steps": 40,
        "train__batch_size": 8,
        "eval__batch_size": 8,
        "eval__max_examples": 8,
    }


def steps(points):
    return [cfg.train.steps for cfg in points]


RATES = ({}, {"mask__rate": 0.4}, {"train__batch_size": 16})


def test_equal_predictions_follow_from_rates_and_batches(base, tmp_path):
    """Rows alike need no counting."""
    points = budget.apply_budget([small_config(**base | changes) for changes in RATES], "predictions", tmp_path)
    assert steps(points) == [40, 15, 20]


@pytest.mark.exhaustive
def test_equal_predictions_are_made(base, tmp_path):
    """By what is counted in training: whatever the rate, the batch, and how full the rows are."""
    changes = (*RATES, {"pack__mode": "doc_sentences", "mask__rate": 0.3})
    points = budget.apply_budget([small_config(**base | more) for more in changes], "predictions", tmp_path)
    assert steps(points)[:3] == [40, 15, 20] and steps(points)[3] > 20
    made = [
        train_config(fields.override(points[number], {"workdir": str(tmp_path / str(number))}))["predictions"]
        for number in (0, 3)
    ]
    assert made[1] == pytest.approx(made[0], rel=0.07)


def test_equal_flops_are_spent(base, tmp_path, monkeypatch):
    """As counted in this process; another one: tests/test_plan.py."""
    monkeypatch.setattr(subprocess_worker, "map_in_subprocess", lambda function, items, platform: map(function, items))
    bag = base | {"family": "feedforward", "cell": "bag"}
    points = [small_config(**bag | changes) for changes in ({}, {"model__num_layers": 3, "mask__rate": 0.8})]
    points = budget.apply_budget([fields.override(cfg, {"train.steps": 1000}) for cfg in points], "flops", tmp_path)
    spent = [cost.count_step_flops(cfg, 12) * cfg.train.steps for cfg in points]
    assert spent == [pytest.approx(spent[0], rel=0.002)] * 2
    assert steps(points)[0] == 1000 > steps(points)[1]


@pytest.mark.exhaustive
def test_equal_seconds_follow_the_step_times_that_are_kept(base, tmp_path):
    points = [
        small_config(**base | changes)
        for changes in ({}, {"model__num_layers": 2}, {"seed": 5, "optim__learning_rate": 0.1}, {"mask__rate": 0.3})
    ]
    path = tmp_path / "step_seconds.json"
    files.write_json_with_digest(
        path, {budget.program_key(points[number]): took for number, took in ((0, 0.01), (1, 0.02), (3, 0.004))}
    )
    points = budget.apply_budget(points, "seconds", tmp_path)
    assert steps(points) == [40, 20, 40, 100]
    assert len({fields.fingerprint(cfg) for cfg in points}) == 4
    assert budget.time_step(points[0]) > 0
    path.write_text(path.read_text()[:-20])
    with pytest.raises(files.DamagedFile, match=r"step_seconds.json is damaged: .*: remove it to measure again"):
        budget.apply_budget(points, "seconds", tmp_path)


PREDICTING = {
    "causal": {"objective": "causal"},
    "two_stack": {"objective": "causal", "model__directionality": "two_stack"},
    "hybrid": {"objective": "hybrid", "hybrid__causal_fraction": 0.25, "hybrid__causal_first_fraction": 0.0},
    "denoising": {"objective": "denoising", "family": "encoder_decoder"},
    "replaced": {"objective": "replaced_token_detection"},
    "mask_unk": {"mask__mask_unk": True, "mask__rate": 0.5},
}


@pytest.mark.parametrize("kind", PREDICTING)
def test_a_budget_counts_what_a_step_predicts(base, kind):
    """By the weights of the losses of all training rows, which have many short segments."""
    cfg = small_config(**base | PREDICTING[kind], pack__isolate_documents=True)
    packed = pack.load_dataset(cfg)
    numbers = np.arange(len(packed.train["ids"]))
    examples = jax.tree.map(jax.numpy.asarray, loader.read_batch(packed.train, numbers, numbers))
    hparams = program.make_train_hparams(cfg)
    built, key_B = program.build_program(cfg, packed.dataset_info), jax.random.split(jax.random.key(0), len(numbers))
    params = params_of(built.init_state.eval_shape(hparams).params)
    loss = lambda params: built.objective.loss(params, built.model, examples, key_B, hparams, train=True)
    weight_B = jax.jit(lambda params: loss(params).weight_B)(params)
    made = sum(float(weight_B[term].sum()) for term in {*weight_B} - {"mlm" if kind == "replaced" else ""})
    (_, counted) = budget.count_predictions([small_config(**base), cfg], None, False)
    rounds = kind in ("hybrid", "mask_unk")  # the number of masks, at random
    assert counted == pytest.approx(cfg.train.batch_size * made / len(numbers), rel=0.01 if rounds else 1e-6)
