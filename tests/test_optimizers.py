"""Each optimizer on stacked layers and fused projections is what it is on each matrix alone; its state is kept."""

import functools

import jax
import numpy as np
import optax
import pytest
from small import ONE_EACH, build, drawn_config, mark_further, small_config, train_config

from mlm.base import batch_warmup, config, errors, types
from mlm.data.rows import pack
from mlm.models import layers
from mlm.training.run import hooks, trained_run
from mlm.training.step import optim, optimizers, trainable
from mlm.training.step.optimizers import OPTIMIZERS, OptimizerSpec, ParameterGroup
from mlm.training.validation import split_scores

LAYERS, STEPS, RATE, DECAY = 5, 3, 0.02, 0.1  # more layers than a matrix has rows
SHAPES = {
    "model": {
        "token": {"embedding": (7, 4)},
        "transform": {"kernel": (4, 4)},
        "body": {
            "norm": {"scale": (4,)},
            "stack": {
                "layers": {
                    "attention": {"qkv": {"kernel": (LAYERS, 4, 12), "bias": (LAYERS, 12)}},
                    "up": {"kernel": (LAYERS, 4, 6)},
                    "gate": (LAYERS,),
                }
            },
        },
    },
    "objective": {"label": {"kernel": (4, 2)}},
}


class Hparams:
    learning_rate, weight_decay = RATE, DECAY


# An optimizer by entries, one by factored moments and one by matrices stand for the others in the suite.
KINDS = pytest.mark.parametrize(
    ("name",), mark_further([(name,) for name in OPTIMIZERS], [("adamw",), ("adafactor",), ("muon",)])
)


def draw(number, shapes=SHAPES):
    """A tree of these shapes; some entries of later trees are much larger, where second moments lag."""
    rng = np.random.default_rng(number)
    return jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32) * (1 + 9 * (number == STEPS)),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def transformation(name, hparams=Hparams, **changes):
    fields = {"schedule": "constant", "warmup_fraction": 0.0, "clip_norm": 0.0, "decay_groups": "matrices"} | changes
    cfg = config.Config(optim=config.Optim(optimizer=name, **fields), train=config.Train(steps=STEPS))
    return optim.build_optimizer(cfg, hparams)


@functools.cache
def compile_optimizer(optimizer):
    """To initialize a state and to update parameters, each one program for all tensors of a shape."""

    def update(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(optimizer.init), jax.jit(update)


def train(optimizer, params, number=STEPS, draw=draw):
    """The parameters and the state after some updates."""
    init, update = compile_optimizer(optimizer)
    state = init(params)
    for step in range(1, number + 1):
        params, state = update(draw(step), state, params)
    return params, state


def tensors(tree):
    """Each layer's own arrays, and of q, k and v each its own, by path and numbers."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = [key.key for key in path]
        for layer in range(LAYERS) if "layers" in names else [None]:
            part = np.asarray(leaf if layer is None else leaf[layer])
            pieces = np.split(part, 3, -1) if names[-2:] == ["qkv", "kernel"] else [part]
            found |= {(*names, layer, i): piece for i, piece in enumerate(pieces)}
    return found


def join(pieces, fused):
    """q, k and v again one matrix, for the optimizers to which it is one."""
    if not fused:
        return pieces
    groups = {}
    for key, piece in pieces.items():
        groups.setdefault((*key[:-1], 0), []).append(piece)
    return {key: np.concatenate(parts, -1) if len(parts) > 1 else parts[0] for key, parts in groups.items()}


def train_stable(params, grads, decay):
    """StableAdamW, algorithm 2 of Wortsman et al. 2023, with the corrected betas of Adafactor, in numpy."""
    first, second = np.zeros_like(params), np.zeros_like(params)
    for t, grad in enumerate(grads, 1):
        b1, b2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (0.9, 0.98))
        first, second = b1 * first + (1 - b1) * grad, b2 * second + (1 - b2) * grad**2
        rms = np.sqrt(np.mean(grad**2 / np.maximum(second, 1e-12)))
        rate = RATE / max(1, rms)
        params = params - rate * decay * params - rate * first / (np.sqrt(second) + 1e-6)
    return params, rms


@functools.cache
def build_reference(name, decay, is_matrix, is_hidden):
    """optax's own optimizer of one tensor."""
    adamw = optax.adamw(RATE, 0.9, 0.98, 1e-6, weight_decay=decay)
    return {
        "adamw": adamw,
        "lion": optax.lion(RATE, 0.9, 0.98, weight_decay=decay),
        "lamb": optax.lamb(RATE, 0.9, 0.98, 1e-6, weight_decay=decay) if is_matrix else adamw,
        "adafactor": optax.adafactor(RATE, min_dim_size_to_factor=1, weight_decay_rate=RATE * decay),
        "muon": optax.contrib.muon(RATE, beta=0.95, weight_decay=decay, consistent_rms=0.2) if is_hidden else adamw,
    }[name]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_tensor_is_trained_as_it_would_be_alone(name):
    trained, _ = train(transformation(name), draw(0))
    whole = [join(tensors(tree), name != "muon") for tree in (trained, *map(draw, range(STEPS + 1)))]
    clipped = 0
    for key, found in whole[0].items():
        start, *grads = (tree[key] for tree in whole[1:])
        decay = DECAY if key[-3] == "kernel" else 0.0
        if name == "stable_adamw":
            wanted, rms = train_stable(start.astype(np.float64), grads, decay)
            clipped += rms > 1
        else:
            is_hidden = key[-3] == "kernel" and key[0] == "model"
            alone = build_reference(name, decay, key[-3] in ("kernel", "embedding"), is_hidden)
            wanted = train(alone, start, draw=lambda number, grads=grads: grads[number - 1])[0]
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6, err_msg=str(key))
    assert name != "stable_adamw" or clipped > 1


