"""Which parameters a run trains, and how fast each: all of them, the last layers, or the objective's head alone.

What is frozen is no part of what the optimiser sees: it has no state there, no decay, and stays bit for bit.
"""
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.conditional_fields import FieldCondition

READ = (FieldCondition(("init.run_sha256",), "init.run", unless=("",)), FieldCondition(("init.hub_sha256",), "init.hub",
                                                                                       unless=("",)))
OUTPUT = ("transform", "transform_norm", "bias")  # the output layer's own: objectives that ask for no tokens pass it by


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.finetune and config.init that no run could use."""
    errors.require_number("config.finetune.trainable_layers", cfg.finetune.trainable_layers, -1, cfg.model.num_layers)
    errors.require_number("config.finetune.layerwise_lr_decay", cfg.finetune.layerwise_lr_decay, 0, 1, low_open=True)


def held(finetune: config.Finetune, layers: int, words: bool, path) -> int | None:
    """How much of a leaf is frozen: of a stack of layers so many of the first, of any other leaf 0; None: all of it.

    words: whether the objective asks for tokens, by the output layer. path: of the leaf, as jax.tree_util gives it.
    """
    names = [key.key for key in path]
    if names[0] == "objective":
        return 0
    if names[1] in OUTPUT:
        return 0 if words else None
    if finetune.trainable_layers < 0:
        return 0
    if "layers" in names and finetune.trainable_layers:
        return layers - finetune.trainable_layers
    return 0 if names[2:3] == ["norm"] and finetune.trainable_layers else None


def moving(params: types.Params, frozen: Callable) -> types.Params:
    """The part of some parameters that is trained; frozen: (path) -> as `held` says."""
    def pick(path, leaf):
        first = frozen(path)
        return None if first is None else leaf[first:] if first else leaf

    return _pruned(jax.tree_util.tree_map_with_path(pick, params))


def _pruned(tree):
    if not isinstance(tree, dict):
        return tree
    kept = {name: _pruned(one) for name, one in tree.items()}
    return {name: one for name, one in kept.items() if one is not None} or None


def joined(params: types.Params, part: types.Params, frozen: Callable) -> types.Params:
    """The parameters with those of `moving` in their places."""
    def put(path, leaf):
        first = frozen(path)
        if first is None:
            return leaf
        new = part
        for key in path:
            new = new[key.key]
        return jnp.concatenate([leaf[:first], new]) if first else new

    return jax.tree_util.tree_map_with_path(put, params)


def rates(part: types.Params, finetune: config.Finetune, layers: int) -> types.Params:
    """For each leaf of `moving` what its learning rate is multiplied by: config.finetune.layerwise_lr_decay to the power of its depth.

    That is 0 for the objective's head, 1 for the last layer, and so on down to the embeddings (Clark et al. 2020, arXiv
    2003.10555, table 7; numbered as Bao et al. 2021, arXiv 2106.08254, do).
    """
    def rate(path, leaf):
        names = [key.key for key in path]
        if names[0] == "objective" or names[1] in OUTPUT:
            return np.float32(1)
        if "layers" in names:
            depth = np.arange(len(leaf), 0, -1, np.float32)
            return (finetune.layerwise_lr_decay ** depth).reshape(-1, *[1] * (leaf.ndim - 1)).astype(np.float32)
        return np.float32(finetune.layerwise_lr_decay ** (1 if names[2:3] == ["norm"] else layers + 1))

    return jax.tree_util.tree_map_with_path(rate, part)
