"""A model read a token at a time says what it says of whole rows, whatever was read at once before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import ONE_SIDED, ONE_SIDED_MEMBERS, VARIANTS, VOCAB, build, mark_further, small_config

from mlm.inference import forward_passes

pytestmark = pytest.mark.usefixtures("quick_to_compile")

ROOM = 14
LENGTHS = np.array([14, 9, 5, 1])  # of the rows
READ = np.array([6, 8, 1, 0])  # tokens of each that are read at once
CASES = (
    [(*member, {}) for member in ONE_SIDED]
    + [
        ("transformer", "", changes)
        for changes in (
            {
                "model__positions": "rotary",
                "model__norm_placement": "post",
                "model__lm_head": "linear",
                "model__embed_norm": False,
            },
            {"model__positions": "sinusoidal", "model__activation": "gelu_tanh", "model__directionality": "two_stack"},
        )
    ]
    + [case for case in VARIANTS.values() if case[:2] in ONE_SIDED]
    + [(*member, {"model__directionality": "mixed"}) for member in ONE_SIDED if member[1] not in ("elman", "gru")]
)
IN_SUITE = [
    ("feedforward", "bag", {}),
    *(VARIANTS["modern_bert"], VARIANTS["lstm"], VARIANTS["gmlp"]),
    ("transformer", "", {"model__directionality": "mixed"}),
]


def rows():
    ids_BxL = np.random.default_rng(3).integers(5, VOCAB, (len(LENGTHS), ROOM)).astype(np.int32)
    return np.where(np.arange(ROOM) < LENGTHS[:, None], ids_BxL, 0)


def one_by_one(model, params, ids_BxL, read_B, columns=8):
    """logits_BxLxV of rows of which `read_B` tokens are read at once, out of so many columns; 0 where they are read."""
    text = forward_passes.make_tokens(jnp.where(jnp.arange(columns) < read_B[:, None], ids_BxL[:, :columns], 0))

    def step(carry, _):
        cache, at_B, out_BxLxV = carry
        ids_B = jnp.take_along_axis(ids_BxL, jnp.minimum(at_B, ROOM - 1)[:, None], 1)[:, 0]
        logits_BxV, cache = model.decode_step(params, cache, ids_B)
        return (cache, at_B + 1, out_BxLxV.at[jnp.arange(len(at_B)), at_B].set(logits_BxV)), None

    out_BxLxV = jnp.zeros((*ids_BxL.shape, VOCAB))
    first = model.init_cache(params, text, None, ROOM), jnp.asarray(read_B), out_BxLxV
    return jax.lax.scan(step, first, None, length=ROOM)[0][2]


@pytest.mark.parametrize(("family", "cell", "changes"), mark_further(CASES, IN_SUITE), ids=str)
def test_token_by_token_a_model_says_what_it_says_of_whole_rows(family, cell, changes):
    cfg = small_config(family, cell, **{"objective": "causal", "pack__seq_len": 16} | changes)
    model, params, _ = build(cfg)
    ids_BxL = rows()
    left_B = np.ones(len(ids_BxL), bool) if cfg.model.directionality == "mixed" else None
    h_BxLxD = jax.jit(lambda text: model.encode(params, text, left_B=left_B)[0])(forward_passes.make_tokens(ids_BxL))
    full_BxLxV = np.asarray(jax.jit(model.logits)(params, h_BxLxD))
    found = jax.jit(lambda ids_BxL, read_B: one_by_one(model, params, ids_BxL, read_B))
    place_BxL = np.arange(ROOM)
    for read_B in (READ, np.zeros_like(READ)):
        asked_BxL = (place_BxL >= read_B[:, None]) & (place_BxL < LENGTHS[:, None])
        said_BxLxV = np.asarray(found(ids_BxL, read_B))
        np.testing.assert_allclose(said_BxLxV[asked_BxL], full_BxLxV[asked_BxL], rtol=0, atol=1e-5)


@pytest.mark.exhaustive
@ONE_SIDED_MEMBERS
def test_rows_of_a_cache_are_on_axis_1_of_every_leaf(family, cell):
    """As beam search takes them: a cache whose rows change places goes on as the rows would."""
    model, params, _ = build(small_config(family, cell, objective="causal"))
    ids_BxL, turn_B = rows(), np.array([2, 0, 3, 3])

    @jax.jit
    def two(ids_BxL, turn_B):
        cache = model.init_cache(params, forward_passes.make_tokens(ids_BxL[:, :5]), None, ROOM)
        _, cache = model.decode_step(params, cache, ids_BxL[:, 5])
        cache = jax.tree.map(lambda leaf: jnp.take(leaf, turn_B, axis=1), cache)
        return model.decode_step(params, cache, ids_BxL[turn_B, 6])[0]

    straight, turned = (np.asarray(two(ids_BxL, order_B)) for order_B in (np.arange(4), turn_B))
    np.testing.assert_allclose(turned, straight[turn_B], rtol=0, atol=1e-5)


def test_a_model_that_sees_both_sides_cannot_be_read_a_token_at_a_time():
    model, _, _ = build(small_config())
    assert model.init_cache is None and model.decode_step is None
