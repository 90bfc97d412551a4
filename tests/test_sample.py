"""Drawn tokens: their shares are the model's, of the likeliest where that is asked for; a row's draws are its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlm.base.special import PAD, SEP
from mlm.inference import decoding

V, DRAWS = 12, 4000
LOGITS = np.random.default_rng(1).normal(size=V, scale=2).astype(np.float32)


@jax.jit
def draws(temperature, top_k, top_p, first=0):
    key_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), first + jnp.arange(DRAWS))
    return decoding.make_sampler(key_B, temperature, top_k, top_p)(jnp.tile(LOGITS, (DRAWS, 1)), 3)


def shares(temperature, top_k, top_p):
    """By sorting, as transformers' warpers do: temperature, then the top_k, then of those the nucleus."""
    logits = LOGITS / temperature
    order = np.argsort(-logits)
    kept = order[:top_k] if top_k else order
    share = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
    kept = kept[: int((share.cumsum() < top_p).sum()) + 1] if top_p < 1 else kept
    found = np.zeros(V)
    found[kept] = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
    return found


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, 0, 1.0),
        (0.5, 0, 1.0),
        (2.0, 3, 1.0),
        (1.0, 0, 0.8),
        (2.0, 4, 0.7),
        (1.0, 1, 1.0),
        (1.0, V + 5, 1.0),
        (1.0, 0, 1e-6),
    ],
)
def test_shares_are_those_of_the_likeliest(temperature, top_k, top_p):
    count_V = np.bincount(np.asarray(draws(temperature, top_k, top_p)), minlength=V)
    wanted_V = shares(temperature, top_k, top_p)
    assert not count_V[wanted_V == 0].any()
    standard_error_V = np.sqrt(wanted_V * (1 - wanted_V) / DRAWS)
    assert (np.abs(count_V / DRAWS - wanted_V) <= 4 * standard_error_V).all()


def test_a_row_s_draw_is_by_its_key_alone_and_another_at_each_step():
    np.testing.assert_array_equal(draws(1.0, 0, 1.0)[100:], draws(1.0, 0, 1.0, 100)[:-100])
    key_B = jax.random.split(jax.random.key(0), DRAWS)
    draw = jax.jit(lambda step: decoding.make_sampler(key_B, 1.0, 0, 1.0)(jnp.zeros((DRAWS, V)), step))
    assert abs(np.mean(np.asarray(draw(0)) == np.asarray(draw(1))) - 1 / V) < 4 * (1 / V / DRAWS) ** 0.5


def test_a_row_ends_at_its_end_or_where_it_has_no_room_and_stays_ended():
    told = np.array([[7, SEP, 8, 9], [6, 7, 8, 9], [5, 6, SEP, 9], [5, 5, 5, 5]])

    def decode_step(cache, ids_B):
        at_B = jnp.asarray(told)[jnp.arange(4), cache[0]]
        return jnp.where(jnp.arange(V) == at_B[:, None], 5.0, 0.0), cache + 1

    found = decoding.decode_tokens(
        decode_step,
        jnp.zeros((1, 4), jnp.int32),
        jnp.zeros(4, jnp.int32),
        decoding.select_argmax,
        num_steps=4,
        max_steps_B=jnp.array([4, 3, 4, 0]),
    )
    assert found.ids_BxT.tolist() == [[7, SEP, PAD, PAD], [6, 7, 8, PAD], [5, 6, SEP, PAD], [PAD] * 4]
    assert found.length_B.tolist() == [2, 3, 3, 0]
    each = np.log(np.exp(5) / (np.exp(5) + V - 1))
    np.testing.assert_allclose(found.log_prob_B, each * np.array([2, 3, 3, 0]), rtol=1e-5)


def test_special_tokens_are_never_taken():
    logits_BxV = jnp.tile(jnp.array([9.0, 9, 9, 1, 9, 0]), (200, 1))

    @jax.jit
    def choose(key_B):
        suppressed_BxV = decoding.suppress_tokens(logits_BxV, decoding.SUPPRESSED_IDS)
        return decoding.make_sampler(key_B, 1.0, 0, 1.0)(suppressed_BxV, 0)

    assert {*np.asarray(choose(jax.random.split(jax.random.key(0), 200))).tolist()} == {SEP, 5}
