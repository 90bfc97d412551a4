"""Causal and masked rows together: which rows are which, by what state a token is told, and what is asked of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import PLAIN, batch, build, make_dataset_info, read_alone, small_config

from mlm import objectives
from mlm.base import batch_warmup, config, phases, types
from mlm.base.special import CLS, MASK, SEP
from mlm.data.tokenizers import kinds
from mlm.inference import forward_passes, language_model
from mlm.models import MODELS
from mlm.objectives import hybrid
from mlm.training.step import program, update

KEYS = update.make_example_keys(np.uint32(0), 0, np.arange(4))
PURE = {"mask_token_prob": np.float32(1), "random_token_prob": np.float32(0)}
ROWS = batch(4, pad=0)


@pytest.fixture(scope="module")
def cfg():
    return small_config(
        "feedforward", "bag", objective="hybrid", mask__rate=0.3, eval__mask_rate=0.3, model__num_layers=1, **PLAIN
    )


@functools.cache
def compile_losses(cfg, train):
    model, params, _ = build(cfg)
    _, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))

    @jax.jit
    def compute(knobs):
        shown = []

        def encode(params, text, source=None, **more):
            shown.append((text.ids_BxL, more.get("left_B")))
            return model.encode(params, text, source, **more)

        spy = dataclasses.replace(model, encode=encode)
        return objective.loss({"model": params}, spy, ROWS, KEYS, knobs, train=train), shown

    return compute


def compute_losses(cfg, train=True, **changes):
    """Losses under other knobs of the objective, and what the model was shown: ids_BxL and left_B of each pass."""
    knobs = program.make_train_hparams(cfg) if train else program.make_eval_hparams(cfg)
    return jax.device_get(compile_losses(cfg, train)(knobs._replace(objective=knobs.objective | changes)))


@functools.cache
def compile_log_probs(cfg):
    """A function of (ids_BxL, left_B): log_prob_BxLxV by the state at each place, in one forward of the model."""
    model, params, _ = build(cfg)
    return jax.jit(
        lambda ids_BxL, left_B: jax.nn.log_softmax(
            model.logits(params, model.encode(params, ROWS.text._replace(ids_BxL=ids_BxL), left_B=left_B)[0])
        )
    )


def score_by_state_before(cfg, ids_BxL, left):
    """nats_BxK of the rows' tokens from the second on."""
    log_prob_BxLxV = np.asarray(compile_log_probs(cfg)(ids_BxL, np.full(4, left)))
    return -np.take_along_axis(log_prob_BxLxV[:, :-1], ROWS.text.ids_BxL[:, 1:, None], -1)[..., 0]


@pytest.mark.parametrize("share", [0.0, 1 / 16, 0.1, 0.25, 0.3, 0.5, 0.75, 1.0])
def test_a_share_of_the_slots_is_causal_whatever_device_has_them(share):
    left_B = np.asarray(hybrid.select_causal_examples(jnp.arange(1000), np.float32(share)))
    count_B = np.cumsum(left_B)
    assert np.abs(count_B - share * np.arange(1, 1001)).max() <= 1
    assert left_B.sum() == round(1000 * share - 0.4)
    turned_B = np.asarray(hybrid.select_causal_examples(jnp.arange(1000)[::-1], np.float32(share)))
    np.testing.assert_array_equal(turned_B[::-1], left_B)


@pytest.mark.parametrize(("rows", "share"), [(8, 1 / 16), (6, 0.1), (16, 0.3)])
def test_the_share_holds_over_batches_of_any_size_and_terms_weigh_as_the_rows_of_each(rows, share):
    knobs, count = program.make_train_hparams(small_config(objective="hybrid", hybrid__causal_fraction=share)), 0
    for step in range(40):
        said = hybrid.schedule_hparams(
            knobs, np.float32(step) / np.float32(40), train=config.Train(steps=40, batch_size=rows)
        )
        of = said.objective
        left_B = np.asarray(hybrid.select_causal_examples(jnp.arange(rows), of["causal_fraction"], of["causal_carry"]))
        count += left_B.sum()
        assert abs(count - share * rows * (step + 1)) <= 1.01
        assert float(hybrid.compute_loss_weights(said)["causal"]) == pytest.approx(left_B.mean(), abs=1e-6)
    assert count > 0


