"""Replaced tokens: what the generator puts into a row, what the model is asked of it, and what gradients reach."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import PLAIN, VOCAB, batch, make_dataset_info, make_run_config, params_of, small_config, small_program

from mlm import objectives
from mlm.base.special import MASK, NUM_SPECIAL
from mlm.data.rows import pack
from mlm.objectives import masking, replaced_token_detection
from mlm.training.run import directory, initialization, loop
from mlm.training.step import program, update

pytestmark = pytest.mark.usefixtures("quick_to_compile")
ROWS = batch(8)
KEYS = update.make_example_keys(np.uint32(0), 0, ROWS.index_B)


@pytest.fixture(scope="module")
def cfg():
    return small_config(
        "feedforward",
        "bag",
        objective="replaced_token_detection",
        mask__rate=0.4,
        eval__mask_rate=0.4,
        model__num_layers=1,
        mask__mask_token_prob=1.0,
        mask__random_token_prob=0.0,
        **PLAIN,
    )


def draw_params(model, objective):
    init = lambda key: {"model": model.init(key), "objective": objective.init(key, model)}
    return params_of(jax.eval_shape(init, jax.random.key(0)))


@functools.cache
def compile_losses(cfg):
    """Losses of the batch, compiled, of a model and a generator that say what they were shown."""
    model, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    params = draw_params(model, objective)
    small = program.MODELS["feedforward"].build(replaced_token_detection.build_generator_config(cfg), VOCAB)

    def run(params, knobs, rows):
        shown = []

        def watched(of):
            def encode(params, text, source=None, **more):
                shown.append(text.ids_BxL)
                return of.encode(params, text, source, **more)

            return dataclasses.replace(of, encode=encode)

        made = objectives.OBJECTIVES["replaced_token_detection"].build(cfg, make_dataset_info(cfg), watched(small))
        return made.loss(params, watched(model), rows, KEYS, knobs, train=False), shown

    compiled = jax.jit(run)
    return lambda params, knobs: compiled(params, knobs, ROWS), params


def test_a_share_of_its_size_makes_the_generator():
    cfg = small_config(
        objective="replaced_token_detection",
        model__size="small",
        model__width=512,
        model__mlp_dim=2048,
        model__num_heads=8,
    )
    found = replaced_token_detection.build_generator_config(cfg)
    assert (found.width, found.num_heads, found.mlp_dim, found.num_layers) == (128, 2, 512, cfg.model.num_layers)
    model, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    shapes = jax.eval_shape(lambda key: objective.init(key, model), jax.random.key(0))
    assert shapes["generator"]["token"]["embedding"].shape == (VOCAB, 128)


def test_the_model_sees_the_generators_draws_and_is_asked_of_all_tokens(cfg):
    run, params = compile_losses(cfg)
    losses, (masked_BxL, shown_BxL) = jax.device_get(run(params, program.make_eval_hparams(cfg)))
    hidden_BxL, true_BxL = masked_BxL == MASK, ROWS.text.ids_BxL
    np.testing.assert_array_equal(losses.weight_B["mlm"], hidden_BxL.sum(1))
    np.testing.assert_array_equal(shown_BxL[~hidden_BxL], true_BxL[~hidden_BxL])
    assert (shown_BxL[hidden_BxL] >= NUM_SPECIAL).all()
    other_BxL = shown_BxL != true_BxL
    assert other_BxL.any() and not other_BxL[~hidden_BxL].any()
    real_B = (ROWS.text.segments_BxL > 0).sum(1)
    np.testing.assert_array_equal(losses.weight_B["replaced_token_detection"], real_B)
    np.testing.assert_array_equal(losses.sums_B["original"], real_B - other_BxL.sum(1))  # a lucky draw is original


def test_a_row_is_told_by_the_models_own_logits(cfg):
    """The nats are those of a coin for each token; a head of zeros is at log 2, and a bias moves all alike."""
    run, params = compile_losses(cfg)
    head = params["objective"]
    for bias in (0.0, -1.5):
        flat = head | {"label": {"kernel": 0 * head["label"]["kernel"], "bias": jnp.full(1, bias)}}
        losses, _ = jax.device_get(run(params | {"objective": flat}, program.make_eval_hparams(cfg)))
        original_B, all_B = losses.sums_B["original"], losses.weight_B["replaced_token_detection"]
        expected_B = original_B * np.log1p(np.exp(bias)) + (all_B - original_B) * np.log1p(np.exp(-bias))
        np.testing.assert_allclose(losses.loss_B["replaced_token_detection"], expected_B, rtol=1e-5)
        np.testing.assert_allclose(losses.sums_B["correct"], original_B if bias <= 0 else all_B - original_B)


def test_no_gradient_goes_through_the_draws(cfg):
    """The generator learns by its own loss alone, the model by its own."""
    run, params = compile_losses(cfg)
    others = {"mlm": "model", "replaced_token_detection": "generator"}
    slopes = jax.jit(
        jax.jacrev(lambda params: jax.tree.map(jnp.sum, run(params, program.make_eval_hparams(cfg))[0].loss_B))
    )
    for term, slope in slopes(params).items():
        slope, other = {"model": slope["model"], **slope["objective"]}, others[term]
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(slope[other])), term
        mine = "generator" if term == "mlm" else "model"
        assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(slope[mine])), term


def test_draws_follow_the_logits_of_the_places_that_were_corrupted():
    ids_BxL = np.full((4000, 3), 7, np.int32)
    masked = masking.MaskedBatch(
        ids_BxL, np.tile([1, 2], (4000, 1)), np.full((4000, 2), 7, np.int32), None, np.ones(4000, np.int32), None
    )
    places, shares = [5, 127, 128, 299], [0.1, 0.2, 0.4, 0.3]  # the first and last of a block of the sum, and of all
    likely_V = np.full(300, -np.inf)
    likely_V[places], likely_V[:5] = np.log(shares), 9.0  # special tokens most of all
    logits_BxKxV = np.broadcast_to(likely_V, (4000, 2, 300))
    keys = update.make_example_keys(np.uint32(0), 0, np.arange(4000))
    put_BxL = np.asarray(jax.jit(replaced_token_detection.insert_samples)(keys, ids_BxL, masked, logits_BxKxV))
    assert (put_BxL[:, [0, 2]] == 7).all() and set(put_BxL[:, 1]) == set(places)
    np.testing.assert_allclose(np.bincount(put_BxL[:, 1])[places] / 4000, shares, atol=4 * 0.5 / 4000**0.5)


def test_the_terms_of_the_loss_are_weighed(cfg):
    _, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    assert float(objective.loss_weights(program.make_train_hparams(cfg))["replaced_token_detection"]) == 50
    other = small_config(
        "feedforward", "bag", objective="replaced_token_detection", replaced_token_detection__discriminator_weight=7.0
    )
    assert float(objective.loss_weights(program.make_train_hparams(other))["replaced_token_detection"]) == 7
    assert program.make_static_config(other) == program.make_static_config(
        small_config("feedforward", "bag", objective="replaced_token_detection")
    )


def make_config(embeddings, weight=50.0):
    return small_config(
        "feedforward",
        "bag",
        objective="replaced_token_detection",
        model__num_layers=1,
        mask__rate=0.4,
        optim__clip_norm=0.0,
        optim__weight_decay=0.0,
        train__steps=2,
        train__batch_size=8,
        replaced_token_detection__embeddings=embeddings,
        replaced_token_detection__discriminator_weight=weight,
        **PLAIN,
    )


def test_a_generator_of_shared_embeddings_reads_and_moves_the_model_s():
    """The slope of its loss: along the model's tables, and along nothing else of the model."""
    cfg = make_config("shared")
    model, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    params = draw_params(model, objective)
    assert not {*replaced_token_detection.TABLES} & {*params["objective"]["generator"]}

    def loss(params, rows):
        losses = objective.loss(params, model, rows, KEYS, program.make_train_hparams(cfg), train=True)
        return losses.loss_B["mlm"].sum()

    slope = jax.jit(jax.grad(loss))(params, ROWS)["model"]
    tables = replaced_token_detection.get_tables(slope)
    assert {*tables} == {"token", "type"}
    for name, rest in slope.items():
        assert any(map(np.any, jax.tree.leaves(rest))) == (name in tables), name


