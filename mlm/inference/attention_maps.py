"""Maps of what a model looks at in a text: attention, attention rollout, and gradient saliency.

Letters in array names: T tokens of a text, K layers of H heads.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import models, objectives
from mlm.base import errors, types
from mlm.inference import batching, forward_passes, masked_queries
from mlm.inference.language_model import LanguageModel


class TokenPrediction(NamedTuple):
    """The likeliest token at a position, or after it."""

    token: str  # an entry of the vocabulary
    probability: float


class AttentionMaps(NamedTuple):
    """Maps between a text's tokens, float32. Row i shows how token i depends on token j; None where there is no map."""

    tokens: list[str]  # entries of the vocabulary, [CLS] first and [SEP] last
    attention_KxHxTxT: np.ndarray | None  # LanguageModel.attention; each row sums to 1
    rollout_KxTxT: np.ndarray | None  # `compute_rollout` of it; each row sums to 1
    saliency_TxT: np.ndarray | None  # nats per unit of an embedding: `compute_saliency`
    predictions: list[TokenPrediction] | None  # those whose gradients the saliency shows, one per token
    is_masked: bool  # whether the predicted token was masked; otherwise the prediction is the next token
    surprisal: list[tuple[str, float]] | None = None  # each word of the text and its nats, NaN for a [MASK]


def compute_attention_maps(model: LanguageModel, text: str) -> AttentionMaps:
    """All maps of a text, which is truncated to `model.length` tokens.

    Raises ConfigError for a model without any map: it has no attention and does not predict tokens.
    """
    visibility = objectives.get_visibility(model.config)
    masked = visibility == types.Visibility.UNMASKED
    reads_text = masked or visibility == types.Visibility.CAUSAL
    predicts_tokens = model.has_lm_head and reads_text and not models.reads_source(model.config)
    has_attention = model.model.attention is not None
    expected = "a Transformer, or a run that was trained to predict tokens, of a text without a source"
    errors.require(predicts_tokens or has_attention, "attention", model.config.objective, expected)
    (ids,) = batching.encode_truncated(model.tokenizer, [text], model.length)
    weights = model.attentions(text).weights_KxHxTxT if has_attention else None
    saliency, predictions = compute_saliency(model, ids, masked=masked) if predicts_tokens else (None, None)
    rollout = compute_rollout(weights) if weights is not None else None
    pieces = [model.tokenizer.pieces[token] for token in ids]
    words = [(word.text, word.nats) for word in model.surprisal(text)] if predicts_tokens else None
    return AttentionMaps(pieces, weights, rollout, saliency, predictions, masked, words)


def format_json(maps: AttentionMaps) -> dict:
    """The maps for JSON: nested lists of numbers with four digits, under names without shapes."""

    def format_array(x):
        return [float(f"{value:.4g}") for value in x] if x.ndim == 1 else [*map(format_array, x)]

    def format_value(name, value):
        if isinstance(value, np.ndarray):
            return format_array(value)
        if name == "surprisal" and value:
            return [[word, None if np.isnan(nats) else float(f"{nats:.4g}")] for word, nats in value]
        return [prediction._asdict() for prediction in value] if name == "predictions" and value else value

    return {name.partition("_")[0]: format_value(name, value) for name, value in maps._asdict().items()}


def compute_rollout(weights_KxHxTxT: np.ndarray) -> np.ndarray:
    """KxTxT: each input embedding's share of each state after each layer, by attention rollout.

    A layer keeps half of a state and adds half of what it attends to, averaged over its heads; the layers' matrices
    are multiplied (Abnar & Zuidema 2020, section 3). Rows sum to 1.
    """
    mean_KxTxT = weights_KxHxTxT.astype(np.float64).mean(1)
    mixed_KxTxT = (mean_KxTxT / mean_KxTxT.sum(-1, keepdims=True) + np.eye(mean_KxTxT.shape[-1])) / 2
    rollout = [mixed_KxTxT[0]]
    for mixed_TxT in mixed_KxTxT[1:]:
        rollout.append(mixed_TxT @ rollout[-1])
    return np.stack(rollout).astype(np.float32)


def compute_saliency(model: LanguageModel, ids: list[int], masked: bool) -> tuple[np.ndarray, list[TokenPrediction]]:
    """(saliency_TxT, predictions): how strongly each position's prediction depends on each token's embedding.

    Entry (i, j) is the Euclidean norm of the gradient of the log-probability of the likeliest token at position i, with
    respect to the normalised embedding of token j (Simonyan et al. 2014, section 3; Li et al. 2016). The predictions at
    [CLS] and [SEP] are included, though no training made any there.

    masked: whether token i is masked for its prediction, as in training; then (i, i) is 0, since a mask says nothing of
    the text. Otherwise the state predicts the next token.
    """
    size = len(ids)
    compute_batch = forward_passes.compile_predictor(compute_gradients, model)

    def run_batch(indices, ids_BxL):
        position_B = np.zeros(len(ids_BxL), np.int32)
        position_B[: len(indices)] = indices
        return compute_batch(model.params, masked_queries.MaskedQueries(ids_BxL, position_B, position_B + masked))

    batches = batching.iterate_batches([ids] * size, model.length, model.batch_size)
    norms, log_probs, tokens = zip(*batching.collect_outputs(batches, run_batch, size), strict=True)
    saliency_TxT = np.stack(norms)[:, :size]
    predictions = [
        TokenPrediction(model.tokenizer.pieces[token], float(np.exp(log_prob)))
        for token, log_prob in zip(tokens, log_probs, strict=True)
    ]
    if masked:
        np.fill_diagonal(saliency_TxT, 0)
    return saliency_TxT, predictions


def compute_gradients(model: types.Model, params, queries: masked_queries.MaskedQueries):
    """(norm_BxL of the gradients, log_prob_B, id_B) of the likeliest token at each queried position."""

    def sum_log_probs(shift_BxLxD):
        shifted = dataclasses.replace(model, encode=functools.partial(model.encode, shift_BxLxD=shift_BxLxD))
        log_prob_BxV = masked_queries.compute_log_probs(shifted, params, queries)
        id_B = log_prob_BxV.argmax(-1)
        log_prob_B = jnp.take_along_axis(log_prob_BxV, id_B[:, None], 1)[:, 0]
        return log_prob_B.sum(), (log_prob_B, id_B)

    shift_BxLxD = jnp.zeros((*queries.ids_BxL.shape, model.width))
    gradient_BxLxD, (log_prob_B, id_B) = jax.grad(sum_log_probs, has_aux=True)(shift_BxLxD)
    return jnp.linalg.norm(gradient_BxLxD, axis=-1), log_prob_B, id_B
