"""Mamba-2's layer: a state-space model whose decay is one number a head, in its dual form (Dao & Gu 2024, 2405.21060).

Letters in array names: L tokens, B examples, D width, H units = h heads of P units, N entries of a unit's state, K
chunks of Q tokens, C = H + 2 N channels of the convolution.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.models import layers
from mlm.models.parallel_cells import ParallelCell, ShortConv, scan_linear

CHUNK = 64  # tokens whose pairs are computed as attention does; the paper's 256 is for an accelerator
MAX_HEAD_DIM = 64  # the paper's
FIRST_STEPS = 1e-3, 1e-1  # between which dt starts, log-uniform, as in the authors' code
FIRST_RATES = 1.0, 16.0  # between which -A starts


class SSD(ParallelCell):
    """Mamba-2's block: projections, a short convolution, the state-space model, a gate and a norm (section 7).

    B and C are shared by all heads, which have P = gcd(H, 64) units.
    """

    @nn.compact
    def __call__(self, y_LxBxD, same_LxB, carry=None):
        """Returns (out_LxBxH, (last inputs, state_BxhxPxN))."""
        model, H, N = self.model, self.model.rnn_dim, self.model.state_dim
        P = math.gcd(H, MAX_HEAD_DIM)
        inputs, state_BxhxPxN = carry or (None, None)
        projected = layers.dense(model, 2 * (H + N) + H // P, "input", bias_in=())(y_LxBxD).astype(jnp.float32)
        gate_LxBxH, x_LxBxC, dt_LxBxh = jnp.split(projected, [H, 2 * (H + N)], -1)
        x_LxBxC, inputs = ShortConv(model, name="conv")(x_LxBxC, same_LxB, inputs)
        x_LxBxH, b_LxBxN, c_LxBxN = jnp.split(nn.silu(x_LxBxC), [H, H + N], -1)
        dt_LxBxh = jax.nn.softplus(dt_LxBxh + self.param("step_bias", init_step_bias, (H // P,)))
        log_rate_h = self.param("log_rate", init_log_rate, (H // P,))  # A = -exp(log_rate)
        x_LxBxhxP = x_LxBxH.reshape(*x_LxBxH.shape[:2], H // P, P)
        out_LxBxhxP, state_BxhxPxN = scan_chunks(
            *(-jnp.exp(log_rate_h) * dt_LxBxh, x_LxBxhxP * dt_LxBxh[..., None], b_LxBxN, c_LxBxN, same_LxB),
            state_BxhxPxN,
        )
        skip_h = self.param("skip", nn.initializers.ones, (H // P,))
        out_LxBxH = jnp.reshape(out_LxBxhxP + skip_h[:, None] * x_LxBxhxP, x_LxBxH.shape)
        norm = nn.RMSNorm(epsilon=model.norm_eps, name="norm")
        return norm(out_LxBxH * nn.silu(gate_LxBxH)), (inputs, state_BxhxPxN)


def scan_chunks(log_decay_LxBxh, x_LxBxhxP, b_LxBxN, c_LxBxN, same_LxB, state_BxhxPxN=None):
    """(out_LxBxhxP, the last state_BxhxPxN) of state_t = exp(log_decay_t) state_(t-1) + x_t b_t', out_t = state_t c_t.

    Inside a chunk it is attention with decays for weights, and between chunks a scan over their states (section 6).
    """
    L = len(same_LxB)
    Q = min(CHUNK, L)

    def cut(array):
        """KxQx...; what is added at the end changes no state."""
        padded = jnp.pad(array, [(0, -L % Q)] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(-1, Q, *array.shape[1:])

    is_start_KxQxB = cut(~same_LxB)
    starts_KxQxB = jnp.cumsum(is_start_KxQxB, 1)  # of segments, in the chunk so far
    # The log of the product of decays since the start of the chunk or segment; by differences of sums since the chunk's
    # start it would round by what other segments hold.
    log_decay_KxQxBxh = cut(log_decay_LxBxh)
    continues_KxQxBxh = jnp.broadcast_to(~is_start_KxQxB[..., None], log_decay_KxQxBxh.shape).astype(jnp.float32)
    decay_KxQxBxh = scan_linear(continues_KxQxBxh.swapaxes(0, 1), log_decay_KxQxBxh.swapaxes(0, 1)).swapaxes(0, 1)
    x_KxQxBxhxP, b_KxQxBxN, c_KxQxBxN = map(cut, (x_LxBxhxP, b_LxBxN, c_LxBxN))

    same_KxQxQxB = (starts_KxQxB[:, :, None] == starts_KxQxB[:, None]) & jnp.tri(Q, dtype=bool)[:, :, None]
    decay_KxQxQxBxh = decay_KxQxBxh[:, :, None] - decay_KxQxBxh[:, None]
    weight_KxQxQxBxh = jnp.exp(jnp.where(same_KxQxQxB[..., None], decay_KxQxQxBxh, -jnp.inf))
    score_KxQxQxB = jnp.einsum("kqbn,ksbn->kqsb", c_KxQxBxN, b_KxQxBxN)
    out_KxQxBxhxP = jnp.einsum("kqsbh,ksbhp->kqbhp", score_KxQxQxB[..., None] * weight_KxQxQxBxh, x_KxQxBxhxP)

    is_last_KxQxB = starts_KxQxB == starts_KxQxB[:, -1:]  # of the segment that goes on after the chunk
    rest_KxQxBxh = jnp.where(is_last_KxQxB[..., None], decay_KxQxBxh[:, -1:] - decay_KxQxBxh, -jnp.inf)
    update_KxBxhxPxN = jnp.einsum("kqbh,kqbhp,kqbn->kbhpn", jnp.exp(rest_KxQxBxh), x_KxQxBxhxP, b_KxQxBxN)
    is_first_KxQxB = starts_KxQxB == 0  # of the segment that began before the chunk
    since_start_KxQxBxh = jnp.where(is_first_KxQxB[..., None], jnp.exp(decay_KxQxBxh), 0)
    decay_KxBxhxPxN = jnp.broadcast_to(since_start_KxQxBxh[:, -1, :, :, None, None], update_KxBxhxPxN.shape)
    state_KxBxhxPxN = scan_linear(decay_KxBxhxPxN, update_KxBxhxPxN, state_BxhxPxN)
    first_BxhxPxN = jnp.zeros_like(state_KxBxhxPxN[0]) if state_BxhxPxN is None else state_BxhxPxN
    before_KxBxhxPxN = jnp.concatenate([first_BxhxPxN[None], state_KxBxhxPxN[:-1]])
    out_KxQxBxhxP += jnp.einsum("kqbn,kbhpn,kqbh->kqbhp", c_KxQxBxN, before_KxBxhxPxN, since_start_KxQxBxh)
    return out_KxQxBxhxP.reshape(-1, *x_LxBxhxP.shape[1:])[:L], state_KxBxhxPxN[-1]


def init_log_rate(key, shape, dtype=jnp.float32):
    """log(-A), of which -A is uniform."""
    return jnp.log(jax.random.uniform(key, shape, dtype, *FIRST_RATES))


def init_step_bias(key, shape, dtype=jnp.float32):
    """The inverse of softplus of dt's first values."""
    dt_h = jnp.exp(jax.random.uniform(key, shape, dtype, *map(math.log, FIRST_STEPS)))
    return dt_h + jnp.log(-jnp.expm1(-dt_h))
