"""Folders with tokenizers of each layout that there is, learnt here from text of these tests."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from mlm.base.special import SPECIAL_TOKENS
from mlm.data.tokenizers import hub

TEXT = (
    "Rain came. The horse slept? It did! Then bread was gone. An unbelievable horse, near the river, runs slowly; "
    "\u4e2d\u6587\u6587\u5b57\u3002\u4e0b\u96e8\u4e86\uff01 The cat's bread isn't here (yet). Zo\u00eb slept, too.\n\n\nThe end\u2026 is near: it rained.\n"
    "Was that the river?  It was the  river!\tYes. And 12 horses ran 3.5 miles\u3002The horses sleep."
)
LETTERS = sorted({*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?()'\u2026", *TEXT} - {*" \n\t"})
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _learn(model, trainer, splits, size, **settings):
    tool = tokenizers.Tokenizer(model)
    tool.pre_tokenizer = splits
    tool.train_from_iterator(
        TEXT.split("\n") * 3, trainer(vocab_size=size, special_tokens=list(SPECIAL_TOKENS), **settings)
    )
    return json.loads(tool.to_str())


def _learn_pieces(**change):
    """BPE with a mark for a space and bytes for what it does not know, as Gemma and Llama have it."""
    split = pre_tokenizers.Metaspace(prepend_scheme="never")
    made = _learn(models.BPE(unk_token="[UNK]"), trainers.BpeTrainer, split, 260, initial_alphabet=LETTERS)
    vocab = made["model"]["vocab"]
    made["model"] |= {"byte_fallback": True, "vocab": vocab | {name: len(vocab) + i for i, name in enumerate(BYTES)}}
    return made | change


def _state(step):
    return json.loads(step.__getstate__())


def _learn_bytes(prefix=False, split=None):
    splits = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)
    made = _learn(
        models.BPE(),
        trainers.BpeTrainer,
        pre_tokenizers.Sequence([split, splits]) if split else splits,
        500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    return made | {"decoder": _state(decoders.ByteLevel())}


REPLACE = normalizers.Replace(" ", "\u2581")
PIECE_DECODERS = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
LLAMA_SPLIT = tokenizers.Regex(
    r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LAYOUTS = {
    "replace and split": lambda: _learn_pieces(
        normalizer=_state(REPLACE),
        pre_tokenizer=_state(pre_tokenizers.Split(" ", "merged_with_previous")),
        decoder=_state(decoders.Sequence(PIECE_DECODERS)),
    ),
    "prepend and replace": lambda: _learn_pieces(
        normalizer=_state(normalizers.Sequence([normalizers.Prepend("\u2581"), REPLACE])),
        pre_tokenizer=None,
        decoder=_state(decoders.Sequence([*PIECE_DECODERS, decoders.Strip(" ", 1, 0)])),
    ),
    "end of word": lambda: (
        _learn(
            models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"),
            trainers.BpeTrainer,
            pre_tokenizers.Whitespace(),
            300,
            end_of_word_suffix="</w>",
            initial_alphabet=LETTERS,
        )
        | {"decoder": _state(decoders.BPEDecoder("</w>"))}
    ),
    "bytes": _learn_bytes,
    "bytes, space before": lambda: _learn_bytes(prefix=True),
    "bytes, line ends with marks": lambda: _learn_bytes(split=pre_tokenizers.Split(LLAMA_SPLIT, "isolated")),
    "metaspace": lambda: (
        _learn(models.Unigram(), trainers.UnigramTrainer, pre_tokenizers.Metaspace(), 200, unk_token="[UNK]")
        | {"decoder": _state(decoders.Metaspace())}
    ),
    "## within words": lambda: (
        _learn(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer, pre_tokenizers.BertPreTokenizer(), 260)
        | {"decoder": _state(decoders.WordPiece(cleanup=False)), "normalizer": _state(normalizers.BertNormalizer())}
    ),
    "between spaces": lambda: _learn(
        models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer, pre_tokenizers.WhitespaceSplit(), 100
    ),
    "no mark": lambda: _learn(models.BPE(unk_token="[UNK]"), trainers.BpeTrainer, pre_tokenizers.Whitespace(), 250),
}
LOSSLESS = ("replace and split", "prepend and replace", "bytes", "bytes, space before", "bytes, line ends with marks")


def write(name: str, folder: Path) -> Path:
    """The folder, with the tokenizer of a layout in it."""
    (folder / hub.TOKENIZER_FILE).write_text(json.dumps(LAYOUTS[name]()), encoding="utf-8")
    knobs = {"tokenizer_class": "PreTrainedTokenizerFast"} | dict(
        zip(hub.SPECIAL_TOKEN_KEYS, SPECIAL_TOKENS, strict=True)
    )
    (folder / hub.TOKENIZER_CONFIG_FILE).write_text(json.dumps(knobs), encoding="utf-8")
    return folder
