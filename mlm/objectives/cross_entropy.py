"""The cross-entropy of a linear output layer with its own backward pass, which stores no logits."""

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
