"""Recurrences whose state is linear in the state before: h_t = decay_t * h_(t-1) + update_t, entry by entry.

Letters in array names: L tokens (or chunks of them), N all further axes.
"""

import jax
import jax.numpy as jnp

from mlm.models import platform_kernels


def scan_linear(decay_LxN, update_LxN, carry_N=None):
    """h_LxN along the first axis, from the state carry_N before it (None: zero); float32 in, float32 out."""
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

    zero_N = jnp.zeros_like(update_LxN[0])
    return jax.lax.scan(step, zero_N, (decay_LxN, update_LxN), reverse=reverse)[1]


def scan_by_halves(decay_LxN, update_LxN, reverse: bool = False):
    """The states in log2(L) rounds over all tokens, since two steps in a row are one of their kind (Blelloch 1990)."""

    def join(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    return jax.lax.associative_scan(join, (decay_LxN, update_LxN), reverse=reverse)[1]
