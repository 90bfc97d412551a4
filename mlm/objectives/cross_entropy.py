"""The cross-entropy of a linear output layer with its own backward pass, which stores exp(logits) alone."""

import functools
import math

import jax
import jax.numpy as jnp


@jax.custom_vjp
def cross_entropy(h_NxD, table_VxD, bias_V, target_N):
    """(nats_N, correct_N) of the targets under softmax(h @ table.T + bias); correct: no logit is larger.

    Values and gradients are those of the plain formula; only nats_N is differentiable. The backward pass stores
    exp(logits - max) in the type of h: its sums over V scale the small side of each product, never the V side.
    """
    return _forward(h_NxD, table_VxD, bias_V, target_N)[0]


def _forward(h_NxD, table_VxD, bias_V, target_N):
    logits_NxV = jnp.einsum("nd,vd->nv", h_NxD, table_VxD, preferred_element_type=jnp.float32) + bias_V
    max_N = logits_NxV.max(1)
    exp_NxV = jnp.exp(logits_NxV - max_N[:, None])
    sum_N = exp_NxV.sum(1)
    # The target's logit comes from a product of its own: gathering it would keep the logits beside their exponentials.
    label_N = compute_logit(h_NxD, table_VxD, bias_V, target_N)
    correct_N = jnp.take_along_axis(exp_NxV, target_N[:, None], axis=1)[:, 0] >= 1
    residuals = (exp_NxV.astype(h_NxD.dtype), sum_N, h_NxD, table_VxD, target_N)
    return (jnp.log(sum_N) + max_N - label_N, correct_N), residuals


def _backward(residuals, cotangents):
    exp_NxV, sum_N, h_NxD, table_VxD, target_N = residuals
    g_N, _ = cotangents
    scale_Nx1 = (g_N / sum_N)[:, None]
    h_grad = jnp.einsum("nv,vd->nd", exp_NxV, table_VxD, preferred_element_type=jnp.float32)
    h_grad = h_grad * scale_Nx1 - g_N[:, None] * table_VxD[target_N]
    scaled_NxD = h_NxD * scale_Nx1
    table_grad = jnp.einsum("nv,nd->vd", exp_NxV, scaled_NxD.astype(h_NxD.dtype), preferred_element_type=jnp.float32)
    table_grad = table_grad.at[target_N].add(-g_N[:, None] * h_NxD)
    bias_grad = (scale_Nx1[:, 0] @ exp_NxV.astype(jnp.float32)).at[target_N].add(-g_N)
    return h_grad.astype(h_NxD.dtype), table_grad.astype(table_VxD.dtype), bias_grad, None


cross_entropy.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def blocked_cross_entropy(max_block: int, h_NxD, table_VxD, bias_V, target_N):
    """`cross_entropy` in blocks of at most max_block entries of the vocabulary, so that no array is N x V.

    The forward pass keeps a running log-sum-exp (Milakov & Gimelshein 2018, arXiv 1805.02867), the backward pass
    computes each block's logits again.
    """
    return _blocked_forward(max_block, h_NxD, table_VxD, bias_V, target_N)[0]


def _split_vocab(max_block: int, table_VxD, bias_V):
    """(tables, biases, first entries) of K equal blocks; entries beyond the vocabulary have no probability."""
    vocab_size, width = table_VxD.shape
    num_blocks = math.ceil(vocab_size / max_block)
    block = math.ceil(vocab_size / num_blocks)
    num_added = num_blocks * block - vocab_size
    table_KxSxD = jnp.pad(table_VxD, ((0, num_added), (0, 0))).reshape(num_blocks, block, width)
    bias_KxS = jnp.pad(bias_V.astype(jnp.float32), (0, num_added), constant_values=-jnp.inf).reshape(num_blocks, block)
    return table_KxSxD, bias_KxS, block * jnp.arange(num_blocks)


def _compute_logits(h_NxD, table_SxD, bias_S):
    return jnp.einsum("nd,sd->ns", h_NxD, table_SxD, preferred_element_type=jnp.float32) + bias_S


