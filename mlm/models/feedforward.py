"""Feedforward encoders: a deep MLP at each token over the embeddings of its neighbors.

With the context "bidirectional" the token itself is left out; with "causal" and "mixed" it is the last token of the
left context. Cells: window concatenates the embeddings in order (Bengio et al. 2003); bag takes their mean.
"""

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import incremental, layers, lm, stack


def list_offsets(window: int, directionality: str) -> list[int]:
    """The places of the neighbors, counted from the token: of "causal" and "mixed" it is the last one on the left."""
    left, right = [*range(1 - window, 1)], [*range(1, window + 1)]
    return {"bidirectional": [*range(-window, 0), *right], "causal": left, "mixed": left + right}[directionality]


def gather_neighbors(x_BxLxD, segments_BxL, offsets: Sequence[int], left_B=None):
    """Pairs (x_BxLxD, same_BxL) of the neighbors of each token; zero where same_BxL, its segment, differs.

    offsets: their places, counted from the token; those to the right are zero in the examples of left_B.
    """
    L, window = x_BxLxD.shape[1], max(map(abs, offsets))
    padded = jnp.pad(x_BxLxD, ((0, 0), (window, window), (0, 0)))
    segments = jnp.pad(segments_BxL, ((0, 0), (window, window)), constant_values=-1)
    pairs = []
    for offset in offsets:
        start = window + offset
        same_BxL = segments[:, start : start + L] == segments_BxL
        if left_B is not None and offset > 0:
            same_BxL &= ~left_B[:, None]
        pairs.append((jnp.where(same_BxL[..., None], padded[:, start : start + L], 0), same_BxL))
    return pairs


class FeedforwardLayer(stack.ResidualLayer):
    """A layer over one position's vector: an MLP with norms and a residual connection."""

    @nn.compact
    def __call__(self, x_BxLxD, number, shared, key_B):
        """Returns x_BxLxD plus its update; `number` and `shared` are unused, and the layer mixes no positions."""
        return self.add("", layers.MLP(self.model, name="mlp"), x_BxLxD, key_B)


def mix_neighbors(module: nn.Module, x_BxLxD, segments_BxL, left_B):
    """(the embeddings of each token's neighbors, through a dense layer; nothing, which the layers share)."""
    model = module.model
    neighbors = gather_neighbors(x_BxLxD, segments_BxL, list_offsets(model.window, model.directionality), left_B)
    embeddings, same = zip(*neighbors, strict=True)
    if model.cell == "window":
        context = jnp.concatenate(embeddings, -1)
    else:
        context = sum(embeddings) / jnp.maximum(sum(same), 1)[..., None].astype(x_BxLxD.dtype)
    return layers.dense(model, model.width, "context")(context), None


FeedforwardEncoder = functools.partial(stack.NormalizedStack, layer=FeedforwardLayer, prepare=mix_neighbors)


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    return lm.build(model, vocab_size, FeedforwardEncoder, incremental.build_window_decoder(FeedforwardLayer))


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that a feedforward model cannot use."""
    errors.require_number("config.model.window", cfg.model.window, 1, cfg.pack.seq_len)


SPEC = types.ModelSpec(build, check, ("window", "bag"), conditional_fields=("mlp_dim", "window", "activation"))
