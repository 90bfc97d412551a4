"""Encoders that mix tokens without attention and recurrence: a cell is the sublayer that does so.

Letters in array names: K taps of a filter, E units of half a gated layer.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.models import feedforward, incremental, layers, lm, positions, stack

SPATIAL_STD = 1e-3  # of the initial weights of a spatial gate, which start near zero (Liu et al. 2021)


def list_offsets(model: config.Model, reach: int) -> range:
    """The tokens within `reach` that a state may see, counted from its own."""
    return range(-reach, 1 if model.directionality == "causal" else reach + 1)


class GatedConvolution(nn.Module):
    """A gated linear unit, and a filter for each of its units over the tokens within model.window (Tay et al. 2021,
    arXiv 2105.03322).

    The filters are neither shared nor normalized, as those of Wu et al. 2019 (arXiv 1901.10430) are.
    """

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, segments_BxL, left_B):
        """Returns out_BxLxD."""
        model, offsets = self.model, list_offsets(self.model, self.model.window)
        h_BxLxD, gate_BxLxD = jnp.split(layers.dense(model, 2 * model.width, "halves")(x_BxLxD), 2, -1)
        h_BxLxD *= jax.nn.sigmoid(gate_BxLxD)
        filter_init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        filter_KxD = self.param("filter", filter_init, (len(offsets), model.width)).astype(h_BxLxD.dtype)
        neighbors = feedforward.gather_neighbors(h_BxLxD, segments_BxL, offsets, left_B)
        pairs = zip(neighbors, filter_KxD, strict=True)
        return layers.residual_dense(model, "out")(sum(tap_BxLxD * filter_D for (tap_BxLxD, _), filter_D in pairs))


class SpatialGatingMLP(nn.Module):
    """An MLP of which one half gates the other after a weighted sum over tokens (Liu et al. 2021, arXiv 2105.08050).

    A weight depends on the distance of the tokens alone (a Toeplitz matrix), so that a text's states do not depend on
    where in a row it stands; the paper's has one for each pair of positions.
    """

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, visible_BxLxL):
        """Returns out_BxLxD."""
        model, offsets = self.model, list_offsets(self.model, self.model.max_positions - 1)
        h_BxLx2E = layers.activate(model, layers.dense(model, 2 * model.mlp_dim, "halves")(x_BxLxD))
        h_BxLxE, gate_BxLxE = jnp.split(h_BxLx2E, 2, -1)
        gate_BxLxE = layers.norm(model, "gate_norm")(gate_BxLxE)
        filter_K = self.param("filter", nn.initializers.normal(SPATIAL_STD), (len(offsets),))
        index_L = jnp.arange(x_BxLxD.shape[1])
        # A causal filter has no weight for later tokens, whose index is clipped.
        weight_LxL = filter_K.at[index_L - index_L[:, None] - offsets[0]].get(mode="clip")
        weight_BxLxL = jnp.where(visible_BxLxL, weight_LxL, 0).astype(model.dtype)
        gate_BxLxE = jnp.einsum("bls,bse->ble", weight_BxLxL, gate_BxLxE.astype(model.dtype)).astype(h_BxLxE.dtype)
        bias = self.param("filter_bias", nn.initializers.ones, ()) if model.bias == "all" else jnp.ones(())
        return layers.residual_dense(model, "down")(h_BxLxE * (gate_BxLxE + bias.astype(h_BxLxE.dtype)))


class FourierMixing(nn.Module):
    """The real part of a Fourier transform over a text's tokens and units (Lee-Thorp et al. 2021, arXiv 2105.03824).

    It has no parameters. A transform is as long as its text, not as its row: it mixes neither packed texts nor padding.
    """

    model: config.Model

    @nn.compact
    def __call__(self, x_BxLxD, cos_BxLxL, sin_BxLxL):
        """Returns out_BxLxD; the waves are those of `compute_waves`."""
        dtype, einsum = x_BxLxD.dtype, jnp.einsum
        z_BxLxD = jnp.fft.fft(x_BxLxD.astype(jnp.float32))
        real_BxLxD, imag_BxLxD = z_BxLxD.real.astype(dtype), z_BxLxD.imag.astype(dtype)
        cosines_BxLxD = einsum("bls,bsd->bld", cos_BxLxL.astype(dtype), real_BxLxD)
        return cosines_BxLxD + einsum("bls,bsd->bld", sin_BxLxL.astype(dtype), imag_BxLxD)


def compute_waves(model: config.Model, segments_BxL, left_B):
    """(cos_BxLxL, sin_BxLxL) of the transform of each segment's tokens, numbered from 0; zero between segments."""
    same_BxLxL = positions.compute_visible(model, segments_BxL, left_B)
    number_BxL = (same_BxLxL & jnp.tri(segments_BxL.shape[1], k=-1, dtype=bool)).sum(-1)
    length_BxLx1 = same_BxLxL.sum(-1, keepdims=True)
    # In integers: the rest is exact, the cosine of a large angle is not.
    turn_BxLxL = number_BxL[:, :, None] * number_BxL[:, None] % length_BxLx1 / length_BxLx1
    return tuple(jnp.where(same_BxLxL, wave(2 * math.pi * turn_BxLxL), 0) for wave in (jnp.cos, jnp.sin))


