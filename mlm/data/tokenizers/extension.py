"""Words as further entries of a folder's byte-level BPE: all other words, as its steps cut a text, keep their ids."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from mlm.base import errors
from mlm.data.tokenizers import bpe, hub_model
from mlm.data.tokenizers.tokenizer import Tokenizer, sort_by_count

FIELD = "config.tokenizer.new_words"


def extend_tokenizer(tokenizer: Tokenizer, words: Iterable[str], num_words: int = 0) -> Tokenizer:
    """The tokenizer with entries, behind its own, for the words that it splits, the most frequent first.

    A word is found as it stands behind a space, where the steps before the model cut it out whole. BPE then looks for
    it before it merges letters, and leaves all other words as they are. (WordPiece and Unigram would find it within
    longer words; an added token would change the marks around it.) Rows of padding behind the old entries go.

    Args:
        tokenizer: of a Hugging Face folder.
        words: of a text, in which a frequent one comes often.
        num_words: how many become entries; 0: all.

    Raises:
        ConfigError: the tokenizer is no such BPE, would read an entry of its own another way, or splits fewer words.
    """
    saved = json.loads(tokenizer.model) if tokenizer.kind == "hub" else {}
    made = saved.get("tokenizer", {"model": {"type": f"a run's {tokenizer.kind}"}})
    model, is_bytewise = made["model"], hub_model.has_pre_tokenizer(made, "ByteLevel")
    is_exact = model.get("type") == "BPE" and is_bytewise and not model.get("dropout")
    expected = "byte-level BPE of a Hugging Face folder (mlm export writes a run's), without dropout"
    errors.require(is_exact, f"{FIELD}: the tokenizer", model.get("type"), expected)
    tool: Any = hub_model.build_backend(hub_model.TOKENIZER_FILE, made)
    number = hub_model.get_entry_ids(made)

    def cut(text):
        return [part for part, _ in tool.pre_tokenizer.pre_tokenize_str(text)]

    for entry in number:  # what merges do not give would now be found as a whole word
        text = bpe.entry_to_bytes(entry).decode(errors="replace")
        is_merged = [token.value for token in tool.model.tokenize(entry)] == [entry]
        if not is_merged and entry in (*cut(text), *cut(f".{text}")):
            raise errors.ConfigError(f"{FIELD}: expected a tokenizer whose merges give its entry {entry!r}")
    counts = Counter[str]()
    for word, count in Counter(words).items():
        text = f"a {word} a"
        parts = cut(tool.normalizer.normalize_str(text) if tool.normalizer else text)
        if len(parts) == 3 and parts[1] not in number and len(parts[1]) <= hub_model.MAX_ENTRY_LENGTH:
            counts[parts[1]] += count
    expected = f"at most {len(counts)}, the words of the text that the tokenizer splits"
    errors.require(num_words <= len(counts), FIELD, num_words, expected)
    new = sort_by_count(counts)[: num_words or None]
    vocab = number | {word: i for i, word in enumerate(new, max(number.values()) + 1)}
    saved |= {"tokenizer": made | {"model": model | {"ignore_merges": True, "vocab": vocab}}, "vocab_size": 0}
    return hub_model.build_tokenizer(json.dumps(saved, ensure_ascii=False).encode())