def train(weight):
    """The parameters before and after two updates of disentangled embeddings; weight: of the discriminator's loss."""
    cfg = make_config("disentangled", weight)
    made, hparams = small_program(cfg), program.make_train_hparams(cfg)
    state = made.init_state(hparams)
    before = jax.device_get(made.partitioner.get_state(state).params)
    for seed in range(2):
        state, _ = made.partitioner.train_step(state, made.partitioner.put_batch(batch(8, seed=seed)), hparams)
    return before, jax.device_get(made.partitioner.get_state(state).params)


def test_tables_of_disentangled_embeddings_move_as_both_models_ask():
    model, objective = program.build_model_and_objective(cfg := make_config("disentangled"), make_dataset_info(cfg))
    params, get_tables = objective.link_params(draw_params(model, objective)), replaced_token_detection.get_tables
    generator = params["objective"]["generator"]
    jax.tree.map(np.testing.assert_array_equal, get_tables(generator), get_tables(params["model"]))
    moved = objective.link_updates(params)
    doubled = jax.tree.map(lambda x: 2 * x, get_tables(generator))
    jax.tree.map(np.testing.assert_array_equal, moved["model"], params["model"] | doubled)
    jax.tree.map(np.testing.assert_array_equal, moved["objective"], params["objective"])


