"""Encoder-decoders: what a token of the row and of the source reaches, and that rows side by side are rows alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import PLAIN, VARIANTS, VOCAB, batch, make_dataset_info, mark_further, small_config

from mlm.base import types
from mlm.models import MODELS
from mlm.training.step import program

pytestmark = pytest.mark.usefixtures("quick_to_compile")

CELLS = MODELS["encoder_decoder"].cells
cells = pytest.mark.parametrize("cell", CELLS)


def config_of(cell, **changes):
    return small_config("encoder_decoder", cell, objective="causal", **{"model__num_layers": 1} | changes)


@functools.cache
def build_logits(cfg, vocab=VOCAB):
    """The model, parameters of which none is zero, and its compiled logits of rows beside a source."""
    model, rng = MODELS[cfg.model.family].build(cfg.model, vocab), np.random.default_rng(0)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.4 * rng.normal(size=x.shape).astype(np.float32),
        jax.eval_shape(model.init, jax.random.key(0)),
    )
    return model, params, jax.jit(lambda text, source: model.logits(params, model.encode(params, text, source)[0]))


def pairs(rows=2):
    """Rows of two pairs and padding, whose sources are longer than they; each row has its own tokens."""
    text, source = batch(rows, 16, seed=1).text, batch(rows, 23, seed=2, pad=5).text
    return text, source


@cells
def test_a_logit_depends_on_its_left_and_on_its_source_and_on_nothing_else(cell):
    """By gradients: which embeddings of the row and of the source move each token's logits."""
    text, source = pairs(1)
    model, params, _ = build_logits(config_of(cell), text.ids_BxL.size + source.ids_BxL.size)

    def states(own, others):
        """The row's states where each token of row and source has a table of its own to be read from."""
        table = jnp.concatenate([own, others])
        numbered = lambda text, first: text._replace(ids_BxL=first + jnp.arange(text.ids_BxL.shape[1])[None])
        given = {**params, "token": {"embedding": table}}
        return model.encode(given, numbered(text, 0), numbered(source, len(own)))[0][0]

    rng = np.random.default_rng(3)
    draw = lambda text: jnp.asarray(rng.normal(size=(text.ids_BxL.shape[1], model.width)), jnp.float32)
    slopes = jax.jit(jax.jacrev(states, (0, 1)))(draw(text), draw(source))
    moved_LxL, moved_LxS = (np.abs(slope).max((1, 3)) > 0 for slope in slopes)
    segments_L, segments_S, real_L = text.segments_BxL[0], source.segments_BxL[0], text.segments_BxL[0] > 0
    same_LxL = segments_L[:, None] == segments_L
    np.testing.assert_array_equal(moved_LxL[real_L], (same_LxL & np.tri(len(segments_L), dtype=bool))[real_L])
    np.testing.assert_array_equal(moved_LxS[real_L], (segments_L[:, None] == segments_S)[real_L])


def alone(text: types.Tokens, row: int, segment: int) -> types.Tokens:
    """One segment of a row, from the first place on, in a row of its own."""
    places = np.flatnonzero(text.segments_BxL[row] == segment)
    return types.Tokens(*(np.pad(x[row, places], (0, x.shape[1] - len(places)))[None] for x in text))


@cells
def test_pairs_side_by_side_are_pairs_alone(cell):
    _, _, logits = build_logits(config_of(cell))
    text, source = pairs()
    together = np.asarray(logits(text, source))
    for row in range(2):
        apart = logits(
            *(
                types.Tokens(*map(np.concatenate, zip(*(alone(one, row, segment) for segment in (1, 2)), strict=True)))
                for one in (text, source)
            )
        )
        for segment in (1, 2):
            places = np.flatnonzero(text.segments_BxL[row] == segment)
            np.testing.assert_allclose(apart[segment - 1, : len(places)], together[row, places], atol=2e-5)


