"""Masked tokens and next sentence together, BERT's pretraining (Devlin et al. 2019, section 3.1, task 2)."""

import dataclasses
import operator

import jax
import jax.numpy as jnp

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.base.static_config import StaticConfig
from mlm.objectives import heads, masking, mlm

SCORES = (
    *mlm.SCORES,
    Score("nsp_loss", "next-sentence loss", ("nsp_nats", "nsp_weight"), unit="nats per example", better=-1, chart=True),
    Score("nsp_accuracy", "next-sentence accuracy", ("nsp_correct", "nsp_weight"), better=1, share=True, chart=True),
)


def build(cfg: StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """mlm's loss plus that of classifying, by the first token's state, whether segment B follows segment A."""
    forward = mlm.build_forward(cfg, dataset)

    def init(key, model):
        key_pool, key_label = jax.random.split(key)
        width = model.width
        return {"pool": heads.init_dense(key_pool, width, width), "label": heads.init_dense(key_label, width, 2)}

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        mlm_sums, h_BxLxD = forward(params, model, batch, key_B, hparams, train=train, mask_index=mask_index)
        head, next_B = params["objective"], batch.labels["next_B"]
        pooled_BxD = jnp.tanh(heads.apply_dense(head["pool"], h_BxLxD[:, 0].astype(jnp.float32)))
        logits_Bx2 = heads.apply_dense(head["label"], pooled_BxD)
        real_B = (batch.text.segments_BxL[:, 0] > 0).astype(jnp.float32)
        nats_B = -jnp.take_along_axis(jax.nn.log_softmax(logits_Bx2), next_B[:, None], axis=-1)[:, 0] * real_B
        correct_B = (logits_Bx2.argmax(-1) == next_B) * real_B
        nsp_sums = {"nsp": nats_B}, {"nsp": real_B}, {"nsp_correct": correct_B}
        return types.LossSums(*map(operator.or_, mlm_sums, nsp_sums))

    return dataclasses.replace(mlm.build(cfg, dataset), init=init, loss=loss, scores=SCORES)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for bad masks and for examples that are not pairs."""
    masking.check(cfg)
    errors.require_field(
        cfg, "pack.mode", cfg.pack.mode == "segment_pair", "segment_pair, since config.objective is nsp"
    )


SPEC = dataclasses.replace(mlm.SPEC, build=build, check=check, directionalities=(types.Directionality.BIDIRECTIONAL,))