def test_causal_rows_are_shown_whole_and_read_from_the_left_the_others_are_masked(cfg):
    losses, ((ids_BxL, left_B),) = compute_losses(cfg, causal_fraction=np.float32(0.5), **PURE)
    assert list(left_B) == [False, True, False, True]
    hidden_BxL = ids_BxL == MASK
    np.testing.assert_array_equal(ids_BxL[~hidden_BxL], ROWS.text.ids_BxL[~hidden_BxL])
    assert not hidden_BxL[1::2].any() and hidden_BxL[::2].any(1).all()
    np.testing.assert_array_equal(losses.weight_B["mlm"], hidden_BxL.sum(1))
    np.testing.assert_array_equal(losses.sums_B["corrupted"], hidden_BxL.sum(1))
    np.testing.assert_array_equal(losses.weight_B["causal"], [0, 14, 0, 14])  # two segments, whose first is given


def test_a_token_is_told_by_the_state_before_it_and_a_segments_first_by_its_own(cfg):
    """In training as in evaluation, for causal rows as for masked ones, and where a judge asks."""
    model, params, _ = build(cfg)
    text = batch(4, pad=0).text
    place_BxL = np.broadcast_to(np.arange(16), (4, 16)).astype(np.float32)
    marked = dataclasses.replace(model, encode=lambda params, text, source=None, **more: (place_BxL[..., None],))
    told_BxL = np.asarray(hybrid.shift_states(marked).encode(params, text)[0])[..., 0]
    first_L = text.positions_BxL[0] == 0
    assert first_L.sum() == 2
    np.testing.assert_array_equal(told_BxL, np.where(first_L, place_BxL, place_BxL - 1))
    assert hybrid.shift_states(marked) is hybrid.shift_states(marked)  # what is compiled is known by its model


@pytest.mark.parametrize("train", [True, False])
def test_losses_are_those_of_the_states_before(cfg, train):
    masked, shown = compute_losses(cfg, train, **PURE, **({"causal_fraction": np.float32(0)} if train else {}))
    hidden_BxK = (shown[0][0] == MASK)[:, 1:] & (ROWS.text.positions_BxL[:, 1:] > 0)
    nats_B = (score_by_state_before(cfg, shown[0][0], False) * hidden_BxK).sum(1)
    of_first_B = masked.weight_B["mlm"] - hidden_BxK.sum(1)  # whose nats are its own state's
    assert (of_first_B == 0).sum() >= 2
    np.testing.assert_allclose(masked.loss_B["mlm"][of_first_B == 0], nats_B[of_first_B == 0], rtol=1e-4)
    causal, shown = compute_losses(cfg, causal_fraction=np.float32(1)) if train else (masked, shown[1:])
    assert (shown[0][0] == ROWS.text.ids_BxL).all() and shown[0][1].all()
    nats_B = (score_by_state_before(cfg, ROWS.text.ids_BxL, True) * (ROWS.text.positions_BxL[:, 1:] > 0)).sum(1)
    np.testing.assert_allclose(causal.loss_B["causal"], nats_B, rtol=1e-4)


def test_evaluation_asks_for_the_tokens_that_mlm_is_asked_for(cfg):
    text, knobs = ROWS.text, program.make_eval_hparams(cfg)
    of = objectives.OBJECTIVES["hybrid"].build(cfg, make_dataset_info(cfg))
    plain = objectives.OBJECTIVES["mlm"].build(cfg, make_dataset_info(cfg))
    masks = [jax.jit(one.eval_mask)(text, KEYS, knobs) for one in (of, plain)]
    np.testing.assert_array_equal(*masks)
    assert of.scores[: len(plain.scores)] == plain.scores


def test_all_rows_are_causal_for_the_first_share_of_the_steps():
    cfg = small_config(
        objective="hybrid",
        hybrid__causal_first_fraction=0.25,
        hybrid__causal_fraction=0.125,
        mask__schedule="linear",
        mask__final_rate=0.05,
    )
    knobs = program.make_train_hparams(cfg)
    now = functools.partial(hybrid.schedule_hparams, train=config.Train(steps=8, batch_size=8))
    shares = [float(now(knobs, step / np.float32(8)).objective["causal_fraction"]) for step in range(8)]
    assert shares == [1, 1, *[0.125] * 6]
    assert float(now(knobs, 0.5).objective["rate"]) == pytest.approx(0.1)
    factor = hybrid.compute_loss_weights(now(knobs, 0.5))
    assert (float(factor["causal"]), float(factor["mlm"])) == (0.125, 0.875)
    (phase,) = phases.average_rates(cfg)
    assert sum(objectives.OBJECTIVES["hybrid"].prediction_rates(phase.cfg)) == pytest.approx(0.34375 + 0.65625 * 0.1)
    assert program.make_static_config(cfg) == program.make_static_config(
        small_config(objective="hybrid", mask__max_rate=0.15)
    )


