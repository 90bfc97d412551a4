"""A tokenizer as the files that transformers' AutoTokenizer reads, with the same numbers and pieces."""

import json

from mlm.base import errors
from mlm.base.special import CLS, MASK, SEP, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers import bpe, hub, hub_model, wordpiece
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.data.tokenizers.unigram import SPACE


def export_files(
    tokenizer: Tokenizer,
    length: int,
    types: int,
    *,
    reads_words: bool = False,
    reads_source: bool = False,
    adds_special: bool = False,
) -> dict[str, str]:
    """Texts by file name. length: of the longest example; types: segment types of the model.

    reads_words: a space stands before each given word, which is how a tagger was trained; reads_source: a text has
    [SEP] behind it alone; adds_special: a text has [CLS] and [SEP] around it, also where the vocabulary's own folder
    says nothing of them (GPT-2's). Raises ConfigError for a vocabulary that the tokenizers library cannot have.
    """
    special, order_V, second_type = SPECIAL_TOKENS, hub_model.get_original_ids(tokenizer), 0
    if tokenizer.kind == "hub":
        saved = json.loads(tokenizer.model)
        made, special = saved["tokenizer"] | {"padding": None, "truncation": None}, saved["special"]
        needs_template = adds_special and not hub_model.build_backend("", made).num_special_tokens_to_add(False)
    else:
        made, needs_template = _find_special_tokens(BACKEND_BUILDERS[tokenizer.kind](tokenizer), tokenizer.kind), True
        second_type = int(types > 1 and not reads_source)
    if reads_source or needs_template:
        made["post_processor"] = _make_template(special, order_V, second_type, reads_source)
    steps = made.get("pre_tokenizer") or {}
    for step in (steps, *steps.get("pretokenizers", ())) if reads_words else ():
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = True
    knobs = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "model_input_names": ["input_ids", *["token_type_ids"] * (types > 1), "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **dict(zip(hub.SPECIAL_TOKEN_KEYS, special, strict=True)),
    }
    return {
        hub.TOKENIZER_FILE: json.dumps(made, ensure_ascii=False),
        hub.TOKENIZER_CONFIG_FILE: json.dumps(knobs, indent=1, ensure_ascii=False),
    }


def _find_special_tokens(tool, kind):
    """tokenizer.json of a tool of ours which finds the special tokens in a text; [MASK] takes the space before it."""
    import tokenizers

    spaced = SPECIAL_TOKENS[MASK] if kind != "characters" else ""
    tokens = [tokenizers.AddedToken(name, lstrip=name == spaced, normalized=False) for name in SPECIAL_TOKENS]
    tool.add_special_tokens(tokens)
    return json.loads(tool.to_str())


def _make_template(special, order_V, second_type, reads_source):
    """The step that puts special tokens around a text, or a pair whose second text has this type."""
    first, second = ({"Sequence": {"id": name, "type_id": of}} for name, of in (("A", 0), ("B", second_type)))
    cls, sep, last = (
        {"SpecialToken": {"id": special[i], "type_id": of}} for i, of in ((CLS, 0), (SEP, 0), (SEP, second_type))
    )
    single = [first, sep] if reads_source else [cls, first, sep]
    tokens = {special[i]: {"id": special[i], "ids": [int(order_V[i])], "tokens": [special[i]]} for i in (CLS, SEP)}
    template = {"single": single, "pair": [*single, second, last], "special_tokens": tokens}
    return {"type": "TemplateProcessing", **template}


def _build_whole(tokenizer):
    """Words between white space, as Python's split has it, or each character, line ends among them."""
    import tokenizers

    number = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    tool = tokenizers.Tokenizer(tokenizers.models.WordLevel(number, unk_token=SPECIAL_TOKENS[UNK]))
    is_words = tokenizer.kind == "words"
    pattern, behavior = (r"[\s\x1c-\x1f]", "removed") if is_words else (r"(?m).", "isolated")
    tool.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior)
    if not is_words:
        tool.decoder = tokenizers.decoders.Fuse()
    return tool


def _build_unigram(tokenizer):
    """SentencePiece's model: its normalisation, then one space for many and none at the end, then its pieces.

    A part of a text that stands behind a special token begins a word only where a space is between them. The tokenizers
    library looks a letter up together with the marks that combine with it, so that it leaves in parts what NFKC makes
    one of where all are six bytes or more (3 of 71,895 lines in 338 languages), and may cut ties otherwise.
    """
    import sentencepiece
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)  # pyright: ignore[reportAttributeAccessIssue]
    kind = proto.trainer_spec.model_type
    errors.require(kind == 1, "tokenizer", kind, "a Unigram model (1)")
    for flag in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        errors.require(getattr(proto.normalizer_spec, flag), f"tokenizer, {flag}", False, "True, as mlm learns them")
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    scores = [(piece, processor.get_score(i)) for i, piece in enumerate(tokenizer.pieces)]
    tool = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unk_id=UNK, byte_fallback=False))
    normal = tokenizers.normalizers
    table = normal.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    spaces = ((r" +\z", ""), (" {2,}", " "))
    replacements = [normal.Replace(tokenizers.Regex(pattern), text) for pattern, text in spaces]
    tool.normalizer = normal.Sequence([table, *replacements])
    tool.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first")
    tool.decoder = tokenizers.decoders.Metaspace(replacement=SPACE, prepend_scheme="first")
    return tool


BACKEND_BUILDERS = {
    "wordpiece": lambda tokenizer: wordpiece.build_backend(tokenizer.pieces),
    "unigram": _build_unigram,
    "bpe": lambda tokenizer: bpe.build_backend(*bpe.parse_model(tokenizer.model)[:2]),
    "words": _build_whole,
    "characters": _build_whole,
}
