"""A tokenizer as the files that transformers' AutoTokenizer reads, with the same numbers and pieces."""

import json

from mlm.base import errors
from mlm.base.special import CLS, MASK, SEP, SPECIAL_TOKENS, UNK
from mlm.data.tokenizers import hub
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.data.tokenizers.unigram import SPACE


def export_files(tokenizer: Tokenizer, length: int, types: int) -> dict[str, str]:
    """Texts by file name. length: of the longest example; types: segment types of the model.

    Raises ConfigError for a vocabulary that the tokenizers library cannot have.
    """
    special = SPECIAL_TOKENS
    if tokenizer.kind == "hub":
        saved = json.loads(tokenizer.model)
        made, special = saved["tokenizer"] | {"padding": None, "truncation": None}, saved["special"]
    else:
        made = json.loads(
            _add_special_tokens(
                BACKEND_BUILDERS[tokenizer.kind](tokenizer), types, tokenizer.kind != "characters"
            ).to_str()
        )
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


def _add_special_tokens(tool, types, lstrip):
    """Adds the special tokens to a tool, which finds them in a text and puts them around it.

    lstrip: [MASK] takes the space before it.
    """
    import tokenizers

    tool.add_special_tokens(
        [
            tokenizers.AddedToken(name, lstrip=lstrip and name == SPECIAL_TOKENS[MASK], normalized=False)
            for name in SPECIAL_TOKENS
        ]
    )
    second = ":1" if types > 1 else ""
    tool.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B{second} [SEP]{second}",
        special_tokens=[(SPECIAL_TOKENS[CLS], CLS), (SPECIAL_TOKENS[SEP], SEP)],
    )
    return tool


def _build_wordpiece(tokenizer):
    import tokenizers

    from mlm.data.tokenizers import wordpiece

    tool = wordpiece.build_backend(tokenizer.pieces)
    tool.decoder = tokenizers.decoders.WordPiece()
    return tool


def _build_bpe(tokenizer):
    import tokenizers

    from mlm.data.tokenizers import bpe

    entries, merges, _ = bpe.parse_model(tokenizer.model)
    tool = bpe.build_backend(entries, merges)
    tool.decoder = tokenizers.decoders.ByteLevel()
    return tool


def _build_words(tokenizer):
    import tokenizers

    tool = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {piece: i for i, piece in enumerate(tokenizer.pieces)}, unk_token=SPECIAL_TOKENS[UNK]
        )
    )
    space = tokenizers.Regex(r"[\s\x1c-\x1f]")  # as Python's split has it
    tool.pre_tokenizer = tokenizers.pre_tokenizers.Split(space, "removed")
    return tool


def _build_characters(tokenizer):
    import tokenizers

    tool = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {piece: i for i, piece in enumerate(tokenizer.pieces)}, unk_token=SPECIAL_TOKENS[UNK]
        )
    )
    tool.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"(?m)."), "isolated")  # m: line ends too
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
    errors.require(
        proto.trainer_spec.model_type == 1, "tokenizer", proto.trainer_spec.model_type, "a Unigram model (1)"
    )
    for flag in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        errors.require(getattr(proto.normalizer_spec, flag), f"tokenizer, {flag}", False, "True, as mlm learns them")
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    tool = tokenizers.Tokenizer(
        tokenizers.models.Unigram(
            [(piece, processor.get_score(i)) for i, piece in enumerate(tokenizer.pieces)],
            unk_id=UNK,
            byte_fallback=False,
        )
    )
    normal = tokenizers.normalizers
    tool.normalizer = normal.Sequence(
        [
            normal.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normal.Replace(tokenizers.Regex(r" +\z"), ""),
            normal.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    tool.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first")
    tool.decoder = tokenizers.decoders.Metaspace(replacement=SPACE, prepend_scheme="first")
    return tool


BACKEND_BUILDERS = {
    "wordpiece": _build_wordpiece,
    "unigram": _build_unigram,
    "bpe": _build_bpe,
    "words": _build_words,
    "characters": _build_characters,
}
