"""A peer of the recurrent models: this project's layers and step with Flax's nn.RNN as the recurrence."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.benchmark import mlm_step
from mlm.base import config, types
from mlm.models import layers, lm, stack

CELLS = {"elman": nn.SimpleCell, "gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}


class Layer(nn.Module):
    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, number, shared, key_B):
        model = self.model

        def direction(name):
            dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.dtype(model.dtype)  # faster on a CPU
            return nn.RNN(CELLS[model.cell](model.rnn_dim, dtype=dtype), name=name)

        y_BxLxD = layers.norm(model, "norm")(x_BxLxD)
        y_BxLxH = nn.Bidirectional(direction("forward"), direction("backward"))(y_BxLxD)
        return x_BxLxD + layers.dropout(layers.dense(model, model.width, "out")(y_BxLxH), key_B, model.dropout)


class Encoder(nn.Module):
    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, left_B, key_B):
        return layers.norm(self.model, "norm")(stack.Stack(self.model, Layer, name="stack")(x_BxLxD, None, key_B))


def build_model(cfg: config.Config) -> types.Model:
    """A bidirectional recurrent model. It never resets its state, so each example must hold one segment."""
    return lm.build(cfg.model, cfg.tokenizer.vocab_size, Encoder)


def build_step(cfg: config.Config) -> Callable[[], None]:
    return mlm_step.build_timed_step(cfg, build_model(cfg)).step
