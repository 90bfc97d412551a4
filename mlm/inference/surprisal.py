"""Surprisal: how many nats each token and word of a text costs a model (see `LanguageModel.surprisal`).

Letters in array names: T tokens of a text, R sequences of L, K of L - 1, I queries.
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import models, objectives
from mlm.base import config, errors, types
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP, UNK
from mlm.inference import batching, forward_passes, pseudo_likelihood
from mlm.objectives import hybrid

METRICS = (*pseudo_likelihood.METRICS, "causal")
UNITS = ("text", "word", "token")
LEFT_TO_RIGHT = (types.Visibility.CAUSAL, types.Visibility.TWO_STACK)


class Surprisal(NamedTuple):
    """A text, or a word or token of it, which starts and ends at these characters.

    nats: -log p. NaN for a [MASK], for what the vocabulary does not have, and for what a text begins with where the
    model reads a stream; a text's is the sum over its other tokens.
    """

    text: str
    start: int
    end: int
    nats: float


def compute_surprisal(
    model, texts: Sequence[str], by: str, metric: str, batch_size: int | None, overlap: int | None = None
) -> list[list[Surprisal]]:
    """Implements `LanguageModel.surprisal` for a list of texts."""
    errors.require_one_of("by", by, UNITS)
    errors.require_one_of("metric", metric, METRICS)
    cfg, visibility = model.config, objectives.get_visibility(model.config)
    predicts_tokens = visibility in (types.Visibility.UNMASKED, *LEFT_TO_RIGHT) and not models.reads_source(cfg)
    errors.require(predicts_tokens, "score", cfg.objective, "a run that was trained to predict the tokens of a text")
    errors.require(model.has_lm_head, "score", cfg.workdir, "a model with an output layer; this is an encoder alone")
    reads_left = visibility in LEFT_TO_RIGHT
    if metric == "causal" and not reads_left:
        reads_left = types.Visibility.CAUSAL in objectives.get_loss_visibilities(cfg).values()
        expected = f"pll or pll_word_l2r: {cfg.objective} does not read left to right"
        errors.require(reads_left, "metric", metric, expected)
    expected = "none, since a masked model reads parts of a text"
    errors.require(reads_left or overlap is None, "overlap", overlap, expected)
    tokenizer = batching.recognize_masks(model.tokenizer)
    if reads_left:
        ids_by_text = tokenizer.encode_batch(list(texts))
        read_model = model.model if visibility in LEFT_TO_RIGHT else hybrid.read_causally(model.model)
        compute = forward_passes.compile_pass(compute_next_nats, read_model)
        map_sequences = lambda sequences: forward_passes.map_sequences(model, sequences, compute, batch_size)
        nats = compute_left_to_right(cfg, ids_by_text, overlap, map_sequences, model.length)
        num_unknown = sum(UNK in ids for ids in ids_by_text)
    else:
        queries = pseudo_likelihood.build_queries(tokenizer, texts, model.length)
        nats = _compute_masked(model, queries, metric, batch_size)
        num_unknown = int((queries.unknown_U[queries.unique_S] > 0).sum())
    batching.warn_of_losses(0, num_unknown, len(texts), model.length)
    return [
        join_tokens(by, text, batching.find_spans(model.tokenizer, text), nats_T.tolist())
        for text, nats_T in zip(texts, nats, strict=True)
    ]


def join_tokens(by: str, text: str, spans: Sequence[tuple[int, int]], nats: Sequence[float]) -> list[Surprisal]:
    """The tokens of a text; or its words, with the sum of the tokens that start in each or in the space before it."""
    if by == "text":
        return [Surprisal(text, 0, len(text), sum(value for value in nats if not math.isnan(value)))]
    if by == "token":
        return [Surprisal(text[start:end], start, end, value) for (start, end), value in zip(spans, nats, strict=True)]
    words = [match.span() for match in re.finditer(r"\S+", text)]
    if not words:  # white space may have tokens
        return []
    of_word: list[list[float]] = [[] for _ in words]
    ends = [end for _, end in words[:-1]]
    numbers = np.searchsorted(ends, [start for start, _ in spans], side="right")
    for number, value in zip(numbers, nats, strict=True):
        of_word[number].append(value)
    return [
        Surprisal(text[start:end], start, end, sum(values) if values else math.nan)
        for (start, end), values in zip(words, of_word, strict=True)
    ]


def _compute_masked(
    model, queries: pseudo_likelihood.SentenceQueries, metric: str, batch_size: int | None
) -> list[np.ndarray]:
    """nats_T of the tokens of each text, with one forward pass for each token."""
    predict = forward_passes.compile_predictor(forward_passes.compute_target_log_prob, model)
    score, program_tokens = functools.partial(predict, model.params), forward_passes.count_program_tokens(model)
    batch_size = forward_passes.get_batch_size(model, batch_size)
    with forward_passes.show_progress(len(queries.sequence_I), "token") as advance:
        log_prob_I = pseudo_likelihood.score_queries(score, queries, batch_size, advance, program_tokens)
    chosen_I = queries.in_pll_I if metric == "pll" else queries.in_word_l2r_I
    ids_RxL, nats_RxL = queries.ids_RxL, np.full(queries.ids_RxL.shape, math.nan)
    nats_RxL[queries.sequence_I[chosen_I], queries.position_I[chosen_I]] = -log_prob_I[chosen_I]
    is_token_RxL = (ids_RxL >= NUM_SPECIAL) | np.isin(ids_RxL, (UNK, MASK))
    tokens_U = np.bincount(queries.sentence_R, is_token_RxL.sum(-1), len(queries.unknown_U)).astype(int)
    nats = np.split(nats_RxL[is_token_RxL], np.cumsum(tokens_U)[:-1])
    return [nats[unique] for unique in queries.unique_S]


def compute_left_to_right(
    cfg: config.Config,
    ids_by_text: Sequence[Sequence[int]],
    overlap: int | None,
    map_sequences: Callable[[list[list[int]]], Sequence[np.ndarray]],
    length: int | None = None,
) -> list[np.ndarray]:
    """nats_T of the tokens of each text, given those before it.

    A text that is longer than the model reads at once is read in windows, of which each begins with the last `overlap`
    tokens of the one before: a token of a later window is conditioned on at least these, and on [CLS] where the model
    has it, and is as exact as the model is. NaN for what no model predicts.

    Args:
        overlap: in tokens; None: half a window.
        map_sequences: sequences of ids -> nats_K of each, as `compute_next_nats` gives them.
        length: tokens of a sequence; None: config.pack.seq_len.
    """
    size, first = (length or cfg.pack.seq_len) - 2, int(cfg.pack.mode != "stream")  # whose sequences have no [CLS]
    overlap = size // 2 if overlap is None else overlap
    # Without [CLS] nothing predicts the first token of a window, which the one before therefore must.
    expected = f"{1 - first} <= value < {size}, the tokens that the model reads"
    errors.require(isinstance(overlap, Integral) and 1 - first <= overlap < size, "overlap", overlap, expected)
    unique = {tuple(ids): np.full(len(ids), math.nan) for ids in ids_by_text}
    windows = [
        (ids, start) for ids in unique for start in range(0, max(1, len(ids) - overlap), size - overlap) if len(ids)
    ]
    sequences = [[*[CLS] * first, *ids[start : start + size], SEP] for ids, start in windows]
    for (ids, start), sequence, nats_K in zip(windows, sequences, map_sequences(sequences), strict=True):
        begin, end = start + (overlap if start else 1 - first), start + len(sequence) - 1 - first
        unique[ids][begin:end] = nats_K[begin - start + first - 1 : len(sequence) - 2]
    for ids, nats_T in unique.items():
        nats_T[np.array(ids, int) < NUM_SPECIAL] = math.nan
    return [unique[tuple(ids)] for ids in ids_by_text]


def compute_next_nats(model: types.Model, params, ids_BxL, hparams=None):
    """nats_BxK of each token but the first, given those before it. hparams: unused; `make_scorer` passes them."""
    states = model.encode(params["model"], forward_passes.make_tokens(ids_BxL))
    h_BxLxD = states[model.directions.index(types.Direction.LEFT)]
    logits_BxKxV = model.logits(params["model"], h_BxLxD[:, :-1])
    chosen_BxK = jnp.take_along_axis(logits_BxKxV, ids_BxL[:, 1:, None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BxKxV, -1) - chosen_BxK
