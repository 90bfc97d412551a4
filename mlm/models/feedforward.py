"""Feedforward encoders: a deep MLP at each token over the tokens around it, never over the token itself; or, where it
sees what stands left of the next token alone, or a row may, over the last tokens up to its own.

window: the neighbours' embeddings concatenated in order (Bengio et al. 2003). bag: their mean, which knows no order.
"""
import flax.linen as nn
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import incremental, layers, lm


def neighbours(x_BxLxD, segments_BxL, window: int, sees: str, left_B=None):
    """The embeddings around each token: those of another segment are zero.

    sees: "both", the `window` tokens on each side; "left", the last `window` tokens, the token's own among them; "row",
    those and the `window` tokens to the right, which are zero in rows of which left_B says so.
    Returns a list of pairs (x_BxLxD, same_BxL), the farthest left first.
    """
    L = x_BxLxD.shape[1]
    padded = jnp.pad(x_BxLxD, ((0, 0), (window, window), (0, 0)))
    segments = jnp.pad(segments_BxL, ((0, 0), (window, window)), constant_values=-1)
    pairs = []
    before, after = [*range(1, window + 1)], [*range(window + 1, 2 * window + 1)]
    for start in {"both": [*range(window), *after], "left": before, "row": before + after}[sees]:
        same_BxL = segments[:, start:start + L] == segments_BxL
        if left_B is not None and start in after:
            same_BxL &= ~left_B[:, None]
        pairs.append((jnp.where(same_BxL[..., None], padded[:, start:start + L], 0), same_BxL))
    return pairs


class Layer(nn.Module):
    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, shared, key_B):
        y_BxLxD = layers.MLP(self.model, name="mlp")(layers.norm(self.model, "norm")(x_BxLxD))
        return x_BxLxD + layers.dropout(y_BxLxD, key_B, self.model.dropout)


class Encoder(nn.Module):
    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, left_B, key_B):
        model = self.model
        embeddings, same = zip(*neighbours(x_BxLxD, segments_BxL, model.window, model.context, left_B), strict=True)
        if self.model.cell == "window":
            context = jnp.concatenate(embeddings, -1)
        else:
            context = sum(embeddings) / jnp.maximum(sum(same), 1)[..., None].astype(x_BxLxD.dtype)
        h_BxLxD = layers.dense(self.model, self.model.width, "context")(context)
        h_BxLxD = layers.Stack(self.model, Layer, name="stack")(h_BxLxD, None, key_B)
        return layers.norm(self.model, "norm")(h_BxLxD)


def build(model: config.Model, vocab_size: int) -> types.Model:
    return lm.build(model, vocab_size, Encoder, incremental.WINDOW)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for what no feedforward net can be."""
    errors.require_number("config.model.window", cfg.model.window, 1, cfg.pack.seq_len)


FAMILY = types.ModelSpec(build, check, ("window", "bag"), reads=("mlp_dim", "window", "activation"))
