"""The groups of parameters that optimizers tell apart, by the path and the shape of a leaf."""

import enum
from typing import Any

from mlm.base import config, types
from mlm.models import layers
from mlm.training.step import sharding


class ParameterGroup(enum.StrEnum):
    """What a parameter is to an optimizer: the values of config.optim.decay_groups."""

    MATRICES = "matrices"
    EMBEDDINGS = "embeddings"  # tables of tokens, positions and types, and an output table of its own
    VECTORS = "vectors"  # biases, the scales of norms, and all else that has one entry a unit


FUSED_LAYERS = {"qkv": 3, "source": 2}  # layers that make several projections with one matrix -> how many
GATES = {"gru": 3, "lstm": 4}  # of a recurrent cell
GATED_LAYERS = (  # layers that compute all gates of a recurrent cell with one matrix
    "forward_input",
    "forward_kernel",
    "backward_input",
    "backward_kernel",
    "input",
    "context",
    "decoder",
)
AUXILIARY_MODEL = "generator"  # a whole model among the objective's parameters


def get_names(path: tuple[Any, ...]) -> list[str]:
    """The names in the path of a leaf, as jax.tree_util gives it."""
    return [key.key for key in path]


def find_group(path: tuple[Any, ...], leaf: types.Array) -> ParameterGroup:
    """The group of a parameter.

    Names tell biases, norms, embeddings and kernels. Of the others, those with one axis beside that of the layers are
    vectors; only the weights with which a head mixes layers ("logits") count as a matrix.
    """
    name = get_names(path)[-1]
    if "bias" in name or name == "scale":
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
    return FUSED_LAYERS.get(layer, GATES.get(model.cell, 1) if layer in GATED_LAYERS else 1)
