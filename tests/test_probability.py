"""The exact probability of documents and next words, against every document that a language of few words can write."""

import itertools

import numpy as np
import pytest
from small import get_refusal

from mlm.base.config import Language
from mlm.data.language import causal_posterior, diffusion_bound
from mlm.data.language.causal_posterior import predict_next_word
from mlm.data.language.diffusion_bound import compute_document_log_probs
from mlm.data.language.grammar import build_grammar, iterate_documents

FEW = Language(
    max_words=8, num_topics=1, num_names=1, zipf_exponent=3.0, modifier_prob=0.0, protagonist_prob=0.9, recall_prob=0.5
)


def test_a_document_is_as_likely_as_it_is_often_drawn():
    drawn = list(itertools.islice(iterate_documents(FEW), 6000))
    texts, counts = np.unique(drawn, return_counts=True)
    share_N = np.exp(compute_document_log_probs(FEW, list(texts)))
    assert share_N.sum() < 1 and len(texts) > 100
    often = share_N * len(drawn) > 10
    error_N = np.sqrt(share_N * (1 - share_N) / len(drawn))
    assert often.sum() > 20 and np.abs((counts / len(drawn) - share_N) / error_N)[often].max() < 4.5


def test_the_next_word_is_the_ratio_of_what_documents_begin_with(monkeypatch):
    """P(w | prefix) = P(documents that begin with prefix w) / P(documents that begin with prefix), all summed up."""
    grammar = tiny_grammar()
    for module in (causal_posterior, diffusion_bound):
        monkeypatch.setattr(module, "build_grammar", lambda language: grammar)
    language = Language(max_words=5)
    every = [" ".join(words) for count in range(1, 6) for words in itertools.product(grammar.words, repeat=count)]
    share = dict(zip(every, np.exp(compute_document_log_probs(language, every)), strict=True))
    assert sum(share.values()) == pytest.approx(1, abs=1e-9)

    def beginning(prefix):
        return sum(p for text, p in share.items() if f"{text} ".startswith(f"{prefix} ") or not prefix)

    for prefix in ("", "a", "b c", "d e b", "a b a d", "b b b b b"):
        words, log_W = predict_next_word(language, prefix)
        assert words == (*grammar.words, "")
        expected_W = [beginning(f"{prefix} {word}".strip()) for word in grammar.words] + [share.get(prefix, 0.0)]
        np.testing.assert_allclose(np.exp(log_W), np.array(expected_W) / beginning(prefix), rtol=1e-4, atol=1e-6)


def tiny_grammar():
    """test_left_floor's language, whose words have names."""
    from test_left_floor import TINY

    none_W = np.full(5, "")
    return build_grammar(FEW)._replace(hmm=TINY, words=("a", "b", "c", "d", "e"), kind_W=none_W, number_W=none_W)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "the hors sleeps .",
            "text 1, word 2 = 'hors': expected a word of the built-in language; did you mean 'horse'?",
        ),
        ("the the the", "text = 'the the the': expected how a document of at most 8 words begins"),
        (" ".join(["the horse sleeps ."] * 4), "expected how a document of at most 8 words begins"),
    ],
)
def test_what_no_document_begins_with_is_named(text, said):
    assert said in get_refusal(predict_next_word, FEW, text)


def test_what_is_no_document_has_no_probability():
    log_N = compute_document_log_probs(
        FEW, ["", "the horse", " ".join(["Anna sleeps ."] * 5), "Anna sleeps .", "Anna Anna"]
    )
    assert (log_N > -np.inf).tolist() == [False, False, False, True, False]