def test_muon_orthogonalizes_the_halves_of_a_gated_mlp_apart():
    def train_up(activation, **kernels):
        params = {"model": {"layers": {name: {"kernel": kernel_KxDxH} for name, kernel_KxDxH in kernels.items()}}}
        cfg = config.Config(model=config.Model(activation=activation), optim=config.Optim(optimizer="muon"))
        optimizer = optim.build_optimizer(cfg, Hparams)
        updates = jax.jit(lambda params: optimizer.update(params, optimizer.init(params), params)[0])(params)
        return [updates["model"]["layers"][name]["kernel"] for name in kernels]

    gate, value = (np.random.default_rng(seed).normal(size=(LAYERS, 4, 6)).astype(np.float32) for seed in range(2))
    whole = np.concatenate([gate, value], -1)
    for activation in layers.GATES:
        (found,) = train_up(activation, up=whole)
        np.testing.assert_allclose(found, np.concatenate(train_up("gelu", up=gate, other=value), -1), rtol=1e-4)
        assert np.abs(found - train_up("gelu", up=whole)[0]).max() > 1e-4


@pytest.mark.exhaustive(but=("muon",))
@KINDS
def test_the_last_layers_alone_are_trained_as_among_all(name):
    """A fine-tuning of some layers hands the optimizer a slice of each leaf."""
    cut = lambda tree: jax.tree_util.tree_map_with_path(
        lambda path, x: x[3:] if "layers" in optimizers.get_names(path) else x, tree
    )
    some, _ = train(transformation(name), cut(draw(0)), draw=lambda number: cut(draw(number)))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        some,
        cut(train(transformation(name), draw(0))[0]),
    )


@pytest.mark.exhaustive(but=("adafactor",))
@KINDS
def test_runs_of_several_rates_and_decays_share_one_program(name):
    def step(hparams, params):
        optimizer = transformation(name, hparams, ema_decay=0.9)
        return optimizer.update(draw(1), optimizer.init(params), params)[0]

    both = types.TracedHparams(np.zeros(2), np.array([RATE, 2 * RATE]), np.array([DECAY, 0.0]), {})
    select = lambda tree, number: jax.tree.map(lambda x: x[number], tree)
    found = jax.jit(jax.vmap(step, in_axes=(0, None)))(both, draw(0))
    for number in range(2):
        wanted = jax.jit(functools.partial(step, select(both, number)))(draw(0))
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
        jax.tree.map(close, select(found, number), wanted)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_that_is_stopped_ends_with_the_same_bits_and_evaluates_the_average(tmp_path, monkeypatch):
    """Muon, an average of parameters and growing batches in one run."""
    changes = {
        "model__num_layers": 1,
        "optim__optimizer": "muon",
        "optim__ema_decay": 0.9,
        "train__steps": 6,
        "train__batch_size": 16,
        "train__grad_accum_steps": 4,
        "train__batch_warmup_fraction": 0.7,
        "eval__batch_size": 8,
        "pack__seq_len": 16,
    }
    cfgs = [
        drawn_config(tmp_path / "cache", "feedforward", "bag", workdir=str(tmp_path / name), **changes)
        for name in ("whole", "stopped")
    ]
    with monkeypatch.context() as patch:
        patch.setattr(hooks.Preemption, "is_requested", lambda self, checkpoints, step: step == 3)
        with pytest.raises(errors.RunStopped):
            train_config(cfgs[1])
    results = [train_config(cfg) for cfg in cfgs]
    assert results[0]["evaluation"] == results[1]["evaluation"] and results[0]["tokens"] == results[1]["tokens"]
    whole, stopped = (trained_run.load(cfg.workdir, {}) for cfg in cfgs)
    assert whole.digest == stopped.digest
    packed = pack.load_dataset(cfgs[0])
    columns = split_scores.evaluate_split(cfgs[0], whole.program, whole.state, packed)
    loss = columns["mlm_nats"].sum() / columns["mlm_weight"].sum()
    np.testing.assert_allclose(results[0]["evaluation"]["loss"], loss, rtol=1e-6)
    assert results[0]["tokens"] < 6 * 16 * 16 * batch_warmup.compute_mean_fraction(cfgs[0].train) + 1


