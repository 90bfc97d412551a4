"""Every hand-written path has the values and gradients of the plain formula: float32 to 1e-5, bfloat16 as stated."""

import dataclasses
import functools
import types as standard

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import FAMILY_CELLS, ONE_EACH, batch, mark_further, params_of, small_config

from mlm.models import MODELS, platform_kernels
from mlm.objectives import token_prediction
from mlm.objectives.cross_entropy import blocked_cross_entropy, cross_entropy

pytestmark = pytest.mark.slow

VOCAB = 50


ALL = ",".join(platform_kernels.FASTER_KERNELS["cpu"])


def compute_both_paths(cfg, dtype="float32"):
    """The pair, fast and plain, of ((loss, right), gradient) of a model with dropout, and that of its jaxprs.

    One program makes both, of rows with several segments, an odd length and padding. No parameter is zero.
    """
    model_of = lambda *, fast: MODELS[cfg.model.family].build(
        dataclasses.replace(cfg.model, kernels=ALL if fast else "reference", dtype=dtype), VOCAB
    )
    rng, text = np.random.default_rng(0), batch(3, length=13).text
    share_BxL = rng.uniform(size=text.ids_BxL.shape) * (rng.uniform(size=text.ids_BxL.shape) < 0.5)
    key_B = jax.random.wrap_key_data(rng.integers(2**32, size=(3, 2), dtype=np.uint32))
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.25 * rng.normal(size=x.shape).astype(np.float32),
        jax.eval_shape(model_of(fast=False).init, jax.random.key(0)),
    )

    def gradient_of(model):
        def loss(params, key_B):
            (h_BxLxD,) = model.encode(params, text, key_B=key_B)
            nats_BxL, right_BxL = token_prediction.compute_token_loss_fast(
                params, model, h_BxLxD, np.roll(text.ids_BxL, 1, 0)
            )
            return (nats_BxL * share_BxL).sum() / share_BxL.sum(), right_BxL

        return jax.jit(jax.value_and_grad(loss, has_aux=True))

    pair = [gradient_of(model_of(fast=fast)) for fast in (True, False)]
    together = jax.jit(lambda *given: [gradient(*given) for gradient in pair])
    # Machine code that is not optimised computes the same formulas, and is made in half the time.
    compiled = together.lower(params, key_B).compile(compiler_options={"xla_backend_optimization_level": 0})
    return compiled(params, key_B), [str(gradient.trace(params, key_B).jaxpr) for gradient in pair]


def near(fast_tree, plain_tree, tolerance):
    """Each leaf within tolerance of the other's largest entry."""
    by_path = jax.tree_util.tree_leaves_with_path(fast_tree)
    for (path, one), other in zip(by_path, jax.tree.leaves(plain_tree), strict=True):
        scale = float(jnp.abs(other).max()) + 1e-6
        np.testing.assert_allclose(one / scale, other / scale, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("family", "cell", "dtype"),
    mark_further(
        [*((*member, "float32") for member in FAMILY_CELLS), ("transformer", "", "bfloat16")],
        [(*member, "float32") for member in ONE_EACH],
    ),
)
def test_a_member_is_the_same_by_either_path(family, cell, dtype):
    """Two layers, by a loop whose body is compiled once; the gated cell's tokens three an iteration, and one over."""
    cfg = small_config(
        family, cell, model__num_layers=2, model__scan_unroll=1, model__rnn_unroll=3 if cell == "gru" else 1
    )
    tolerance = {"float32": 1e-5, "bfloat16": 0.06}[dtype]
    (((loss, right_BxL), gradient), ((plain_loss, plain_right_BxL), plain_gradient)), jaxprs = compute_both_paths(
        cfg, dtype
    )
    assert loss == pytest.approx(float(plain_loss), rel=min(tolerance, 0.01))
    if dtype == "float32":
        np.testing.assert_array_equal(right_BxL, plain_right_BxL)
    near(gradient, plain_gradient, tolerance)
    assert ["custom_vjp" in jaxpr or "layout_constraint" in jaxpr for jaxpr in jaxprs] == [True, False]


def test_recurrence_in_one_direction():
    cfg = small_config("rnn", "gru", model__directionality="causal", model__num_layers=1, model__rnn_unroll=3)
    ((_, gradient), (_, plain_gradient)), _ = compute_both_paths(cfg)
    near(gradient, plain_gradient, 1e-5)


