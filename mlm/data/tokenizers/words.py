"""Words between white space, or characters, as a vocabulary: the most frequent ones of a text."""

import itertools
import json
import re
from collections import Counter

import numpy as np

from mlm.base import errors
from mlm.base.special import MASK, NUM_SPECIAL, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers.tokenizer import UNUSUAL_SENTENCE_END, Tokenizer, VocabularyTooLarge, sort_by_count

MASK_OR_CHARACTER = re.compile(re.escape(SPECIAL_TOKENS[MASK]) + "|.", re.DOTALL)


def _select_entries(counts, vocab_size):
    """The most frequent entries, most frequent first, for a vocabulary of this size; all of them for a size of 0."""
    entries = sort_by_count(counts)
    if len(entries) < vocab_size - NUM_SPECIAL:
        raise VocabularyTooLarge(vocab_size, len(entries) + NUM_SPECIAL)
    return entries[: vocab_size - NUM_SPECIAL] if vocab_size else entries


def train_words(vocab_size, sentences):
    """The most frequent words between white space; all of them for a size of 0."""
    counts = Counter(itertools.chain.from_iterable(map(str.split, sentences)))
    for special in SPECIAL_TOKENS:
        counts.pop(special, None)
    return "\n".join([*SPECIAL_TOKENS, *_select_entries(counts, vocab_size)]).encode()


def build_words(model, has_mask=False):
    """The tokenizer of a serialized model: its words, one a line; has_mask: whether [MASK] in a text has its own id."""
    pieces = model.decode().split("\n")
    number = {word: i for i, word in enumerate(pieces) if i >= NUM_SPECIAL or (has_mask and i == MASK)}

    def encode_batch(texts):
        return [[number.get(word, UNK) for word in text.split()] for text in texts]

    def decode(ids):
        return " ".join(pieces[i] for i in ids)

    def locate(text):
        return encode_batch([text])[0], [found.span() for found in re.finditer(r"\S+", text)]

    tokenizer = Tokenizer("words", model, pieces, np.ones(len(pieces), bool), encode_batch, decode, locate)
    return tokenizer._replace(splits_at_spaces=True, document_pattern=UNUSUAL_SENTENCE_END)


def recognize_mask_token(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the id MASK for the word [MASK] of a text. Raises ConfigError for one of another kind."""
    expected = "a tokenizer of words, as runs on the built-in language have it"
    errors.require(tokenizer.kind == "words", "config.tokenizer.path", tokenizer.kind, expected)
    return build_words(tokenizer.model, has_mask=True)


def train_characters(vocab_size, texts):
    """The most frequent characters, white space and line ends among them; all of them for a size of 0."""
    counts = Counter(itertools.chain.from_iterable(texts))
    return json.dumps("".join(_select_entries(counts, vocab_size)), ensure_ascii=False).encode()


def build_characters(model):
    """The tokenizer of a serialized model: its alphabet, as JSON. A text comes back as it was."""
    with errors.explain("tokenizer", "the characters as JSON", ValueError):
        alphabet = json.loads(model)
        is_alphabet = isinstance(alphabet, str) and len({*alphabet}) == len(alphabet)
        errors.require(is_alphabet, "tokenizer", alphabet, "characters, each once")
    pieces = [*SPECIAL_TOKENS, *alphabet]
    number = {character: i for i, character in enumerate(alphabet, NUM_SPECIAL)}

    def encode_batch(texts):
        return [[number.get(character, UNK) for character in text] for text in texts]

    def decode(ids):
        return "".join(pieces[i] for i in ids)

    def locate(text):
        return encode_batch([text])[0], [(i, i + (not character.isspace())) for i, character in enumerate(text)]

    def hide(text):
        parts = list(MASK_OR_CHARACTER.finditer(text))
        ids = [MASK if part[0] == SPECIAL_TOKENS[MASK] else number.get(part[0], UNK) for part in parts]
        return ids, [(part.start(), part.end() - part[0].isspace()) for part in parts]

    starts_V = np.array([piece.isspace() or (i < NUM_SPECIAL and i != UNK) for i, piece in enumerate(pieces)])
    return Tokenizer("characters", model, pieces, starts_V, encode_batch, decode, locate, hide)
