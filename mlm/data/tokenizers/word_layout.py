"""How a tokenizer of the tokenizers library shows words: by marks of its entries, or by the spaces of its decoder."""

import numpy as np

from mlm.base.special import NUM_SPECIAL, UNK
from mlm.data.tokenizers import bpe
from mlm.data.tokenizers.tokenizer import Tokenizer

NUM_SAMPLE_ENTRIES, MAX_WRONG_SHARE = 400, 0.1  # entries of which a text is made; its pieces that may hide a word


def build_decoder(made):
    """The decoder of a layout that tokenizer.json has none for; None: entries stand between spaces."""
    from tokenizers import decoders

    prefix, suffix = (made["model"].get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    if prefix or suffix:
        return decoders.WordPiece(prefix, cleanup=False) if prefix else decoders.BPEDecoder(suffix)
    kinds = {"ByteLevel": decoders.ByteLevel, "Metaspace": decoders.Metaspace}
    return next((build() for kind, build in kinds.items() if has_pre_tokenizer(made, kind)), None)


def find_word_bounds(made, pieces, decoder) -> tuple[np.ndarray, np.ndarray | None]:
    """(starts_V, ends_V) of a Tokenizer: by the mark of a layout, or by where the decoder puts white space."""
    inner, ends_V = made["model"].get("continuing_subword_prefix") or "", None
    if inner or decoder is None:
        starts_V = np.array([not (inner and one.startswith(inner) and len(one) > len(inner)) for one in pieces])
    elif has_pre_tokenizer(made, "ByteLevel") or has_pre_tokenizer(made, "Metaspace"):
        starts_V = np.array([bpe.starts_word(piece) for piece in pieces])
    else:
        texts = [decoder.decode(["x", piece, "x"])[1:-1] for piece in pieces]
        starts_V, ends_V = (np.array([text[side].isspace() for text in texts]) for side in (slice(1), slice(-1, None)))
        ends_V = ends_V & ~starts_V
    special_V = (np.arange(len(pieces)) < NUM_SPECIAL) & (np.arange(len(pieces)) != UNK)
    return starts_V | special_V, None if ends_V is None or not ends_V.any() else ends_V | special_V


def shows_words(tokenizer: Tokenizer, tool) -> bool:
    """Whether entries show the words of a text, which spaces or the steps before the model part.

    The text is made of entries, two a word; a few of them may be ambiguous.
    """
    entries = range(NUM_SPECIAL, tokenizer.vocab_size, max(1, tokenizer.vocab_size // NUM_SAMPLE_ENTRIES))
    parts = [part for i in entries if (part := tokenizer.decode([i]).strip()).isalnum()]
    words = list(map("".join, zip(parts[::2], parts[1::2], strict=False)))
    text = " ".join(word for word, ids in zip(words, tokenizer.encode_batch(words), strict=True) if UNK not in ids)
    starts_T = tokenizer.find_word_starts(np.array(tokenizer.encode(text), int)).tolist()
    encoding, wrong, end, word, is_blank_start = tool.encode(text, add_special_tokens=False), [], 0, None, False
    for (first, last), number, starts in zip(encoding.offsets, encoding.word_ids, starts_T, strict=True):
        letters, starts = text[first:last].lstrip(), starts or is_blank_start
        is_blank_start = starts and not letters
        if letters:
            behind_space = " " in text[end : last - len(letters)]
            wrong.append(end > 0 and starts != behind_space and not (starts and number != word))
            end, word = last, number
    return sum(wrong) <= MAX_WRONG_SHARE * len(wrong)


def has_pre_tokenizer(made, kind) -> bool:
    """Whether a step of this type is among those before the model."""
    step = made.get("pre_tokenizer") or {}
    return any(one.get("type") == kind for one in (step, *step.get("pretokenizers", ())))
