"""A Hugging Face tokenizer with our numbers, from its saved model: the five special tokens first, then the rest in its
order. `_order_entries` alone says which entry there each of ours is.
"""

import functools
import json
import math
from typing import Any, NamedTuple

import numpy as np

from mlm.base import errors
from mlm.base.special import MASK, NUM_SPECIAL, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers import bpe
from mlm.data.tokenizers.tokenizer import UNUSUAL_SENTENCE_END, Tokenizer, encode_with_offsets, make_mask_encoder
from mlm.data.tokenizers.unigram import SPACE

TOKENIZER_FILE = "tokenizer.json"
MAX_ENTRY_LENGTH = 1000  # letters of an entry; the library overflows the stack at some 100,000
MAX_EXPANSION = 256  # letters that the steps before the model may make of one
PLACEHOLDER = "\ufdd0"  # a code point that no text may hold
NUM_SAMPLE_ENTRIES, MAX_WRONG_SHARE = 400, 0.1  # entries of which a text is made; its pieces that may hide a word


def count_pair_separators(tokenizer: Tokenizer) -> int:
    """How many [SEP] stand between the texts of a pair: one, or as many as the tokenizer's own pairs have."""
    return _count_pair_separators(tokenizer.model) if tokenizer.kind == "hub" else 1


@functools.lru_cache(maxsize=1)
def _count_pair_separators(model) -> int:
    tool = build_backend(TOKENIZER_FILE, json.loads(model)["tokenizer"])
    return max(1, tool.num_special_tokens_to_add(is_pair=True) - 2)


def get_original_ids(tokenizer: Tokenizer) -> np.ndarray:
    """order_V: the number, where it came from, of each entry of a tokenizer of ours."""
    if tokenizer.kind != "hub":
        return np.arange(tokenizer.vocab_size)
    saved = json.loads(tokenizer.model)
    return _order_entries(saved["special"], get_entry_ids(saved["tokenizer"]), saved.get("vocab_size", 0))


