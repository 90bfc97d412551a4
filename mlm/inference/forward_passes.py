"""Forward passes of trained models: pure functions, how they are compiled, and the batches that they read."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from mlm import objectives
from mlm.base import errors, types
from mlm.base.special import MASK, PAD
from mlm.inference import batching
from mlm.models import lm
from mlm.objectives import heads
from mlm.training.step import parallel

POOLINGS = ("", "mean", "first", "last", None)
Pooling = Literal["", "mean", "first", "last"] | None  # "": as trained, else mean
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
def show_progress(total: int, unit: str) -> Iterator[Callable[[float], Any]]:
    """A progress bar of a long list; yields a function of the share that is done.

    A file or a pipe gets a line now and then.
    """
    if total < LONG_LIST:
        yield lambda share: None
        return
    quiet = 0.0 if sys.stderr.isatty() else QUIET_SECONDS
    with tqdm.tqdm(total=total, unit=unit, leave=quiet > 0, delay=quiet, mininterval=max(quiet, 0.1)) as bar:
        yield lambda share: bar.update(round(share * total) - bar.n)


def get_batch_size(language_model, batch_size: int | None) -> int:
    """The batch size that was asked for; None: the model's own. Raises ConfigError for what is none."""
    if batch_size is None:
        return language_model.batch_size
    errors.require_integer("batch_size", batch_size, 1)
    return batch_size


def run_batches(
    language_model, sequences: Sequence[Sequence[int]], run_batch: Callable, batch_size: int | None = None
) -> list:
    """`batching.collect_outputs` of sequences in few shapes, with a progress bar for a long list."""
    limits = language_model.length, get_batch_size(language_model, batch_size)
    batches = batching.iterate_batches(sequences, *limits, program_tokens=count_program_tokens(language_model))
    with show_progress(len(sequences), "text") as progress:
        return batching.collect_outputs(batches, run_batch, len(sequences), progress)


def map_sequences(language_model, sequences: Sequence[Sequence[int]], function: Callable, batch_size=None) -> list:
    """The value of each sequence of a function of (params, ids_BxL), also where the batch has padding."""
    run_batch = lambda indices, ids_BxL: function(language_model.params, ids_BxL)
    return run_batches(language_model, sequences, run_batch, batch_size)


class MaskedQueries(NamedTuple):
    """A batch of sequences, each of which masks positions `position` to `end` - 1 and queries the first. All int32."""

    ids_BxL: types.Array  # [CLS] tokens [SEP] and PAD, not masked yet
    position_B: types.Array
    end_B: types.Array


def make_tokens(ids_BxL) -> types.Tokens:
    """Sequences of one segment, which is all that is not PAD."""
    is_token_BxL = ids_BxL != PAD
    position_BxL = jnp.broadcast_to(jnp.arange(ids_BxL.shape[1], dtype=ids_BxL.dtype), ids_BxL.shape)
    return types.Tokens(
        ids_BxL, is_token_BxL.astype(ids_BxL.dtype), jnp.where(is_token_BxL, position_BxL, 0), jnp.zeros_like(ids_BxL)
    )


def compute_log_probs(model: types.Model, params, queries: MaskedQueries) -> jax.Array:
    """log_prob_BxV, in nats, of each vocabulary entry at the queried position. params: as a run stores them."""
    ids_BxL, query_Bx1 = queries.ids_BxL, queries.position_B[:, None]
    position_BxL = jnp.broadcast_to(jnp.arange(ids_BxL.shape[1], dtype=ids_BxL.dtype), ids_BxL.shape)
    mask_BxL = (query_Bx1 <= position_BxL) & (position_BxL < queries.end_B[:, None])
    tokens = make_tokens(ids_BxL)._replace(ids_BxL=jnp.where(mask_BxL, MASK, ids_BxL))
    h_BxLxD = model.encode(params["model"], tokens)[0]
    h_BxD = jnp.take_along_axis(h_BxLxD, query_Bx1[..., None], axis=1)[:, 0]
    return jax.nn.log_softmax(model.logits(params["model"], h_BxD), axis=-1)


def compute_target_log_prob(model: types.Model, params, queries: MaskedQueries, hparams=None) -> jax.Array:
    """log_prob_B of the queried tokens. hparams: unused; `Partitioner.jit_per_example` passes them."""
    target_Bx1 = jnp.take_along_axis(queries.ids_BxL, queries.position_B[:, None], axis=1)
    return jnp.take_along_axis(compute_log_probs(model, params, queries), target_Bx1, axis=1)[:, 0]


def make_scorer(
    model: types.Model, partitioner: parallel.Partitioner, state, function=compute_target_log_prob, *static_args
) -> Callable[[Any], Any]:
    """A function of (model, *static_args, params, batch, hparams) as a function of a batch, on all devices of all
    processes. Each process passes the whole batch.
    """
    run_batch = partitioner.jit_per_example(function, model, *static_args)

    def score(batch):
        local_batch = jax.tree.map(lambda x: x[parallel.process_slice(len(x))], batch)
        return run_batch(state, partitioner.put_batch(local_batch), None)

    return score


def predict_top_tokens(model: types.Model, top_k: int, params, queries: MaskedQueries):
    """(prob_BxK, id_BxK): the `top_k` likeliest tokens at each masked position."""
    log_prob_BxK, id_BxK = jax.lax.top_k(compute_log_probs(model, params, queries), top_k)
    return jnp.exp(log_prob_BxK), id_BxK


def encode_tokens(model: types.Model, layer: int, pooling: str | None, params, ids_BxL):
    """h_BxD of sequences, float32, or h_BxLxD where pooling is None; pooling: of types.Pooling; layer -1: the last."""
    text = make_tokens(ids_BxL)
    if layer < 0:
        h_BxLxD = jnp.concatenate(model.encode(params["model"], text), -1)
    else:
        assert model.encode_layers is not None
        h_BxLxD = model.encode_layers(params["model"], text)[layer]
    h_BxLxD = h_BxLxD.astype(jnp.float32)
    return h_BxLxD if pooling is None else heads.pool_states(pooling, h_BxLxD, text)


def compute_logits(model: types.Model, params, ids_BxL):
    """logits_BxLxV of sequences."""
    return model.logits(params["model"], model.encode(params["model"], make_tokens(ids_BxL))[0])


def compute_attention(model: types.Model, params, ids_BxL):
    """weights_BxKxHxLxL, float32."""
    assert model.attention is not None
    return model.attention(params["model"], make_tokens(ids_BxL)).swapaxes(0, 1).astype(jnp.float32)


def l2_normalize(x_PxD) -> np.ndarray:
    """The vectors in float64, scaled to length 1. Zero vectors stay zero."""
    x_PxD = np.asarray(x_PxD, np.float64)
    return x_PxD / np.maximum(np.linalg.norm(x_PxD, axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def compute_cosines(x_PxD, y_PxD) -> np.ndarray:
    """cosine_P, float64; 0 for zero vectors. It is rounded so that equal pairs of texts share a rank."""
    return (l2_normalize(x_PxD) * l2_normalize(y_PxD)).sum(-1).round(9)
