"""Pseudo-log-likelihood: how likely a masked language model finds a sentence, one masked token at a time.

PLL masks each token alone (Salazar et al. 2020). PLL-word-l2r also masks the later tokens of the same word (Kauf &
Ivanova 2023): a token is easy to predict from the rest of its word, so PLL favours words of many tokens.

Letters in array names: S sentences, U those of distinct tokens, R sequences, T scored tokens, I queries, P pairs of
sentences.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlm.base import errors
from mlm.base.estimates import compute_ratio
from mlm.base.special import CLS, NUM_SPECIAL, PAD, SEP, UNK
from mlm.base.warnings_ import WarningCounter
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.inference.batching import choose_lengths
from mlm.inference.forward_passes import MaskedQueries

METRICS = ("pll", "pll_word_l2r")


class SentenceQueries(NamedTuple):
    """All masked queries of some sentences. Sentences of the same tokens share their queries."""

    ids_RxL: np.ndarray  # a sentence longer than a sequence continues in the next
    sequence_I: np.ndarray  # of R
    position_I: np.ndarray
    end_I: np.ndarray
    in_pll_I: np.ndarray  # bool: masks one token, as PLL does
    in_word_l2r_I: np.ndarray  # bool: masks the rest of a word, as PLL-word-l2r does
    sentence_R: np.ndarray  # of U
    unknown_U: np.ndarray  # number of unknown tokens
    unique_S: np.ndarray  # of U
    words_S: np.ndarray  # number of words between white space


def build_queries(tokenizer: Tokenizer, sentences: Sequence[str], length: int) -> SentenceQueries:
    """One query per token and metric, or one for both metrics where they mask the same: at the end of a word.

    The tokenizer defines the words: what SentencePiece's meta symbol starts (punctuation belongs to the word before
    it), what "##" does not continue, or each token. A sentence of more than length - 2 tokens is split before a word.
    Unknown tokens are visible but not scored, since no model is trained to predict them.
    """
    unique: dict[tuple, int] = {}
    unique_indices = [unique.setdefault(tuple(ids), len(unique)) for ids in tokenizer.encode_batch(list(sentences))]
    sequences, sentence_of_sequence, faults = [], [], WarningCounter()
    for sentence, ids in enumerate(unique):
        spans = list(split_at_words(tokenizer.find_word_starts(np.array(ids, int)), length - 2))
        sequences += [[CLS, *ids[start:end], SEP] for start, end in spans]
        sentence_of_sequence += [sentence] * len(spans)
        if len(spans) > 1:
            kind = f"sentences longer than {length - 2} tokens, split over several sequences"
            faults.add(kind, repr(tokenizer.decode(ids)[:40]))
    faults.report()
    ids_RxL = np.full((len(sequences), length), PAD, np.int32)
    for ids_L, sequence in zip(ids_RxL, sequences, strict=True):
        ids_L[: len(sequence)] = sequence
    sequence_T, position_T = np.nonzero(ids_RxL >= NUM_SPECIAL)
    # The first word start at or after each position; [SEP] counts as one.
    start_RxL = np.where(tokenizer.find_word_starts(ids_RxL), np.arange(length), length)
    start_RxL = np.minimum.accumulate(start_RxL[:, ::-1], axis=1)[:, ::-1]
    end_T = start_RxL[sequence_T, position_T + 1]
    has_rest_T = end_T > position_T + 1
    return SentenceQueries(
        ids_RxL,
        sequence_I=np.concatenate([sequence_T, sequence_T[has_rest_T]]),
        position_I=np.concatenate([position_T, position_T[has_rest_T]]).astype(np.int32),
        end_I=np.concatenate([position_T + 1, end_T[has_rest_T]]).astype(np.int32),
        in_pll_I=np.repeat([True, False], [len(sequence_T), int(has_rest_T.sum())]),
        in_word_l2r_I=np.concatenate([~has_rest_T, has_rest_T[has_rest_T]]),
        sentence_R=np.array(sentence_of_sequence, int),
        unknown_U=np.array([ids.count(UNK) for ids in unique]),
        unique_S=np.array(unique_indices, int),
        words_S=np.array([len(text.split()) for text in sentences]),
    )


def split_at_words(starts_T: np.ndarray, max_tokens: int) -> Iterator[tuple[int, int]]:
    """Spans of at most `max_tokens` tokens that end before a word, or anywhere where no word starts in reach."""
    start = 0
    while len(starts_T) - start > max_tokens:
        word_starts = np.flatnonzero(starts_T[start + 1 : start + max_tokens + 1])
        end = start + (word_starts[-1] + 1 if len(word_starts) else max_tokens)
        yield start, end
        start = end
    if start < len(starts_T):
        yield start, len(starts_T)


def plan_batches(queries: SentenceQueries, batch_size: int, program_tokens: int = 0) -> list[tuple[int, np.ndarray]]:
    """Pairs (sequence length, index_B): the queries of each batch.

    All batches have about as many tokens as batch_size sequences of full length. Each length compiles once;
    program_tokens: as in `batching.choose_lengths`, which chooses them.
    """
    max_len = queries.ids_RxL.shape[1]
    tokens_I, batches, shorter = (queries.ids_RxL != PAD).sum(-1)[queries.sequence_I], [], 0
    for length in choose_lengths(tokens_I, max_len, program_tokens):
        (index_I,) = np.nonzero((shorter < tokens_I) & (tokens_I <= length))
        size = batch_size * (max_len // length)
        batches += [(length, index_I[first : first + size]) for first in range(0, len(index_I), size)]
        shorter = length
    return batches


class SentenceScores(NamedTuple):
    """The scores of each sentence, in nats, and its counts."""

    pll_S: np.ndarray
    pll_word_l2r_S: np.ndarray
    tokens_S: np.ndarray  # scored tokens
    words_S: np.ndarray  # words between white space
    unknown_S: np.ndarray  # unknown tokens, which are not scored
    sequences_S: np.ndarray  # sequences that the sentence is split over


def score_queries(
    score: Callable[[MaskedQueries], np.ndarray],
    queries: SentenceQueries,
    batch_size: int,
    progress: Callable[[float], Any] = lambda share: None,
    program_tokens: int = 0,
) -> np.ndarray:
    """log_prob_I of the queries, one forward pass for each.

    score: log_prob_B of a batch of queries, such as `forward_passes.make_scorer` makes. progress: called with the share
    of the queries so far. Others as for `plan_batches`.
    """
    log_prob_I, done = np.zeros(len(queries.sequence_I)), 0
    max_len = queries.ids_RxL.shape[1]
    for length, index_B in plan_batches(queries, batch_size, program_tokens):
        padded_B = np.pad(index_B, (0, batch_size * (max_len // length) - len(index_B)), "edge")
        batch = MaskedQueries(
            queries.ids_RxL[queries.sequence_I[padded_B], :length],
            queries.position_I[padded_B],
            queries.end_I[padded_B],
        )
        log_prob_I[index_B] = score(batch)[: len(index_B)]
        done += len(index_B)
        progress(done / len(log_prob_I))
    return log_prob_I


def score_sentences(
    score: Callable[[MaskedQueries], np.ndarray],
    queries: SentenceQueries,
    batch_size: int,
    progress: Callable[[float], Any] = lambda share: None,
) -> SentenceScores:
    """Scores sentences; the arguments are those of `score_queries`."""
    log_prob_I = score_queries(score, queries, batch_size, progress)
    sentence_I = queries.sentence_R[queries.sequence_I]

    def sum_by_sentence(selected_I, value_I):
        return np.bincount(sentence_I[selected_I], value_I[selected_I], len(queries.unknown_U))[queries.unique_S]

    return SentenceScores(
        sum_by_sentence(queries.in_pll_I, log_prob_I),
        sum_by_sentence(queries.in_word_l2r_I, log_prob_I),
        sum_by_sentence(queries.in_pll_I, np.ones(len(log_prob_I))),
        queries.words_S,
        queries.unknown_U[queries.unique_S],
        np.bincount(queries.sentence_R, minlength=len(queries.unknown_U))[queries.unique_S],
    )


def compute_pseudo_perplexity(scores: SentenceScores, sentences: Sequence[str]) -> dict:
    """exp(-sum of PLL / N) over all sentences, for each metric, with standard errors over sentences ("_se").

    "token": N counts the scored tokens (Salazar et al. 2020), so it does not compare vocabularies. "word": N counts
    words between white space, which all vocabularies share; unknown tokens are not scored and lower it. "_nats" is the
    mean whose exponential is the perplexity. "bits_per_byte" is over the bytes of UTF-8 of the sentences as they stand.
    Raises ConfigError where no token is scored.
    """
    errors.require(scores.tokens_S.sum() > 0, "sentences", len(scores.tokens_S), "some with a token of the vocabulary")
    bytes_S = np.array([len(text.encode("utf-8", "surrogatepass")) for text in sentences])
    result: dict[str, Any] = {
        "sentences": len(scores.tokens_S),
        "tokens": int(scores.tokens_S.sum()),
        "words": int(scores.words_S.sum()),
        "unknown_tokens": int(scores.unknown_S.sum()),
        "split_sentences": int((scores.sequences_S > 1).sum()),
    }
    for metric in METRICS:
        result[metric] = values = {}
        for unit, count_S in (("token", scores.tokens_S), ("word", scores.words_S)):
            nats, error = compute_ratio(-getattr(scores, f"{metric}_S"), count_S)
            perplexity = float(np.exp(np.float64(nats)))
            values |= {
                f"{unit}_nats": nats,
                f"{unit}_nats_se": error,
                f"{unit}_perplexity": perplexity,
                f"{unit}_perplexity_se": perplexity * error,
            }
        bits_S = -getattr(scores, f"{metric}_S") / np.log(2)
        values["bits_per_byte"], values["bits_per_byte_se"] = compute_ratio(bits_S, bytes_S)
    return result
