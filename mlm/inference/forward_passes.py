"""The forward passes of LanguageModel: pure functions, how they are compiled, and the batches that they read."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from mlm import objectives
from mlm.base import types
from mlm.inference import batching, masked_queries
from mlm.inference.masked_queries import MaskedQueries
from mlm.models import lm

POOLINGS = ("mean", "first", None)
Pooling = Literal["mean", "first"] | None
# Floating-point operations that a forward pass of another length is worth: a quarter of what the device could have done
# while it compiles, since later calls use the program again. On a CPU of two cores it compiles in 0.6 to 0.9 s, at 83
# GFLOP/s, for 4 layers of 256 and for 12 of 768.
PROGRAM_FLOPS = {"cpu": 2**34}
LONG_LIST = 32  # texts; a shorter list has no progress bar
QUIET_SECONDS = 5.0  # before the first line, and between two, where standard error is a file or a pipe


@functools.cache
def compile_pass(function: Callable, model: types.Model, *args, **kwargs) -> Callable:
    """function(model, *args, ..., **kwargs), compiled once for all models with these functions."""
    return jax.jit(functools.partial(function, model, *args, **kwargs))


def compile_predictor(function: Callable, language_model, *args) -> Callable:
    """As `compile_pass`, of the model whose states predict the tokens at their own positions."""
    return compile_pass(function, objectives.shift_states(language_model.config, language_model.model), *args)


def count_program_tokens(language_model) -> int:
    """The tokens of padding that a forward pass of another length is worth."""
    weights = lm.count_parameters(language_model.params["model"])["non_embedding"]
    return PROGRAM_FLOPS.get(jax.default_backend(), 2**44) // (2 * max(1, weights))


@contextlib.contextmanager
def show_progress(total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A progress bar of a long list; yields a function that advances it. A file or a pipe gets a line now and then."""
    if total < LONG_LIST:
        yield lambda count: None
        return
    quiet = 0.0 if sys.stderr.isatty() else QUIET_SECONDS
    with tqdm.tqdm(total=total, unit=unit, leave=quiet > 0, delay=quiet, mininterval=max(quiet, 0.1)) as bar:

        def advance(count: int) -> None:
            bar.update(min(count, total - bar.n))

        yield advance


def iterate_batches(
    language_model, sequences: Sequence[Sequence[int]], batch_size: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`batching.iterate_batches` of sequences of token ids, few shapes of them, with a progress bar for a long list."""
    with show_progress(len(sequences), "text") as advance:
        for indices, ids_BxL in batching.iterate_batches(
            sequences,
            language_model.length,
            batch_size or language_model.batch_size,
            program_tokens=count_program_tokens(language_model),
        ):
            yield indices, ids_BxL
            advance(len(indices))


def map_sequences(language_model, sequences: Sequence[Sequence[int]], function: Callable, batch_size=None) -> list:
    """The value of each sequence of a function of (params, ids_BxL), also where the batch has padding."""
    batches = iterate_batches(language_model, sequences, batch_size)
    run_batch = lambda indices, ids_BxL: function(language_model.params, ids_BxL)
    return batching.collect_outputs(batches, run_batch, len(sequences))


def predict_top_tokens(model: types.Model, top_k: int, params, queries: MaskedQueries):
    """(prob_BxK, id_BxK): the `top_k` likeliest tokens at each masked position."""
    log_prob_BxK, id_BxK = jax.lax.top_k(masked_queries.compute_log_probs(model, params, queries), top_k)
    return jnp.exp(log_prob_BxK), id_BxK


def encode_tokens(model: types.Model, layer: int, pooling: Pooling, params, ids_BxL):
    """h_BxD of sequences, float32, or h_BxLxD where pooling is None; layer -1: the last."""
    text = masked_queries.make_tokens(ids_BxL)
    if layer < 0:
        h_BxLxD = jnp.concatenate(model.encode(params["model"], text), -1)
    else:
        assert model.encode_layers is not None
        h_BxLxD = model.encode_layers(params["model"], text)[layer]
    h_BxLxD = h_BxLxD.astype(jnp.float32)
    if pooling == "first":
        return h_BxLxD[:, 0]
    if pooling == "mean":
        is_token_BxLx1 = (text.segments_BxL > 0)[..., None]
        return (h_BxLxD * is_token_BxLx1).sum(1) / is_token_BxLx1.sum(1)
    return h_BxLxD


def compute_logits(model: types.Model, params, ids_BxL):
    """logits_BxLxV of sequences."""
    return model.logits(params["model"], model.encode(params["model"], masked_queries.make_tokens(ids_BxL))[0])


def compute_attention(model: types.Model, params, ids_BxL):
    """weights_BxKxHxLxL, float32."""
    assert model.attention is not None
    return model.attention(params["model"], masked_queries.make_tokens(ids_BxL)).swapaxes(0, 1).astype(jnp.float32)


def l2_normalize(x_PxD) -> np.ndarray:
    """The vectors in float64, scaled to length 1. Zero vectors stay zero."""
    x_PxD = np.asarray(x_PxD, np.float64)
    return x_PxD / np.maximum(np.linalg.norm(x_PxD, axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def compute_cosines(x_PxD, y_PxD) -> np.ndarray:
    """cosine_P, float64; 0 for zero vectors. It is rounded so that equal pairs of texts share a rank."""
    return (l2_normalize(x_PxD) * l2_normalize(y_PxD)).sum(-1).round(9)
