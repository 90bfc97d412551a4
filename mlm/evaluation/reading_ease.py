"""Flesch's reading ease of English texts (Flesch 1948, A new readability yardstick, Journal of Applied Psychology)."""
import functools

from mlm.data.text import corpus
from mlm.evaluation.readability import WORD


def reading_ease(text: str) -> float:
    """206.835 - 1.015 words a sentence - 84.6 syllables a word: 90 to 100 very easy, 0 to 30 very difficult.

    Syllables are told from where pyphen's dictionary would hyphenate, which misses some. The text has a word.
    """
    words = WORD.findall(text)
    sentences = sum(bool(WORD.search(sentence)) for sentence in corpus.sentences(text))
    return 206.835 - 1.015 * len(words) / sentences - 84.6 * sum(map(syllables, words)) / len(words)


def syllables(word: str) -> int:
    return len(_dictionary().positions(word.lower())) + 1


@functools.cache
def _dictionary():
    import pyphen
    return pyphen.Pyphen(lang="en_US", left=1, right=1)
