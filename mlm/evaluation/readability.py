"""Readability by the cloze procedure: the share of a passage's deleted words that a model fills in exactly.

Source: Taylor 1953, "Cloze procedure": a new tool for measuring readability, Journalism Quarterly 30(4). Beside it
stands Flesch's reading ease (Flesch 1948, A new readability yardstick, Journal of Applied Psychology). Letters in array
names: P passages.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import regex

from mlm.base import errors, extras, types
from mlm.base.special import CLS, MASK, SEP, UNK
from mlm.data.text import corpus, word_statistics
from mlm.inference import forward_passes, pseudo_likelihood
from mlm.inference.language_model import LanguageModel

DELETION_INTERVAL = 5
WORD = regex.compile(word_statistics.WORD)


class PassageReadability(NamedTuple):
    """How much of a passage a model fills in."""

    text: str
    words: int  # each is deleted once
    exact: int  # words that the model fills in exactly

    @property
    def cloze_score(self) -> float:
        """Taylor's cloze score: the higher it is, the more readable the passage is to the model."""
        return self.exact / self.words


def measure_readability(
    model: LanguageModel, texts: Sequence[str], interval: int = DELETION_INTERVAL
) -> list[PassageReadability]:
    """The cloze score of each text.

    Each version of a text deletes every `interval`-th word at once and keeps the punctuation; `interval` versions
    delete each word once. The model sees how many tokens a deleted word had and fills in the likeliest token for each.
    A word is exact if all its tokens are right. A text longer than a sequence is split. Raises ConfigError for a text
    of fewer than `interval` words, and for a model that does not predict masked tokens.
    """
    requirement = model.get_masking_requirement()
    errors.require(not requirement, "cloze", model.config.objective, requirement)
    errors.require_number("every", interval, 2)
    masked, sources = [], []  # sources: the index of the text, the unmasked ids and the spans of the masked words
    for index, text in enumerate(texts):
        spans = [word.span() for word in WORD.finditer(text)]
        errors.require(len(spans) >= interval, "text", text, f"a passage of {interval} words or more")
        text_ids, words = _locate_words(model.tokenizer, text, spans)
        for version in range(interval):
            for ids, masked_words in _split_text(model.tokenizer, text_ids, words[version::interval], model.length - 2):
                masked.append(_mask_words(ids, masked_words))
                sources.append((index, ids, masked_words))
    outputs = forward_passes.map_sequences(model, masked, forward_passes.compile_predictor(predict_tokens, model))
    words_P, exact_P = np.zeros((2, len(texts)), int)
    for predicted_L, (index, ids, masked_words) in zip(outputs, sources, strict=True):
        words_P[index] += len(masked_words)
        exact_P[index] += sum(
            UNK not in ids[start:end] and ids[start:end] == predicted_L[start:end].tolist()
            for start, end in masked_words
        )
    return [PassageReadability(*row) for row in zip(texts, words_P.tolist(), exact_P.tolist(), strict=True)]


def predict_tokens(model: types.Model, params, ids_BxL):
    """The likeliest id at each position. Computes the logits of one example at a time to save memory."""
    h_BxLxD = model.encode(params["model"], forward_passes.make_tokens(ids_BxL))[0]
    return jax.lax.map(lambda h_LxD: model.logits(params["model"], h_LxD).argmax(-1).astype(jnp.int32), h_BxLxD)


def _locate_words(tokenizer, text, spans) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a text, and the range of ids that hold each word's letters."""
    ids, char_spans = tokenizer.encode_with_offsets(text)
    start_T, end_T = np.array(char_spans, int).reshape(-1, 2).T
    return ids, [
        (int(np.searchsorted(end_T, start, "right")), int(np.searchsorted(start_T, end, "left")))
        for start, end in spans
    ]


def _split_text(tokenizer, ids, words, max_tokens):
    """Sequences of at most `max_tokens` tokens between [CLS] and [SEP], split before words, each with its words."""
    for start, stop in pseudo_likelihood.split_at_words(tokenizer.find_word_starts(np.array(ids)), max_tokens):
        if inside := [(first - start + 1, end - start + 1) for first, end in words if start <= first < end <= stop]:
            yield [CLS, *ids[start:stop], SEP], inside


def _mask_words(ids, words) -> list[int]:
    masked = list(ids)
    for start, end in words:
        masked[start:end] = [MASK] * (end - start)
    return masked


def compute_reading_ease(text: str) -> float:
    """206.835 - 1.015 words per sentence - 84.6 syllables per word: 90 to 100 is very easy, 0 to 30 very difficult.

    pyphen's hyphenation counts the syllables, and misses some. The text must hold a word.
    """
    words, pyphen = WORD.findall(text), extras.import_extra("pyphen", "evaluate", "reading ease")
    hyphenation = pyphen.Pyphen(lang="en_US", left=1, right=1)  # it keeps the dictionary that it has read
    num_sentences = sum(bool(WORD.search(sentence)) for sentence in corpus.split_sentences(text))
    num_syllables = sum(len(hyphenation.positions(word.lower())) + 1 for word in words)
    return 206.835 - 1.015 * len(words) / num_sentences - 84.6 * num_syllables / len(words)
