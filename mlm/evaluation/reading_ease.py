"""Flesch's reading ease of English texts (Flesch 1948, A new readability yardstick, Journal of Applied Psychology)."""

import functools

from mlm.base import extras
from mlm.data.text import corpus
from mlm.evaluation.readability import WORD


def compute_reading_ease(text: str) -> float:
    """206.835 - 1.015 words per sentence - 84.6 syllables per word: 90 to 100 is very easy, 0 to 30 very difficult.

    pyphen's hyphenation counts the syllables, and misses some. The text must hold a word.
    """
    words = WORD.findall(text)
    num_sentences = sum(bool(WORD.search(sentence)) for sentence in corpus.split_sentences(text))
    return 206.835 - 1.015 * len(words) / num_sentences - 84.6 * sum(map(count_syllables, words)) / len(words)


def count_syllables(word: str) -> int:
    """The number of syllables of an English word, by its hyphenation."""
    return len(_load_hyphenation().positions(word.lower())) + 1


@functools.cache
def _load_hyphenation():
    pyphen = extras.import_extra("pyphen", "evaluate", "reading ease")
    return pyphen.Pyphen(lang="en_US", left=1, right=1)
