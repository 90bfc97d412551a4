"""The papers' recipes and what they are made of: each knob that they set is heard, and its default changes nothing."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import MEMBERS, VOCAB, batch, make_dataset_info, params_of, replace_text, small_config

from mlm.base import config, errors, fields
from mlm.base.special import CLS, MASK, SEP, UNK
from mlm.cli import train
from mlm.data.rows import packing
from mlm.experiment import recipes
from mlm.models import MODELS, layers
from mlm.objectives import masking
from mlm.training.run import resolution
from mlm.training.step import program


@pytest.mark.parametrize("name", ["BERT", "WETTIG", "LAPTOP", "QUICK"])
def test_a_recipe_is_a_run(name):
    cfg = resolution.resolve(fields.override(config.Config(), getattr(recipes, name)))
    assert cfg.mask.random_token_from == ("uniform" if name in ("BERT", "WETTIG") else "unigram")
    if name == "BERT":
        assert (cfg.model.norm_eps, cfg.mask.mask_unk, cfg.pack.short_seq_prob) == (1e-12, True, 0.1)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_papers_recipe_is_a_layer_that_the_command_line_overrides(name, tmp_path):
    (tmp_path / "a.txt").write_text("a b c")
    _, layers = train.parse_words(["train", f"--recipe={name}", f"data.path={tmp_path}/*.txt", "train.steps=7"])
    resolved = resolution.resolve_layers(layers)
    flat, recipe = fields.flatten(resolved.config), recipes.RECIPES[name].fields
    assert flat["train.steps"] == 7 and resolved.origins["train.steps"] == "command line"
    for field in recipe.keys() - {"train.steps"}:
        assert flat[field] == recipe[field] and resolved.origins[field] == f"--recipe={name}"


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_size_of_yours_replaces_a_papers(name, tmp_path):
    (tmp_path / "a.txt").write_text("a b c")
    _, layers = train.parse_words(["train", f"--recipe={name}", f"data.path={tmp_path}/*.txt", "model.size=micro"])
    cfg = resolution.resolve_layers(layers).config
    assert (cfg.model.num_layers, cfg.model.width, cfg.model.num_heads) == (2, 64, 4)
    assert cfg.train.batch_size == recipes.RECIPES[name].fields["train.batch_size"]


def test_a_file_overrides_a_papers_recipe_which_brings_no_text(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import mlm\n\n\ndef get_config():\n    return mlm.Config(seed=3)\n")
    (tmp_path / "a.txt").write_text("a b c")
    words = ["train", "--recipe=roberta", f"--config={file}", f"data.path={tmp_path}/*.txt"]
    cfg = resolution.resolve_layers(train.parse_words(words)[1]).config
    assert (cfg.seed, cfg.optim.learning_rate) == (3, 7e-4)
    with pytest.raises(errors.ConfigError, match="--recipe = 'bert': expected your text beside it"):
        train.parse_words(["train", "--recipe=bert"])
    with pytest.raises(errors.ConfigError, match="did you mean 'roberta'"):
        train.parse_words(["train", "--recipe=robert"])


def test_runs_of_any_batch_take_in_the_same_rows():
    found = {size: recipes.set_training_length(3200, 640, {"train.batch_size": size}) for size in (16, 32, 64)}
    assert all(
        own["train.steps"] * size == 3200 and own["train.eval_every"] * size == 640 for size, own in found.items()
    )


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_the_layer_norm_adds_its_epsilon_to_the_variance(eps):
    x_BxLxD = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    module = layers.norm(small_config(model__norm_eps=eps).model, "norm")
    scale_D = {"params": {"scale": jnp.ones(8), "bias": jnp.zeros(8)}}
    wanted = (x_BxLxD - x_BxLxD.mean(-1, keepdims=True)) / np.sqrt(x_BxLxD.var(-1, keepdims=True) + eps)
    np.testing.assert_allclose(module.apply(scale_D, x_BxLxD), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive(but=("rnn-lstm-fast", "transformer--plain", "feedforward-window-fast"))
@pytest.mark.parametrize("quick", [True, False], ids=["fast", "plain"])
@MEMBERS
def test_every_layer_norm_of_either_path_reads_the_epsilon(family, cell, quick):
    model = small_config(
        family,
        cell,
        model__norm_eps=0.34375,
        model__num_layers=1,
        model__kernels="matmul,recurrence,cross_entropy" if quick else "reference",
    ).model
    made, text = MODELS[family].build(model, VOCAB), batch().text

    def loss(params):
        return made.logits(params, made.encode(params, text)[0]).sum()

    code = str(jax.make_jaxpr(jax.value_and_grad(loss))(jax.eval_shape(made.init, jax.random.key(0))))
    norms = len(re.findall(r"= rsqrt", code))
    assert norms >= 3 and len(re.findall(r"= add \w+ 0\.34375", code)) == norms and "1e-06" not in code


def corrupt_rows(unknown, rate=0.5):
    """Masked rows of which every third token is unknown."""
    ids = np.random.default_rng(0).integers(5, VOCAB, (400, 16)).astype(np.int32)
    ids[:, 0], ids[:, -1], ids[:, 3:15:3] = CLS, SEP, UNK
    keys = jax.random.split(jax.random.key(0), len(ids))
    corrupt = functools.partial(
        masking.corrupt_tokens,
        rate=rate,
        mask_token_prob=1.0,
        random_token_prob=0.0,
        num_slots=masking.count_slots(rate, 16),
        cdf_V=np.ones(1),
        mask_unk=unknown,
    )
    return ids, jax.device_get(jax.jit(corrupt)(keys, ids))


def test_unknown_tokens_are_masked_where_that_is_asked_for():
    ids, out = corrupt_rows(False)
    assert (out.ids_BxL == UNK).sum() == (ids == UNK).sum() and (out.num_eligible_B == 10).all()
    ids, out = corrupt_rows(True)
    hidden = out.ids_BxL == MASK
    assert (out.num_eligible_B == 14).all() and not hidden[:, [0, -1]].any()
    of_unknown, of_others = hidden[ids == UNK].mean(), hidden[ids >= 5].mean()
    assert of_unknown == pytest.approx(0.5, abs=0.05) and of_others == pytest.approx(0.5, abs=0.05)


def compile_weight(cfg, rows):
    """The number of masked tokens by the loss, of which nothing else is compiled."""
    model, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    params, keys = params_of(jax.eval_shape(model.init, jax.random.key(0))), jax.random.split(jax.random.key(1), 8)

    def weigh(hparams, train):
        return objective.loss({"model": params}, model, rows, keys, hparams, train=train).weight_B["mlm"].sum()

    return jax.jit(weigh, static_argnums=1)


def test_training_alone_masks_unknown_tokens():
    """Evaluation's questions are the same for every model, and the unigram baseline knows no [UNK]."""
    rows = batch(8, pad=0)
    rows = replace_text(rows, ids_BxL=np.where(rows.text.ids_BxL >= 5, UNK, rows.text.ids_BxL))
    for unknown in (False, True):
        cfg = small_config(mask__mask_unk=unknown, mask__rate=0.5, model__num_layers=1)
        weigh = compile_weight(cfg, rows)
        assert (weigh(program.make_train_hparams(cfg), True) > 0) == unknown
        assert weigh(program.make_eval_hparams(cfg), False) == 0