def build_tokenizer(model: bytes) -> Tokenizer:
    """The tokenizer of a saved model: {"special": five names in our order, "tokenizer": tokenizer.json}.

    "vocab_size", where it is there, is that of a model whose tables have more rows than the vocabulary has entries; an
    entry of no text stands for each of them.
    """
    saved = json.loads(model)
    with errors.explain("tokenizer", "a saved Hugging Face tokenizer", KeyError, TypeError):
        made, special = saved["tokenizer"], saved["special"]
        tool, number = _build_text_backend(made, special), get_entry_ids(made)
        order_V = _order_entries(special, number, saved.get("vocab_size", 0))
    ours_V = np.argsort(order_V)
    ours_V[order_V[:NUM_SPECIAL]] = UNK  # what no text is to say
    ours = ours_V.tolist()
    padding = [f"[padding {i}]" for i in range(len(number), len(order_V))]
    name_V = np.array([*sorted(number, key=number.__getitem__), *padding], object)
    bytewise = has_pre_tokenizer(made, "ByteLevel")
    names = [*SPECIAL_TOKENS, *name_V[order_V[NUM_SPECIAL:]]]
    pieces = [*SPECIAL_TOKENS, *map(bpe.format_entry, names[NUM_SPECIAL:])] if bytewise else names
    decoder: Any = tool.decoder or _build_decoder(made)
    starts_V, ends_V = _find_word_bounds(made, pieces, decoder)

    def encode_batch(texts, tool=tool):
        return [[ours[i] for i in one.ids] for one in tool.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(ids):
        tokens = [names[i] for i in ids]
        return decoder.decode(tokens).removeprefix(" ") if decoder else " ".join(tokens)

    def locate(text):
        ids, spans = encode_with_offsets(tool, text, blank)
        return [ours[i] for i in ids], spans

    blank = {int(order_V[i]) for i, piece in enumerate(pieces) if not piece.strip(SPACE)}
    mask = next((one for one in made.get("added_tokens", ()) if one["content"] == special[MASK]), {})
    strips = mask.get("lstrip", False), mask.get("rstrip", False)
    hide = make_mask_encoder(lambda: _build_text_backend(made, special), ours, *strips)
    tokenizer = Tokenizer("hub", model, pieces, starts_V, encode_batch, decode, locate, hide, ends_word_V=ends_V)
    step = made.get("pre_tokenizer") or {}
    if any(not one["special"] for one in made.get("added_tokens", ())):
        pass  # which may stand anywhere in a text
    elif step.get("type") == "BertPreTokenizer" and (made.get("normalizer") or {}).get("type") == "BertNormalizer":
        tokenizer = tokenizer._replace(splits_at_spaces=True, document_pattern=UNUSUAL_SENTENCE_END)
    elif step.get("type") == "ByteLevel" and step.get("use_regex", True) and not made.get("normalizer"):
        plain = _build_text_backend(made | {"pre_tokenizer": step | {"add_prefix_space": False}}, special)
        tokenizer = tokenizer._replace(
            split_parts=functools.partial(bpe.split_parts, space_before=step.get("add_prefix_space", True)),
            encode_parts=functools.partial(encode_batch, tool=plain),
            document_pattern=bpe.CUT_PART,
        )
    return tokenizer._replace(shows_words=_shows_words(tokenizer, tool))


def get_entry_ids(made) -> dict[str, int]:
    """The number there of each entry of the vocabulary."""
    vocab = made["model"]["vocab"]
    number = dict(vocab) if isinstance(vocab, dict) else {name: i for i, (name, _) in enumerate(vocab)}
    return number | {one["content"]: one["id"] for one in made.get("added_tokens", ())}


def _order_entries(special, number, size) -> np.ndarray:
    first = [number[name] for name in special]
    return np.array([*first, *sorted({*number.values(), *range(size)} - set(first))])


class _Backend(NamedTuple):
    """A tool of the tokenizers library, whose panics, which are no Exceptions, are ConfigErrors."""

    tool: Any

    def __getattr__(self, name):
        value = getattr(self.tool, name)
        return functools.partial(_report_panic, value) if name.startswith("encode") else value


def _report_panic(encode, *args, **kwargs):
    try:
        return encode(*args, **kwargs)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = errors.first_line(error)
        raise errors.ConfigError(f"{TOKENIZER_FILE}: expected steps that end for each text ({reason})") from None


def build_backend(where, made):
    """The tool of a tokenizer.json. Raises ConfigError, by `where`, for what the library cannot read, or not safely."""
    import tokenizers

    with errors.explain(where, "a file of the tokenizers library"):
        longest = max(map(len, get_entry_ids(made)), default=0)
        errors.require(longest <= MAX_ENTRY_LENGTH, "letters of an entry", longest, f"at most {MAX_ENTRY_LENGTH}")
        for step in ("normalizer", "decoder"):
            bound = _bound_expansion(made.get(step) or {})
            errors.require(bound <= MAX_EXPANSION, f"letters of {step} for one", bound, f"at most {MAX_EXPANSION}")
        return _Backend(tokenizers.Tokenizer.from_str(json.dumps(made)))


def _bound_expansion(step) -> float:
    """How many letters the replacements of a normalizer or a decoder make of one, at most."""
    if step.get("type") != "Replace":
        return math.prod(map(_bound_expansion, (*step.get("normalizers", ()), *step.get("decoders", ()))))
    text = step["pattern"].get("String")  # a regular expression may match between letters
    return max(1, len(step["content"]) / len(text)) if text else 1 + len(step["content"])


def _build_text_backend(made, special):
    """The tool without padding and truncation, which finds no special token in a text, whatever that says."""
    added = made.get("added_tokens", ())
    hidden = dict.fromkeys([*special, *(one["content"] for one in added if one["special"])])
    untyped = {name: f"{PLACEHOLDER}{i}" for i, name in enumerate(hidden)}
    unknown = str(made["model"].get("unk_token"))  # which some models look up by its name
    model = dict(made["model"])
    if isinstance(model["vocab"], dict):
        untyped.pop(unknown, None)
        model["vocab"] = {untyped.get(name, name): i for name, i in model["vocab"].items()}
    else:
        model["vocab"] = [[untyped.get(name, name), score] for name, score in model["vocab"]]
    kept = (one for one in added if one["content"] in untyped or one["content"] not in hidden)
    added = [one | {"content": untyped.get(one["content"], one["content"])} for one in kept]
    plain = {"padding": None, "truncation": None, "post_processor": None}
    tool = build_backend(TOKENIZER_FILE, made | plain | {"model": model, "added_tokens": added})
    for one in added:
        number = tool.token_to_id(one["content"])
        expected = f"the next number, {number}"
        errors.require(number == one["id"], f"{TOKENIZER_FILE}: added_tokens", one["id"], expected)
    return tool


def _build_decoder(made):
    """The decoder of a layout that tokenizer.json has none for; None: entries stand between spaces."""
    from tokenizers import decoders

    prefix, suffix = (made["model"].get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    if prefix or suffix:
        return decoders.WordPiece(prefix, cleanup=False) if prefix else decoders.BPEDecoder(suffix)
    kinds = {"ByteLevel": decoders.ByteLevel, "Metaspace": decoders.Metaspace}
    return next((build() for kind, build in kinds.items() if has_pre_tokenizer(made, kind)), None)


def _find_word_bounds(made, pieces, decoder) -> tuple[np.ndarray, np.ndarray | None]:
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


def _shows_words(tokenizer: Tokenizer, tool) -> bool:
    """Whether entries show the words of a text, two entries a word, which spaces or earlier steps part."""
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
