"""Masked diffusion: a bound on an example's log-probability from masked tokens at all rates (MDLM, Sahoo et al. 2024,
arXiv 2406.07524, equation 10; LLaDA, Nie et al. 2025, arXiv 2502.09992, equation 3).

Of an example's n tokens k are masked, with k uniform in 1 to n, and their nats are weighted by n / k. The papers mask
each token with a probability t, uniform in (0, 1), and weight by 1 / t: the same expectation over t given k, with more
noise. They start at t = 1e-3, which leaves out up to that share of the bound. Here the bound is exact: the loss of an
exact denoiser is -log P(tokens | n) by the chain rule.
"""

import jax.numpy as jnp
import numpy as np

from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.objectives import heads, masking, mlm, token_prediction

MASKED_COLUMNS = ("diffusion_masked", "diffusion_weight")
TRAIN_SCORES = (
    Score("accuracy", "training accuracy", ("correct", "diffusion_weight"), share=True),
    Score("realised_rate", "share of tokens masked", MASKED_COLUMNS, format=".4f", share=True),
)


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective. An example's weight is n; "diffusion_masked" is k; "correct" is weighted by n / k, too."""
    log_unigram_V = token_prediction.compute_word_log_unigram(dataset)

    def sample_masks(text, key_B, hparams):
        return masking.sample_masks(key_B, text.ids_BxL, hparams, num_slots=dataset.seq_len)

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        text = batch.text
        masked, dropout_key_B = sample_masks(text, key_B, hparams)
        masked_text, key_B = text._replace(ids_BxL=masked.ids_BxL), dropout_key_B if train else None
        (h_BxLxD,) = model.encode(params["model"], masked_text, batch.source, key_B=key_B)
        eligible_B, masked_B = masked.num_eligible_B.astype(jnp.float32), masked.num_corrupted_B.astype(jnp.float32)
        weight_BxL = masking.get_predicted_mask(masked) * (eligible_B / jnp.maximum(masked_B, 1))[:, None]
        nats_B, sums = token_prediction.predict_tokens(
            cfg.optim, log_unigram_V, params, model, h_BxLxD, text.ids_BxL, weight_BxL, train=train
        )
        sums |= {"diffusion_masked": masked_B, "tokens": heads.count_tokens(text)}
        return types.LossSums({"diffusion": nats_B}, {"diffusion": eligible_B}, sums)

    return types.Objective(
        loss=loss,
        eval_mask=lambda text, key_B, hparams: masking.get_predicted_mask(sample_masks(text, key_B, hparams)[0]),
        scores=token_prediction.build_scores("diffusion", "nats per token"),
        train_scores=TRAIN_SCORES,
    )


def make_hparams(cfg: config.Config) -> dict[str, np.generic]:
    """Pure [MASK] of any number of tokens, in training and in evaluation."""
    return {"predict_rate": np.float32(0), "mask_token_prob": np.float32(1), "random_token_prob": np.float32(0)}


SPEC = types.ObjectiveSpec(
    build,
    prediction_rates=lambda cfg: types.PredictionRates(words=0.5),
    directionalities=mlm.SPEC.directionalities,
    visibility=types.Visibility.UNMASKED,
    train_hparams=make_hparams,
    eval_hparams=make_hparams,
    conditional_fields=("optim.z_loss",),
    loss_visibility={"loss": types.Visibility.BOUND},
)
