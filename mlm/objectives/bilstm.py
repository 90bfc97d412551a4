"""A two-layer bidirectional LSTM on top of features, as BERT's tagger has it (Devlin et al. 2019, section 5.3).

Letters in array names: I inputs, H units of a direction, G = 4H, E the two directions.
"""

import jax
import jax.numpy as jnp

from mlm.base import types

LAYERS = ("lower", "upper")


def init_bilstm(key, inputs: int, units: int) -> types.Params:
    """Weights uniform within 1/sqrt(fan-in), biases zero; `apply_bilstm` adds 1 to the forget gate's."""
    uniform = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", batch_axis=0)

    def init_layer(key, inputs):
        key_input, key_state = jax.random.split(key)
        return {
            "input": uniform(key_input, (2, inputs, 4 * units)),
            "state": uniform(key_state, (2, units, 4 * units)),
            "bias": jnp.zeros((2, 4 * units)),
        }

    layers = zip(LAYERS, jax.random.split(key), (inputs, 2 * units), strict=True)
    return {name: init_layer(layer_key, layer_inputs) for name, layer_key, layer_inputs in layers}


def apply_bilstm(params: types.Params, x_BxLxI, segments_BxL, *, unroll: int):
    """h_BxLx2H, the forward direction first; unroll: tokens per iteration of the scan.

    Both directions reset where the segment changes. Padding has segment 0, so the backward direction starts at an
    example's last real token.
    """
    segments_LxB = segments_BxL.T
    same_LxExB = jnp.stack([_compare_with_previous(segments_LxB), _compare_with_previous(segments_LxB[::-1])], 1)
    for name in LAYERS:
        x_BxLxI = _apply_layer(params[name], x_BxLxI, same_LxExB, unroll)
    return x_BxLxI


def _compare_with_previous(segments_LxB):
    return jnp.pad(segments_LxB[1:] == segments_LxB[:-1], ((1, 0), (0, 0)))


def _apply_layer(params, x_BxLxI, same_LxExB, unroll):
    input_LxExBxG = jnp.einsum("bli,eig->lebg", x_BxLxI, params["input"]) + params["bias"][:, None]
    input_LxExBxG = jnp.stack([input_LxExBxG[:, 0], input_LxExBxG[::-1, 1]], 1)

    def step(carry, inputs):
        input_ExBxG, same_ExB = inputs
        h_ExBxH, c_ExBxH = (jnp.where(same_ExB[..., None], x_ExBxH, 0) for x_ExBxH in carry)
        gates_ExBxG = input_ExBxG + jnp.einsum("ebh,ehg->ebg", h_ExBxH, params["state"])
        i, f, g, o = jnp.split(gates_ExBxG, 4, -1)
        c_ExBxH = jax.nn.sigmoid(f + 1) * c_ExBxH + jax.nn.sigmoid(i) * jnp.tanh(g)
        h_ExBxH = jax.nn.sigmoid(o) * jnp.tanh(c_ExBxH)
        return (h_ExBxH, c_ExBxH), h_ExBxH

    zero_ExBxH = jnp.zeros((*same_LxExB.shape[1:], params["state"].shape[1]))
    _, h_LxExBxH = jax.lax.scan(step, (zero_ExBxH,) * 2, (input_LxExBxG, same_LxExB), unroll=unroll)
    return jnp.swapaxes(jnp.concatenate([h_LxExBxH[:, 0], h_LxExBxH[::-1, 1]], -1), 0, 1)
