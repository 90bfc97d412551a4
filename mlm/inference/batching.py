"""Texts as rows of tokens, and how many of them a model is given at once.

Letters in array names: S texts.
"""
import unicodedata
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from mlm.base import errors
from mlm.base.special import CLS, MASK, PAD, SEP, SPECIAL, UNK
from mlm.data.rows import loader
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.data.tokenizers.unigram import SPACE

HIDDEN = SPECIAL[MASK]
TOKENS = {"cpu": 2**11}  # in a batch: what its caches hold
# Marks that hardly a text has: of their own in every kind of vocabulary, and left as they are by every normalisation.
RARE = [chr(code) for code in range(0x2e00, 0x2e50) if unicodedata.category(chr(code)) == "Po"]


def encode(tokenizer: Tokenizer, text: str, hidden: bool = False) -> list[int]:
    """Ids of a text, [CLS] first and [SEP] last. hidden: a [MASK] in the text is that special token.

    Raises ConfigError where the tokenizer lets a [MASK] go.
    """
    if not (hidden and HIDDEN in text):
        return [CLS, *tokenizer.encode(text), SEP]
    if tokenizer.hide is not None:
        return [CLS, *tokenizer.hide(text), SEP]
    free = next((mark for mark in RARE if mark not in text and UNK in tokenizer.encode(mark)), RARE[0])
    shown = text.replace(HIDDEN, free)
    ids, spans = tokenizer.locate(shown)
    row: list[int] = [CLS]
    for token, (first, end) in zip(ids, spans, strict=True):
        masked = token == UNK and free in shown[first:end]
        if masked and tokenizer.pieces[row[-1]] == SPACE:
            row.pop()  # the space before the word, which is of the hidden piece
        row += [MASK] * shown[first:end].count(free) if masked else [token]
    errors.require(row.count(MASK) == text.count(HIDDEN), "text", text, f"one whose {text.count(HIDDEN)} {HIDDEN} are "
                  "words or parts of words of this model's vocabulary")
    return [*row, SEP]


def surface(piece: str) -> str:
    """What an entry of the vocabulary is in a text."""
    return piece.removeprefix(SPACE).removeprefix("##") or " "


def whole(tokenizer: Tokenizer, texts: Sequence[str], hidden: bool = False) -> list[list[int]]:
    """`encode` of each text, however long."""
    if hidden:
        return [encode(tokenizer, text, hidden) for text in texts]
    return [[CLS, *ids, SEP] for ids in tokenizer.encode_batch(list(texts))]


def fitted(row: list[int], length: int) -> list[int]:
    """A row of at most so many tokens, its [SEP] left on."""
    return row if len(row) <= length else [*row[:length - 1], SEP]


def rows(tokenizer: Tokenizer, texts: Sequence[str], length: int, hidden: bool = False) -> list[list[int]]:
    """`encode` of each text, cut to the length of a row. Raises ConfigError where that would cut a [MASK] off."""
    found = []
    for text, row in zip(texts, whole(tokenizer, texts, hidden), strict=True):
        found.append(fitted(row, length))
        errors.require(found[-1].count(MASK) == row.count(MASK), "text", text, f"its {HIDDEN} among the first "
                      f"{length - 2} tokens, which are what the model was trained on")
    return found


def fast(length: int) -> int:
    """How many rows of so many tokens a device like this one's is fast with at once."""
    return max(1, TOKENS.get(jax.default_backend(), 2**15) // length)


def batched(ids: Sequence[Sequence[int]], longest: int, size: int, *, whole: bool = False
            ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(the numbers of some texts, ids_BxL), the longest texts first, until each was once.

    size: rows of `longest` tokens in a batch; of shorter ones there are more. Few shapes come, as each is compiled:
    rows are padded to one of `loader.lengths`, and where there are too few to fill a batch their last fills it up, to a
    power of two or, where `whole`, to all of it.
    """
    order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
    while order:
        length = next(one for one in loader.lengths(longest) if len(ids[order[0]]) <= one)
        most = size * (longest // length) if whole else size * longest // length
        mine, order = order[:most], order[most:]
        count = most if whole else min(most, 1 << (len(mine) - 1).bit_length())
        ids_BxL = np.full((count, length), PAD, np.int32)
        for row_L, number in zip(ids_BxL, mine + mine[-1:] * (count - len(mine)), strict=True):
            row_L[:len(ids[number])] = ids[number]
        yield np.array(mine), ids_BxL