def test_a_gpu_runs_both_directions_in_one_product_a_token(monkeypatch):
    cfg = small_config("rnn", "gru", model__num_layers=1, model__rnn_unroll=3)
    jaxprs = {}
    for platform in ("cpu", "gpu"):
        monkeypatch.setattr(platform_kernels, "find_platform", lambda platform=platform: platform)
        ((_, gradient), (_, plain_gradient)), (jaxprs[platform], _) = compute_both_paths(cfg)
    near(gradient, plain_gradient, 1e-5)
    num_products = {platform: jaxpr.count("dot_general") for platform, jaxpr in jaxprs.items()}
    assert num_products["gpu"] < num_products["cpu"]


@pytest.mark.parametrize(
    "cross_entropy",
    [cross_entropy, *(functools.partial(blocked_cross_entropy, block) for block in (VOCAB, 16, 7))],
    ids=["at once", "one block", "blocks of 13", "blocks of 7"],
)
def test_cross_entropy_where_logits_are_large_and_tied(cross_entropy):
    rng = np.random.default_rng(0)
    h_NxD, table_VxD = rng.normal(size=(12, 8)).astype(np.float32), 40 * rng.normal(size=(VOCAB, 8)).astype(np.float32)
    bias_V = rng.normal(size=VOCAB).astype(np.float32)
    table_VxD[7], bias_V[7] = table_VxD[9], bias_V[9]
    logits_NxV = h_NxD @ table_VxD.T + bias_V
    target_N = np.where(np.arange(12) < 6, logits_NxV.argmax(1), rng.integers(0, VOCAB, 12))
    share_N = rng.uniform(size=12).astype(np.float32)

    def score(*parameters):
        nats_N, right_N = cross_entropy(*parameters, target_N)
        return (nats_N * share_N).sum(), right_N

    def score_plainly(h_NxD, table_VxD, bias_V):
        logits_NxV = h_NxD @ table_VxD.T + bias_V
        return -(jnp.take_along_axis(jax.nn.log_softmax(logits_NxV), target_N[:, None], 1)[:, 0] * share_N).sum()

    both = (jax.value_and_grad(score, (0, 1, 2), has_aux=True), jax.value_and_grad(score_plainly, (0, 1, 2)))
    ((loss, right_N), gradient), (plain_loss, plain_gradient) = jax.jit(
        lambda *parameters: [each(*parameters) for each in both]
    )(h_NxD, table_VxD, bias_V)
    assert loss == pytest.approx(float(plain_loss), rel=1e-6)
    near(gradient, plain_gradient, 1e-6)
    np.testing.assert_array_equal(right_N, logits_NxV[np.arange(12), target_N] >= logits_NxV.max(1))
    assert right_N[:6].all() and not right_N.all()


@pytest.mark.parametrize("block", [VOCAB, 7])
def test_evaluation_in_blocks_of_the_vocabulary_takes_the_first_of_tied_entries(block):
    rng = np.random.default_rng(0)
    table_VxD = rng.normal(size=(VOCAB, 8)).astype(np.float32)
    table_VxD[[9, 30]] = table_VxD[7]
    h_BxKxD = np.concatenate([3 * table_VxD[[7] * 6], rng.normal(size=(6, 8))]).astype(np.float32).reshape(2, 6, 8)
    target_BxK = np.array([7, 9, 30, 7, 9, 30, *rng.integers(0, VOCAB, 6)]).reshape(2, 6)
    head = lambda params, h: (h, table_VxD, jnp.zeros(VOCAB))
    logits = lambda params, h: jnp.einsum("...d,vd->...v", h, table_VxD)
    blocked, whole = (standard.SimpleNamespace(lm_head=head, logits=logits, vocab_block=size) for size in (block, 0))
    (nats, correct), (plain_nats, plain_correct) = (
        token_prediction.compute_token_loss(None, model, h_BxKxD, target_BxK) for model in (blocked, whole)
    )
    np.testing.assert_allclose(nats, plain_nats, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(correct, plain_correct)
    assert correct[0, 0] and not correct[0, 1]


def test_blocks_of_the_vocabulary_need_no_array_of_all_logits():
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((128, 8), (50_000, 8), (50_000,))]
    target_N = jax.ShapeDtypeStruct((128,), jnp.int32)

    def plan_memory(cross_entropy):
        gradient = jax.grad(lambda *operands: cross_entropy(*operands)[0].sum(), (0, 1, 2))
        return jax.jit(gradient).lower(*shapes, target_N).compile().memory_analysis().temp_size_in_bytes

    whole, blocked = map(plan_memory, (cross_entropy, functools.partial(blocked_cross_entropy, 4096)))
    assert whole > 4 * 128 * 50_000 > 2 * blocked


