"""Replaced token detection: which tokens of a row a small generator put there (ELECTRA, Clark et al. 2020, 2003.10555).

The generator is trained as mlm; what it samples stands in the place of the masked tokens, and the run's model tells of
every token whether it was replaced. A sample that happens to be the original token is original. No gradient goes
through the sampling. The two share nothing; the paper's share their token embeddings, through a projection.
"""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.base.special import NUM_SPECIAL
from mlm.objectives import heads, masking, units

OF_TOKENS = "replaced_weight"
SCORES = (Score("loss", "held-out loss", ("replaced_nats", OF_TOKENS), unit="nats per token", better=-1, chart=True),
          Score("accuracy", "held-out accuracy", ("correct", OF_TOKENS), better=1, share=True, chart=True),
          Score("original_loss", "loss of the share of replaced tokens", ("original", OF_TOKENS), "entropy",
                unit="nats per token", reference="share of replaced tokens", beside="loss"),
          Score("original_accuracy", "accuracy of always original", ("original", OF_TOKENS), share=True,
                reference="share of replaced tokens", beside="accuracy"),
          Score("generator_loss", "generator's held-out loss", ("mlm_nats", "mlm_weight"), unit="nats per masked token",
                better=-1),
          Score("generator_accuracy", "generator's held-out accuracy", ("mlm_correct", "mlm_weight"), better=1,
                share=True))
TRAINING = (Score("accuracy", "training accuracy", ("correct", OF_TOKENS), share=True),
            Score("original_accuracy", "share of tokens not replaced", ("original", OF_TOKENS), share=True),
            Score("realised_rate", "share of tokens corrupted", ("corrupted", "eligible"), form=".4f", share=True))


