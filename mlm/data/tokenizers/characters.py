"""Characters as a vocabulary: white space, line ends and all, so that a text comes back as it was."""

import json
import re
from collections import Counter

import numpy as np

from mlm.base import errors
from mlm.base.special import MASK, NUM_SPECIAL, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers.tokenizer import Tokenizer, VocabularyTooLarge, sort_by_count

MASK_OR_CHARACTER = re.compile(re.escape(SPECIAL_TOKENS[MASK]) + "|.", re.DOTALL)


def train_model(vocab_size, texts):
    """The most frequent characters, most frequent first; all of them for a size of 0."""
    counts = Counter()
    for text in texts:
        counts.update(text)
    found = sort_by_count(counts)
    if len(found) < vocab_size - NUM_SPECIAL:
        raise VocabularyTooLarge(vocab_size, len(found) + NUM_SPECIAL)
    alphabet = found[: vocab_size - NUM_SPECIAL] if vocab_size else found
    return json.dumps("".join(alphabet), ensure_ascii=False).encode()


def build_tokenizer(model):
    """The tokenizer of a serialized model: its alphabet, as JSON."""
    try:
        alphabet = json.loads(model)
        is_alphabet = isinstance(alphabet, str) and len({*alphabet}) == len(alphabet)
        errors.require(is_alphabet, "tokenizer", alphabet, "characters, each once")
    except ValueError as error:
        raise errors.ConfigError(f"tokenizer: expected the characters as JSON ({errors.first_line(error)})") from None
    pieces = [*SPECIAL_TOKENS, *alphabet]
    number = {character: i for i, character in enumerate(alphabet, NUM_SPECIAL)}

    def encode(text):
        return [number.get(character, UNK) for character in text]

    def encode_batch(texts):
        return [encode(text) for text in texts]

    def decode(ids):
        return "".join(pieces[i] for i in ids)

    def locate(text):
        return encode(text), [(i, i + (not character.isspace())) for i, character in enumerate(text)]

    def hide(text):
        parts = [(found[0], found.span()) for found in MASK_OR_CHARACTER.finditer(text)]
        return [MASK if part == SPECIAL_TOKENS[MASK] else number.get(part, UNK) for part, _ in parts], [
            (start, end - part.isspace()) for part, (start, end) in parts
        ]

    starts_V = np.array([piece.isspace() or (i < NUM_SPECIAL and i != UNK) for i, piece in enumerate(pieces)])
    return Tokenizer("characters", model, pieces, starts_V, encode_batch, decode, locate, hide)