@pytest.mark.parametrize("cross_entropy", [cross_entropy, functools.partial(blocked_cross_entropy, 16)])
def test_in_bfloat16_a_certain_target_costs_nothing_and_never_less(cross_entropy):
    """Its logit is added up as those of all entries are: in float32, of the same rounded operands."""
    rng = np.random.default_rng(0)
    h_NxD, table_VxD = (jnp.asarray(rng.normal(size=(rows, 64)), jnp.bfloat16) for rows in (32, VOCAB))
    target_N = jnp.argmax(h_NxD.astype(jnp.float32) @ table_VxD.astype(jnp.float32).T, axis=1)
    nats_N, _ = jax.jit(cross_entropy)(8 * h_NxD, table_VxD, jnp.zeros(VOCAB), target_N)
    assert nats_N.min() > -1e-4 and nats_N.min() < 1e-2


@pytest.mark.exhaustive
@pytest.mark.parametrize("which", ["left out", "alone"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "cell"), FAMILY_CELLS)
def test_any_choice_of_paths_has_gradients_of_the_parameters_types(family, cell, dtype, which):
    cfg, every = small_config(family, cell, model__num_layers=1, model__dtype=dtype), platform_kernels.KERNELS
    for kernels in every if which == "alone" else (",".join(path for path in every if path != one) for one in every):
        model = MODELS[family].build(dataclasses.replace(cfg.model, kernels=kernels), VOCAB)
        params = jax.eval_shape(model.init, jax.random.key(0))
        loss = lambda params, model=model: model.encode(params, batch(2, length=5).text)[0].astype(jnp.float32).sum()
        assert jax.eval_shape(jax.grad(loss), params) == params


@pytest.mark.exhaustive
@pytest.mark.parametrize(("attention_dropout", "platform"), [(0.0, "cpu"), (0.2, "cpu"), (0.2, "gpu")])
def test_recomputation_keeps_products_alone_and_changes_no_gradient(attention_dropout, platform, monkeypatch):
    monkeypatch.setattr(platform_kernels, "find_platform", lambda: platform)
    B, L, D, mlp_dim = 3, 13, 16, 24
    changes = {"model__num_layers": 2, "model__scan_unroll": 1, "model__dropout": 0.2, "model__mlp_dim": mlp_dim}
    cfg = small_config("transformer", **changes, model__width=D, model__attention_dropout=attention_dropout)
    text, key_B = batch(B, length=L).text, jax.random.split(jax.random.key(0), B)

    def build_pullback(kernels):
        """What computes the gradients; its leaves are what the forward pass keeps."""
        model = MODELS["transformer"].build(dataclasses.replace(cfg.model, kernels=kernels), VOCAB)
        encode = lambda params: model.encode(params, text, key_B=key_B)[0]
        return jax.jit(lambda params: jax.vjp(encode, params)[1])(
            params_of(jax.eval_shape(model.init, jax.random.key(1)))
        )

    plain, lean = map(build_pullback, ("reference", "recomputation"))
    masks, hidden, scores = (
        [leaf.size for leaf in jax.tree.leaves(lean) if is_one(leaf)]
        for is_one in (
            lambda leaf: leaf.dtype == bool and leaf.size >= B * L * D,
            lambda leaf: leaf.shape[-2:] == (L, mlp_dim),
            lambda leaf: leaf.shape[-2:] == (L, L) and leaf.dtype != bool,
        )
    )
    assert sum(masks) <= B * L * D, "it keeps masks of dropout, and not that of the embeddings alone"
    assert sum(hidden) == 2 * B * L * mlp_dim, "it keeps more than a product of each MLP"
    assert not scores
    cotangent = jax.random.normal(jax.random.key(2), (B, L, D))
    near(lean(cotangent), plain(cotangent), 3e-6)