def test_disentangled_embeddings_begin_as_those_of_the_run_that_training_starts_from(tmp_path, monkeypatch):
    def init_from_source(cfg, state, tokenizer):
        tables = jax.tree.map(lambda x: x + 1, replaced_token_detection.get_tables(state.params["model"]))
        return state._replace(params=state.params | {"model": state.params["model"] | tables}), {"source": {}}

    monkeypatch.setattr(initialization, "init_from_source", init_from_source)
    own = {"objective": "replaced_token_detection", "replaced_token_detection__embeddings": "disentangled"}
    cfg = make_run_config(tmp_path / "cache", tmp_path / "run", **own)
    with loop.open_run(directory.RunDirectory(cfg.workdir), cfg, pack.load_dataset(cfg)) as (_, state):
        both = state.params["model"], state.params["objective"]["generator"]
        jax.tree.map(np.testing.assert_array_equal, *map(replaced_token_detection.get_tables, both))


@pytest.mark.exhaustive
def test_disentangled_embeddings_move_with_the_generator_s_and_not_the_reverse():
    get_tables = replaced_token_detection.get_tables
    ends = {}
    for weight in (0.0, 50.0):
        before, after = train(weight)
        start = get_tables(before["model"])
        jax.tree.map(np.testing.assert_array_equal, start, get_tables(before["objective"]["generator"]))
        ends[weight] = get_tables(after["model"]), get_tables(after["objective"]["generator"])
    jax.tree.map(np.testing.assert_array_equal, *ends[0.0])
    jax.tree.map(np.testing.assert_array_equal, ends[0.0][1], ends[50.0][1])
    assert (ends[50.0][0]["token"]["embedding"] != ends[50.0][1]["token"]["embedding"]).any()
    assert (ends[0.0][1]["token"]["embedding"] != start["token"]["embedding"]).any()


def test_a_low_temperature_takes_the_likeliest_token(cfg):
    run, params = compile_losses(cfg)
    hparams = program.make_eval_hparams(cfg)
    cold = hparams._replace(objective=hparams.objective | {"temperature": np.float32(1e-6)})
    losses, (masked_BxL, shown_BxL) = jax.device_get(run(params, cold))
    np.testing.assert_array_equal(
        (shown_BxL == ROWS.text.ids_BxL)[masked_BxL == MASK].sum(), losses.sums_B["mlm_correct"].sum()
    )
