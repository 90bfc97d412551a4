"""Byte-level BPE's vocabulary."""

import functools
import json
import re

import numpy as np

from mlm.base import errors
from mlm.base.special import NUM_SPECIAL, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers import tokenizer as common
from mlm.data.tokenizers.unigram import SPACE

PRINTABLE_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that GPT-2's table writes as themselves
OTHER_BYTES = [byte for byte in range(256) if byte not in PRINTABLE_BYTES]
BYTE_BY_LETTER = {chr(byte): byte for byte in PRINTABLE_BYTES}
BYTE_BY_LETTER |= {chr(256 + i): byte for i, byte in enumerate(OTHER_BYTES)}
# White space, as the library has it, with what follows: GPT-2's words lie within such a part, whatever is around it.
WHITE_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
PART = re.compile(f"[{WHITE_SPACE}]*[^{WHITE_SPACE}]+|[{WHITE_SPACE}]+")
# Where a sentence ends within a part: without white space, or at what Python alone counts as such.
CUT_PART = r"[\x1c-\x1f\u3002\uff01\uff1f]"
BASE_ENTRIES = (*SPECIAL_TOKENS, *sorted(BYTE_BY_LETTER))


def build_backend(entries=(), merges=(), *, space_before: bool = True):
    """GPT-2's words; space_before: the first of a text has a space before it like the others."""
    import tokenizers

    split = tokenizers.pre_tokenizers
    tool = tokenizers.Tokenizer(tokenizers.models.BPE({entry: i for i, entry in enumerate(entries)}, list(merges)))
    space = split.Metaspace(replacement=" ", prepend_scheme="first" if space_before else "never", split=False)
    tool.pre_tokenizer = split.Sequence([space, split.ByteLevel(add_prefix_space=False)])
    tool.decoder = tokenizers.decoders.ByteLevel()
    return tool


def split_parts(text: str, space_before: bool = True) -> list[str]:
    """The parts of a text. space_before: it gets a space, unless it begins with white space."""
    return PART.findall(f" {text}" if space_before and text and not text[0].isspace() else text)


def train_model(vocab_size, sentences):
    """BPE (Sennrich et al. 2016, arXiv:1508.07909) of bytes, as GPT-2 (Radford et al. 2019) and RoBERTa have it.

    As the tokenizers library learns it: of pairs equally frequent the one of the lower numbers is merged first.
    """
    import tokenizers

    if vocab_size < len(BASE_ENTRIES):
        raise common.make_too_small_error(vocab_size, len(BASE_ENTRIES))
    tool, special, alphabet = build_backend(), list(SPECIAL_TOKENS), list(BYTE_BY_LETTER)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tool.train_from_iterator(iter(sentences), trainer)
    made = json.loads(tool.to_str())["model"]
    if len(made["vocab"]) < vocab_size:
        raise common.VocabularyTooLarge(vocab_size, len(made["vocab"]))
    saved = {"entries": sorted(made["vocab"], key=made["vocab"].get), "merges": made["merges"]}
    return json.dumps(saved, ensure_ascii=False, indent=0).encode()


def parse_model(model: bytes):
    """(entries, merges, the tool) of a saved model. Raises ConfigError for anything else."""
    with errors.explain("tokenizer", "entries and merges of BPE"):  # of any error: the library raises no exact ones
        saved = json.loads(model)
        entries, merges = saved["entries"], [tuple(pair) for pair in saved["merges"]]
        tool = build_backend(entries, merges)
    first = tuple(entries[: len(BASE_ENTRIES)])
    errors.require(first == BASE_ENTRIES, "tokenizer, its first entries", first, "the special tokens and the bytes")
    return entries, merges, tool


def build_tokenizer(model):
    """The tokenizer of a serialized model: its entries and merges."""
    entries, merges, tool = parse_model(model)
    pieces = [*SPECIAL_TOKENS, *(format_entry(entry) for entry in entries[NUM_SPECIAL:])]
    bytes_V = [*(name.encode() for name in SPECIAL_TOKENS), *(map(entry_to_bytes, entries[NUM_SPECIAL:]))]

    def encode_batch(texts, tool=tool):
        return [encoding.ids for encoding in tool.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(ids):  # without the space before the first word
        return b"".join(bytes_V[i] for i in ids).decode(errors="replace").removeprefix(" ")

    blank = {i for i, piece in enumerate(pieces) if not piece.strip(SPACE)}
    locate = functools.partial(common.encode_with_offsets, tool, blank=blank)
    starts_V = np.array([starts_word(piece) or (i < NUM_SPECIAL and i != UNK) for i, piece in enumerate(pieces)])
    hide = common.make_mask_encoder(lambda: build_backend(entries, merges), range(len(pieces)), lstrip=True)
    tokenizer = common.Tokenizer("bpe", model, pieces, starts_V, encode_batch, decode, locate, hide)
    return tokenizer._replace(
        split_parts=split_parts,
        encode_parts=functools.partial(encode_batch, tool=build_backend(entries, merges, space_before=False)),
        document_pattern=CUT_PART,
    )


def entry_to_bytes(entry: str) -> bytes:
    """The bytes of an entry; of one that is not written in GPT-2's table, as added tokens are, its letters'."""
    return bytes(BYTE_BY_LETTER[letter] for letter in entry) if BYTE_BY_LETTER.keys() >= set(entry) else entry.encode()


def format_entry(entry: str) -> str:
    r"""An entry as our vocabularies write it: a space as the mark, bytes as the letters that they are, or as \xe4."""
    text = entry_to_bytes(entry).decode(errors="backslashreplace")
    return "".join(f"\\x{byte:02x}" for byte in text.encode()) if SPACE in text else text.replace(" ", SPACE)


def starts_word(piece: str) -> bool:
    """Whether a piece, as it is shown, begins a word: with white space."""
    return piece.startswith(SPACE) or piece[:1].isspace()
