"""The tokenizer of a Hugging Face folder, as transformers reads it: its files, and what its class makes of them.

What tokenizer_config.json names, transformers' tokenizer classes take from it, whatever tokenizer.json says. As
transformers 5 has it: its classes for BERT, RoBERTa and XLM-R read a vocabulary from tokenizer.json and make the steps
before it anew. Where both files are of one mind, as where it saved them, nothing changes.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from mlm.base import errors, files
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers.hub_model import TOKENIZER_FILE, build_backend, build_tokenizer, get_entry_ids
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.data.tokenizers.unigram import SPACE

SPECIAL_TOKEN_KEYS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
DEFAULT_SPECIAL_TOKENS = (SPECIAL_TOKENS, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"))  # BERT's and RoBERTa's
SPECIAL_TOKENS_BY_CLASS = {
    "AlbertTokenizer": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "MPNetTokenizer": ("<pad>", "[UNK]", "<s>", "</s>", "<mask>"),
}  # whose defaults these are
VOCAB_FILE, TOKENIZER_CONFIG_FILE = "vocab.txt", "tokenizer_config.json"
SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE = "special_tokens_map.json", "added_tokens.json"
MODEL_CONFIG_FILE = "config.json"
GPT2_FILES = ("vocab.json", "merges.txt")  # GPT-2's and RoBERTa's
FOLDER_FILES = (TOKENIZER_FILE, VOCAB_FILE, TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE, *GPT2_FILES)
END_OF_TEXT = "<|endoftext|>"  # its one special token, which stands between texts
MAX_PADDING = 4096  # rows of a model's table beyond the vocabulary, which make its size a round number
CLASS_BY_MODEL_TYPE = {
    **dict.fromkeys(("bert", "electra", "distilbert", "neobert"), "BertTokenizer"),
    **dict.fromkeys(("roberta", "roberta-prelayernorm"), "RobertaTokenizer"),
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "mpnet": "MPNetTokenizer",
    "gpt2": "GPT2Tokenizer",
}  # where none is named, by the model_type of config.json
MODEL_BY_FILE = {"vocab.txt": "WordPiece", "vocab.json": "BPE"}  # which the class completes
# Classes of BERT's and RoBERTa's models that split text with other programs and read no tokenizer.json.
OTHER_CLASSES = ("BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer", "RoCBertTokenizer")
SWITCHES = ("do_lower_case", "tokenize_chinese_chars", "add_prefix_space", "keep_accents", "split_by_punct")


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
    named = str(knobs.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    _check_settings(paths, knobs, named, source[0])
    class_name = named or CLASS_BY_MODEL_TYPE.get(str(config.get("model_type")), "")
    if source == (VOCAB_FILE,) and STEPS.get(class_name, ("", None))[0] != MODEL_BY_FILE[VOCAB_FILE]:
        class_name = "BertTokenizer"
    own_special = SPECIAL_TOKENS_BY_CLASS.get(class_name, SPECIAL_TOKENS)
    if source == (TOKENIZER_FILE,):
        made = _read_json(folder / TOKENIZER_FILE)
    elif source == GPT2_FILES:
        made = _convert_gpt2_files(folder)
    else:
        made = _convert_vocab_file(folder / VOCAB_FILE, _get_special_tokens(knobs, own_special))
        # Where nothing says it: lower-casing would make every word of a cased vocabulary unknown.
        lower = all(entry == entry.lower() for entry in made["model"]["vocab"] if entry[:1] != "[")
        knobs = {"do_lower_case": lower} | knobs
    where = str(folder / source[0])
    build_backend(where, made)
    model, steps = STEPS.get(class_name, (None, None))
    if steps and made["model"].get("type", model) == model:
        made = made | steps(made, knobs)
    made = _merge_added_tokens(folder, made, knobs)
    number, size = get_entry_ids(made), config["vocab_size"] if type(config.get("vocab_size")) is int else 0
    if END_OF_TEXT in number and not any(knobs.get(key) for key in SPECIAL_TOKEN_KEYS[CLS:]):
        made, knobs = _add_special_tokens(made, number)
        number, size = get_entry_ids(made), 0
    usual = (names for names in (own_special, *DEFAULT_SPECIAL_TOKENS) if number.keys() >= set(names))
    special = _get_special_tokens(knobs, next(usual, own_special))
    for key, name in zip(SPECIAL_TOKEN_KEYS, special, strict=True):
        errors.require(name in number, f"{where}: {key}", name, "an entry of the vocabulary")
    added, flags = made.get("added_tokens", []), knobs.get("mask_token")
    takes_space = source == GPT2_FILES or class_name == "MPNetTokenizer"  # as RoBERTa's mask
    flags = flags if isinstance(flags, dict) else {"lstrip": takes_space}
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


def _read_json(path) -> dict[str, Any]:
    return files.read_json_object(path) if path.exists() else {}


def _get_special_tokens(knobs, usual=SPECIAL_TOKENS) -> list[str]:
    """The special tokens in our order, by the names that are given, else by the usual ones."""
    named = [knobs.get(key) for key in SPECIAL_TOKEN_KEYS]
    named = [one.get("content") if isinstance(one, dict) else one for one in named]
    return [name if isinstance(name, str) else other for name, other in zip(named, usual, strict=True)]


def _convert_vocab_file(path, special):
    """tokenizer.json of BERT's list of entries, but for the steps that its class makes."""
    import tokenizers

    with errors.explain(str(path), "UTF-8, an entry a line"):
        number = tokenizers.models.WordPiece.read_file(str(path))
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(number, unk_token=special[UNK]))
    made.decoder = tokenizers.decoders.WordPiece()
    around = [(name, number[name]) for name in special[CLS:MASK] if name in number]
    if len(around) == 2:
        made.post_processor = tokenizers.processors.BertProcessing(*reversed(around))
    return json.loads(made.to_str())


