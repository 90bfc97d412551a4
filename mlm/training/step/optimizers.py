"""The optimizers: from gradients to the direction of an update, which the learning rate then scales.

To add one: write a function that builds its optax transformations, and add a row to OPTIMIZERS. Parameters of all
layers lie in one array. What an optimizer computes for each tensor, it must compute for each layer of it: `per_tensor`
does so with any optax transformation.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import tree_map_with_path

from mlm.base import config, types
from mlm.models import layers, rnn
from mlm.training.step import sharding

# The usual root mean square of AdamW's updates. Muon's have it too, so that one learning rate and one weight decay
# serve both (Liu et al. 2025, arXiv 2502.16982, section 2.2).
MUON_UPDATE_RMS = 0.2
MUON_AXES = optax.contrib.MuonDimensionNumbers(-3, -1)  # inputs and outputs of a leaf with its projections apart
Transformation = optax.GradientTransformation
Transformations = tuple[Transformation, ...]


class ParameterGroup(enum.StrEnum):
    """What a parameter is to an optimizer: the values of config.optim.decay_groups."""

    MATRICES = "matrices"
    EMBEDDINGS = "embeddings"  # tables of tokens, positions and types, and an output table of its own
    VECTORS = "vectors"  # biases, the scales of norms, filters over tokens, and all else that has one entry a unit


FUSED_LAYERS = {"qkv": 3, "source": 2, "gates": 2, "halves": 2}  # that make several projections with one matrix
GATED_LAYERS = (  # layers that compute all gates of a recurrent cell with one matrix
    *("forward_input", "forward_kernel", "backward_input", "backward_kernel", "input", "context", "decoder"),
)
AUXILIARY_MODEL = "generator"  # a whole model among the objective's parameters


def get_names(path: tuple[Any, ...]) -> list[str]:
    """The names in the path of a leaf, as jax.tree_util gives it."""
    return [key.key for key in path]


def find_group(path: tuple[Any, ...], leaf: types.Array) -> ParameterGroup:
    """The group of a parameter.

    Names tell biases, norms, filters over tokens, embeddings and kernels. Of the others, those with one axis beside
    that of the layers are vectors; only the weights with which a head mixes layers ("logits") count as a matrix.
    """
    name = get_names(path)[-1]
    if "bias" in name or name in ("scale", "taps", "filter"):
        return ParameterGroup.VECTORS
    if "embedding" in name:
        return ParameterGroup.EMBEDDINGS
    is_matrix = "kernel" in name or name == "logits" or leaf.ndim - sharding.is_stacked(path) > 1
    return ParameterGroup.MATRICES if is_matrix else ParameterGroup.VECTORS


def count_batch_axes(path: tuple[Any, ...], leaf: types.Array) -> int:
    """The leading axes of a leaf that number tensors, such as that of the layers: each tensor is one layer's."""
    if find_group(path, leaf) is ParameterGroup.VECTORS:
        return int(sharding.is_stacked(path))
    return max(leaf.ndim - 2, 0)


def is_hidden_matrix(path: tuple[Any, ...], leaf: types.Array) -> bool:
    """Whether a leaf is a matrix of the model, neither a table nor of a head that the objective adds."""
    names = get_names(path)
    is_matrix = find_group(path, leaf) is ParameterGroup.MATRICES and leaf.ndim > 1
    return is_matrix and (names[0] != "objective" or AUXILIARY_MODEL in names)


def count_projections(path: tuple[Any, ...], model: config.Model) -> int:
    """How many matrices stand side by side along the last axis of a leaf: q, k and v, or the gates of a cell or MLP."""
    names = get_names(path)
    layer = names[-2] if names[-1] == "kernel" else names[-1]
    if layer == "up" and model.activation in layers.GATES:  # a gate, and what it multiplies
        return 2
    if layer in GATED_LAYERS:
        return rnn.CELLS[model.cell].gates if model.cell in rnn.CELLS else 1
    return FUSED_LAYERS.get(layer, 1)


class BuildOptimizerFn(Protocol):
    """The optimizer of a config."""

    def __call__(self, optim: config.Optim, decay: Transformation, model: config.Model, /) -> Transformations:
        """From clipped gradients to the direction of the update; decay: adds the groups' weight decay."""
        ...


class OptimizerSpec(NamedTuple):
    """A row of OPTIMIZERS."""

    build: BuildOptimizerFn
    fields: tuple[str, ...]  # of config.optim that not every optimizer reads
    num_moments: int  # full copies of the parameters that its state holds at the least


def build_adamw(optim: config.Optim, decay: Transformation, model: config.Model) -> Transformations:
    """AdamW (Loshchilov & Hutter 2019)."""
    return optax.scale_by_adam(optim.b1, optim.b2, optim.eps), decay


def build_stable_adamw(optim: config.Optim, decay: Transformation, model: config.Model) -> Transformations:
    """StableAdamW: AdamW whose updates, decay included, are clipped as Adafactor's (Wortsman et al. 2023, 2304.13013).

    Algorithm 2 there: the step of a tensor is divided by the root mean square of g / sqrt(v), where that is above 1. It
    is large where the second moment has not followed the gradient yet.
    """
    adam: Any = optax.scale_by_adam(optim.b1, optim.b2, optim.eps)

    def init(params: types.Params) -> Any:
        return adam.init(params), decay.init(params)

    def update(updates: types.Params, state: Any, params: types.Params = None) -> tuple[types.Params, Any]:
        directions, adam_state = adam.update(updates, state[0], params)
        directions, decay_state = decay.update(directions, state[1], params)
        second_moments = optax.tree.bias_correction(adam_state.nu, optim.b2, adam_state.count)

        def clip(direction: jax.Array, grad: jax.Array, second_moment: jax.Array) -> jax.Array:
            rms = jnp.sqrt(jnp.mean(grad**2 / jnp.maximum(second_moment, optim.eps**2)))
            return direction / jnp.maximum(1, rms)

        return _map_tensors(clip, directions, updates, second_moments), (adam_state, decay_state)

    return (Transformation(init, update),)


