"""Kinds of vocabulary by name: how each is learnt from text, and made again from its file."""
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mlm.base import config, errors
from mlm.data.tokenizers import unigram, wordpiece, words
from mlm.data.tokenizers.tokenizer import SENTENCE, Tokenizer

SAMPLE = 2 ** 26        # characters a vocabulary is learnt from, at most: SentencePiece takes 25 bytes for each


def load(path: Path | str) -> Tokenizer:
    """The tokenizer that `save` wrote to this path; the file's stem names its kind."""
    kind = Path(path).stem
    errors.one_of("kind of tokenizer", kind, list(KINDS))
    return KINDS[kind].restore(Path(path).read_bytes())


def train(knobs: config.Tokenizer, sentences: Iterable[str]) -> Tokenizer:
    """A vocabulary of exactly knobs.vocab_size entries, learnt from sentences; the same for the same sentences.

    0 entries, for words alone: those of all the words.

    Raises errors.ConfigError for a size that the text cannot give, and says which it can.
    """
    errors.one_of("config.tokenizer.kind", knobs.kind, list(KINDS))
    sample = _sample(sentences)
    if not sample:
        raise errors.ConfigError("config.data: no text to learn a vocabulary from")
    return KINDS[knobs.kind].restore(KINDS[knobs.kind].train(knobs.vocab_size, sample))


class Kind(NamedTuple):
    train: Callable[[int, list[str]], bytes]     # (vocab_size, sentences) -> model
    restore: Callable[[bytes], Tokenizer]


def _sample(sentences) -> list[str]:
    """All the sentences, or so evenly drawn a share of them (with a fixed seed) that they stay under SAMPLE."""
    draw, sample, size, share = random.Random(0), [], 0, 1.0
    for sentence in sentences:
        for first in range(0, len(sentence), SENTENCE):
            if share == 1.0 or draw.random() < share:
                sample.append(sentence[first:first + SENTENCE])
                size += len(sample[-1])
            if size > SAMPLE:
                share /= 2
                sample = [kept for kept in sample if draw.random() < 0.5]
                size = sum(map(len, sample))
    return sample


KINDS = {"unigram": Kind(unigram.train, unigram.restore),
         "wordpiece": Kind(wordpiece.train, wordpiece.restore),
         "words": Kind(words.train, words.restore)}