@pytest.mark.parametrize(
    ("cell", "changes"),
    mark_further(
        [
            ("transformer", {"model__positions": "rotary"}),
            ("transformer", {"model__positions": "sinusoidal", "model__norm_placement": "post"}),
            ("transformer", VARIANTS["modern_bert"][2]),
            ("transformer", VARIANTS["sandwich"][2]),
            ("gru", {}),
            ("gru", VARIANTS["gru"][2]),
        ],
        [("transformer", VARIANTS["sandwich"][2]), ("gru", {})],
    ),
    ids=str,
)
def test_a_token_at_a_time_gives_the_logits_of_whole_rows(cell, changes):
    """Behind prompts of three lengths, one of them empty, and beside sources of two."""
    model, params, logits = build_logits(config_of(cell, **{"model__num_layers": 2} | changes))
    source = batch(3, 12, seed=2, pad=0).text
    source = source._replace(
        segments_BxL=np.array([[1] * 12, [1] * 7 + [0] * 5, [1] * 12], np.int32),
        positions_BxL=np.tile(np.arange(12, dtype=np.int32), (3, 1)),
    )
    ids_BxL = batch(3, 9, seed=3, pad=0).text.ids_BxL
    ones = np.ones_like(ids_BxL)
    whole = logits(types.Tokens(ids_BxL, ones, np.arange(9, dtype=np.int32) * ones, 0 * ones), source)
    length_B = np.array([3, 0, 2])
    there_BxL = (np.arange(4) < length_B[:, None]).astype(np.int32)
    cache = jax.jit(model.init_cache, static_argnums=3)(
        params, types.Tokens(ids_BxL[:, :4] * there_BxL, there_BxL, there_BxL * np.arange(4), 0 * there_BxL), source, 9
    )
    further = jax.jit(model.decode_step)
    for step in range(6):
        place_B = length_B + step
        assert all(leaf.shape[1] == 3 for leaf in jax.tree.leaves(cache))
        found, cache = further(params, cache, ids_BxL[np.arange(3), place_B])
        np.testing.assert_allclose(found, whole[np.arange(3), place_B], atol=1e-5, rtol=1e-5)


@cells
def test_a_row_whose_source_is_missing_reads_nothing_of_others(cell):
    _, _, logits = build_logits(config_of(cell))
    text, source = pairs()
    gone = source._replace(segments_BxL=np.where(source.segments_BxL == 1, 7, source.segments_BxL))
    other = gone._replace(ids_BxL=np.where(gone.segments_BxL == 7, 9, gone.ids_BxL))
    first = text.segments_BxL == 1
    before, after = (np.asarray(logits(text, one)) for one in (gone, other))
    np.testing.assert_array_equal(before[first], after[first])
    assert np.isfinite(before).all()


def test_a_recurrent_decoder_takes_several_tokens_an_iteration():
    text, source = pairs()
    values = [build_logits(config_of("gru", model__rnn_unroll=unroll))[2](text, source) for unroll in (1, 3)]
    np.testing.assert_allclose(*values, atol=2e-5)


@pytest.mark.exhaustive
@cells
def test_dropout_of_a_row_depends_on_its_key_alone(cell):
    text, source = pairs()
    model, params, _ = build_logits(config_of(cell, model__dropout=0.5, model__attention_dropout=0.0))
    key_B = jax.random.split(jax.random.key(0), 2)
    dropped = jax.jit(lambda text, source, key_B: model.encode(params, text, source, key_B=key_B)[0])
    one, turned = dropped(text, source, key_B), dropped(*jax.tree.map(lambda x: x[::-1], (text, source)), key_B[::-1])
    np.testing.assert_allclose(one, turned[::-1], atol=2e-5)
    other = dropped(text, source, key_B.at[1].set(jax.random.key(7)))
    np.testing.assert_array_equal(one[0], other[0])
    assert np.abs(one[1] - other[1]).max() > 0.1


@pytest.mark.exhaustive(but=("transformer-paths0",))
@pytest.mark.parametrize(("cell", "paths"), [("transformer", (True, False)), ("gru", (True,))])
def test_the_loss_s_gradient_reaches_every_parameter_by_either_path(cell, paths):
    text, source = pairs()
    rows, key_B = types.Batch(text, {}, np.arange(2, dtype=np.int32), source), jax.random.split(jax.random.key(0), 2)
    found = []
    for fast in paths:
        cfg = config_of(cell, **PLAIN, model__kernels="auto" if fast else "reference", model__remat=fast)
        model, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg)._replace(source_len=23))

        def loss(params, model=model, objective=objective, cfg=cfg):
            return (
                objective.loss(params, model, rows, key_B, program.make_train_hparams(cfg), train=True)
                .loss_B["causal"]
                .sum()
            )

        found.append(jax.jit(jax.value_and_grad(loss))({"model": build_logits(cfg)[1]}))
    (loss, gradient), (plain, other) = found[0], found[-1]
    np.testing.assert_allclose(loss, plain, rtol=1e-5)
    for (path, one), two in zip(jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(other), strict=True):
        axes = tuple(range("layers" in jax.tree_util.keystr(path), two.ndim))
        assert (np.abs(two).max(axes) > 0).all(), jax.tree_util.keystr(path)
        np.testing.assert_allclose(one, two, atol=2e-4 * np.abs(two).max(), err_msg=jax.tree_util.keystr(path))


def test_without_a_source_it_says_so():
    model, params, _ = build_logits(config_of("transformer"))
    with pytest.raises(AssertionError, match="reads a source"):
        model.encode(params, pairs()[0])
