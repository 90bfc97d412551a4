"""Kinds of vocabulary by name: how each is learnt from text, and made again from its file."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import config, errors, files
from mlm.base.special import NUM_SPECIAL, SPECIAL_TOKENS
from mlm.data.tokenizers import bpe, hub, hub_model, unigram, wordpiece, words
from mlm.data.tokenizers.tokenizer import MAX_TRAINING_PIECE, Tokenizer, sort_by_count


class Kind(NamedTuple):
    """How a kind of vocabulary is learnt, and made again from its file's bytes."""

    train_model: Callable[[int, list[str]], bytes]  # (vocab_size, sentences) -> the bytes
    build_tokenizer: Callable[[bytes], Tokenizer]


def load_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a file; the file's stem names its kind."""
    kind = Path(path).stem
    errors.require_one_of("kind of tokenizer", kind, list(BUILDERS))
    return BUILDERS[kind](files.read_bytes(path))


def load_tokenizer_folder(field: str, folder: str) -> Tokenizer:
    """The tokenizer whose file lies in a folder, as in a run's own. Raises ConfigError, by `field`, for any other."""
    at = files.make_path(folder)
    errors.require(at.is_dir(), field, folder, "a folder that holds a tokenizer's file, such as RUN/tokenizer")
    files_there = (path for path in at.iterdir() if path.suffix in (".model", ".txt", ".json"))
    there = sorted(path for path in files_there if path.stem in BUILDERS)
    if not there and hub.has_vocabulary(folder):
        return hub.read_tokenizer(folder)
    inside = f"; did you mean {str(at / 'tokenizer')!r}?" if (at / "tokenizer").is_dir() else ""
    names = "unigram.model, wordpiece.txt, bpe.json, words.txt, characters.json or hub.json"
    expected = f"a folder that holds one tokenizer's file ({names}); it holds {len(there)}{inside}"
    errors.require(len(there) == 1, field, folder, expected)
    try:
        tokenizer = load_tokenizer(there[0])
    except (OSError, RuntimeError, ValueError) as error:
        reason = f"cannot read {there[0].name} ({errors.first_line(error)})"
        raise errors.ConfigError(f"{field} = {folder!r}: {reason}") from None
    first = tokenizer.pieces[:NUM_SPECIAL]
    errors.require(tuple(first) == SPECIAL_TOKENS, f"{there[0]}: the first entries", first, " ".join(SPECIAL_TOKENS))
    return tokenizer


def train_tokenizer(knobs: config.Tokenizer, sentences: Iterable[str]) -> Tokenizer:
    """A vocabulary of exactly knobs.vocab_size entries, learnt from sentences; the same for the same sentences.

    0 entries, for words and characters alone: those of all of them. Raises ConfigError for a size that the text cannot
    give, and says which it can.
    """
    sample = _sample_sentences(sentences, knobs.sample_characters, whole_words=knobs.kind == "words")
    if not sample:
        raise errors.ConfigError("config.data: no text to learn a vocabulary from")
    return KINDS[knobs.kind].build_tokenizer(KINDS[knobs.kind].train_model(knobs.vocab_size, sample))


def extend_by_text(tokenizer: Tokenizer, knobs: config.Tokenizer, sentences: Iterable[str]) -> Tokenizer:
    """The tokenizer with the knobs.new_words most frequent words of the sentences that it splits as entries."""
    import tokenizers

    cut = tokenizers.pre_tokenizers.Whitespace().pre_tokenize_str
    sample = _sample_sentences(sentences, config.Tokenizer().sample_characters, whole_words=True)
    words = (word for text in sample for word, _ in cut(text) if word[0].isalpha())
    return extend_tokenizer(tokenizer, words, knobs.new_words)


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
    field, saved = "config.tokenizer.new_words", json.loads(tokenizer.model) if tokenizer.kind == "hub" else {}
    made = saved.get("tokenizer", {"model": {"type": f"a run's {tokenizer.kind}"}})
    model, is_bytewise = made["model"], hub_model.has_pre_tokenizer(made, "ByteLevel")
    is_exact = model.get("type") == "BPE" and is_bytewise and not model.get("dropout")
    expected = "byte-level BPE of a Hugging Face folder (mlm export writes a run's), without dropout"
    errors.require(is_exact, f"{field}: the tokenizer", model.get("type"), expected)
    tool: Any = hub_model.build_backend(hub_model.TOKENIZER_FILE, made)
    number = hub_model.get_entry_ids(made)

    def cut(text):
        return [part for part, _ in tool.pre_tokenizer.pre_tokenize_str(text)]

    for entry in number:  # what merges do not give would now be found as a whole word
        text = bpe.entry_to_bytes(entry).decode(errors="replace")
        is_merged = [token.value for token in tool.model.tokenize(entry)] == [entry]
        if not is_merged and entry in (*cut(text), *cut(f".{text}")):
            raise errors.ConfigError(f"{field}: expected a tokenizer whose merges give its entry {entry!r}")
    counts = Counter[str]()
    for word, count in Counter(words).items():
        text = f"a {word} a"
        parts = cut(tool.normalizer.normalize_str(text) if tool.normalizer else text)
        if len(parts) == 3 and parts[1] not in number and len(parts[1]) <= hub_model.MAX_ENTRY_LENGTH:
            counts[parts[1]] += count
    expected = f"at most {len(counts)}, the words of the text that the tokenizer splits"
    errors.require(num_words <= len(counts), field, num_words, expected)
    new = sort_by_count(counts)[: num_words or None]
    vocab = number | {word: i for i, word in enumerate(new, max(number.values()) + 1)}
    saved |= {"tokenizer": made | {"model": model | {"ignore_merges": True, "vocab": vocab}}, "vocab_size": 0}
    return hub_model.build_tokenizer(json.dumps(saved, ensure_ascii=False).encode())


def _sample_sentences(sentences, max_characters, whole_words=False) -> list[str]:
    """All the sentences, or a uniform sample of them (with a fixed seed) that stays under the limit.

    whole_words: long ones are cut at spaces.
    """
    draw, sample, size, share = random.Random(0), [], 0, 1.0
    for sentence in sentences:
        firsts = [*range(0, len(sentence), MAX_TRAINING_PIECE)]
        if whole_words:
            firsts = [sentence.rfind(" ", max(0, i - MAX_TRAINING_PIECE), i) + 1 or i for i in firsts]
        for first, end in itertools.pairwise([*firsts, len(sentence)]):
            if share == 1.0 or draw.random() < share:
                sample.append(sentence[first:end])
                size += len(sample[-1])
            if size > max_characters:
                share /= 2
                sample = [sentence for sentence in sample if draw.random() < 0.5]
                size = sum(map(len, sample))
    return sample


KINDS = {
    "unigram": Kind(unigram.train_model, unigram.build_tokenizer),
    "wordpiece": Kind(wordpiece.train_model, wordpiece.build_tokenizer),
    "bpe": Kind(bpe.train_model, bpe.build_tokenizer),
    "words": Kind(words.train_words, words.build_words),
    "characters": Kind(words.train_characters, words.build_characters),
}
BUILDERS = {name: kind.build_tokenizer for name, kind in KINDS.items()}
BUILDERS |= {"hub": hub_model.build_tokenizer}  # which is never learnt