def _convert_gpt2_files(folder):
    """tokenizer.json of GPT-2's entries and merges."""
    import tokenizers

    with errors.explain(f"{folder}, {' and '.join(GPT2_FILES)}", "entries, and pairs of them, one a line"):
        tool = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*(str(folder / name) for name in GPT2_FILES)))
    tool.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tool.decoder = tokenizers.decoders.ByteLevel()
    if tool.token_to_id(END_OF_TEXT) is not None:
        tool.add_special_tokens([tokenizers.AddedToken(END_OF_TEXT, special=True)])
    return json.loads(tool.to_str())


def _add_special_tokens(made, number):
    """(tokenizer.json, names of the special tokens) of GPT-2's: its one is our [SEP]; the other four are added."""
    special: dict[str, str] = dict(zip(SPECIAL_TOKEN_KEYS, SPECIAL_TOKENS, strict=True))
    special[SPECIAL_TOKEN_KEYS[SEP]] = END_OF_TEXT
    new = [name for name in special.values() if name not in number]
    added = [_make_added_token(len(number) + i, {"content": name, "special": True}) for i, name in enumerate(new)]
    return made | {"added_tokens": [*made.get("added_tokens", ()), *added]}, special


def _check_settings(paths: tuple[Path, Path], knobs: dict[str, Any], name: str, source: str) -> None:
    """Raises ConfigError for a class whose steps are not known, or for a setting of it that is none.

    paths: of tokenizer_config.json, whose content is `knobs`, and of config.json; name: of the class that one of them
    names, else ""; source: the vocabulary's file.
    """
    where = paths[not knobs.get("tokenizer_class")]
    known = [one for one, (model, _) in STEPS.items() if model == MODEL_BY_FILE.get(source, model)]
    is_known = not name or name in known or (source not in MODEL_BY_FILE and name not in OTHER_CLASSES)
    errors.require(is_known, f"{where}: tokenizer_class", name, f"one of {', '.join(known)}, to read {source}")
    for key in SWITCHES if name in STEPS or source in MODEL_BY_FILE else ():
        is_switch = isinstance(knobs.get(key, True), bool)
        errors.require(is_switch, f"{paths[0]}: {key}", knobs.get(key), "true or false")


def _make_bert_steps(made, knobs):
    return {
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "strip_accents": knobs.get("strip_accents"),
            "handle_chinese_chars": bool(knobs.get("tokenize_chinese_chars", True)),
            "lowercase": bool(knobs.get("do_lower_case", True)),
        },
    }


def _make_mpnet_steps(made, knobs):
    number = get_entry_ids(made)
    _, _, cls, sep, _ = _get_special_tokens(knobs, SPECIAL_TOKENS_BY_CLASS["MPNetTokenizer"])
    around = {"type": "RobertaProcessing", "cls": [cls, number.get(cls)], "sep": [sep, number.get(sep)]}
    around |= {"trim_offsets": True, "add_prefix_space": False}
    return _make_bert_steps(made, knobs) | {"post_processor": around}


def _make_roberta_steps(made, knobs):
    space = bool(knobs.get("add_prefix_space", False))
    step = {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": True}
    return {"normalizer": None, "pre_tokenizer": step}


def _make_gpt2_steps(made, knobs):
    steps, before = _make_roberta_steps(made, knobs), made.get("pre_tokenizer") or {"type": ""}
    return {} if before.items() <= steps["pre_tokenizer"].items() else steps  # what is left out there stays out


def _make_xlm_roberta_steps(made, knobs):
    normal = made.get("normalizer") or {}
    steps = (normal, *normal.get("normalizers", ()))
    table = next((one for one in steps if one.get("type") == "Precompiled"), None)
    scheme = "always" if knobs.get("add_prefix_space", True) else "never"
    words = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    step = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, words]}
    return {"normalizer": table, "pre_tokenizer": step}


def _make_albert_steps(made, knobs):
    steps = _make_xlm_roberta_steps(made, knobs)
    quotes = [{"type": "Replace", "pattern": {"String": mark}, "content": '"'} for mark in ("``", "''")]
    accents = [] if knobs.get("keep_accents", False) else [{"type": "NFKD"}, {"type": "StripAccents"}]
    case = [{"type": "Lowercase"}] if knobs.get("do_lower_case", True) else []
    table = [steps["normalizer"]] if steps["normalizer"] else []
    return steps | {"normalizer": {"type": "Sequence", "normalizers": [*quotes, *accents, *case, *table]}}


def _make_deberta_steps(made, knobs):
    case = [{"type": "Lowercase"}] if knobs.get("do_lower_case", False) else []
    spaces = {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "}
    normal = [*case, spaces, {"type": "NFC"}, {"type": "Strip", "strip_left": False, "strip_right": True}]
    marks = [{"type": "Punctuation", "behavior": "Isolated"}] if knobs.get("split_by_punct", False) else []
    scheme = "always" if knobs.get("add_prefix_space", True) else "first"
    words = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": normal},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*marks, words]},
    }


STEPS = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), ("WordPiece", _make_bert_steps)),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer"), ("BPE", _make_roberta_steps)),
    "AlbertTokenizer": ("Unigram", _make_albert_steps),
    "DebertaV2Tokenizer": ("Unigram", _make_deberta_steps),
    "MPNetTokenizer": ("WordPiece", _make_mpnet_steps),
    "GPT2Tokenizer": ("BPE", _make_gpt2_steps),
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), ("Unigram", _make_xlm_roberta_steps)),
}