def test_a_growing_batch_weighs_its_terms_by_the_rows_that_it_uses():
    """Of 16 rows one is causal; a step that uses four of them has it in one of four steps, where it is a quarter."""
    cfg = small_config(
        objective="hybrid",
        hybrid__causal_fraction=1 / 16,
        train__steps=16,
        train__batch_size=16,
        train__grad_accum_steps=4,
        train__batch_warmup_fraction=0.75,
    )
    schedule = jax.jit(program.build_model_and_objective(cfg, make_dataset_info(cfg))[1].schedule_hparams)
    knobs, shares = program.make_train_hparams(cfg), []
    for step in range(16):
        found = schedule(knobs, np.float32(step) / np.float32(16)).objective
        causal = hybrid.select_causal_examples(np.arange(16), found["causal_fraction"], found["causal_carry"])
        used = [row for row in range(16) if (row - step) % 4 < int(batch_warmup.count_microbatches(cfg.train, step))]
        shares.append(float(found["batch_causal_fraction"]))
        assert shares[-1] == pytest.approx(np.mean(np.asarray(causal)[used]))
    assert sum(shares[:4]) == 0.25 and shares[12:] == [0.0625] * 4


def test_terms_weigh_as_their_rows_are_many():
    """What is minimised: a quarter of the causal rows' mean, and three of the masked ones', whatever each predicts."""
    objective = types.Objective(None, (), loss_weights=hybrid.compute_loss_weights)
    knobs = types.TracedHparams(None, None, None, {"batch_causal_fraction": np.float32(0.25)})
    nats, weight = {"mlm": 6.0, "causal": 100.0}, {"mlm": 3.0, "causal": 10.0}
    assert float(update.compute_weighted_loss(objective, knobs, nats, weight)) == 0.75 * 2 + 0.25 * 10


def test_a_judge_reads_a_hidden_token_where_it_was_learnt(cfg):
    model, params, _ = build(cfg)
    ids_BxL, places_B = ROWS.text.ids_BxL, np.array([1, 3, 9, 14], np.int32)
    asked = forward_passes.MaskedQueries(ids_BxL, places_B, places_B + 1)
    compute_log_probs = functools.partial(forward_passes.compute_log_probs, objectives.shift_states(cfg, model))
    found_BxV = jax.jit(compute_log_probs)({"model": params}, asked)
    hidden_BxL = np.where(np.arange(16) == places_B[:, None], MASK, ids_BxL)
    logits_BxLxV = np.array([read_alone(model, params, ids_L, 16)[1] for ids_L in hidden_BxL])
    log_prob_BxV = jax.nn.log_softmax(logits_BxLxV[np.arange(4), places_B - 1])
    np.testing.assert_allclose(found_BxV, log_prob_BxV, rtol=1e-4, atol=1e-5)
    assert objectives.shift_states(small_config(objective="mlm"), model) is model


@pytest.mark.exhaustive
def test_what_is_opened_is_read_so_and_its_embeddings_stay_where_they_are(cfg, tokenizer):
    words = kinds.load_tokenizer_folder("path", tokenizer)
    model = MODELS["feedforward"].build(cfg.model, words.vocab_size)
    params = {"model": jax.jit(model.init)(jax.random.key(0)), "objective": {}}
    told = make_dataset_info(cfg)._replace(vocab_size=words.vocab_size)
    run = language_model.LanguageModel(cfg, words, model, None, params, told, 16, 4)
    text = "w1 w2 [MASK] w4"
    ids = [CLS, *words.encode("w1 w2"), MASK, *words.encode("w4"), SEP]
    plain_LxD, _ = read_alone(model, params["model"], [CLS, *words.encode("w1 w2 w3 w4"), SEP], len(ids))
    np.testing.assert_allclose(run.encode("w1 w2 w3 w4", pooling=None), plain_LxD, rtol=1e-4, atol=1e-5)
    _, logits_LxV = read_alone(model, params["model"], ids, len(ids))
    np.testing.assert_allclose(run.logits(text)[1:], logits_LxV[:-1], rtol=1e-4, atol=1e-5)
    best = run.fill_mask(text, top_k=1)[0][0]
    assert best.token == words.pieces[logits_LxV[2].argmax()]
