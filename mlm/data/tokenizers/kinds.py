"""Kinds of vocabulary by name: how each is learnt from text, and made again from its file."""

import itertools
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, errors, files
from mlm.base.special import NUM_SPECIAL, SPECIAL_TOKENS
from mlm.data.tokenizers import bpe, extension, hub, hub_model, unigram, wordpiece, words
from mlm.data.tokenizers.tokenizer import MAX_TRAINING_PIECE, Tokenizer


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
    return extension.extend_tokenizer(tokenizer, words, knobs.new_words)


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
