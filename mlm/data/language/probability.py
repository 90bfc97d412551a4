"""What the built-in language itself says of a text: how likely it is, and which word comes next.

Texts are words with spaces between, a document or, to predict the next word, the beginning of one. A language
is resolved: its `words` say how many a document may hold.

Letters in array names: N texts, L places, W words and, last, the document's end.
"""

from collections.abc import Sequence

import numpy as np

from mlm.base import config, errors
from mlm.data.language import causal_posterior, diffusion_bound
from mlm.data.language.grammar import build_grammar, encode_texts
from mlm.data.language.posterior import compute_log_probs


def compute_document_log_probs(language: config.Language, texts: Sequence[str]) -> np.ndarray:
    """log_N: the exact log-probability of each text as a document, in nats, float64; -inf of what is none.

    Summed over all of them it is 1. Raises ConfigError for a word that is not the language's.
    """
    grammar = build_grammar(language)
    words_NxL = encode_texts(grammar, texts)
    log_P = diffusion_bound.compute_length_log_probs(grammar.hmm, language.max_words)
    log_P = np.append(log_P, -np.inf)  # of any more words
    length_N = log_P[np.minimum((words_NxL >= 0).sum(1), language.max_words + 1)]
    words_N = diffusion_bound.compute_log_probs(grammar.hmm, words_NxL, words_NxL >= 0)
    return np.where(length_N > -np.inf, words_N + length_N, -np.inf)


def predict_next_word(language: config.Language, text: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The words of the language and, last, "" for the document's end; and log_W, the log-probability that each follows.

    Raises ConfigError for a word that is not the language's, and for a text that no document begins with.
    """
    grammar = build_grammar(language)
    words_1xL = encode_texts(grammar, [text])
    no_document = f"how a document of at most {language.max_words} words begins, after which more may come"
    errors.require(words_1xL.shape[1] <= language.max_words, "text", text, no_document)
    try:
        known = causal_posterior.compute_causal_posterior(grammar.hmm, words_1xL, language.max_words)
    except ValueError:
        raise errors.ConfigError(f"text = {errors.format_value(text)}: expected {no_document}") from None
    last = type(known)(*(x_Kx[-1:] for x_Kx in known))
    return (*grammar.words, ""), compute_log_probs(causal_posterior.add_end_state(grammar.hmm), last)[0]
