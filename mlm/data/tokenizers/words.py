"""Words between white space as a vocabulary."""

import re
from collections import Counter

import numpy as np

from mlm.base import errors
from mlm.base.special import MASK, NUM_SPECIAL, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers.tokenizer import UNUSUAL_SENTENCE_END, Tokenizer, VocabularyTooLarge, sort_by_count


def train_model(vocab_size, sentences):
    """The most frequent words between white space, most frequent first; all of them for a size of 0."""
    counts = Counter()
    for sentence in sentences:
        counts.update(sentence.split())
    for special in SPECIAL_TOKENS:
        counts.pop(special, None)
    words = sort_by_count(counts)
    if vocab_size:
        words = words[: vocab_size - NUM_SPECIAL]
    if len(words) < vocab_size - NUM_SPECIAL:
        raise VocabularyTooLarge(vocab_size, len(words) + NUM_SPECIAL)
    return "\n".join([*SPECIAL_TOKENS, *words]).encode()


def build_tokenizer(model):
    """The tokenizer of a serialized model: its words, one a line."""
    pieces = model.decode().split("\n")
    number = {word: i for i, word in enumerate(pieces) if i >= NUM_SPECIAL}

    def encode_batch(texts):
        return [[number.get(word, UNK) for word in text.split()] for text in texts]

    def decode(ids):
        return " ".join(pieces[i] for i in ids)

    def locate(text):
        return encode_batch([text])[0], [found.span() for found in re.finditer(r"\S+", text)]

    return Tokenizer(
        "words",
        model,
        pieces,
        np.ones(len(pieces), bool),
        encode_batch,
        decode,
        locate,
        splits_at_spaces=True,
        document_pattern=UNUSUAL_SENTENCE_END,
    )


def recognize_mask_token(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the id MASK for the word [MASK], as texts of which words are hidden have it.

    Raises ConfigError for one of another kind.
    """
    expected = "a tokenizer of words, as runs on the built-in language have it"
    errors.require(tokenizer.kind == "words", "config.tokenizer.path", tokenizer.kind, expected)

    def encode_batch(texts):
        return [
            [MASK if word == SPECIAL_TOKENS[MASK] else i for word, i in zip(text.split(), ids, strict=True)]
            for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)
        ]

    return tokenizer._replace(
        encode_batch=encode_batch,
        encode_with_offsets=lambda text: (encode_batch([text])[0], tokenizer.encode_with_offsets(text)[1]),
    )
