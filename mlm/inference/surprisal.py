"""Surprisal: how many nats each token and word of a text costs a model.

Where a model reads from left to right it is exact. A masked model's are the terms of the pseudo-log-likelihood.

Letters in array names: N tokens of all distinct texts, R sequences of L, K of L - 1, I queries.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import models, objectives
from mlm.base import errors, types
from mlm.base.special import MASK, NUM_SPECIAL, UNK
from mlm.inference import batching, forward_passes, masked_queries, pseudo_likelihood

UNITS = ("text", "word", "token")
LEFT_TO_RIGHT = (types.Visibility.CAUSAL, types.Visibility.TWO_STACK)


class Surprisal(NamedTuple):
    """A text, or a word or token of it, which starts and ends at these characters.

    nats: -log p. NaN for a [MASK], for what the vocabulary does not have, and for what a sequence of a stream begins
    with; a text's is the sum over its other tokens.
    """

    text: str
    start: int
    end: int
    nats: float


def compute_surprisal(model, texts: Sequence[str], by: str, metric: str, batch_size: int) -> list[list[Surprisal]]:
    """Implements `LanguageModel.surprisal` for a list of texts."""
    errors.require_one_of("by", by, UNITS)
    errors.require_one_of("metric", metric, pseudo_likelihood.METRICS)
    cfg, visibility = model.config, objectives.get_visibility(model.config)
    predicts_tokens = visibility in (types.Visibility.UNMASKED, *LEFT_TO_RIGHT) and not models.reads_source(cfg)
    errors.require(predicts_tokens, "score", cfg.objective, "a run that was trained to predict the tokens of a text")
    errors.require(model.has_lm_head, "score", cfg.workdir, "a model with an output layer; this is an encoder alone")
    queries = pseudo_likelihood.build_queries(batching.recognize_masks(model.tokenizer), texts, model.length)
    num_unknown = int((queries.unknown_U[queries.unique_S] > 0).sum())
    batching.warn_of_losses(0, num_unknown, len(texts), model.length)  # a long text is split
    if visibility in LEFT_TO_RIGHT:
        nats_RxL = _compute_left_to_right(model, queries.ids_RxL, batch_size)
    else:
        nats_RxL = _compute_masked(model, queries, metric, batch_size)
    nats_RxL[queries.ids_RxL < NUM_SPECIAL] = math.nan
    is_token_RxL = (queries.ids_RxL >= NUM_SPECIAL) | np.isin(queries.ids_RxL, (UNK, MASK))
    tokens_U = np.bincount(queries.sentence_R, is_token_RxL.sum(-1), len(queries.unknown_U)).astype(int)
    nats = np.split(nats_RxL[is_token_RxL], np.cumsum(tokens_U)[:-1])
    return [
        _join(by, text, batching.find_spans(model.tokenizer, text), nats[unique].tolist())
        for text, unique in zip(texts, queries.unique_S, strict=True)
    ]


def _join(by: str, text: str, spans: Sequence[tuple[int, int]], nats: Sequence[float]) -> list[Surprisal]:
    """The tokens of a text; or its words, with the sum of the tokens that start in each or in the space before it."""
    if by == "text":
        return [Surprisal(text, 0, len(text), sum(value for value in nats if not math.isnan(value)))]
    if by == "token":
        return [Surprisal(text[start:end], start, end, value) for (start, end), value in zip(spans, nats, strict=True)]
    words = [match.span() for match in re.finditer(r"\S+", text)]
    of_word: list[list[float]] = [[] for _ in words]
    ends = [end for _, end in words[:-1]]
    numbers = np.searchsorted(ends, [start for start, _ in spans], side="right")
    for number, value in zip(numbers, nats, strict=True):
        of_word[number].append(value)
    return [
        Surprisal(text[start:end], start, end, sum(values) if values else math.nan)
        for (start, end), values in zip(words, of_word, strict=True)
    ]


def _compute_masked(model, queries: pseudo_likelihood.SentenceQueries, metric: str, batch_size: int) -> np.ndarray:
    """nats_RxL of the scored tokens, with one forward pass for each."""
    predict = forward_passes.compile_predictor(masked_queries.compute_target_log_prob, model)
    with forward_passes.show_progress(len(queries.sequence_I), "token") as advance:

        def score(batch):
            advance(len(batch.ids_BxL))
            return predict(model.params, batch)

        program_tokens = forward_passes.count_program_tokens(model)
        log_prob_I = pseudo_likelihood.score_queries(score, queries, batch_size, program_tokens)
    chosen_I = queries.in_pll_I if metric == "pll" else queries.in_word_l2r_I
    nats_RxL = np.zeros(queries.ids_RxL.shape)
    nats_RxL[queries.sequence_I[chosen_I], queries.position_I[chosen_I]] = -log_prob_I[chosen_I]
    return nats_RxL


def _compute_left_to_right(model, ids_RxL: np.ndarray, batch_size: int) -> np.ndarray:
    """nats_RxL of each token given those before it in its sequence."""
    first = int(model.config.pack.mode == "stream")  # whose sequences have no [CLS]
    sequences = [ids_L[first : np.flatnonzero(ids_L)[-1]].tolist() for ids_L in ids_RxL]
    compute = forward_passes.compile_pass(_compute_next_nats, model.model)
    nats_RxL = np.full(ids_RxL.shape, math.nan)
    for nats_L, ids, nats_K in zip(
        nats_RxL, sequences, forward_passes.map_sequences(model, sequences, compute, batch_size), strict=True
    ):
        nats_L[first + 1 : first + len(ids)] = nats_K[: len(ids) - 1]
    return nats_RxL


def _compute_next_nats(model: types.Model, params, ids_BxL):
    """nats_BxK of each token but the first, given those before it."""
    states = model.encode(params["model"], masked_queries.make_tokens(ids_BxL))
    h_BxLxD = states[model.directions.index(types.Direction.LEFT)]
    logits_BxKxV = model.logits(params["model"], h_BxLxD[:, :-1])
    chosen_BxK = jnp.take_along_axis(logits_BxKxV, ids_BxL[:, 1:, None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BxKxV, -1) - chosen_BxK
