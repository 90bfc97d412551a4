"""Each block of config.model against a plain formula in numpy, and what no Hugging Face class of ours can express."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import FAMILY_CELLS, ONE_EACH, VOCAB, batch, mark_further, params_of, small_config

from mlm import models
from mlm.base import config, errors, fields, text_files
from mlm.models import MODELS, attention, layers, lm, platform_kernels, positions, stack
from mlm.models.hub import model_types
from mlm.models.hub.architecture import ARCHITECTURES
from mlm.models.transformer import TransformerEncoder
from mlm.training.run import resolution
from mlm.training.step import optimizers

B, L, D, H = 2, 9, 16, 4
ROTARY = {"positions": "rotary", "rope_theta": 50.0}
SMALL = config.Model(width=D, num_heads=H, num_layers=2, mlp_dim=24, init_std=0.25, kernels="reference")
RNG = np.random.default_rng(0)
X_BxLxD = RNG.normal(size=(B, L, D)).astype(np.float32)


def change_fields(**changes) -> config.Model:
    return dataclasses.replace(SMALL, **changes)


def init(module, *inputs):
    """Parameters of no special values."""
    return params_of(jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs))["params"])


def normalize(model, params, x):
    if model.norm == "layernorm":
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + model.norm_eps) * params["scale"] + params.get("bias", 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal_cdf(x):
    return 0.5 + 0.5 * np.vectorize(math.erf)(x / math.sqrt(2))


ACTIVATIONS = {
    "gelu": lambda x: x * normal_cdf(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "geglu": lambda x: x[..., :24] * normal_cdf(x[..., :24]) * x[..., 24:],
    "swiglu": lambda x: x[..., :24] * sigmoid(x[..., :24]) * x[..., 24:],
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kernels", ["reference", "gelu"])
def test_an_mlp_is_its_formula(activation, kernels):
    mlp = layers.MLP(change_fields(activation=activation, kernels=kernels))
    params = init(mlp, X_BxLxD)
    hidden = ACTIVATIONS[activation](X_BxLxD @ params["up"]["kernel"] + params["up"]["bias"])
    expected = hidden @ params["down"]["kernel"] + params["down"]["bias"]
    np.testing.assert_allclose(mlp.apply({"params": params}, X_BxLxD), expected, atol=1e-4)


class Tripled(stack.ResidualLayer):
    """A layer whose sublayer triples."""

    @layers.nn.compact
    def __call__(self, x_BxLxD, number):
        return self.add("three", lambda y: 3 * y, x_BxLxD, None, skip_norm=self.skips_norm(number))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("changes", [{}, {"layer_scale": 0.5, "bias": "output"}, {"first_norm": False}], ids=str)
def test_norms_and_scales_stand_where_they_should(norm, placement, changes):
    model = change_fields(norm=norm, norm_placement=placement, **changes)
    params = init(Tripled(model), X_BxLxD, 1)
    has_bias = norm == "layernorm" and model.bias == "all"
    assert params["three_norm"].keys() == ({"scale", "bias"} if has_bias else {"scale"})
    for number in (1, 2):
        y = X_BxLxD
        if placement != "post" and (number == 2 or model.first_norm):
            y = normalize(model, params["three_norm"], y)
        y = 3 * y
        if placement == "sandwich":
            y = normalize(model, params["three_post_norm"], y)
        if model.layer_scale:
            y = y * params["three_layer_scale"]["scale"]
        y = X_BxLxD + y
        expected = normalize(model, params["three_norm"], y) if placement == "post" else y
        found = Tripled(model).apply({"params": params}, X_BxLxD, number)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def rotate(x_LxHxd, theta):
    """Each pair of entries (i, i + d/2), as a complex number, turned by position / theta^(2i/d)."""
    half = x_LxHxd.shape[-1] // 2
    angle = np.arange(len(x_LxHxd))[:, None, None] / theta ** (np.arange(half) / half)
    turned = (x_LxHxd[..., :half] + 1j * x_LxHxd[..., half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], -1)


@pytest.mark.parametrize(
    ("scaling", "theta", "length", "expected", "size"),
    [
        ("linear", 50.0, 2048, [0.25, 0.094015077, 0.035355341, 0.01329574], 1.0),
        ("ntk", 50.0, 2048, [1.0, 0.23690316, 0.056123104, 0.01329574], 1.0),
        ("yarn", 50.0, 2048, [1.0, 0.37606031, 0.14142136, 0.043211155], 1.1386294),
        (
            *("yarn", 10_000.0, 64),
            [1.0, 0.23717082, 0.05, 0.0079056947, 0.0025, 7.9056947e-4, 2.5e-4, 7.9056947e-5],
            1.1386294,
        ),
    ],
)
def test_scaled_rotary_angles_are_those_of_transformers(scaling, theta, length, expected, size):
    """Of its functions (5.24) for four times the length, of dynamic scaling at that length; local layers have none."""
    changes = {"rope_scaling": scaling, "rope_theta": theta, "rope_factor": 4.0, "rope_original_len": length}
    model = change_fields(positions="rotary", **changes)
    stretch_h, found = positions.select_scaling(model, 1, len(expected))
    exponent_h = np.arange(len(expected)) / len(expected)
    np.testing.assert_allclose(1 / (stretch_h * theta**exponent_h), expected, rtol=1e-6)
    assert found == pytest.approx(size, rel=1e-6)
    windowed = dataclasses.replace(model, local_window=4, global_every=2)
    for number, values in ((1, (stretch_h, size)), (2, (np.ones_like(stretch_h), 1.0))):
        for x, y in zip(positions.select_scaling(windowed, number, len(expected)), values, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)
    x_BxLxHxd = np.random.default_rng(0).normal(size=(1, 9, 1, 2 * len(expected))).astype(np.float32)
    turned = positions.rotate(jnp.asarray(x_BxLxHxd), None, theta, (stretch_h, found))
    halves = x_BxLxHxd[0, :, 0, : len(expected)] + 1j * x_BxLxHxd[0, :, 0, len(expected) :]
    halves *= size * np.exp(1j * np.arange(9)[:, None] * expected)
    np.testing.assert_allclose(turned[0, :, 0], np.concatenate([halves.real, halves.imag], -1), atol=1e-5)


def bucket(distance):
    """T5's bucket of a distance, from 32 in all, by the text of its paper and of its code."""
    size = abs(distance)
    number = size if size < 8 else min(15, 8 + int(math.log(size / 8) / math.log(128 / 8) * 8))
    return number + 16 * (distance > 0)


