"""Masked diffusion: a bound on a row's log-probability, by masked tokens at every rate (MDLM, Sahoo et al. 2024, arXiv
2406.07524, equation 10; LLaDA, Nie et al. 2025, arXiv 2502.09992, equation 3).

Of a row's n tokens k are hidden, every k from 1 to n as likely, and the nats of the hidden weigh n / k. The papers hide
each token with a chance t that is uniform, and weigh 1 / t: the same in expectation over t, given k, with less noise.
They begin at t = 1e-3, which leaves up to so much of the bound out; here it is exact, so that of an exact denoiser the
loss is -log P(tokens | n) by the chain rule.
"""
import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.base.special import NUM_SPECIAL
from mlm.objectives import masking, mlm, tokens

TRAINING = (Score("accuracy", "training accuracy", ("correct", "diffusion_weight"), share=True),
            Score("realised_rate", "share of tokens masked", ("diffusion_masked", "diffusion_weight"), form=".4f",
                  share=True))


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on these rows. A row's weight is n, "diffusion_masked" k: what is right weighs n / k, too."""
    unigram_V = np.frombuffer(about.unigram, np.int64)
    log_unigram_V = tokens.log_unigram(unigram_V, np.arange(len(unigram_V)) >= NUM_SPECIAL)

    def drawn(text, key_B, knobs):
        return masking.draw(key_B, text.ids_BxL, knobs, slots=about.length, cdf_V=np.ones(1))  # no random tokens

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        text = batch.text
        masked, dropout_key_B = drawn(text, key_B, knobs)
        h_BxLxD, = model.encode(params["model"], text._replace(ids_BxL=masked.ids_BxL), batch.source,
                                key_B=dropout_key_B if train else None)
        predict = tokens.predict_fast if train else tokens.predict
        nats_BxL, right_BxL = predict(params["model"], model, h_BxLxD, text.ids_BxL)
        eligible_B, masked_B = (count_B.astype(jnp.float32) for count_B in (masked.eligible_B, masked.corrupted_B))
        weight_BxL = masking.predicted_places(masked) * (eligible_B / jnp.maximum(masked_B, 1))[:, None]
        sums = {"correct": (right_BxL * weight_BxL).sum(-1), "diffusion_masked": masked_B,
                "tokens": (text.segments_BxL > 0).sum(-1).astype(jnp.float32)}
        if not train:
            sums |= tokens.baseline(log_unigram_V, text.ids_BxL, weight_BxL)
        return types.LossSums({"diffusion": (nats_BxL * weight_BxL).sum(-1)}, {"diffusion": eligible_B}, sums)

    def asked(text, key_B, knobs):
        return masking.predicted_places(drawn(text, key_B, knobs)[0])

    return types.Objective(init=lambda key, model: {}, loss=loss, asked=asked,
                           scores=tokens.scores("diffusion", "nats per token"), training=TRAINING)


def knobs(cfg: config.Config) -> dict[str, np.generic]:
    """Pure [MASK] of any number of tokens, in training as in evaluation."""
    return {"predict": np.float32(0), "mask_share": np.float32(1), "random_share": np.float32(0)}


GOAL = types.ObjectiveSpec(build, check=lambda cfg: None, predicted=lambda cfg: 0.5, sees=mlm.GOAL.sees, seen="rest",
                  knobs=knobs, frozen=knobs, losses={"loss": "bound"})
