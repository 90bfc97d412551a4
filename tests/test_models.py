"""What holds for every member of every family: nothing leaks, and every path of computation gives the same numbers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import (
    ALL_MEMBERS,
    FAMILY_CELLS,
    MEMBERS,
    VARIANTS,
    VOCAB,
    batch,
    build,
    make_dataset_info,
    mark_further,
    params_of,
    read_example,
    replace_text,
    small_config,
)

from mlm import models
from mlm.base import config, fields, types
from mlm.base.special import MASK
from mlm.models import MODELS, SIZES, layers, lm, mixer, recurrence, transformer
from mlm.training.run import resolution
from mlm.training.step import program, sharding, update

# The members, and those with other blocks than the default's, which stand for the members of their cell in the suite.
PLAIN_MEMBERS = [(*member, {}) for member in FAMILY_CELLS]
variants = pytest.mark.parametrize(
    ("family", "cell", "changes"),
    mark_further(
        [*PLAIN_MEMBERS, *VARIANTS.values()], [("transformer", "", {}), ("feedforward", "bag", {}), *VARIANTS.values()]
    ),
    ids=["-".join(filter(None, m)) for m in FAMILY_CELLS] + [f"{name} variant" for name in VARIANTS],
)


# Fields of config.model that are no block: a member's name and size, and how it is computed, not what.
NO_BLOCKS = {
    *("family", "cell", "size", "num_layers", "width", "mlp_dim", "rnn_dim", "state_dim", "num_heads", "window"),
    *("max_positions", "directionality", "chrono_init", "norm_eps", "dropout", "attention_dropout", "init_std"),
    *("dtype", "scan_unroll", "rnn_unroll", "remat", "remat_policy", "kernels"),
}


def test_every_block_is_in_a_variant_and_every_variant_is_a_config_that_trains():
    blocks = {name.removeprefix("model.") for name in fields.DEFAULT if name.startswith("model.")} - NO_BLOCKS
    assert blocks == {name.removeprefix("model__") for *_, changes in VARIANTS.values() for name in changes}
    for family, cell, changes in VARIANTS.values():
        resolution.check(small_config(family, cell, **changes))


def logits(cfg, rows):
    return np.asarray(build(cfg)[2](rows.text))


def replace_tokens(rows, where_BxL, seed=9):
    """The same rows with other tokens where the mask is true."""
    shift = np.random.default_rng(seed).integers(1, VOCAB - 5, rows.text.ids_BxL.shape)
    other_BxL = (rows.text.ids_BxL - 5 + shift) % (VOCAB - 5) + 5
    return replace_text(rows, ids_BxL=np.where(where_BxL, other_BxL, rows.text.ids_BxL))


@pytest.mark.exhaustive(but=("transformer-",))
@MEMBERS
def test_masked_logits_do_not_depend_on_the_true_tokens(family, cell):
    cfg = small_config(family, cell, eval__mask_rate=0.3)
    model, params, _ = build(cfg)
    _, objective = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    knobs = program.make_eval_hparams(cfg)
    rows = batch()
    keys = update.make_example_keys(np.uint32(0), 0, rows.index_B)

    @jax.jit
    def show(rows):
        """What the model was shown, and the logits it gave at the masked positions."""
        views = {}

        def encode(params, text, source=None, *, key_B=None):
            views["ids"] = text.ids_BxL
            return model.encode(params, text, source, key_B=key_B)

        def logits(params, h):
            views["logits"] = model.logits(params, h)
            return views["logits"]

        spy = types.Model(model.directions, model.width, model.init, encode, logits)
        return objective.loss({"model": params}, spy, rows, keys, knobs, train=False), views

    losses, before = show(rows)
    hidden = np.asarray(before["ids"]) == MASK
    assert (hidden.sum(1) == losses.weight_B["mlm"]).all() and (hidden.sum(1) > 0).all()
    _, after = show(replace_tokens(rows, hidden))
    used = np.arange(5) < np.asarray(losses.weight_B["mlm"])[:, None]
    np.testing.assert_array_equal(np.asarray(before["logits"])[used], np.asarray(after["logits"])[used])


@variants
def test_nothing_is_seen_across_segments_or_of_padding(family, cell, changes):
    cfg, rows = small_config(family, cell, **changes), batch()
    before = logits(cfg, rows)
    for segment in (0, 1, 2):
        changed = rows.text.segments_BxL == segment
        after = logits(cfg, replace_tokens(rows, changed))
        np.testing.assert_array_equal(after[~changed], before[~changed])


@variants
def test_every_token_sees_the_others_of_its_segment(family, cell, changes):
    cfg, rows = small_config(family, cell, **changes), batch()
    before = logits(cfg, rows)
    for place in range(1, 4):
        changed = np.zeros_like(rows.text.segments_BxL, bool)
        changed[:, place] = True
        after = logits(cfg, replace_tokens(rows, changed))
        assert (np.abs(after - before)[:, place - 1].max(-1) > 1e-4).all()
        assert (np.abs(after - before)[:, place + 1].max(-1) > 1e-4).all()


@variants
def test_a_row_does_not_depend_on_the_rest_of_the_batch(family, cell, changes):
    cfg, rows = small_config(family, cell, **changes), batch()
    together = logits(cfg, rows)
    for row, together_LxV in enumerate(together):  # beside copies of itself
        copies = jax.tree.map(lambda x, row=row: x[[row] * 3], rows)
        np.testing.assert_allclose(logits(cfg, copies), [together_LxV] * 3, rtol=1e-5, atol=1e-5)


@MEMBERS
def test_dropout_of_a_row_depends_on_its_key_alone(family, cell):
    cfg, rows = small_config(family, cell, model__dropout=0.5), batch()
    model, params, _ = build(cfg)
    keys = update.make_example_keys(np.uint32(3), 7, rows.index_B)
    encode = jax.jit(lambda rows, keys: model.encode(params, rows.text, key_B=keys)[0])
    together = encode(rows, keys)
    turned = encode(jax.tree.map(lambda x: x[::-1], rows), keys[::-1])
    np.testing.assert_allclose(together, turned[::-1], rtol=1e-5, atol=1e-5)
    assert np.abs(together - encode(rows, keys[::-1])).max() > 0.1


@pytest.mark.parametrize(
    ("family", "cell", "objective", "changes"),
    [
        ("transformer", "", "replaced_token_detection", {}),
        ("rnn", "lstm", "causal", {"model__directionality": "two_stack"}),
        ("encoder_decoder", "transformer", "denoising", {}),
    ],
)
def test_no_two_draws_of_dropout_have_one_key(family, cell, objective, changes, monkeypatch):
    """Of examples, sublayers, layers, directions and models: masks of one key would be the same."""
    keys, rates, sample = [], set(), layers.sample_keep_mask

    def record(key, rate, *rest):
        rates.add(rate)
        jax.debug.callback(lambda words: keys.append(tuple(words.tolist())), jax.random.key_data(key))
        return sample(key, rate, *rest)

    monkeypatch.setattr(layers, "sample_keep_mask", record)
    cfg = small_config(family, cell, objective=objective, model__attention_dropout=0.25, **changes)
    model, built = program.build_model_and_objective(cfg, make_dataset_info(cfg))
    key = jax.random.key(0)
    params = jax.eval_shape(lambda: {"model": model.init(key), "objective": built.init(key, model)})
    loss = functools.partial(built.loss, model=model, hparams=program.make_train_hparams(cfg), train=True)
    jax.jit(loss)(params_of(params), batch=batch(2), key_B=jax.random.split(key, 2))
    jax.effects_barrier()
    assert len(keys) == len({*keys}) > 2 * cfg.model.num_layers
    assert max(rates) == max(cfg.model.dropout, cfg.model.attention_dropout)


@pytest.mark.exhaustive(but=("transformer", "lstm variant", "window variant"))
@variants
def test_rolled_and_unrolled_layers_agree(family, cell, changes):
    rows = batch()
    values = [logits(small_config(family, cell, **changes, model__scan_unroll=unroll), rows) for unroll in (0, 1)]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-5, atol=1e-5)


def test_layers_that_share_parameters_compute_what_layers_with_equal_ones_do():
    sizes = {"model__num_layers": 4, "model__scan_unroll": 1}
    looped, every = (build(small_config("feedforward", "bag", **sizes, model__num_unique_layers=n)) for n in (2, 0))
    rows, keys = batch(), update.make_example_keys(np.uint32(0), 0, batch().index_B)
    twice = lambda path, leaf: jnp.concatenate([leaf, leaf]) if sharding.is_stacked(path) else leaf
    states = jax.jit(looped[0].encode_layers)(looped[1], rows.text, key_B=keys)
    expected = jax.jit(every[0].encode_layers)(
        jax.tree_util.tree_map_with_path(twice, looped[1]), rows.text, key_B=keys
    )
    assert len(states) == 5
    np.testing.assert_allclose(states, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive(but=("rnn-lstm",))
@MEMBERS
def test_bfloat16_computes_close_to_float32_with_float32_parameters(family, cell):
    cfg, rows = small_config(family, cell), batch()
    half = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dtype="bfloat16"))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(build(half)[1]))
    full, low = logits(cfg, rows), logits(half, rows)
    assert low.dtype == np.float32
    real = rows.text.segments_BxL > 0
    assert 1e-6 < np.abs(full - low)[real].mean() < 0.05


def test_gradients_of_embeddings_add_up_in_float32():
    """[MASK] and a type are in thousands of places of a batch; a bfloat16 sum stops growing at 256 equal terms."""
    cfg = small_config("transformer", model__dtype="bfloat16", model__kernels="reference", model__embed_norm=False)
    length = cfg.model.max_positions
    module = lm.EncoderLM(cfg.model, VOCAB, "learned", transformer.TransformerEncoder)
    zeros_BxL, place_BxL = jnp.zeros((64, length), jnp.int32), jnp.tile(jnp.arange(length), (64, 1))
    text = types.Tokens(zeros_BxL, zeros_BxL + 1, place_BxL, zeros_BxL)
    params = params_of(
        jax.eval_shape(lambda: module.init(jax.random.key(0), text, None, method="embed_tokens"))["params"]
    )
    embed = lambda params: module.apply({"params": params}, text, None, method="embed_tokens")
    assert jax.eval_shape(embed, params).dtype == jnp.bfloat16
    gradient = jax.jit(jax.grad(lambda params: embed(params).astype(jnp.float32).sum()))(params)
    np.testing.assert_array_equal(gradient["token"]["embedding"][0], 64 * length)
    np.testing.assert_array_equal(gradient["type"]["embedding"][0], 64 * length)
    np.testing.assert_array_equal(gradient["position"]["embedding"], 64)


def test_bag_knows_no_order_and_window_does():
    rows = batch(pad=0)
    swapped = replace_text(rows, ids_BxL=rows.text.ids_BxL[:, [0, 2, 1, *range(3, 16)]])
    for cell, differs in (("bag", False), ("window", True)):
        cfg = small_config("feedforward", cell)
        change = np.abs(logits(cfg, rows) - logits(cfg, swapped))[:, 3].max()
        assert (change > 1e-4) == differs, cell


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_zeroes_its_share_and_no_two_draws_follow_each_other(rate):
    shape = (4, 250, 251)
    words = np.array(
        [
            [0, 0],
            [1, 0],
            [0, 1],
            [2**31, 0],
            [0, 2**31],
            *np.asarray(jax.random.key_data(layers.fold_in(jax.random.split(jax.random.key(0), 3), 1))),
        ],
        np.uint32,
    )
    draw = jax.jit(jax.vmap(lambda key: layers.sample_keep_mask(key, rate, shape)))
    zeros = ~np.asarray(draw(jax.random.wrap_key_data(words))).reshape(len(words), -1)
    size = zeros.shape[1]
    assert np.abs(zeros.mean(1) - rate).max() < 4 * (rate * (1 - rate) / size) ** 0.5
    correlation = np.corrcoef(zeros)  # under keys that differ in one bit, and under those that come from splitting
    assert np.abs(correlation - np.eye(len(words))).max() < 4.5 / size**0.5
    flat = zeros[-1]
    for distance in (1, 2, 4, 250, 251, 256, 1024, 250 * 251, 2**16):
        assert abs(np.corrcoef(flat[distance:], flat[:-distance])[0, 1]) < 4 / (size - distance) ** 0.5


def test_dropout_s_hash_maps_no_two_numbers_to_one_and_each_bit_of_one_flips_half_of_the_other_s():
    number_N = np.arange(2**16, dtype=np.uint32)
    mixed_N = np.asarray(layers.mix_bits(number_N))
    assert len(np.unique(mixed_N)) == len(number_N)
    for bit in range(32):
        flipped_N = mixed_N ^ np.asarray(layers.mix_bits(number_N ^ np.uint32(1 << bit)))
        share = [(flipped_N >> other & 1).mean() for other in range(32)]
        assert np.abs(np.array(share) - 0.5).max() < 0.02, bit


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", recurrence.CELLS)
def test_recurrence_equals_a_loop_over_each_segment(cell, reverse):
    rng, spec, hidden = np.random.default_rng(0), recurrence.CELLS[cell], 4
    kernel = rng.normal(size=(hidden, spec.gates * hidden)).astype(np.float32)
    bias = rng.normal(size=spec.gates * hidden).astype(np.float32)
    inputs = rng.normal(size=(2, 9, spec.gates * hidden)).astype(np.float32)
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0], [1] * 9])
    turn = -1 if reverse else 1
    read_LxB = segments.T[::turn]
    same_LxB = np.pad(read_LxB[1:] == read_LxB[:-1], ((1, 0), (0, 0)))
    for unroll in (1, 4):
        got = recurrence.scan_cell(spec, kernel, bias, jnp.asarray(inputs.swapaxes(0, 1)[::turn]), same_LxB, unroll)
        got = got[::turn].swapaxes(0, 1)
        for row in range(2):
            for segment in np.unique(segments[row]):
                places = np.flatnonzero(segments[row] == segment)
                carry = (jnp.zeros((1, hidden)),) * spec.carries
                for place in places[::-1] if reverse else places:
                    carry = spec.step(inputs[row : row + 1, place], carry[0] @ kernel + bias, carry)
                    np.testing.assert_allclose(got[row, place], carry[0][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gates_start_with_the_timescales_asked_for(cell):
    cfg, longest = small_config("rnn", cell, model__chrono_init=100, model__rnn_dim=64), 100

    @jax.jit
    def init_biases(key):
        return [
            leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(MODELS["rnn"].build(cfg.model, VOCAB).init(key))
            if "forward_input" in jax.tree_util.keystr(path) and "bias" in jax.tree_util.keystr(path)
        ]

    (bias,) = init_biases(jax.random.key(0))
    spec, decays = recurrence.CELLS[cell], []
    step = jax.jit(spec.step)
    for layer in range(cfg.model.num_layers):
        after = step(bias[layer][None], jnp.zeros((1, 64 * spec.gates)), (jnp.ones((1, 64)),) * spec.carries)
        decays.append(1 - np.asarray(after[-1][0]))  # of a unit's content, where nothing new comes
    tokens = 1 / np.stack(decays)
    assert tokens.min() > 1.9 and tokens.max() < longest + 0.1 and abs(tokens.mean() - longest / 2) < longest / 10
    assert len(np.unique(tokens)) == tokens.size


@pytest.mark.parametrize("positions", fields.DECLARATIONS["model.positions"].choices)
def test_with_each_position_scheme_a_state_depends_on_the_order_of_the_others(positions):
    cfg, rows = small_config(model__positions=positions, model__num_layers=1), batch()
    turned = replace_text(rows, ids_BxL=rows.text.ids_BxL[:, [1, 0, *range(2, 16)]])
    has_changed = np.abs(logits(cfg, turned) - logits(cfg, rows))[0, 2].max() > 1e-4
    assert has_changed, f"nothing in mlm/models acts on config.model.positions = {positions!r}"


@functools.cache
def counts(vocab_size, **changes):
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    cfg = resolution.resolve(fields.override(config.Config(), changes))
    return lm.count_parameters(
        jax.eval_shape(MODELS[cfg.model.family].build(cfg.model, vocab_size).init, jax.random.key(0))
    )


def test_the_mixer_of_the_documentation_is_complete(monkeypatch):
    """One class, one entry and one row: its layers see their segments alone, and have the Transformer's parameters."""
    (_, row), (_, added) = read_example("A mixer").values()
    monkeypatch.setattr(mixer, "MIXERS", dict(mixer.MIXERS))
    exec(added, dict(vars(mixer)))
    sizes = eval(row.partition(": ")[2].strip(" ,\n"), vars(models))
    cfg, rows = small_config("mixer", "conv"), batch()
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, cell="mean"))
    before = logits(cfg, rows)
    changed = rows.text.segments_BxL == 1
    changed[:, 1] = False
    difference = np.abs(logits(cfg, replace_tokens(rows, changed)) - before).max(-1)
    assert (difference[:, 1] > 1e-4).all() and (difference[rows.text.segments_BxL != 1] == 0).all()
    for size in ("micro", "base"):
        model = dataclasses.replace(cfg.model, **sizes[size])
        count = lm.count_parameters(jax.eval_shape(MODELS["mixer"].build(model, 1000).init, jax.random.key(0)))
        assert abs(count["non_embedding"] / counts(1000, model__size=size)["non_embedding"] - 1) < 0.03, size


