"""Recurrent cells that train in parallel: gates read the input alone, so that the state is linear in the state before.

A cell is a module of (y_LxBxD, same_LxB, carry) -> (out_LxBxH, carry). It reads any number of tokens: all of a sequence
in training, one in generation, where the carry stands for the tokens before. same_LxB: whether a token continues the
segment of the token before; else the state before counts as zero. All but the products with weights is in float32.

Letters in array names: L tokens (or chunks of them), B examples, D width, H units, C channels of a convolution, K its
taps; in the scans N all axes after the first. In SSD: H units = h heads of P units, N entries of a unit's state, K
chunks of Q tokens, C = H + 2 N.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers, platform_kernels, recurrence

CONV_TAPS = 4  # of the short convolution (De et al. 2024, section 2.3; Dao & Gu 2024, section 7)
RGLRU_POWER = 8.0  # c of De et al. 2024, equation 3
RGLRU_DECAYS = 0.9, 0.999  # between which a of equation 3 starts
MIN_VARIANCE = 1e-12  # of an input's scale: keeps the gradient of a square root finite
CHUNK = 64  # tokens of SSD whose pairs are computed as attention does; the paper's 256 is for an accelerator
MAX_HEAD_DIM = 64  # the paper's
FIRST_STEPS = 1e-3, 1e-1  # between which dt starts, log-uniform, as in the authors' code
FIRST_RATES = 1.0, 16.0  # between which -A starts


def scan_linear(decay_LxN, update_LxN, carry_N=None):
    """h_t = decay_t * h_(t-1) + update_t, entry by entry, along the first axis, from the state carry_N before it (None:
    zero): h_LxN; float32 in, float32 out.
    """
    if carry_N is not None:
        first_1xN = update_LxN[:1] + decay_LxN[:1] * carry_N
        update_LxN = jnp.concatenate([first_1xN, update_LxN[1:]])
    return scan_from_zero(decay_LxN, update_LxN)


@jax.custom_vjp
def scan_from_zero(decay_LxN, update_LxN):
    """`scan_linear` from a zero state; its gradient is such a scan too, from the last token to the first."""
    return run_scan(decay_LxN, update_LxN)


def _scan_forward(decay_LxN, update_LxN):
    h_LxN = run_scan(decay_LxN, update_LxN)
    return h_LxN, (decay_LxN, h_LxN)


def _scan_backward(saved, d_h_LxN):
    decay_LxN, h_LxN = saved
    next_decay_LxN = jnp.concatenate([decay_LxN[1:], jnp.zeros_like(decay_LxN[:1])])
    previous_LxN = jnp.concatenate([jnp.zeros_like(h_LxN[:1]), h_LxN[:-1]])
    d_update_LxN = run_scan(next_decay_LxN, d_h_LxN, reverse=True)
    return d_update_LxN * previous_LxN, d_update_LxN


scan_from_zero.defvjp(_scan_forward, _scan_backward)


def run_scan(decay_LxN, update_LxN, *, reverse: bool = False):
    """The states, by the form that is fastest on the platform that is traced for."""
    scan = scan_by_token if platform_kernels.find_platform() == "cpu" else scan_by_halves
    return scan(decay_LxN, update_LxN, reverse)


def scan_by_token(decay_LxN, update_LxN, reverse: bool = False):
    """The states, one after the other: a CPU's vector units are full with one token."""

    def step(h_N, inputs):
        decay_N, update_N = inputs
        h_N = decay_N * h_N + update_N
        return h_N, h_N

    return jax.lax.scan(step, jnp.zeros_like(update_LxN[0]), (decay_LxN, update_LxN), reverse=reverse)[1]