def attend(model, params, number, table_KxH, x_LxD, visible_LxL):
    """Self-attention of one example, one query and head after the other."""
    qkv = x_LxD @ params["qkv"]["kernel"] + params["qkv"].get("bias", 0)
    q, k, v = np.moveaxis(qkv.reshape(L, 3, H, D // H), 1, 0)
    if model.qk_norm:
        q, k = normalize(model, params["q_norm"], q), normalize(model, params["k_norm"], k)
    is_local = model.local_window > 0 and (model.global_every == 0 or (number - 1) % model.global_every > 0)
    if model.global_layers:
        is_local = number not in model.global_layers
    if model.positions == "rotary":
        theta = model.local_rope_theta if is_local and model.local_rope_theta else model.rope_theta
        q, k = rotate(q, theta), rotate(k, theta)
    out = np.zeros((L, H, D // H))
    for i in range(L):
        seen = [j for j in range(L) if visible_LxL[i, j] and (not is_local or abs(i - j) <= model.local_window // 2)]
        for h in range(H):
            score = np.array([q[i, h] @ k[j, h] / math.sqrt(D // H) for j in seen])
            if model.positions == "alibi":
                score -= 2.0 ** (-8 * (h + 1) / H) * np.array([abs(i - j) for j in seen])
            if model.positions == "relative":
                score += [table_KxH[bucket(j - i), h] for j in seen]
            weight = np.exp(score - score.max())
            out[i, h] = weight @ v[seen, h] / weight.sum()
    if model.attention_gate:
        out *= sigmoid(x_LxD @ params["gate"]["kernel"] + params["gate"].get("bias", 0))[..., None]
    return out.reshape(L, D) @ params["out"]["kernel"] + params["out"].get("bias", 0)


@pytest.mark.parametrize(
    "changes",
    [
        ROTARY,
        ROTARY | {"local_window": 4, "global_every": 3, "local_rope_theta": 5.0},
        ROTARY | {"local_window": 4, "global_layers": (2, 3), "local_rope_theta": 5.0},
        {"positions": "learned", "local_window": 6, "global_every": 0, "qk_norm": True},
        {"positions": "alibi", "attention_gate": True, "bias": "norms"},
        {"positions": "relative", "qk_norm": True, "norm": "rmsnorm", "local_window": 2, "global_every": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize(("kernels", "platform"), [("reference", "cpu"), ("attention", "cpu"), ("reference", "tpu")])
def test_attention_is_its_formula(changes, kernels, platform, monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: platform)
    model = change_fields(kernels=kernels, **changes)
    table_KxH = RNG.normal(size=(positions.NUM_BUCKETS, H)) if model.positions == "relative" else None
    segments_L = np.array([1, 1, 1, 1, 1, 1, 2, 2, 2])
    visible_LxL = segments_L[:, None] == segments_L
    context = positions.make_context(model, jnp.asarray(visible_LxL)[None, None], table_KxH)
    module = attention.Attention(model)
    params = init(module, X_BxLxD, 1, context, None)
    for number in (1, 2, 3):
        found = module.apply({"params": params}, X_BxLxD[:1], number, context, None)
        expected = attend(model, params, number, table_KxH, X_BxLxD[0], visible_LxL)
        np.testing.assert_allclose(found[0], expected, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "attention_gate": True, "norm": "rmsnorm"}], ids=str)
def test_attention_to_a_source_is_its_formula(changes):
    """One query and head after the other; a query that sees nothing gets the output layer's bias, gated or not."""
    model, S = change_fields(**changes), 5
    module, source_BxSxD = attention.CrossAttention(model), RNG.normal(size=(1, S, D)).astype(np.float32)
    visible_LxS = RNG.random((L, S)) < 0.6
    visible_LxS[0] = False

    def run(module, x_BxLxD, source_BxSxD, visible_Bx1xLxS):
        return module(x_BxLxD, *module.project_source(source_BxSxD), visible_Bx1xLxS, None)

    inputs = X_BxLxD[:1], source_BxSxD, jnp.asarray(visible_LxS)[None, None]
    params = params_of(jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs, method=run))["params"])
    q = (X_BxLxD[0] @ params["query"]["kernel"] + params["query"]["bias"]).reshape(L, H, D // H)
    kv = (source_BxSxD[0] @ params["source"]["kernel"] + params["source"]["bias"]).reshape(S, 2, H, D // H)
    k, v = kv[:, 0], kv[:, 1]
    if model.qk_norm:
        q, k = normalize(model, params["q_norm"], q), normalize(model, params["k_norm"], k)
    out = np.zeros((L, H, D // H))
    for i, h in itertools.product(range(1, L), range(H)):
        seen = np.flatnonzero(visible_LxS[i])
        weight = np.exp(np.array([q[i, h] @ k[j, h] / math.sqrt(D // H) for j in seen]))
        out[i, h] = weight @ v[seen, h] / weight.sum()
    if model.attention_gate:
        out *= sigmoid(X_BxLxD[0] @ params["gate"]["kernel"] + params["gate"]["bias"])[..., None]
    expected = out.reshape(L, D) @ params["out"]["kernel"] + params["out"]["bias"]
    np.testing.assert_allclose(module.apply({"params": params}, *inputs, method=run)[0], expected, atol=1e-4)


@pytest.mark.exhaustive(but=("bidirectional-None",))
@pytest.mark.parametrize(
    ("directionality", "left_B"), [("bidirectional", None), ("causal", None), ("mixed", [False]), ("mixed", [True])]
)
def test_with_a_window_a_state_depends_on_the_nearest_tokens_of_its_segment_alone(directionality, left_B):
    """By gradients, in a packed example: one local layer, and a local layer on top of a global one."""
    text = batch(1).text
    same_LxL = text.segments_BxL[0][:, None] == text.segments_BxL[0]
    index_L = np.arange(len(same_LxL))
    left_B = None if left_B is None else np.array(left_B)
    distance_LxL = index_L - index_L[:, None]
    for num_layers, every in ((1, 0), (2, 2)):
        changes = {"num_layers": num_layers, "local_window": 4, "global_every": every, "directionality": directionality}
        model = change_fields(**changes, positions="rotary", dropout=0.0, attention_dropout=0.0)
        module, x_BxLxD = TransformerEncoder(model), RNG.normal(size=(1, len(index_L), D)).astype(np.float32)
        params = init(module, x_BxLxD, text.segments_BxL, left_B, None)

        def total(x_BxLxD, weight_D, module=module, params=params):
            h_BxLxD = module.apply({"params": params}, x_BxLxD, text.segments_BxL, left_B, None)
            return (h_BxLxD[0] * weight_D).sum(-1)

        slope_LxLxD = jax.jit(jax.jacrev(total))(x_BxLxD, RNG.normal(size=D).astype(np.float32))[:, 0]
        expected = same_LxL & (abs(distance_LxL) <= 2) if num_layers == 1 else same_LxL
        is_causal = directionality == "causal" or (left_B is not None and left_B[0])
        expected = expected & (distance_LxL <= 0) if is_causal else expected
        np.testing.assert_array_equal(abs(slope_LxLxD).max(-1) > 0, expected)


@pytest.mark.parametrize("lm_head", ["bert", "linear"])
def test_factorised_embeddings_are_projected_in_and_out(lm_head):
    model = change_fields(embedding_dim=6, lm_head=lm_head, positions="rotary", dropout=0.0)
    module, text = lm.EncoderLM(model, VOCAB, "rotary", TransformerEncoder), batch(1).text
    params = init(module, text)
    embedded = normalize(
        model, params["embed_norm"], params["token"]["embedding"][text.ids_BxL] + params["type"]["embedding"][0]
    )
    expected = embedded @ params["embed_projection"]["kernel"] + params["embed_projection"]["bias"]
    np.testing.assert_allclose(module.apply({"params": params}, text, None, method="embed_tokens"), expected, atol=1e-4)
    h = X_BxLxD @ params["transform"]["kernel"] + params["transform"]["bias"]
    if lm_head == "bert":
        h = normalize(model, params["transform_norm"], ACTIVATIONS["gelu"](h))
    expected = h @ params["token"]["embedding"].T + params.get("bias", 0)
    np.testing.assert_allclose(module.apply({"params": params}, X_BxLxD, method="logits"), expected, atol=1e-4)


@pytest.mark.parametrize("bias", ["all", "norms", "output", "none"])
@pytest.mark.parametrize(("family", "cell"), [("rnn", "lstm"), ("rnn", "gru"), ("encoder_decoder", "gru")])
def test_a_recurrent_model_may_have_any_biases(family, cell, bias):
    objective = "denoising" if family == "encoder_decoder" else "mlm"
    own = {"model.family": family, "model.cell": cell, "model.bias": bias, "objective": objective}
    cfg = resolution.resolve(fields.override(config.Config(), own))
    models.check(cfg)
    assert not resolution.find_unread_settings(cfg)


MEMBERS = mark_further(
    [*FAMILY_CELLS, ("encoder_decoder", "transformer"), ("encoder_decoder", "gru")],
    [*ONE_EACH, ("encoder_decoder", "transformer")],
)


def paths(family, cell, **changes):
    """The parameters' shapes by path."""
    cfg = small_config(family, cell, **{f"model__{name}": value for name, value in changes.items()})
    shapes = jax.eval_shape(MODELS[family].build(cfg.model, VOCAB).init, jax.random.key(0))
    return {tuple(key.key for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}


@pytest.mark.exhaustive(but=("rnn-lstm", "transformer-"))
@pytest.mark.parametrize(("family", "cell"), MEMBERS, ids=str)
def test_no_bias_is_left_where_there_should_be_none(family, cell):
    biases = {
        bias: {path for path in paths(family, cell, bias=bias) if "bias" in path[-1]}
        for bias in ("all", "norms", "output", "none")
    }
    assert biases["none"] == set() and biases["output"] == {("bias",)}
    everything = paths(family, cell)
    is_norm = lambda path: "scale" in {other[-1] for other in everything if other[:-1] == path[:-1]}
    outside = {("bias",), ("transform", "bias")} & set(everything)
    assert biases["norms"] == {path for path in biases["all"] if is_norm(path)} | outside
    assert {path for path in everything if "bias" in path[-1]} == biases["all"]


@pytest.mark.parametrize(("family", "cell"), MEMBERS, ids=str)
def test_weights_decay_and_norms_scales_and_biases_do_not(family, cell):
    changes = {"layer_scale": 0.1, "qk_norm": True, "attention_gate": True, "positions": "relative", "embedding_dim": 8}
    shapes = paths(family, cell, norm_placement="sandwich", **changes)
    groups = text_files.split_names(config.Optim().decay_groups)
    for path, leaf in shapes.items():
        decays = optimizers.find_group(tuple(map(jax.tree_util.DictKey, path)), leaf) in groups
        is_vector = leaf.ndim - ("layers" in path) < 2
        assert decays == (not is_vector and path[-1] not in ("relative_bias", "filter")), path


@pytest.mark.parametrize("init_std", [0.0, 0.02])
def test_initial_weights_have_their_standard_deviation(init_std):
    """Of a matrix and of a table of embeddings; truncated at two of them, as BERT's, which makes 0.88 of it."""
    model = change_fields(width=64, mlp_dim=256, num_layers=1, init_std=init_std, positions="rotary")
    module = lm.EncoderLM(model, 500, "rotary", TransformerEncoder)
    params = jax.device_get(jax.jit(module.init)(jax.random.key(0), batch(1).text))["params"]
    expected = {"kernel": 256**-0.5, "embedding": 500**-0.5}
    found = {"kernel": params["body"]["stack"]["layers"]["layer"]["mlp"]["down"]["kernel"], **params["token"]}
    for name, values in found.items():
        std = 0.8796 * init_std or expected[name]
        assert float(values.std()) == pytest.approx(std, rel=0.05), name
        assert abs(values).max() <= 2 * std / 0.8796 * 1.001


@pytest.mark.parametrize("init_std", [0.0, 0.02])
def test_scaled_by_depth_the_last_matrix_of_a_sublayer_starts_smaller(init_std):
    plain, scaled = (
        layers.MLP(change_fields(num_layers=8, init_std=init_std, depth_scaled_init=scales)).init(
            jax.random.key(0), X_BxLxD
        )["params"]
        for scales in (False, True)
    )
    np.testing.assert_array_equal(scaled["up"]["kernel"], plain["up"]["kernel"])
    np.testing.assert_allclose(scaled["down"]["kernel"], plain["down"]["kernel"] / math.sqrt(2 * 8), rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "rmsnorm"},
        {"norm_placement": "sandwich"},
        {"first_norm": False},
        {"bias": "norms"},
        {"activation": "geglu"},
        {"layer_scale": 0.1},
        {"qk_norm": True},
        {"attention_gate": True},
        {"positions": "alibi"},
        {"positions": "relative"},
        {"local_window": 8},
        {"num_unique_layers": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("build_config_json", [model_types.build_bert, model_types.build_gpt2])
def test_a_block_that_bert_and_gpt_2_lack_is_not_exported_as_theirs(changes, build_config_json):
    fields = {"positions": "learned", "directionality": "bidirectional"}
    if build_config_json is model_types.build_gpt2:
        fields = ARCHITECTURES["gpt2"].model
    assert build_config_json(change_fields(**fields), np.arange(VOCAB))
    (name,) = changes
    with pytest.raises(errors.ConfigError, match=f"^config.model.{name} = .*: expected [^\n]*$"):
        build_config_json(change_fields(**fields | changes), np.arange(VOCAB))


def test_buckets_are_t5_s():
    # A distance on the border between two buckets is left out: its logarithm is rounded.
    distances = [n for n in range(-300, 301) if abs(n) not in (16, 32, 64, 128)]
    found = positions.compute_buckets(jnp.array(distances)[None, None])[0, 0]
    np.testing.assert_array_equal(found, [bucket(n) for n in distances])


def test_slopes_of_alibi_are_the_paper_s():
    """Section 3: 8 heads have 1/2, 1/4, ..., 1/256; further heads get those between, of 16 heads."""
    powers = lambda heads: -np.log2(-positions.compute_alibi(heads, jnp.array([[[-1]]]))[0, :, 0, 0])
    np.testing.assert_allclose(powers(8), np.arange(1, 9), atol=1e-6)
    np.testing.assert_allclose(powers(12), [*range(1, 9), 0.5, 1.5, 2.5, 3.5], atol=1e-6)