def generator(cfg: config.Config) -> config.Model:
    """A model like the run's with a share of its width, its heads and its units in a layer."""
    model, share = cfg.model, cfg.replaced_token_detection.generator_size
    heads = max(1, round(share * model.num_heads)) if model.num_heads else 0
    width = heads * (model.width // model.num_heads) if heads else max(1, round(share * model.width))
    units = {name: max(1, round(share * count)) for name in ("mlp_dim", "rnn_dim") if (count := getattr(model, name))}
    return dataclasses.replace(model, width=width, num_heads=heads, **units)


def build(cfg: config.Config, about: types.DatasetInfo, small: types.Model) -> types.Objective:
    """The objective on these rows; small: the `generator`'s model. Samples are never special tokens."""
    cdf_V = masking.cumulative(np.frombuffer(about.unigram, np.int64), cfg.mask.random_token_from == "uniform")
    unit = units.of(cfg, about)

    def init(key, model):
        key_small, key_hidden, key_label = jax.random.split(key, 3)
        return {"generator": small.init(key_small), "hidden": heads.dense_init(key_hidden, model.width, model.width),
                "label": heads.dense_init(key_label, model.width, 1)}

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        text, head = batch.text, params["objective"]
        static_key_B = masking.static_keys(knobs, batch) if train and batch.row_B is not None else None
        slots = masking.slots(cfg.mask.max_rate if train else cfg.eval.mask_rate, about.length)
        masked, rest_key_B = masking.draw(key_B, text.ids_BxL, knobs, slots=slots, cdf_V=cdf_V,
                                          static_key_B=static_key_B, unknown=cfg.mask.mask_unk and train,
                                          unit=unit if train else None)
        small_key_B, key_B, sample_key_B = jax.vmap(lambda key: jax.random.split(key, 3), out_axes=1)(rest_key_B)
        small_h_BxLxD, = small.encode(head["generator"], text._replace(ids_BxL=masked.ids_BxL),
                                      key_B=small_key_B if train else None)
        logits_BxKxV = small.logits(head["generator"], jnp.take_along_axis(
            small_h_BxLxD, masked.positions_BxK[..., None], axis=1))
        label_BxK = jnp.take_along_axis(logits_BxKxV, masked.targets_BxK[..., None], axis=-1)[..., 0]
        nats_BxK = (jax.nn.logsumexp(logits_BxKxV, axis=-1) - label_BxK) * masked.weights_BxK
        right_BxK = (logits_BxKxV.argmax(-1) == masked.targets_BxK) * masked.weights_BxK

        shown_BxL = put(sample_key_B, text.ids_BxL, masked, logits_BxKxV)
        replaced_BxL, real_BxL = shown_BxL != text.ids_BxL, (text.segments_BxL > 0).astype(jnp.float32)
        h_BxLxD, = model.encode(params["model"], text._replace(ids_BxL=shown_BxL), key_B=key_B if train else None)
        hidden_BxLxD = jax.nn.gelu(heads.dense(head["hidden"], h_BxLxD.astype(jnp.float32)), approximate=False)
        logit_BxL = heads.dense(head["label"], hidden_BxLxD)[..., 0]
        wrong_BxL = jax.nn.softplus(jnp.where(replaced_BxL, -logit_BxL, logit_BxL))
        sums = {"correct": ((logit_BxL > 0) == replaced_BxL) * real_BxL, "original": ~replaced_BxL * real_BxL,
                "tokens": real_BxL, "mlm_correct": right_BxK}
        counts = {"eligible": masked.eligible_B, "corrupted": masked.corrupted_B}
        return types.LossSums({"mlm": nats_BxK.sum(-1), "replaced": (wrong_BxL * real_BxL).sum(-1)},
                            {"mlm": masked.weights_BxK.sum(-1), "replaced": real_BxL.sum(-1)},
                            {name: value_BxL.sum(-1) for name, value_BxL in sums.items()}
                            | {name: count_B.astype(jnp.float32) for name, count_B in counts.items()})

    return types.Objective(init=init, loss=loss, asked=heads.asked, words=False, scores=SCORES, training=TRAINING,
                           counts=("tokens", "eligible", "corrupted"), now=masking.scheduled,
                           factors=lambda knobs: {"replaced": knobs.objective["weight"]})


def put(key_B, ids_BxL, masked: masking.Masked, logits_BxKxV):
    """ids_BxL: the rows with a draw from the logits, which no gradient goes through, in the place of each that was
    corrupted.
    """
    ruled_V = jnp.where(jnp.arange(logits_BxKxV.shape[-1]) < NUM_SPECIAL, -jnp.inf, 0.0)
    drawn_BxK = jax.vmap(jax.random.categorical)(key_B, jax.lax.stop_gradient(logits_BxKxV) + ruled_V)
    there_BxK = jnp.arange(drawn_BxK.shape[1]) < masked.corrupted_B[:, None]
    rows_Bx1 = jnp.arange(len(ids_BxL))[:, None]
    return ids_BxL.at[rows_Bx1, masked.positions_BxK].set(
        jnp.where(there_BxK, drawn_BxK, masked.targets_BxK).astype(ids_BxL.dtype))


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a generator of no size, for several masks of a row, of which there is one text, and for a
    model whose states do not see their own token.
    """
    masking.check(cfg)
    errors.require((cfg.model.family, cfg.model.context) != ("feedforward", "both"), "config.model.context", "both",
                  "row, since a feedforward net that sees both sides of a token does not see the token itself")
    errors.require_number("config.replaced_token_detection.generator_size", cfg.replaced_token_detection.generator_size,
                          0, 1, low_open=True)
    errors.require_at_least(0, "config.replaced_token_detection.discriminator_weight",
                    cfg.replaced_token_detection.discriminator_weight)
    errors.require(cfg.mask.masks_per_example == 1, "config.mask.masks_per_example", cfg.mask.masks_per_example,
                  "1, since config.objective is replaced")


GOAL = types.ObjectiveSpec(build, check, predicted=lambda cfg: 1.0, sees=("row", "both"), seen="all", further=generator,
                  knobs=lambda cfg: masking.knobs(cfg) |
                  {"weight": np.float32(cfg.replaced_token_detection.discriminator_weight)}, frozen=masking.frozen,
                  traced=(*masking.TRACED, "replaced_token_detection.discriminator_weight"), reads=("mask",
                                                                                                    "eval.mask_rate",
                                                                                                    "replaced"))
