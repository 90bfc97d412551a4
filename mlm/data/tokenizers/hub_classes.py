"""What transformers' tokenizer classes take from tokenizer_config.json, whatever tokenizer.json says of it.

As transformers 5 has it: its classes for BERT, RoBERTa and XLM-R read a vocabulary from tokenizer.json and make the
steps before it anew. Where both files are of one mind, as where it saved them, nothing changes.
"""

from pathlib import Path
from typing import Any

from mlm.base import errors
from mlm.data.tokenizers.unigram import SPACE

CLASS_BY_MODEL_TYPE = {
    "bert": "BertTokenizer",
    "electra": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
}  # where none is named, by the model_type of config.json
MODEL_BY_FILE = {"vocab.txt": "WordPiece", "vocab.json": "BPE"}  # which the class completes
# Classes of BERT's and RoBERTa's models that split text with other programs and read no tokenizer.json.
OTHER_CLASSES = ("BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer", "RoCBertTokenizer")
SWITCHES = ("do_lower_case", "tokenize_chinese_chars", "add_prefix_space")


def check_settings(paths: tuple[Path, Path], knobs: dict[str, Any], config: dict[str, Any], source: str) -> None:
    """Raises ConfigError for a class whose steps are not known, or for a setting of it that is none.

    paths: of tokenizer_config.json, whose content is `knobs`, and of config.json; source: the vocabulary's file.
    """
    where = paths[not knobs.get("tokenizer_class")]
    name = str(knobs.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    known = [one for one, (model, _) in STEPS.items() if model == MODEL_BY_FILE.get(source, model)]
    is_known = not name or name in known or (source not in MODEL_BY_FILE and name not in OTHER_CLASSES)
    errors.require(is_known, f"{where}: tokenizer_class", name, f"one of {', '.join(known)}, to read {source}")
    for key in SWITCHES if name in STEPS or source in MODEL_BY_FILE else ():
        is_switch = isinstance(knobs.get(key, True), bool)
        errors.require(is_switch, f"{paths[0]}: {key}", knobs.get(key), "true or false")


def apply_class_steps(made: dict[str, Any], knobs: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json with the steps that the class makes which tokenizer_config.json names, or else config.json.

    As it is for any other class.
    """
    named = knobs.get("tokenizer_class") or config.get("tokenizer_class")
    name = named or CLASS_BY_MODEL_TYPE.get(str(config.get("model_type")))
    model, steps = STEPS.get(str(name).removesuffix("Fast"), (None, None))
    return made | steps(made, knobs) if steps and made["model"].get("type", model) == model else made


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


STEPS = {
    "BertTokenizer": ("WordPiece", _make_bert_steps),
    "DistilBertTokenizer": ("WordPiece", _make_bert_steps),
    "ElectraTokenizer": ("WordPiece", _make_bert_steps),
    "RobertaTokenizer": ("BPE", _make_roberta_steps),
    "BartTokenizer": ("BPE", _make_roberta_steps),
    "GPT2Tokenizer": ("BPE", _make_gpt2_steps),
    "XLMRobertaTokenizer": ("Unigram", _make_xlm_roberta_steps),
}
