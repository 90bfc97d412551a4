"""Which parameters a run trains, and how fast each: all of them, the last layers, or the objective's head alone.

The optimizer never sees frozen parameters: they have no optimizer state and no decay, and stay bit for bit the same.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.models import layers
from mlm.training.step.sharding import is_stacked

Path = tuple[Any, ...]  # of a leaf: its keys, as jax.tree_util gives them
FreezeRule = Callable[[Path], int]  # how many layers of a leaf are frozen, from the first on; 0: it is trained whole
WHOLE_LEAF = -1  # in place of that number: it is not trained at all
# Of the output layer alone. Objectives that predict no tokens do not use it.
LM_HEAD_PARAMS = ("transform", "transform_norm", "output", "bias")
VOCABULARY_PARAMS = ("token", "output", "bias")  # with an entry of the vocabulary along their first axis


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.finetune that no run could use."""
    num_trainable, num_unique = cfg.finetune.trainable_layers, layers.count_unique_layers(cfg.model)
    errors.require_number("config.finetune.trainable_layers", num_trainable, -1, num_unique)
    # The last layers of one loop are not the last of the model.
    is_whole = num_unique == cfg.model.num_layers or num_trainable in (-1, 0, num_unique)
    expected = f"-1, 0 or {num_unique}"
    errors.require_field(cfg, "finetune.trainable_layers", is_whole, expected, "model.num_unique_layers")


def make_freeze_rule(cfg: config.Config, objective: types.Objective) -> FreezeRule:
    """What a run freezes."""
    num_trainable, num_layers = cfg.finetune.trainable_layers, layers.count_unique_layers(cfg.model)

    def count_frozen_layers(path: Path) -> int:
        names = [key.key for key in path]
        if names[0] == types.TEACHER:
            return WHOLE_LEAF
        if names[0] == "objective":
            return 0
        if names[1] in LM_HEAD_PARAMS:
            return 0 if objective.predicts_tokens else WHOLE_LEAF
        if num_trainable < 0:
            return 0
        if is_stacked(path) and num_trainable:
            return num_layers - num_trainable
        return 0 if names[2:3] == ["norm"] and num_trainable else WHOLE_LEAF

    return count_frozen_layers


def drop_teacher(params: types.Params) -> types.Params:
    """The parameters of a run itself."""
    return {name: tree for name, tree in params.items() if name != types.TEACHER}


def select_trainable(params: types.Params, freeze_rule: FreezeRule) -> types.Params:
    """The trainable part of a tree of parameters."""

    def select(path: Path, leaf: types.Array) -> types.Array | None:
        num_frozen = freeze_rule(path)
        return None if num_frozen == WHOLE_LEAF else leaf[num_frozen:] if num_frozen else leaf

    return _prune_tree(jax.tree_util.tree_map_with_path(select, params))


def _prune_tree(tree: types.Params) -> types.Params:
    if not isinstance(tree, dict):
        return tree
    subtrees = {name: _prune_tree(subtree) for name, subtree in cast(dict[str, Any], tree).items()}
    return {name: subtree for name, subtree in subtrees.items() if subtree is not None} or None


def merge_params(params: types.Params, trainable_params: types.Params, freeze_rule: FreezeRule) -> types.Params:
    """The parameters with the trainable ones put in their places."""

    def replace(path: Path, leaf: types.Array) -> types.Array:
        num_frozen = freeze_rule(path)
        if num_frozen == WHOLE_LEAF:
            return leaf
        new_leaf = trainable_params
        for key in path:
            new_leaf = new_leaf[key.key]
        return jnp.concatenate([leaf[:num_frozen], new_leaf]) if num_frozen else new_leaf

    return jax.tree_util.tree_map_with_path(replace, params)


def flag_body(params: types.Params) -> types.Params:
    """True for each leaf without an entry of the vocabulary along its first axis: all but embeddings and output."""

    def is_body(path: Path, leaf: types.Array) -> bool:
        names = [key.key for key in path]
        own = names[2:] if names[:2] == ["objective", "generator"] else names[names[0] == "model" :]
        return own[0] not in VOCABULARY_PARAMS

    return jax.tree_util.tree_map_with_path(is_body, params)


def scale_by_depth(cfg: config.Config, updates: types.Params) -> types.Params:
    """The updates of trainable leaves, each times finetune.layerwise_lr_decay to the power of its depth.

    The depth is 0 for the objective's head, 1 for the last layer, and so on down to the embeddings (Clark et al. 2020,
    arXiv 2003.10555, table 7; numbered as in Bao et al. 2021, arXiv 2106.08254).
    """
    decay, num_layers = cfg.finetune.layerwise_lr_decay, layers.count_unique_layers(cfg.model)

    def scale(path: Path, leaf: types.Array) -> types.Array:
        names = [key.key for key in path]
        if names[0] == "objective" or names[1] in LM_HEAD_PARAMS:
            return leaf
        if is_stacked(path):
            depth = np.arange(len(leaf), 0, -1, dtype=np.float32)
            return leaf * (decay**depth).reshape(-1, *[1] * (leaf.ndim - 1)).astype(np.float32)
        return leaf * np.float32(decay ** (1 if names[2:3] == ["norm"] else num_layers + 1))

    return jax.tree_util.tree_map_with_path(scale, updates)
