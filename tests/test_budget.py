"""Under a budget every point spends what the first one does."""

import random

import pytest
from small import small_config, train_config

from mlm.base import fields, files, types
from mlm.base.special import NUM_SPECIAL
from mlm.data.rows import pack
from mlm.launch.sweep import budget, subprocess_worker
from mlm.objectives import causal
from mlm.training.compilation import cost

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


@pytest.mark.parametrize(("directionality", "sides"), [("causal", 1), ("two_stack", 2)])
def test_a_budget_counts_what_a_causal_step_predicts_of_the_rows_of_masks(base, directionality, sides):
    cfg = small_config(**base, objective="causal", model__directionality=directionality)
    text = types.Tokens(*(pack.load_dataset(cfg).train[name] for name in ("ids", "segments", "positions", "ids")))
    mask_NxL = causal.compute_eval_mask(text, None, None)
    (_, counted) = budget.count_predictions([small_config(**base), cfg], None, False)
    assert counted == pytest.approx(8 * sides * float(mask_NxL.sum(1).mean()))


def test_a_budget_counts_what_training_masks(base):
    """The count that equal predictions rest on: tokens that may be masked, special ones left out."""
    cfg = small_config(**base)
    ids_NxL = pack.load_dataset(cfg).train["ids"]
    assert budget.count_tokens(cfg) == (ids_NxL >= NUM_SPECIAL).sum() / len(ids_NxL)