def test_published_models_have_their_size():
    # BertForMaskedLM, bert-base-uncased: 109,514,298. XLM-RoBERTa large (514 positions, one segment type): 560,142,482.
    theirs = {"model__norm_placement": "post", "model__positions": "learned"}
    bert = counts(30_522, model__size="base", **theirs)
    xlm_r = counts(250_002, model__size="large", model__max_positions=514, model__type_vocab_size=1, **theirs)
    assert bert["parameters"] == 109_514_298
    assert xlm_r["parameters"] == 560_142_482
    # AlbertForMaskedLM, albert-base-v2.
    albert = counts(30_000, model__size="base", model__embedding_dim=128, model__num_unique_layers=1, **theirs)
    assert albert["parameters"] == 11_221_680


sizes = pytest.mark.parametrize("size", mark_further([(size,) for size in SIZES["transformer"]], [("base",)]))


@sizes
@ALL_MEMBERS
def test_sizes_match_the_transformer_within_three_percent(family, cell, size):
    assert all(set(rows) == set(SIZES["transformer"]) for rows in SIZES.values())
    ours = counts(1000, model__family=family, model__cell=cell, model__size=size)["non_embedding"]
    theirs = counts(1000, model__size=size)["non_embedding"]
    assert abs(ours / theirs - 1) < 0.03


@pytest.mark.exhaustive(but=("transformer--micro", "feedforward-window-base", "feedforward-bag-large"))
@sizes
@pytest.mark.parametrize(("family", "cell"), [("transformer", ""), ("feedforward", "window"), ("feedforward", "bag")])
def test_a_gated_mlp_has_as_many_parameters_within_three_percent(family, cell, size):
    member = {"model__family": family, "model__cell": cell, "model__size": size}
    ours, theirs = (counts(1000, **member, model__activation=name)["non_embedding"] for name in ("swiglu", "gelu"))
    assert abs(ours / theirs - 1) < 0.03
    assert resolution.resolve(config.Config(model=config.Model(size=size, activation="geglu"))).model.mlp_dim % 8 == 0