def test_the_average_is_that_of_the_parameters_after_each_update_and_they_train_as_without_it():
    """The run starts from other parameters than those that the optimizer was initialized with."""
    optimizer = transformation("adamw", ema_decay=0.9)
    state, params = optimizer.init(draw(5)), draw(0)
    plain, plain_state = draw(0), transformation("adamw").init(draw(0))
    history = []
    for number in range(1, 4):
        updates, state = optimizer.update(draw(number), state, params)
        params = optax.apply_updates(params, updates)
        updates, plain_state = transformation("adamw").update(draw(number), plain_state, plain)
        plain = optax.apply_updates(plain, updates)
        history.append(plain)
        jax.tree.map(np.testing.assert_array_equal, optim.get_gradient_point(state, params), plain)
        shares = 0.1 * 0.9 ** np.arange(number)[::-1] / (1 - 0.9**number)
        mean = jax.tree.map(lambda *moments, shares=shares: sum(map(np.multiply, shares, moments)), *history)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), params, mean)


@pytest.mark.parametrize(
    ("family", "cell"),
    [*ONE_EACH, ("rnn", "gru"), ("mixer", "conv"), ("encoder_decoder", "transformer"), ("encoder_decoder", "gru")],
)
def test_every_parameter_has_its_group_and_what_shares_a_matrix_is_known(family, cell):
    objective = {"objective": "denoising"} if family == "encoder_decoder" else {}
    cfg = small_config(family, cell, **objective)
    _, params, _ = build(cfg)
    groups, gates = {group: [] for group in ParameterGroup}, {"gru": 3, "lstm": 4}.get(cfg.model.cell, 1)
    for path, leaf in jax.tree_util.tree_leaves_with_path({"model": params}):
        groups[optimizers.find_group(path, leaf)].append(names := optimizers.get_names(path))
        num_projections = optimizers.count_projections(path, cfg.model)
        is_gated = cfg.model.rnn_dim and leaf.shape[-1] == gates * cfg.model.rnn_dim  # no other layer is as wide
        if "bias" not in names[-1] and (is_gated or num_projections > 1):
            width = cfg.model.width if {"qkv", "source", "halves"} & {*names} else cfg.model.rnn_dim
            assert leaf.shape[-1] == num_projections * width, names
    assert {names[-1] for names in groups[ParameterGroup.EMBEDDINGS]} == {"embedding"}
    assert all("bias" in names[-1] or names[-1] in ("scale", "filter") for names in groups[ParameterGroup.VECTORS])
    assert all(names[-1] != "filter" for names in groups[ParameterGroup.MATRICES])
    fused = {names[-2] for names in groups[ParameterGroup.MATRICES] if names[-2] in ("qkv", "source")}
    assert fused == {"transformer": {"qkv"}, "encoder_decoder": {"qkv", "source"} if cell != "gru" else set()}.get(
        family, set()
    )


def test_a_row_of_the_table_is_all_that_an_optimizer_needs(monkeypatch):
    def build_sgd(optim, decay, model):
        return (optax.trace(optim.b1), decay)

    monkeypatch.setitem(OPTIMIZERS, "sgd", OptimizerSpec(build_sgd, ("b1",), 1))
    optim.check(config.Optim(optimizer="sgd", learning_rate=1e-3, warmup_fraction=0.1), 1000)
    found = train(transformation("sgd"), draw(0))[0]
    wanted = train(optax.sgd(RATE, 0.9), draw(0))[0]
    np.testing.assert_allclose(found["model"]["token"]["embedding"], wanted["model"]["token"]["embedding"], rtol=1e-5)


def test_only_what_is_trained_is_averaged():
    """Frozen leaves have no average; the merged parameters hold them as they were."""
    rule = lambda path: trainable.WHOLE_LEAF if optimizers.get_names(path)[1] == "token" else 0
    params = draw(0)
    part = trainable.select_trainable(params, rule)
    optimizer = transformation("muon", ema_decay=0.5)
    updates, state = optimizer.update(trainable.select_trainable(draw(1), rule), optimizer.init(part), part)
    assert "token" not in state.params["model"]
    merged = trainable.merge_params(params, optax.apply_updates(part, updates), rule)
    np.testing.assert_array_equal(merged["model"]["token"]["embedding"], params["model"]["token"]["embedding"])