LENGTH = 64


def pairs(**more):
    documents = [[[n * 1000 + i * 5 + j for j in range(5, 10)] for i in range(40)] for n in range(300)]
    return list(packing.sample_segment_pairs(iter(documents), LENGTH, **more))


def test_a_share_of_documents_gives_shorter_pairs():
    whole, some, every = pairs(), pairs(short_seq_prob=0.3), pairs(short_seq_prob=1.0)

    def short(rows):  # of documents, those whose first row is well below what a row holds
        first = {row.ids[1] // 1000: len(row.ids) for row in reversed(rows)}
        return np.mean([length < LENGTH - 10 for length in first.values()])

    assert short(whole) < 0.05 and short(every) > 0.7 and short(some) / short(every) == pytest.approx(0.3, abs=0.1)
    for row in every:
        assert len(row.ids) <= LENGTH and 2 < row.second_start < len(row.ids) - 1  # neither segment is empty
    assert 0.4 < np.mean([row.label for row in every]) < 0.6
    lengths = np.array([len(row.ids) for row in every])
    assert lengths.min() < 20 and lengths.max() > LENGTH - 10
    seen = {i for row in every for i in (row.ids if row.label else row.ids[: row.second_start])}
    assert len(seen - {CLS, SEP}) > 0.8 * 300 * 40 * 5
