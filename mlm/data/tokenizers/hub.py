"""The tokenizer of a Hugging Face folder, with our numbers: the five special tokens first, then the rest in its order.

The one place that renumbers: `_order_entries` says which entry there each of ours is.
"""

import contextlib
import functools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlm.base import errors, files
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers import bpe, hub_classes, word_layout
from mlm.data.tokenizers.tokenizer import UNUSUAL_SENTENCE_END, Tokenizer, encode_with_offsets, make_mask_encoder
from mlm.data.tokenizers.unigram import SPACE

SPECIAL_TOKEN_KEYS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
DEFAULT_SPECIAL_TOKENS = (SPECIAL_TOKENS, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"))  # BERT's and RoBERTa's
TOKENIZER_FILE, VOCAB_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE = "special_tokens_map.json", "added_tokens.json"
MODEL_CONFIG_FILE = "config.json"
GPT2_FILES = ("vocab.json", "merges.txt")  # GPT-2's and RoBERTa's
FOLDER_FILES = (TOKENIZER_FILE, VOCAB_FILE, TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE, *GPT2_FILES)
END_OF_TEXT = "<|endoftext|>"  # its one special token, which stands between texts
MAX_ENTRY_LENGTH = 1000  # letters of an entry; the library overflows the stack at some 100,000
MAX_EXPANSION = 256  # letters that the steps before the model may make of one
MAX_PADDING = 4096  # rows of a model's table beyond the vocabulary, which make its size a round number
PLACEHOLDER = "\ufdd0"  # a code point that no text may hold


def read_tokenizer(folder: Path | str) -> Tokenizer:
    """The tokenizer of a folder. Raises ConfigError for one that is not there, broken, or lacks a special token."""
    folder = Path(folder)
    paths = (folder / TOKENIZER_CONFIG_FILE, folder / MODEL_CONFIG_FILE)
    knobs, config = _read_json(paths[0]), {}
    with contextlib.suppress(errors.ConfigError):  # which the reader of the model reports
        config = _read_json(paths[1])
    if knobs.get("added_tokens_decoder") is None:  # else transformers does not read the other file
        knobs |= _read_json(folder / SPECIAL_TOKENS_FILE)
    sources = ((TOKENIZER_FILE,), GPT2_FILES, (VOCAB_FILE,))
    source = next((names for names in sources if all((folder / name).exists() for name in names)), None)
    if source is None:
        hint = "transformers writes the first: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise errors.ConfigError(f"{folder}: expected a folder with {TOKENIZER_FILE}, or {VOCAB_FILE} of BERT; {hint}")
    hub_classes.check_settings(paths, knobs, config, source[0])
    if source == (TOKENIZER_FILE,):
        made = _read_json(folder / TOKENIZER_FILE)
    elif source == GPT2_FILES:
        made = _convert_gpt2_files(folder)
    else:
        made = _convert_vocab_file(folder / VOCAB_FILE, knobs)
        # Where nothing says it: lower-casing would make every word of a cased vocabulary unknown.
        lower = all(entry == entry.lower() for entry in made["model"]["vocab"] if entry[:1] != "[")
        knobs = {"do_lower_case": lower} | knobs | {"tokenizer_class": "BertTokenizer"}
    where = str(folder / source[0])
    _build_backend(where, made)
    made = _merge_added_tokens(folder, hub_classes.apply_class_steps(made, knobs, config), knobs)
    number, size = _get_entry_ids(made), config["vocab_size"] if type(config.get("vocab_size")) is int else 0
    if END_OF_TEXT in number and not any(knobs.get(key) for key in SPECIAL_TOKEN_KEYS[CLS:]):
        made, knobs = _add_special_tokens(made, number)
        number, size = _get_entry_ids(made), 0
    usual = (names for names in DEFAULT_SPECIAL_TOKENS if number.keys() >= set(names))
    special = _get_special_tokens(knobs, next(usual, SPECIAL_TOKENS))
    for key, name in zip(SPECIAL_TOKEN_KEYS, special, strict=True):
        errors.require(name in number, f"{where}: {key}", name, "an entry of the vocabulary")
    added, flags = made.get("added_tokens", []), knobs.get("mask_token")
    flags = flags if isinstance(flags, dict) else {"lstrip": source == GPT2_FILES}  # as RoBERTa's mask takes its space
    if any(map(flags.get, ("lstrip", "rstrip"))) and all(one["content"] != special[MASK] for one in added):
        mask = _make_added_token(number[special[MASK]], flags | {"content": special[MASK], "special": True})
        made |= {"added_tokens": [*added, mask]}
    errors.require(len(set(special)) == NUM_SPECIAL, f"{where}: special tokens", special, "five that differ")
    are_numbers = sorted(number.values()) == list(range(len(number)))
    errors.require(are_numbers, f"{where}: numbers of the vocabulary", len(number), "each from 0 on once")
    padded = {"vocab_size": size} if len(number) < size <= len(number) + MAX_PADDING else {}
    return build_tokenizer(json.dumps({"special": special, "tokenizer": made} | padded, ensure_ascii=False).encode())


def _merge_added_tokens(folder, made, knobs):
    """tokenizer.json with the tokens that the files beside it add, as transformers merges them."""
    listed = {one["content"]: one for one in made.get("added_tokens", ())}
    path, decoder = folder / TOKENIZER_CONFIG_FILE, knobs.get("added_tokens_decoder")
    try:
        if decoder is not None:
            beside = {one["content"]: _make_added_token(number, one) for number, one in decoder.items()}
        else:
            path, extra = folder / ADDED_TOKENS_FILE, knobs.get("additional_special_tokens") or []
            special = {*_get_special_tokens(knobs), *(knobs.get("extra_special_tokens") or extra)}
            beside = {
                content: _make_added_token(number, {"content": content, "special": content in special})
                for content, number in _read_json(path).items()
            } | listed
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.ConfigError(f"{path}: expected the number of each added token ({error!r})") from None
    tokens = listed | beside
    return made if tokens == listed else made | {"added_tokens": sorted(tokens.values(), key=lambda one: one["id"])}


def _make_added_token(number, token):
    """An entry of added_tokens in tokenizer.json; token: its content, and flags that are not the default."""
    flags = {flag: token.get(flag, False) for flag in ("single_word", "lstrip", "rstrip")}
    special = token.get("special", False)
    normalized = token.get("normalized", not special)
    return {"id": int(number), "content": token["content"], **flags, "normalized": normalized, "special": special}


def has_vocabulary(folder: Path | str) -> bool:
    """Whether a folder has a vocabulary by a name that Hugging Face's have."""
    return any(Path(folder, name).exists() for name in (TOKENIZER_FILE, VOCAB_FILE, *GPT2_FILES[1:]))


def count_pair_separators(tokenizer: Tokenizer) -> int:
    """How many [SEP] stand between the texts of a pair: one, or as many as the tokenizer's own pairs have."""
    return _count_pair_separators(tokenizer.model) if tokenizer.kind == "hub" else 1


@functools.lru_cache(maxsize=1)
def _count_pair_separators(model) -> int:
    tool = _build_backend(TOKENIZER_FILE, json.loads(model)["tokenizer"])
    return max(1, tool.num_special_tokens_to_add(is_pair=True) - 2)


def get_original_ids(tokenizer: Tokenizer) -> np.ndarray:
    """order_V: the number, where it came from, of each entry of a tokenizer of ours."""
    if tokenizer.kind != "hub":
        return np.arange(tokenizer.vocab_size)
    saved = json.loads(tokenizer.model)
    return _order_entries(saved["special"], _get_entry_ids(saved["tokenizer"]), saved.get("vocab_size", 0))


def build_tokenizer(model: bytes) -> Tokenizer:
    """The tokenizer of a saved model: {"special": five names in our order, "tokenizer": tokenizer.json}.

    "vocab_size", where it is there, is that of a model whose tables have more rows than the vocabulary has entries; an
    entry of no text stands for each of them.
    """
    saved = json.loads(model)
    try:
        made, special = saved["tokenizer"], saved["special"]
        tool, number = _build_text_backend(made, special), _get_entry_ids(made)
        order_V = _order_entries(special, number, saved.get("vocab_size", 0))
    except (KeyError, TypeError) as error:
        raise errors.ConfigError(f"tokenizer: expected a saved Hugging Face tokenizer ({error!r})") from None
    ours_V = np.argsort(order_V)
    ours_V[order_V[:NUM_SPECIAL]] = UNK  # what no text is to say
    ours = ours_V.tolist()
    padding = [f"[padding {i}]" for i in range(len(number), len(order_V))]
    name_V = np.array([*sorted(number, key=number.__getitem__), *padding], object)
    bytewise = word_layout.has_pre_tokenizer(made, "ByteLevel")
    names = [*SPECIAL_TOKENS, *name_V[order_V[NUM_SPECIAL:]]]
    pieces = [*SPECIAL_TOKENS, *map(bpe.format_entry, names[NUM_SPECIAL:])] if bytewise else names
    decoder: Any = tool.decoder or word_layout.build_decoder(made)
    starts_V, ends_V = word_layout.find_word_bounds(made, pieces, decoder)

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
    hide = make_mask_encoder(
        lambda: _build_text_backend(made, special), ours, mask.get("lstrip", False), mask.get("rstrip", False)
    )
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
    return tokenizer._replace(shows_words=word_layout.shows_words(tokenizer, tool))


def _get_entry_ids(made) -> dict[str, int]:
    """The number there of each entry of the vocabulary."""
    vocab = made["model"]["vocab"]
    number = dict(vocab) if isinstance(vocab, dict) else {name: i for i, (name, _) in enumerate(vocab)}
    return number | {one["content"]: one["id"] for one in made.get("added_tokens", ())}


def _order_entries(special, number, size) -> np.ndarray:
    first = [number[name] for name in special]
    return np.array([*first, *sorted({*number.values(), *range(size)} - set(first))])


def _read_json(path) -> dict[str, Any]:
    try:
        found = json.loads(files.read_regular_file(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise errors.ConfigError(f"{path}: expected JSON ({errors.first_line(error)})") from None
    errors.require(isinstance(found, dict), str(path), found, "a JSON object")
    return found


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


def _build_backend(where, made):
    import tokenizers

    try:
        longest = max(map(len, _get_entry_ids(made)), default=0)
        errors.require(longest <= MAX_ENTRY_LENGTH, "letters of an entry", longest, f"at most {MAX_ENTRY_LENGTH}")
        for step in ("normalizer", "decoder"):
            bound = _bound_expansion(made.get(step) or {})
            errors.require(bound <= MAX_EXPANSION, f"letters of {step} for one", bound, f"at most {MAX_EXPANSION}")
        return _Backend(tokenizers.Tokenizer.from_str(json.dumps(made)))
    except Exception as error:  # the library raises nothing more exact
        reason = errors.first_line(error)
        raise errors.ConfigError(f"{where}: expected a file of the tokenizers library ({reason})") from None


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
    tool = _build_backend(TOKENIZER_FILE, made | plain | {"model": model, "added_tokens": added})
    for one in added:
        number = tool.token_to_id(one["content"])
        expected = f"the next number, {number}"
        errors.require(number == one["id"], f"{TOKENIZER_FILE}: added_tokens", one["id"], expected)
    return tool


def _get_special_tokens(knobs, usual=SPECIAL_TOKENS) -> list[str]:
    """The special tokens in our order, by the names that are given, else by the usual ones."""
    named = [knobs.get(key) for key in SPECIAL_TOKEN_KEYS]
    named = [one.get("content") if isinstance(one, dict) else one for one in named]
    return [name if isinstance(name, str) else other for name, other in zip(named, usual, strict=True)]


def _convert_vocab_file(path, knobs):
    """tokenizer.json of BERT's list of entries, but for the steps that its class makes."""
    import tokenizers

    try:
        entries = [line.rstrip() for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise errors.ConfigError(f"{path}: expected UTF-8, an entry a line ({errors.first_line(error)})") from None
    special = _get_special_tokens(knobs)
    number = {entry: i for i, entry in enumerate(entries)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(number, unk_token=special[UNK]))
    made.decoder = tokenizers.decoders.WordPiece()
    around = [(name, entries.index(name)) for name in special[CLS:MASK] if name in entries]
    if len(around) == 2:
        made.post_processor = tokenizers.processors.BertProcessing(*reversed(around))
    return json.loads(made.to_str())


def _convert_gpt2_files(folder):
    """tokenizer.json of GPT-2's entries and merges."""
    import tokenizers

    vocab = _read_json(folder / GPT2_FILES[0])
    try:
        lines = (folder / GPT2_FILES[1]).read_text(encoding="utf-8-sig").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        tool = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    except Exception as error:  # the library raises nothing more exact
        expected = f"pairs of entries of {GPT2_FILES[0]}, one a line ({errors.first_line(error)})"
        raise errors.ConfigError(f"{folder / GPT2_FILES[1]}: expected {expected}") from None
    tool.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tool.decoder = tokenizers.decoders.ByteLevel()
    if END_OF_TEXT in vocab:
        tool.add_special_tokens([tokenizers.AddedToken(END_OF_TEXT, special=True)])
    return json.loads(tool.to_str())


def _add_special_tokens(made, number):
    """(tokenizer.json, names of the special tokens) of GPT-2's: its one is our [SEP]; the other four are added."""
    special: dict[str, str] = dict(zip(SPECIAL_TOKEN_KEYS, SPECIAL_TOKENS, strict=True))
    special[SPECIAL_TOKEN_KEYS[SEP]] = END_OF_TEXT
    new = [name for name in special.values() if name not in number]
    added = [_make_added_token(len(number) + i, {"content": name, "special": True}) for i, name in enumerate(new)]
    return made | {"added_tokens": [*made.get("added_tokens", ()), *added]}, special