def _scan_vocab(max_block: int, h_NxD, table_VxD, bias_V, target_N):
    """The largest logits, the sums of exp(logit - largest), the targets' logits, the first entries with the largest."""

    def add_block(carry, block):
        max_N, sum_N, label_N, best_N = carry
        table_SxD, bias_S, start = block
        logits_NxS = _compute_logits(h_NxD, table_SxD, bias_S)
        block_max_N = logits_NxS.max(1)
        best_N = jnp.where(block_max_N > max_N, start + logits_NxS.argmax(1).astype(jnp.int32), best_N)
        new_max_N = jnp.maximum(max_N, block_max_N)
        sum_N = sum_N * jnp.exp(max_N - new_max_N) + jnp.exp(logits_NxS - new_max_N[:, None]).sum(1)
        is_target_NxS = jnp.arange(len(bias_S)) == (target_N - start)[:, None]
        label_N = jnp.maximum(label_N, jnp.where(is_target_NxS, logits_NxS, -jnp.inf).max(1))
        return (new_max_N, sum_N, label_N, best_N), None

    none_N, zero_N = jnp.full(len(h_NxD), -jnp.inf, jnp.float32), jnp.zeros(len(h_NxD), jnp.float32)
    first = (none_N, zero_N, none_N, jnp.zeros(len(h_NxD), jnp.int32))
    return jax.lax.scan(add_block, first, _split_vocab(max_block, table_VxD, bias_V))[0]


def _blocked_forward(max_block: int, h_NxD, table_VxD, bias_V, target_N):
    max_N, sum_N, label_N, _ = _scan_vocab(max_block, h_NxD, table_VxD, bias_V, target_N)
    nats_N = jnp.log(sum_N) + (max_N - label_N)
    return (nats_N, label_N >= max_N), (max_N, sum_N, h_NxD, table_VxD, bias_V, target_N)


def measure_blocked_cross_entropy(max_block: int, h_NxD, table_VxD, bias_V, target_N):
    """`blocked_cross_entropy` for evaluation: correct where the target is the first entry with the largest logit."""
    max_N, sum_N, label_N, best_N = _scan_vocab(max_block, h_NxD, table_VxD, bias_V, target_N)
    return jnp.log(sum_N) + (max_N - label_N), best_N == target_N


def _blocked_backward(max_block: int, residuals, cotangents):
    max_N, sum_N, h_NxD, table_VxD, bias_V, target_N = residuals
    g_N, _ = cotangents

    def add_block(h_grad_NxD, block):
        table_SxD, bias_S, start = block
        share_NxS = jnp.exp(_compute_logits(h_NxD, table_SxD, bias_S) - max_N[:, None]) / sum_N[:, None]
        is_target_NxS = jnp.arange(len(bias_S)) == (target_N - start)[:, None]
        grad_NxS = g_N[:, None] * (share_NxS - is_target_NxS)
        bias_grad_S, grad_NxS = grad_NxS.sum(0), grad_NxS.astype(h_NxD.dtype)
        h_grad_NxD += jnp.einsum("ns,sd->nd", grad_NxS, table_SxD, preferred_element_type=jnp.float32)
        table_grad_SxD = jnp.einsum("ns,nd->sd", grad_NxS, h_NxD, preferred_element_type=jnp.float32)
        return h_grad_NxD, (table_grad_SxD.astype(table_SxD.dtype), bias_grad_S)

    h_grad_NxD, (table_grad_KxSxD, bias_grad_KxS) = jax.lax.scan(
        add_block, jnp.zeros(h_NxD.shape, jnp.float32), _split_vocab(max_block, table_VxD, bias_V)
    )
    table_grad_VxD = table_grad_KxSxD.reshape(-1, h_NxD.shape[1])[: len(bias_V)]
    bias_grad_V = bias_grad_KxS.reshape(-1)[: len(bias_V)]
    return h_grad_NxD.astype(h_NxD.dtype), table_grad_VxD, bias_grad_V.astype(bias_V.dtype), None


blocked_cross_entropy.defvjp(_blocked_forward, _blocked_backward)


def compute_logit_margin(h_NxD, table_VxD, bias_V, target_N):
    """margin_N: the target's logit minus the mean logit; label smoothing by eps adds eps times this to the nats.

    (1 - eps) nats of the target + eps (mean of the nats of all entries) = nats + eps (target's logit - mean logit):
    all entries share one log-sum-exp. The mean of logits is the logit of the mean, so this makes no logits.
    """
    f32 = jnp.float32
    difference_NxD = table_VxD[target_N].astype(f32) - table_VxD.astype(f32).mean(0)
    return (h_NxD.astype(f32) * difference_NxD).sum(1) + bias_V[target_N] - bias_V.mean()


def compute_logit(h_NxD, table_VxD, bias_V, target_N):
    """logit_N of the targets. With the nats of `cross_entropy` it gives the log-sum-exp of the logits."""
    return (h_NxD.astype(jnp.float32) * table_VxD[target_N].astype(jnp.float32)).sum(1) + bias_V[target_N]
