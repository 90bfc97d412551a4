"""What a trained model looks at in a text: attention, its rollout, and gradient saliency, which every family has.

Letters in array names: T tokens of a text, K layers of H heads.
"""
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import errors, types
from mlm.inference import batching, masked_queries
from mlm.inference.language_model import LanguageModel


class Answer(NamedTuple):
    """What a model finds likeliest in a token's place, or behind it."""

    token: str                # an entry of the vocabulary
    probability: float


class Looked(NamedTuple):
    """Maps of a text's tokens, float32: row i is of token i, column j what it has of token j; None: there is none."""

    tokens: list[str]         # entries of the vocabulary, [CLS] first and [SEP] last
    attention_KxHxTxT: np.ndarray | None  # Opened.attention; each row sums to 1
    rollout_KxTxT: np.ndarray | None      # `rollout` of it; each row sums to 1
    saliency_TxT: np.ndarray | None       # nats by unit of an embedding: `saliency`
    answers: list[Answer] | None          # whose gradients these are, a token each
    hidden: bool              # whether a token was hidden when its place was asked; else its answer is the next token


def ask(model: LanguageModel, text: str) -> Looked:
    """All maps that a model has of a text, which is cut to `model.length` tokens.

    Raises ConfigError for a model without any: it has no attention, and was trained to tell no tokens.
    """
    seen = objectives.seen(model.cfg)
    tells, attends = model.output and seen in ("rest", "left"), model.model.attention is not None
    errors.require(tells or attends, "attend", model.cfg.objective, "a Transformer, or a run that was trained to tell "
                  "tokens")
    row, = batching.rows(model.tokenizer, [text], model.length, hidden=True)
    weights = model.attention(text)[1] if attends else None
    slopes, answers = saliency(model, row, hidden=seen == "rest") if tells else (None, None)
    return Looked([model.tokenizer.pieces[token] for token in row], weights,
                  rollout(weights) if attends else None, slopes, answers, seen == "rest")


def plain(looked: Looked) -> dict:
    """As JSON has it: nested lists, numbers of four digits, and names without shapes."""
    def value(of):
        return [float(f"{x:.4g}") for x in of] if of.ndim == 1 else [*map(value, of)]

    return {name.partition("_")[0]: value(found) if isinstance(found, np.ndarray) else
            [one._asdict() for one in found] if name == "answers" and found else found
            for name, found in looked._asdict().items()}


def rollout(weights_KxHxTxT: np.ndarray) -> np.ndarray:
    """KxTxT: how much of each token's embedding has come into each state after each layer, by its attention weights.

    A layer passes on half of what a state was and half of what it attends to, in the mean of its heads; layers are
    multiplied (Abnar & Zuidema 2020, section 3). Rows sum to 1.
    """
    mean_KxTxT = weights_KxHxTxT.astype(np.float64).mean(1)
    mixed_KxTxT = (mean_KxTxT / mean_KxTxT.sum(-1, keepdims=True) + np.eye(mean_KxTxT.shape[-1])) / 2
    reached = [mixed_KxTxT[0]]
    for mixed_TxT in mixed_KxTxT[1:]:
        reached.append(mixed_TxT @ reached[-1])
    return np.stack(reached).astype(np.float32)


def saliency(model: LanguageModel, row: list[int], hidden: bool) -> tuple[np.ndarray, list[Answer]]:
    """(slope_TxT, answers): how steeply each place's answer follows each token's embedding, its gradient saliency.

    Entry (i, j) is the Euclidean norm of the gradient, by the embedding of token j behind its norm, of the
    log-probability of the entry that is likeliest at place i (Simonyan et al. 2014, section 3; Li et al. 2016).
    hidden: place i is asked with its token hidden, as in training, and (i, i) is 0, for nothing of the text stands
    there; else its state tells the next token. [CLS] and [SEP] are asked as well, though no training ever did.
    """
    size = len(row)
    slope_TxT, answers = np.zeros((size, size), np.float32), [Answer("", 0.0)] * size
    asked = _compiled(objectives.telling(model.cfg, model.model))
    for mine, ids_BxL in batching.batched([row] * size, model.length, model.batch):
        place_B = np.zeros(len(ids_BxL), np.int32)
        place_B[:len(mine)] = mine
        slope_BxL, log_prob_B, entry_B = asked(model.params, masked_queries.Cloze(ids_BxL, place_B, place_B + hidden))
        slope_TxT[mine] = np.asarray(slope_BxL)[:len(mine), :size]
        for place, entry, log_prob in zip(mine, np.asarray(entry_B), np.asarray(log_prob_B), strict=False):
            answers[place] = Answer(model.tokenizer.pieces[entry], float(np.exp(log_prob)))
    if hidden:
        np.fill_diagonal(slope_TxT, 0)
    return slope_TxT, answers


@functools.cache
def _compiled(model: types.Model) -> Callable:
    return jax.jit(functools.partial(slopes, model))


def slopes(model: types.Model, params, asked: masked_queries.Cloze):
    """(slope_BxL, log_prob_B, entry_B) of the likeliest entry at each row's place; rows do not see each other."""
    def told(shift_BxLxD):
        shifted = model._replace(encode=functools.partial(model.encode, shift_BxLxD=shift_BxLxD))
        log_prob_BxV = masked_queries.log_probs(shifted, params, asked)
        entry_B = log_prob_BxV.argmax(-1)
        log_prob_B = jnp.take_along_axis(log_prob_BxV, entry_B[:, None], 1)[:, 0]
        return log_prob_B.sum(), (log_prob_B, entry_B)

    gradient_BxLxD, (log_prob_B, entry_B) = jax.grad(told, has_aux=True)(
        jnp.zeros((*asked.ids_BxL.shape, model.width)))
    return jnp.linalg.norm(gradient_BxLxD, axis=-1), log_prob_B, entry_B
