"""Masked tokens and next sentence together, BERT's pretraining (Devlin et al. 2019, section 3.1, task 2)."""
import jax
import jax.numpy as jnp

from mlm.base import config, types
from mlm.objectives import mlm


def build(mask: config.Mask, slots: int, unigram_V) -> types.Objective:
    """mlm's loss plus that of telling, from the first token's state, whether segment B truly follows segment A."""
    forward = mlm.build_forward(mask, slots, unigram_V)

    def init(key, width):
        key_pool, key_label = jax.random.split(key)
        normal = jax.nn.initializers.truncated_normal(0.02)
        return {"pool": {"kernel": normal(key_pool, (width, width)), "bias": jnp.zeros(width)},
                "label": {"kernel": normal(key_label, (width, 2)), "bias": jnp.zeros(2)}}

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        losses, h_BxLxD = forward(params, model, batch, key_B, knobs, train=train, view=view)
        pool, label = params["objective"]["pool"], params["objective"]["label"]
        pooled_BxD = jnp.tanh(h_BxLxD[:, 0].astype(jnp.float32) @ pool["kernel"] + pool["bias"])
        logits_Bx2 = pooled_BxD @ label["kernel"] + label["bias"]
        real_B = (batch.segments_BxL[:, 0] > 0).astype(jnp.float32)
        nats_B = -jnp.take_along_axis(jax.nn.log_softmax(logits_Bx2), batch.label_B[:, None], axis=-1)[:, 0] * real_B
        correct_B = (logits_Bx2.argmax(-1) == batch.label_B) * real_B
        return types.Losses(losses.loss_B | {"nsp": nats_B}, losses.weight_B | {"nsp": real_B},
                            losses.sums_B | {"nsp_correct": correct_B})

    return types.Objective(init, loss)
