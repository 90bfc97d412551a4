"""Two layers of LSTM in both directions, as a tagger reads features with (Devlin et al. 2019, section 5.3).

Letters in array names: I inputs, H units of a direction, G = 4H, E the two directions.
"""
import jax
import jax.numpy as jnp

from mlm.base import types

LAYERS = ("lower", "upper")


def init(key, inputs: int, units: int) -> types.Params:
    """Weights uniform within 1/sqrt(their inputs), biases zero; the gate that keeps is opened in `run`."""
    uniform = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", batch_axis=0)

    def layer(key, inputs):
        key_input, key_state = jax.random.split(key)
        return {"input": uniform(key_input, (2, inputs, 4 * units)), "state": uniform(key_state, (2, units, 4 * units)),
                "bias": jnp.zeros((2, 4 * units))}

    sizes = zip(LAYERS, jax.random.split(key), (inputs, 2 * units), strict=True)
    return {name: layer(one, size) for name, one, size in sizes}


def run(params: types.Params, x_BxLxI, segments_BxL, *, unroll: int):
    """h_BxLx2H, the forward direction's first. Each starts anew where the segment changes: on padding, whose number is
    0, and so at a row's last real token. unroll: tokens an iteration of the loop along a row.
    """
    segments_LxB = segments_BxL.T
    same_LxExB = jnp.stack([_same(segments_LxB), _same(segments_LxB[::-1])], 1)
    for name in LAYERS:
        x_BxLxI = _layer(params[name], x_BxLxI, same_LxExB, unroll)
    return x_BxLxI


def _same(segments_LxB):
    return jnp.pad(segments_LxB[1:] == segments_LxB[:-1], ((1, 0), (0, 0)))


def _layer(params, x_BxLxI, same_LxExB, unroll):
    input_LxExBxG = jnp.einsum("bli,eig->lebg", x_BxLxI, params["input"]) + params["bias"][:, None]
    input_LxExBxG = jnp.stack([input_LxExBxG[:, 0], input_LxExBxG[::-1, 1]], 1)

    def step(carry, now):
        input_ExBxG, same_ExB = now
        h_ExBxH, c_ExBxH = (jnp.where(same_ExB[..., None], x_ExBxH, 0) for x_ExBxH in carry)
        gates_ExBxG = input_ExBxG + jnp.einsum("ebh,ehg->ebg", h_ExBxH, params["state"])
        i, f, g, o = jnp.split(gates_ExBxG, 4, -1)
        c_ExBxH = jax.nn.sigmoid(f + 1) * c_ExBxH + jax.nn.sigmoid(i) * jnp.tanh(g)
        h_ExBxH = jax.nn.sigmoid(o) * jnp.tanh(c_ExBxH)
        return (h_ExBxH, c_ExBxH), h_ExBxH

    zero_ExBxH = jnp.zeros((*same_LxExB.shape[1:], params["state"].shape[1]))
    _, h_LxExBxH = jax.lax.scan(step, (zero_ExBxH,) * 2, (input_LxExBxG, same_LxExB), unroll=unroll)
    return jnp.swapaxes(jnp.concatenate([h_LxExBxH[:, 0], h_LxExBxH[::-1, 1]], -1), 0, 1)
