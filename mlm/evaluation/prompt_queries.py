"""A task's examples as masked queries: the pattern filled with their texts, and the labels' words as its answers.

Letters in array names: N examples, C labels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import errors, types
from mlm.base.special import CLS, PAD, SEP, UNK
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.evaluation.evaluations import ReportProgress
from mlm.inference import batching, masked_queries
from mlm.inference.masked_queries import MaskedQueries
from mlm.training.run.trained_run import TrainedRun

MASK_PLACE, TEXT_PLACE, SECOND_PLACE = "[MASK]", "{text}", "{second}"


def encode_pattern(
    tokenizer: Tokenizer, pattern: str, texts: Mapping[str, str]
) -> tuple[list[int], dict[str, list[int]]]:
    """The ids of a pattern whose places have these texts, encoded as one, and the indices of each place's tokens."""
    filled, places = [], {}
    for word in pattern.split():
        filled.append(texts.get(word, word))
        if word in (TEXT_PLACE, SECOND_PLACE, MASK_PLACE):
            end = len(" ".join(filled))
            places[word] = (end - len(filled[-1]), end)
    ids, spans = batching.encode_masked(tokenizer, " ".join(filled))
    return ids, {
        place: [i for i, (start, end) in enumerate(spans) if start < last and first < end]
        for place, (first, last) in places.items()
    }


def encode_verbalizers(tokenizer: Tokenizer, pattern: str, verbalizers: Mapping[str, str]) -> np.ndarray:
    """id_C of the verbalizers as they stand in the pattern.

    Raises ConfigError for one that is not one entry of the vocabulary there, or is not unique.
    """
    labels: dict[int, str] = {}
    for label, word in verbalizers.items():
        ids, places = encode_pattern(tokenizer, pattern, {TEXT_PLACE: ".", SECOND_PLACE: ".", MASK_PLACE: word})
        ids, field = [ids[i] for i in places[MASK_PLACE]], f"verbalizer of label {label}"
        pieces = ", ".join(repr(tokenizer.pieces[i]) for i in ids)
        expected = f"a word of the run's vocabulary; its pieces there are {pieces or 'none'}"
        errors.require(len(ids) > 0 and UNK not in ids, field, word, expected)
        expected = f"one entry of the run's vocabulary, where it has {len(ids)} pieces: {pieces}"
        errors.require(len(ids) == 1, field, word, expected)
        errors.require(ids[0] not in labels, field, word, f"another word than that of label {labels.get(ids[0])}")
        labels[ids[0]] = label
    return np.array(list(labels), np.int32)


def build_queries(tokenizer: Tokenizer, pattern: str, examples: Sequence, length: int) -> tuple[MaskedQueries, int]:
    """The examples in their pattern, and how many of them had to be truncated, the longer text first.

    Raises ConfigError for a pattern that leaves no room for the texts.
    """
    names = [place for place in (TEXT_PLACE, SECOND_PLACE) if place in pattern.split()]
    ids, places = encode_pattern(tokenizer, pattern, dict.fromkeys(names, "."))
    num_free = length - 2 - len(ids) + sum(len(places[name]) for name in names)
    expected = f"a pattern that leaves room for texts in sequences of {length} tokens"
    errors.require(num_free >= len(names), "--pattern", pattern, expected)
    ids_NxL, positions, num_truncated = np.full((len(examples), length), PAD, np.int32), [], 0
    for ids_L, example in zip(ids_NxL, examples, strict=True):
        ids, places = encode_pattern(tokenizer, pattern, dict(zip(names, example, strict=False)))
        first, second = (places.get(name, []) for name in (TEXT_PLACE, SECOND_PLACE))
        num_free = length - 2 - len(ids) + len(first) + len(second)
        length_b = min(len(second), max(num_free - len(first), num_free // 2))
        length_a = min(len(first), num_free - length_b)
        cut = {*first[length_a:], *second[length_b:]}
        num_truncated += bool(cut)
        kept = [i for i in range(len(ids)) if i not in cut]
        ids_L[: len(kept) + 2] = [CLS, *(ids[i] for i in kept), SEP]
        positions.append(1 + kept.index(places[MASK_PLACE][0]))
    position_N = np.array(positions, np.int32)
    return MaskedQueries(ids_NxL, position_N, position_N + 1), num_truncated


def read_queries(run: TrainedRun, inputs: Mapping, name: str) -> tuple[MaskedQueries, np.ndarray, int]:
    """The examples of this name among a case's inputs as queries, their label_N, and how many were truncated."""
    queries, num_truncated = build_queries(run.tokenizer, inputs["pattern"], inputs[name], run.cfg.pack.seq_len)
    return queries, np.array([label for *_, label in inputs[name]], np.int32), num_truncated


def compute_label_log_probs(
    model: types.Model, verbalizers: bytes, params, queries: MaskedQueries, hparams=None
) -> jax.Array:
    """log_prob_BxC of the verbalizers at the masked position, among the whole vocabulary.

    verbalizers: id_C, as bytes, so that they can be hashed. hparams: unused.
    """
    verbalizer_C = jnp.asarray(np.frombuffer(verbalizers, np.int32))
    return masked_queries.compute_log_probs(model, params, queries)[:, verbalizer_C]


def score_queries(
    score: Callable[[MaskedQueries], np.ndarray], queries: MaskedQueries, batch_size: int, progress: ReportProgress
) -> np.ndarray:
    """log_prob_NxC of all queries, in batches of similar lengths; batch_size: queries of full length in a batch."""

    def run_batch(indices, ids_BxL):
        index_B = np.pad(indices, (0, len(ids_BxL) - len(indices)), "edge")
        log_prob_BxC = score(MaskedQueries(ids_BxL, queries.position_B[index_B], queries.end_B[index_B]))
        progress()
        return log_prob_BxC

    return np.stack(batching.collect_outputs(iterate_batches(queries, batch_size), run_batch, len(queries.position_B)))


def iterate_batches(queries: MaskedQueries, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Full batches of the queries' sequences, without their padding."""
    return batching.iterate_batches(
        [ids_L[ids_L != PAD] for ids_L in queries.ids_BxL], queries.ids_BxL.shape[1], batch_size, full_batches=True
    )
