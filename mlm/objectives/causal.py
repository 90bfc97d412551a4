"""Causal language modelling: each token of a segment from those before it (Bengio et al. 2003; Radford et al. 2018).

A model with two stacks also predicts each token from those after it, with the same output layer (Peters et al. 2018,
section 3.1).
"""

import jax.numpy as jnp
import numpy as np

from mlm.base import types
from mlm.base.estimates import Score
from mlm.base.special import CLS, MASK, PAD
from mlm.objectives import token_prediction


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective: it predicts all tokens of a segment but the first, [SEP] and [UNK] included.

    The backward stack predicts all but the last, the first token included.
    """
    unigram_V = np.frombuffer(dataset.unigram_counts, np.int64)
    is_target_V = find_targets(cfg.model.directionality, len(unigram_V))
    log_unigram_V = token_prediction.compute_log_unigram(unigram_V, is_target_V)

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        text = batch.text
        states = model.encode(params["model"], text, batch.source, key_B=key_B if train else None)
        by_direction = zip(model.directions, states, strict=True)
        pairs = [align_targets(direction, h_BxLxD, text.ids_BxL) for direction, h_BxLxD in by_direction]
        h_BxKxD, target_BxK = (jnp.concatenate(parts, 1) for parts in zip(*pairs, strict=True))
        weight_BxK = jnp.tile(compute_eval_mask(text, key_B, hparams)[:, 1:].astype(jnp.float32), len(pairs))
        nats_B, sums = token_prediction.predict_tokens(
            cfg.optim, log_unigram_V, params, model, h_BxKxD, target_BxK, weight_BxK, train=train
        )
        sums["tokens"] = (text.segments_BxL > 0).sum(-1).astype(jnp.float32)
        return types.LossSums({"causal": nats_B}, {"causal": weight_BxK.sum(-1)}, sums)

    return types.Objective(
        loss=loss,
        eval_mask=compute_eval_mask,
        scores=token_prediction.build_scores("causal", "nats per token"),
        train_scores=(Score("accuracy", "training accuracy", ("correct", "causal_weight"), share=True),),
        predicts_special=True,
    )


def find_targets(directionality: str, vocab_size: int) -> np.ndarray:
    """is_target_V: the entries of the vocabulary that are predicted, [SEP] and [UNK] among them."""
    never_predicted = (PAD, MASK) if directionality == types.Directionality.TWO_STACK else (PAD, CLS, MASK)
    return ~np.isin(np.arange(vocab_size), never_predicted)


def align_targets(direction: types.Direction, h_BxLxD, ids_BxL):
    """(h_BxKxD, target_BxK): the states of a direction and the token that each of them predicts."""
    if direction == types.Direction.RIGHT:
        return h_BxLxD[:, 1:], ids_BxL[:, :-1]
    return h_BxLxD[:, :-1], ids_BxL[:, 1:]


def compute_eval_mask(text: types.Tokens, key_B, hparams):
    """eval_mask_BxL: whether the token before belongs to the same segment."""
    same_BxK = (text.segments_BxL[:, 1:] == text.segments_BxL[:, :-1]) & (text.segments_BxL[:, 1:] > 0)
    return jnp.pad(same_BxK, ((0, 0), (1, 0)))


SPEC = types.ObjectiveSpec(
    build,
    prediction_rates=lambda cfg: types.PredictionRates(
        following=2.0 if cfg.model.directionality == types.Directionality.TWO_STACK else 1.0
    ),
    directionalities=(types.Directionality.CAUSAL, types.Directionality.TWO_STACK),
    visibility=types.Visibility.CAUSAL,
    conditional_fields=("eval.context_range", "eval.ngram_order", "optim.label_smoothing", "optim.z_loss"),
)