def build_lamb(optim: config.Optim, decay: Transformation, model: config.Model) -> Transformations:
    """LAMB (You et al. 2020, arXiv 1904.00962): AdamW's update of each tensor, scaled to the tensor's norm.

    Biases and norms are not scaled, as in the authors' code for BERT: a bias that starts at 0 would stay there.
    """
    is_scaled = lambda path, leaf: find_group(path, leaf) is not ParameterGroup.VECTORS
    adam = optax.scale_by_adam(optim.b1, optim.b2, optim.eps)
    scale = per_tensor(optax.scale_by_trust_ratio())
    return adam, decay, optax.masked(scale, functools.partial(tree_map_with_path, is_scaled))


def build_lion(optim: config.Optim, decay: Transformation, model: config.Model) -> Transformations:
    """Lion (Chen et al. 2023, arXiv 2302.06675)."""
    return optax.scale_by_lion(optim.b1, optim.b2), decay


def build_adafactor(optim: config.Optim, decay: Transformation, model: config.Model) -> Transformations:
    """Adafactor (Shazeer & Stern 2018, arXiv 1804.04235) with its own decay of the second moment, 1 - t^-0.8.

    The learning rate is relative to the root mean square of each tensor. Every matrix is factored.
    """
    adafactor = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=1),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )
    return per_tensor(adafactor), decay


def build_muon(optim: config.Optim, decay: Transformation, model: config.Model) -> Transformations:
    """Muon (Jordan et al. 2024) for the model's matrices, AdamW for embeddings, heads, norms and biases.

    Each layer's q, k and v, and each gate of a recurrent cell, is orthogonalized for itself. Updates have the root mean
    square of AdamW's.
    """

    def scale(updates: types.Params, _: Any) -> types.Params:
        # An orthogonal matrix has the root mean square 1 / sqrt(the larger of its sizes).
        return jax.tree.map(lambda x: x * (MUON_UPDATE_RMS * max(x.shape[-3], x.shape[-1]) ** 0.5), updates)

    axes = functools.partial(jax.tree.map, lambda _: MUON_AXES)
    orthogonalize = optax.contrib.scale_by_muon(beta=optim.muon_momentum, weight_dimension_numbers=axes)
    muon = split_projections(optax.chain(orthogonalize, optax.stateless(scale)), model)
    adamw = optax.scale_by_adam(optim.b1, optim.b2, optim.eps)
    label = lambda path, leaf: "muon" if is_hidden_matrix(path, leaf) else "adamw"
    return optax.partition({"muon": muon, "adamw": adamw}, functools.partial(tree_map_with_path, label)), decay


OPTIMIZERS = {
    "adamw": OptimizerSpec(build_adamw, ("b1", "b2", "eps"), 2),
    "stable_adamw": OptimizerSpec(build_stable_adamw, ("b1", "b2", "eps"), 2),
    "lamb": OptimizerSpec(build_lamb, ("b1", "b2", "eps"), 2),
    "lion": OptimizerSpec(build_lion, ("b1", "b2"), 1),
    "adafactor": OptimizerSpec(build_adafactor, (), 0),
    "muon": OptimizerSpec(build_muon, ("b1", "b2", "eps", "muon_momentum"), 1),
}


def _map_tensors(function: Callable[..., Any], tree: types.Params, *trees: types.Params) -> types.Params:
    """The tree of what a function of one tensor returns, mapped over the axes of a leaf that number tensors."""

    def map_leaf(path: tuple[Any, ...], leaf: types.Array, *leaves: Any) -> Any:
        axes = range(count_batch_axes(path, leaf))
        return functools.reduce(lambda mapped, _: jax.vmap(mapped), axes, function)(leaf, *leaves)

    return tree_map_with_path(map_leaf, tree, *trees)


def per_tensor(inner: Transformation) -> Transformation:
    """`inner` on each tensor alone: each layer of a stacked leaf is one. Its state is a state for each leaf."""

    def init(params: types.Params) -> Any:
        return _map_tensors(inner.init, params)

    def update(updates: types.Params, state: Any, params: types.Params = None) -> tuple[types.Params, Any]:
        pairs = _map_tensors(inner.update, updates, state, params)
        new_updates = jax.tree.map(lambda _, pair: pair[0], updates, pairs)
        return new_updates, jax.tree.map(lambda _, pair: pair[1], updates, pairs)

    return Transformation(init, update)


def split_projections(inner: Transformation, model: config.Model) -> Transformation:
    """`inner` on matrices ... x inputs x projections x outputs, with what one leaf holds side by side apart."""

    def split(tree: types.Params) -> types.Params:
        return tree_map_with_path(lambda path, x: x.reshape(*x.shape[:-1], count_projections(path, model), -1), tree)

    def update(updates: types.Params, state: Any, params: types.Params = None) -> tuple[types.Params, Any]:
        new_updates, state = inner.update(split(updates), state, split(params))
        return jax.tree.map(lambda new, old: new.reshape(old.shape), new_updates, updates), state

    return Transformation(lambda params: inner.init(split(params)), update)
