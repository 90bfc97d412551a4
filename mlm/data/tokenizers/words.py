"""Words between white space as a vocabulary."""
import re
from collections import Counter

import numpy as np

from mlm.base.special import NUM_SPECIAL, SPECIAL, UNK
from mlm.data.tokenizers.tokenizer import Tokenizer, TooMany, ranked


def train(vocab_size, sentences):
    """The most frequent words between white space, most frequent first; all of them for a size of 0."""
    counts = Counter()
    for sentence in sentences:
        counts.update(sentence.split())
    for special in SPECIAL:
        counts.pop(special, None)
    words = ranked(counts)
    if vocab_size:
        words = words[:vocab_size - NUM_SPECIAL]
    if len(words) < vocab_size - NUM_SPECIAL:
        raise TooMany(vocab_size, len(words) + NUM_SPECIAL)
    return "\n".join([*SPECIAL, *words]).encode()


def restore(model):
    pieces = model.decode().split("\n")
    number = {word: i for i, word in enumerate(pieces) if i >= NUM_SPECIAL}

    def encode_batch(texts):
        return [[number.get(word, UNK) for word in text.split()] for text in texts]

    def decode(ids):
        return " ".join(pieces[i] for i in ids)

    def locate(text):
        return encode_batch([text])[0], [found.span() for found in re.finditer(r"\S+", text)]

    return Tokenizer("words", model, pieces, np.ones(len(pieces), bool), encode_batch, decode, locate)