def scan_by_halves(decay_LxN, update_LxN, reverse: bool = False):
    """The states in log2(L) rounds over all tokens, since two steps in a row are one of their kind (Blelloch 1990)."""

    def join(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    return jax.lax.associative_scan(join, (decay_LxN, update_LxN), reverse=reverse)[1]


class ParallelCell(nn.Module):
    """What cells share; a cell is a subclass with `__call__`, and its entry in CELLS."""

    model: config.Model

    gates: ClassVar[int] = 1  # matrices of one size that stand side by side in the layer "input"
    chrono_gates: ClassVar[Callable | None] = None  # as RecurrentCell's

    def project(self, y_LxBxD) -> list[Any]:
        """The `gates` arrays LxBxH of the layer "input"."""
        initializer = recurrence.build_bias_initializer(self.model, self.chrono_gates)
        dense = layers.dense(self.model, self.gates * self.model.rnn_dim, "input", initializer)
        return jnp.split(dense(y_LxBxD).astype(jnp.float32), self.gates, -1)


class MinGRU(ParallelCell):
    """minGRU (Feng et al. 2024, arXiv 2410.01201, section 3.1): h_t = (1 - z_t) h_(t-1) + z_t new_t.

    It is the paper's vanilla form: a scan over (1 - z, z new) needs no logarithms, for which the paper's log-space form
    takes candidates that are positive.
    """

    gates = 2
    chrono_gates = staticmethod(lambda open_H, zero_H: [-open_H, zero_H])

    @nn.compact
    def __call__(self, y_LxBxD, same_LxB, carry=None):
        """Returns (h_LxBxH, h_BxH)."""
        z_LxBxH, new_LxBxH = self.project(y_LxBxD)
        decay_LxBxH = jnp.where(same_LxB[..., None], jax.nn.sigmoid(-z_LxBxH), 0)
        h_LxBxH = scan_linear(decay_LxBxH, jax.nn.sigmoid(z_LxBxH) * new_LxBxH, carry)
        return h_LxBxH, h_LxBxH[-1]


class MinLSTM(ParallelCell):
    """minLSTM (Feng et al. 2024, section 3.2): h_t = f h_(t-1) + i new_t, with gates divided by their sum f + i."""

    gates = 3
    chrono_gates = staticmethod(lambda open_H, zero_H: [open_H, -open_H, zero_H])

    @nn.compact
    def __call__(self, y_LxBxD, same_LxB, carry=None):
        """Returns (h_LxBxH, h_BxH)."""
        f_LxBxH, i_LxBxH, new_LxBxH = self.project(y_LxBxD)
        ratio_LxBxH = jax.nn.log_sigmoid(f_LxBxH) - jax.nn.log_sigmoid(i_LxBxH)  # log(f / i)
        decay_LxBxH = jnp.where(same_LxB[..., None], jax.nn.sigmoid(ratio_LxBxH), 0)
        h_LxBxH = scan_linear(decay_LxBxH, jax.nn.sigmoid(-ratio_LxBxH) * new_LxBxH, carry)
        return h_LxBxH, h_LxBxH[-1]


class ShortConv(nn.Module):
    """A causal convolution of each channel over the last CONV_TAPS tokens of its segment."""

    model: config.Model

    @nn.compact
    def __call__(self, x_LxBxC, same_LxB, carry=None):
        """Returns (out_LxBxC, carry: the last inputs, the newest first, as far as the segment goes)."""
        C = x_LxBxC.shape[-1]
        uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # as torch.nn.Conv1d
        taps_KxC = self.param("taps", uniform, (CONV_TAPS, C))  # the last is of the token itself
        out_LxBxC = x_LxBxC * taps_KxC[-1]
        before, new_carry = carry or (jnp.zeros_like(x_LxBxC[0]),) * (CONV_TAPS - 1), []
        for tap_C, before_BxC in zip(taps_KxC[-2::-1], before, strict=True):
            new_carry.append(x_LxBxC[-1])
            shifted_LxBxC = jnp.concatenate([before_BxC[None], x_LxBxC[:-1]])
            x_LxBxC = jnp.where(same_LxB[..., None], shifted_LxBxC, 0)
            out_LxBxC += x_LxBxC * tap_C
        if self.model.bias == "all":
            out_LxBxC += self.param("bias", nn.initializers.zeros, (C,))
        return out_LxBxC, tuple(new_carry)


class RGLRU(ParallelCell):
    """Griffin's recurrent block (De et al. 2024, arXiv 2402.19427, section 2.3) with its RG-LRU (equations 1 to 4).

    As in the authors' code a state that starts takes its input whole: a_t = 0 there in the scale sqrt(1 - a_t^2) too.
    The gates' matrices are full ones; the paper's have 16 blocks, for devices that share them.
    """

    gates = 2

    @nn.compact
    def __call__(self, y_LxBxD, same_LxB, carry=None):
        """Returns (out_LxBxH, (last inputs, h_BxH))."""
        branch_LxBxH, x_LxBxH = self.project(y_LxBxD)
        inputs, h_BxH = carry or (None, None)
        x_LxBxH, inputs = ShortConv(self.model, name="conv")(x_LxBxH, same_LxB, inputs)
        gates = jax.nn.sigmoid(layers.dense(self.model, 2 * self.model.rnn_dim, "gates")(x_LxBxH).astype(jnp.float32))
        r_LxBxH, i_LxBxH = jnp.split(gates, 2, -1)
        base_H = self.param("decay", init_rglru_decay, (self.model.rnn_dim,))  # Lambda of the paper
        log_decay_LxBxH = RGLRU_POWER * r_LxBxH * jax.nn.log_sigmoid(base_H)
        log_decay_LxBxH = jnp.where(same_LxB[..., None], log_decay_LxBxH, -jnp.inf)
        scale_LxBxH = jnp.sqrt(jnp.maximum(-jnp.expm1(2 * log_decay_LxBxH), MIN_VARIANCE))
        h_LxBxH = scan_linear(jnp.exp(log_decay_LxBxH), scale_LxBxH * i_LxBxH * x_LxBxH, h_BxH)
        return layers.ACTIVATIONS["gelu_tanh"](branch_LxBxH) * h_LxBxH, (inputs, h_LxBxH[-1])


def init_rglru_decay(key, shape, dtype=jnp.float32):
    """Lambda, of which a = sigmoid(Lambda) is uniform in the area of a ring, as the authors' code has it."""
    low, high = RGLRU_DECAYS
    decay_H = jnp.sqrt(jax.random.uniform(key, shape, dtype, low**2, high**2))
    return jnp.log(decay_H) - jnp.log1p(-decay_H)


class SSD(ParallelCell):
    """Mamba-2's block: projections, a short convolution, the state-space model, a gate and a norm (Dao & Gu 2024, arXiv
    2405.21060, section 7).

    The decay is one number a head. B and C are shared by all heads, which have P = gcd(H, 64) units.
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


CELLS: dict[str, type[ParallelCell]] = {"mingru": MinGRU, "minlstm": MinLSTM, "rglru": RGLRU, "ssd": SSD}