class Mixer(NamedTuple):
    """An entry of MIXERS."""

    sublayer: Callable[..., nn.Module]  # of (x_BxLxD, *what prepare returns) -> out_BxLxD
    prepare: Callable[[config.Model, Any, Any], tuple]  # of (model, segments_BxL, left_B), once for all layers
    has_mlp: bool = True  # whether an MLP follows it in a layer
    positions: str = "none"  # that embeddings have
    is_bidirectional: bool = False  # whether it is so alone


MIXERS = {
    "conv": Mixer(GatedConvolution, lambda model, segments_BxL, left_B: (segments_BxL, left_B)),
    "gmlp": Mixer(SpatialGatingMLP, lambda *inputs: (positions.compute_visible(*inputs),), has_mlp=False),
    "fnet": Mixer(FourierMixing, compute_waves, positions="learned", is_bidirectional=True),
}


class MixerLayer(stack.ResidualLayer):
    """A mixing sublayer and perhaps an MLP, each with norms and a residual connection."""

    @nn.compact
    def __call__(self, x_BxLxD, number, shared, key_B):
        """Returns x_BxLxD; shared: what the mixer's `prepare` returns."""
        mixer = MIXERS[self.model.cell]
        mixing, keys = mixer.sublayer(self.model, name="mixing"), [layers.fold_in(key_B, site) for site in range(2)]
        sublayer = lambda x_BxLxD: mixing(x_BxLxD, *shared)
        x_BxLxD = self.add("mixing", sublayer, x_BxLxD, keys[0], skip_norm=self.skips_norm(number))
        return self.add("mlp", layers.MLP(self.model, name="mlp"), x_BxLxD, keys[1]) if mixer.has_mlp else x_BxLxD


MixerEncoder = functools.partial(
    stack.NormalizedStack,
    layer=MixerLayer,
    prepare=lambda module, x_BxLxD, *segments: (x_BxLxD, MIXERS[module.model.cell].prepare(module.model, *segments)),
)


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    decoder = incremental.build_rereading_decoder(MixerEncoder)
    return lm.build(model, vocab_size, MixerEncoder, decoder, MIXERS[model.cell].positions)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that a mixer cannot use."""
    model, mixer = cfg.model, MIXERS[cfg.model.cell]
    is_possible = model.directionality == "bidirectional" or not mixer.is_bidirectional
    errors.require_field(cfg, "model.directionality", is_possible, "bidirectional", "model.cell")
    is_ungated = mixer.has_mlp or model.activation not in layers.GATES
    errors.require_field(cfg, "model.activation", is_ungated, "one without a gate of its own", "model.cell")
    if model.cell in SPEC.cell_fields["window"]:
        errors.require_number("config.model.window", model.window, 1, cfg.pack.seq_len)
    fits = model.cell not in SPEC.cell_fields["max_positions"] or cfg.pack.seq_len <= model.max_positions
    errors.require_field(cfg, "pack.seq_len", fits, f"at most config.model.max_positions = {model.max_positions}")


SPEC = types.ModelSpec(
    build,
    check,
    tuple(MIXERS),
    conditional_fields=("mlp_dim", "activation", "first_norm"),
    cell_fields={"window": ("conv",), "max_positions": ("gmlp", "fnet")},
)
