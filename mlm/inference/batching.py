"""Tokenizes texts and sorts them into batches.

Letters in array names: S texts.
"""

import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from mlm.base import errors
from mlm.base.special import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from mlm.data.rows import loader
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.data.tokenizers.unigram import SPACE

LOGGER = logging.getLogger(__name__)
MASK_TOKEN = SPECIAL_TOKENS[MASK]
BATCH_TOKENS = {"cpu": 2**11}  # tokens of a batch that the device's caches hold
# Marks that hardly any text has. Every kind of vocabulary has them as words, and no normalisation changes them.
RARE_MARKS = [chr(code) for code in range(0x2E00, 0x2E50) if unicodedata.category(chr(code)) == "Po"]


def encode_text(tokenizer: Tokenizer, text: str, allow_mask: bool = False) -> list[int]:
    """The ids of a text between [CLS] and [SEP]. allow_mask: a [MASK] in the text is that special token.

    Warns of parts of a masked word that are dropped. Raises ConfigError where it would lose a [MASK].
    """
    return encode_texts(recognize_masks(tokenizer) if allow_mask else tokenizer, [text])[0]


def encode_masked(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a text in which [MASK] is that special token, and where in the text each token starts and ends.

    Raises ConfigError where the tokenizer would lose a [MASK].
    """
    if tokenizer.encode_masked is not None:
        return tokenizer.encode_masked(text)
    mark = next((mark for mark in RARE_MARKS if mark not in text and UNK in tokenizer.encode(mark)), RARE_MARKS[0])
    marked_text = text.replace(MASK_TOKEN, mark)
    ids, spans = [], []
    for token, (start, end) in zip(*tokenizer.encode_with_offsets(marked_text), strict=True):
        num_masks = marked_text.count(mark, start, end) if token == UNK else 0
        if num_masks and (lost := marked_text[start:end].replace(mark, " ").split()):
            LOGGER.warning("text %r: %r is dropped, since this vocabulary masks whole words", text, " ".join(lost))
        if num_masks and ids and tokenizer.pieces[ids[-1]] == SPACE:  # the space before the word is of the masked piece
            del ids[-1], spans[-1]
        longer = (len(MASK_TOKEN) - len(mark)) * marked_text.count(mark, 0, start)
        end += longer + (len(MASK_TOKEN) - len(mark)) * num_masks
        ids += [MASK] * num_masks or [token]
        spans += [(start + longer, end)] * max(1, num_masks)
    num_masks = text.count(MASK_TOKEN)
    expected = f"one whose {num_masks} {MASK_TOKEN} are words or parts of words of this model's vocabulary"
    errors.require(ids.count(MASK) == num_masks, "text", text, expected)
    return ids, spans


def find_spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Where in a text each token of `recognize_masks` starts and ends, in characters."""
    return (encode_masked(tokenizer, text) if MASK_TOKEN in text else tokenizer.encode_with_offsets(text))[1]


def format_piece(piece: str) -> str:
    """A vocabulary entry as it is written in a text."""
    return piece.removeprefix(SPACE).removeprefix("##").removesuffix("</w>") or " "


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """`encode_text` of each text, of any length."""
    return [[CLS, *ids, SEP] for ids in tokenizer.encode_batch(list(texts))]


def recognize_masks(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer whose `encode_batch` reads a [MASK] in a text as that special token, as `encode_text` does."""

    def encode_batch(texts):
        if not any(MASK_TOKEN in text for text in texts):
            return tokenizer.encode_batch(texts)
        return [encode_masked(tokenizer, text)[0] if MASK_TOKEN in text else tokenizer.encode(text) for text in texts]

    return tokenizer._replace(encode_batch=encode_batch)


def truncate_ids(ids: list[int], max_len: int) -> list[int]:
    """The ids, truncated to `max_len` tokens with [SEP] last."""
    return ids if len(ids) <= max_len else [*ids[: max_len - 1], SEP]


def encode_truncated(tokenizer: Tokenizer, texts: Sequence[str], max_len: int) -> list[list[int]]:
    """The ids of each text, [MASK]s among them, truncated to `max_len` tokens.

    Raises ConfigError where that would lose a [MASK].
    """
    encoded = encode_texts(recognize_masks(tokenizer), texts)
    num_truncated, num_unknown = sum(len(ids) > max_len for ids in encoded), sum(UNK in ids for ids in encoded)
    warn_of_losses(num_truncated, num_unknown, len(encoded), max_len)
    sequences = [truncate_ids(ids, max_len) for ids in encoded]
    expected = f"its {MASK_TOKEN} among the first {max_len - 2} tokens, the length of the model's training sequences"
    for text, ids, sequence in zip(texts, encoded, sequences, strict=True):
        errors.require(sequence.count(MASK) == ids.count(MASK), "text", text, expected)
    return sequences


def warn_of_losses(num_truncated: int, num_unknown: int, num_texts: int, max_len: int) -> None:
    """Logs one line for texts of which the model reads only a part: truncated, or with words that it does not know."""
    parts = [
        f"{num_truncated:,} truncated to {max_len} tokens, the length of its training sequences" * bool(num_truncated),
        f"{num_unknown:,} with words that its vocabulary does not have ([UNK])" * bool(num_unknown),
    ]
    if losses := "; ".join(filter(None, parts)):
        LOGGER.warning("of %s texts the model reads only a part: %s", f"{num_texts:,}", losses)


def choose_batch_size(length: int) -> int:
    """The number of sequences of this length that the device processes fastest at once."""
    return max(1, BATCH_TOKENS.get(jax.default_backend(), 2**15) // length)


def choose_lengths(token_counts: Sequence[int], max_len: int, program_tokens: int) -> list[int]:
    """The lengths, among `loader.list_bucket_lengths`, that sequences are padded to at the least cost.

    The cost is the number of tokens, padding included, and for each length `program_tokens`, since each one compiles a
    program. A length other than every second one costs twice that, so that later calls find the programs of earlier
    ones. token_counts: of each sequence; program_tokens: tokens that a program is worth; 0: every length is used.
    """
    lengths = loader.list_bucket_lengths(max_len)
    if not program_tokens or not len(token_counts):
        return lengths
    count_K = np.bincount(np.searchsorted(lengths, token_counts), minlength=len(lengths))
    best: list[tuple[int, list[int]]] = [(0, [])]  # cost and lengths of the sequences of the first 0, 1, 2, ... lengths
    for end, length in enumerate(lengths, 1):
        program = program_tokens * (1 if (len(lengths) - end) % 2 == 0 else 2)
        plans = (
            (cost + program + length * int(count_K[start:end].sum()), [*chosen, length])
            for start, (cost, chosen) in enumerate(best)
        )
        best.append(min(plans))
    return min(best[int(np.flatnonzero(count_K)[-1]) + 1 :])[1]


def iterate_batches(
    sequences: Sequence[Sequence[int]],
    max_len: int,
    batch_size: int,
    full_batches: bool = False,
    program_tokens: int = 0,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (the indices of some sequences, ids_BxL), the longest sequences first.

    Few shapes occur, since each one compiles a program: a batch is padded to one of `choose_lengths`, and a batch that
    is not full repeats its last sequence, up to a power of two or to the size of the batches before it.

    batch_size: sequences of `max_len` tokens, the longest, in a batch; of shorter ones there are more. full_batches:
    fills up every batch. program_tokens: tokens that a program is worth; 0: more than `choose_lengths` has are not
    avoided.
    """
    lengths = choose_lengths([len(sequence) for sequence in sequences], max_len, program_tokens)
    order, has_program = sorted(range(len(sequences)), key=lambda index: -len(sequences[index])), set()
    first = 0
    while first < len(order):
        length = next(length for length in lengths if len(sequences[order[first]]) <= length)
        limit = batch_size * (max_len // length) if full_batches else batch_size * max_len // length
        indices, first = order[first : first + limit], first + limit
        count = limit if full_batches else min(limit, 1 << (len(indices) - 1).bit_length())
        if length in has_program and (limit - count) * length <= program_tokens:
            count = limit
        has_program.add(length)
        ids_BxL = np.full((count, length), PAD, np.int32)
        for ids_L, index in zip(ids_BxL, indices + indices[-1:] * (count - len(indices)), strict=True):
            ids_L[: len(sequences[index])] = sequences[index]
        yield np.array(indices), ids_BxL


def collect_outputs(
    batches: Iterable[tuple[Any, np.ndarray]],
    run_batch: Callable[[Any, np.ndarray], Any],
    count: int,
    progress: Callable[[float], Any] = lambda share: None,
) -> list[Any]:
    """Each sequence's part of what run_batch(indices, ids_BxL) returns for its batch, a tree of arrays.

    batches: of `count` sequences, as `iterate_batches` yields them. progress: called with the share of them so far.
    """
    outputs, done = list[Any]([None] * count), 0
    for indices, ids_BxL in batches:
        output = jax.device_get(run_batch(indices, ids_BxL))
        for i, index in enumerate(indices):
            outputs[index] = jax.tree.map(lambda x_Bx, i=i: x_Bx[i], output)
        done += len(indices)
        progress(done / count)
    return outputs
