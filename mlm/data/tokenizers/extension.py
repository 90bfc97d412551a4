"""Words as further entries of a tokenizer, behind its own: these keep their ids, and so do texts without the words."""

import json
from collections import Counter
from collections.abc import Iterable

from mlm.base import errors
from mlm.base.special import SPECIAL_TOKENS
from mlm.data.tokenizers import hub, hub_export, hub_model
from mlm.data.tokenizers.tokenizer import Tokenizer, sort_by_count

MARGIN = 1e-3  # nats a letter by which a Unigram model prefers a new word to its pieces


def extend_tokenizer(tokenizer: Tokenizer, words: Iterable[str], vocab_size: int = 0) -> Tokenizer:
    """The tokenizer, as a Hugging Face folder's, with entries for words that it splits, the most frequent first.

    BPE and Unigram find a word behind white space, WordPiece wherever it stands whole; a Unigram model may also cut a
    longer word behind one that it begins with. Rows of padding behind the old entries go. vocab_size: of the result; 0:
    takes all words. Raises ConfigError for a size that they cannot give.
    """
    if tokenizer.kind == "hub":
        saved = json.loads(tokenizer.model)
    else:
        exported = hub_export.export_files(tokenizer, length=0, types=2)
        saved = {"special": SPECIAL_TOKENS, "tokenizer": json.loads(exported[hub.TOKENIZER_FILE])}
    tool = hub_model.build_text_backend(saved["tokenizer"], saved["special"])
    number, counts = hub_model.get_entry_ids(saved["tokenizer"]), Counter[str]()
    for word, count in Counter(words).items():
        text = tool.normalizer.normalize_str(f" {word}") if tool.normalizer else f" {word}"
        parts = [part for part, _ in tool.pre_tokenizer.pre_tokenize_str(text)] if tool.pre_tokenizer else []
        if len(parts) == 1 and parts[0] not in number:
            counts[parts[0]] += count
    largest = len(number) + len(counts)
    is_possible = not vocab_size or tokenizer.vocab_size <= vocab_size <= largest
    expected = f"from {tokenizer.vocab_size} to {largest}, with each word of the text that it splits"
    errors.require(is_possible, "config.tokenizer.extend_to", vocab_size, expected)
    entries = sort_by_count(counts)[: (vocab_size or largest) - len(number)]
    saved |= {"tokenizer": _add_entries(tool, saved["tokenizer"], number, entries), "vocab_size": 0}
    return hub_model.build_tokenizer(json.dumps(saved, ensure_ascii=False).encode())


def _add_entries(tool, made, number, entries):
    """tokenizer.json with new entries: in its model, but for WordPiece, which would find them within words."""
    model, kind = made["model"], type(tool.model).__name__
    new = {entry: i for i, entry in enumerate(entries, len(number))}
    if kind == "WordPiece":
        added = [hub.make_added_token(i, {"content": entry, "single_word": True}) for entry, i in new.items()]
        return made | {"added_tokens": [*made.get("added_tokens", ()), *added]}
    if kind == "Unigram":
        beside = sorted(number, key=number.__getitem__)[len(model["vocab"]) :]  # added tokens, which keep their numbers
        scores = [score for _, score in model["vocab"]]
        scores[model["unk_id"]] = min(scores) - 10.0  # as the library scores a letter that is no piece
        vocab = [*model["vocab"], *([entry, 0.0] for entry in beside)]
        pieces = {entry: tool.model.tokenize(entry) for entry in new}
        vocab += [[entry, sum(scores[one.id] for one in pieces[entry]) + MARGIN * len(entry)] for entry in new]
        return made | {"model": model | {"vocab": vocab}}
    whole = {"ignore_merges": True} if kind == "BPE" else {}  # it looks for a whole word first
    return made | {"model": model | whole | {"vocab": number | new}}
