"""Maps of what a model looks at in a text: attention, attention rollout, and gradient saliency.

Letters in array names: T tokens of a text, K layers of H heads.
"""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import models, objectives
from mlm.base import errors, types
from mlm.base.special import NUM_SPECIAL
from mlm.inference import batching, forward_passes, surprisal
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


def get_requirement(model: LanguageModel) -> str:
    """What a model without any map would have to be; "": it has one."""
    is_met = model.model.attention is not None or _predicts_tokens(model)
    return "" if is_met else "a Transformer, or a run that was trained to predict tokens, of a text without a source"


def _predicts_tokens(model: LanguageModel) -> bool:
    reads_text = objectives.get_visibility(model.config) in (types.Visibility.UNMASKED, types.Visibility.CAUSAL)
    return model.has_lm_head and reads_text and not models.reads_source(model.config)


def compute_attention_maps(model: LanguageModel, text: str) -> AttentionMaps:
    """All maps of a text, which is truncated to `model.length` tokens.

    Raises ConfigError for a model without any map: it has no attention and does not predict tokens.
    """
    requirement = get_requirement(model)
    errors.require(not requirement, "attention", model.config.objective, requirement)
    masked = objectives.get_visibility(model.config) == types.Visibility.UNMASKED
    (ids,) = batching.encode_truncated(model.tokenizer, [text], model.length)
    weights = model.attentions(text).weights_KxHxTxT if model.model.attention is not None else None
    rollout = compute_rollout(weights) if weights is not None else None
    saliency, predictions, words = None, None, None
    if _predicts_tokens(model):
        saliency, predictions, nats_T = compute_saliency(model, ids, masked=masked)
        words = join_words(model, text, ids, nats_T) if masked else model.surprisal(text)
        words = [(word.text, word.nats) for word in words]
    pieces = [model.tokenizer.pieces[token] for token in ids]
    return AttentionMaps(pieces, weights, rollout, saliency, predictions, masked, words)


def join_words(model: LanguageModel, text: str, ids: list[int], nats_T: np.ndarray) -> list[surprisal.Surprisal]:
    """`LanguageModel.surprisal` of a masked model from what the tokens of a text cost; NaN for those truncated."""
    spans = batching.find_spans(model.tokenizer, text)
    nats = np.full(len(spans), np.nan)
    nats[: len(ids) - 2] = np.where(np.array(ids) < NUM_SPECIAL, np.nan, nats_T)[1:-1]
    return surprisal.join_tokens("word", text, spans, nats.tolist())


def format_json(maps: AttentionMaps) -> dict:
    """The maps for JSON: nested lists of numbers with four digits, under names without shapes."""

    def format_value(name, value):
        if isinstance(value, np.ndarray):
            return np.vectorize(lambda x: float(f"{x:.4g}"), otypes=[float])(value).tolist()
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
    rollout = itertools.accumulate(mixed_KxTxT, lambda below_TxT, mixed_TxT: mixed_TxT @ below_TxT)
    return np.stack([*rollout]).astype(np.float32)


def compute_saliency(
    model: LanguageModel, ids: list[int], masked: bool
) -> tuple[np.ndarray, list[TokenPrediction], np.ndarray]:
    """(saliency_TxT, predictions, nats_T): how strongly each position's prediction depends on each token's embedding.

    Entry (i, j) is the Euclidean norm of the gradient of the log-probability of the likeliest token at position i, with
    respect to the normalised embedding of token j (Simonyan et al. 2014, section 3; Li et al. 2016). The predictions at
    [CLS] and [SEP] are included, though no training made any there. nats_T: -log p of the token that is there.

    masked: whether token i is masked for its prediction, as in training; then (i, i) is 0, since a mask says nothing of
    the text. Otherwise the state predicts the next token.
    """
    size = len(ids)
    compute_batch = forward_passes.compile_predictor(compute_gradients, model)
    ((_, ids_1xL),) = batching.iterate_batches([ids], model.length, 1)
    # As many queries as padded tokens: texts of about one length share a program.
    length = ids_1xL.shape[1]
    position_L, batch_size = np.minimum(np.arange(length, dtype=np.int32), size - 1), model.batch_size
    parts = [
        compute_batch(model.params, forward_passes.MaskedQueries(ids_1xL.repeat(len(one), 0), one, one + masked))
        for one in (position_L[first : first + batch_size] for first in range(0, length, batch_size))
    ]
    norms_LxL, log_probs, tokens, nats_L = (np.concatenate(values) for values in zip(*parts, strict=True))
    saliency_TxT = norms_LxL[:size, :size]
    predictions = [
        TokenPrediction(model.tokenizer.pieces[token], float(np.exp(log_prob)))
        for token, log_prob in zip(tokens[:size], log_probs[:size], strict=True)
    ]
    if masked:
        np.fill_diagonal(saliency_TxT, 0)
    return saliency_TxT, predictions, nats_L[:size]


def compute_gradients(model: types.Model, params, queries: forward_passes.MaskedQueries):
    """(norm_BxL of the gradients, log_prob_B, id_B) of the likeliest token at each position, and nats_B of its own."""

    def sum_log_probs(shift_BxLxD):
        shifted = dataclasses.replace(model, encode=functools.partial(model.encode, shift_BxLxD=shift_BxLxD))
        log_prob_BxV = forward_passes.compute_log_probs(shifted, params, queries)
        id_B = log_prob_BxV.argmax(-1)
        own_Bx1 = jnp.take_along_axis(queries.ids_BxL, queries.position_B[:, None], 1)
        log_prob_Bx2 = jnp.take_along_axis(log_prob_BxV, jnp.concatenate([id_B[:, None], own_Bx1], 1), 1)
        return log_prob_Bx2[:, 0].sum(), (log_prob_Bx2[:, 0], id_B, -log_prob_Bx2[:, 1])

    shift_BxLxD = jnp.zeros((*queries.ids_BxL.shape, model.width))
    gradient_BxLxD, found = jax.grad(sum_log_probs, has_aux=True)(shift_BxLxD)
    return jnp.linalg.norm(gradient_BxLxD, axis=-1), *found
