"""Pseudo-log-likelihood: how likely a masked language model finds a sentence, asked one hidden token at a time.

PLL hides each token alone (Salazar et al. 2020). PLL-word-l2r hides the later tokens of the same word with it (Kauf &
Ivanova 2023): a token is easily told from the rest of its own word, so PLL favours words of many tokens.

Letters in array names: S sentences, U those of them whose tokens differ, R rows, T tokens asked for, I clozes, P pairs
of sentences.
"""
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlm import objectives
from mlm.base import config, errors
from mlm.base.estimates import ratio
from mlm.base.special import CLS, NUM_SPECIAL, PAD, SEP, UNK
from mlm.data.rows.loader import lengths
from mlm.data.text.warnings_ import Trouble
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.evaluation.evaluations import EvaluationCase
from mlm.inference.masked_queries import Cloze, scorer
from mlm.train.run.trained_run import Trained

METRICS = ("pll", "pll_word_l2r")


class Clozes(NamedTuple):
    """All that is to be asked about some sentences. Sentences of the same tokens are asked about once."""

    ids_RxL: np.ndarray       # a sentence longer than a row goes on in the next
    row_I: np.ndarray
    place_I: np.ndarray
    end_I: np.ndarray
    alone_I: np.ndarray       # bool: hides one token, and so counts for PLL
    rest_I: np.ndarray        # bool: hides all the rest of a word, and so counts for PLL-word-l2r
    sentence_R: np.ndarray    # of U
    unknown_U: np.ndarray     # tokens that the vocabulary lacks
    which_S: np.ndarray       # of U
    words_S: np.ndarray       # between white space


def clozes(words: Tokenizer, sentences: Sequence[str], length: int) -> Clozes:
    """One cloze a token for each metric, or one for both where they hide the same: at the end of a word.

    Words are the tokenizer's: what SentencePiece's meta symbol starts (punctuation belongs to the word before it),
    what "##" does not continue, or each token. A sentence of more than length - 2 tokens is cut before a word. Unknown
    tokens are shown but not asked for, since no model is trained to predict them.
    """
    number: dict[tuple, int] = {}
    which = [number.setdefault(tuple(ids), len(number)) for ids in words.encode_batch(list(sentences))]
    long = Trouble(f"sentences longer than the {length - 2} tokens that a row has room for, cut")
    rows, sentence_of_row = [], []
    for sentence, ids in enumerate(number):
        pieces = list(cut(words.starts_word_V[list(ids)], length - 2))
        rows += [[CLS, *ids[first:last], SEP] for first, last in pieces]
        sentence_of_row += [sentence] * len(pieces)
        if len(pieces) > 1:
            long.add(repr(words.decode(ids)[:40]))
    long.report()
    ids_RxL = np.full((len(rows), length), PAD, np.int32)
    for ids_L, row in zip(ids_RxL, rows, strict=True):
        ids_L[:len(row)] = row
    row_T, place_T = np.nonzero(ids_RxL >= NUM_SPECIAL)
    # The first word start at or after each place; [SEP] is one.
    start_RxL = np.where(words.starts_word_V[ids_RxL], np.arange(length), length)
    start_RxL = np.minimum.accumulate(start_RxL[:, ::-1], axis=1)[:, ::-1]
    end_T = start_RxL[row_T, place_T + 1]
    more_T = end_T > place_T + 1
    return Clozes(ids_RxL, row_I=np.concatenate([row_T, row_T[more_T]]),
                  place_I=np.concatenate([place_T, place_T[more_T]]).astype(np.int32),
                  end_I=np.concatenate([place_T + 1, end_T[more_T]]).astype(np.int32),
                  alone_I=np.repeat([True, False], [len(row_T), more_T.sum()]),
                  rest_I=np.concatenate([~more_T, more_T[more_T]]),
                  sentence_R=np.array(sentence_of_row, int), unknown_U=np.array([ids.count(UNK) for ids in number]),
                  which_S=np.array(which, int), words_S=np.array([len(text.split()) for text in sentences]))


def cut(starts_T: np.ndarray, room: int) -> Iterator[tuple[int, int]]:
    """Stretches of at most `room` tokens that end before a word, where any word starts in reach."""
    first = 0
    while len(starts_T) - first > room:
        before = np.flatnonzero(starts_T[first + 1:first + room + 1])
        last = first + (before[-1] + 1 if len(before) else room)
        yield first, last
        first = last
    if first < len(starts_T):
        yield first, len(starts_T)


def plan(asked: Clozes, batch_size: int) -> list[tuple[int, np.ndarray]]:
    """Pairs (row length, index_B): which clozes are asked together.

    Every batch has about as many tokens, those of batch_size rows of full length; each row length compiles once.
    """
    longest = asked.ids_RxL.shape[1]
    tokens_I, batches, shorter = (asked.ids_RxL != PAD).sum(-1)[asked.row_I], [], 0
    for length in lengths(longest):
        (index_I,) = np.nonzero((shorter < tokens_I) & (tokens_I <= length))
        rows = batch_size * (longest // length)
        batches += [(length, index_I[first:first + rows]) for first in range(0, len(index_I), rows)]
        shorter = length
    return batches


class Scores(NamedTuple):
    """What a model gives to each sentence, in nats, and what it was asked for there."""

    pll_S: np.ndarray
    pll_word_l2r_S: np.ndarray
    tokens_S: np.ndarray      # asked for
    words_S: np.ndarray       # between white space
    unknown_S: np.ndarray     # tokens not asked for
    rows_S: np.ndarray        # over which a sentence is spread


def scores(score: Callable[[Cloze], np.ndarray], asked: Clozes, batch_size: int) -> Scores:
    """Each sentence's scores, one forward a cloze.

    score: a model's log_prob_B, such as `scorer` makes. batch_size: rows of full length in a batch.
    """
    log_prob_I = np.zeros(len(asked.row_I))
    longest = asked.ids_RxL.shape[1]
    for length, index_B in plan(asked, batch_size):
        filled_B = np.pad(index_B, (0, batch_size * (longest // length) - len(index_B)), "edge")
        cloze = Cloze(asked.ids_RxL[asked.row_I[filled_B], :length], asked.place_I[filled_B], asked.end_I[filled_B])
        log_prob_I[index_B] = score(cloze)[:len(index_B)]
    sentence_I = asked.sentence_R[asked.row_I]

    def total(chosen_I, value_I):
        return np.bincount(sentence_I[chosen_I], value_I[chosen_I], len(asked.unknown_U))[asked.which_S]

    return Scores(total(asked.alone_I, log_prob_I), total(asked.rest_I, log_prob_I),
                  total(asked.alone_I, np.ones(len(log_prob_I))), asked.words_S, asked.unknown_U[asked.which_S],
                  np.bincount(asked.sentence_R, minlength=len(asked.unknown_U))[asked.which_S])


def pseudo_perplexity(given: Scores) -> dict:
    """exp(-sum of PLL / N) over all the sentences, for each metric, with standard errors over sentences ("_se").

    "token": N counts the tokens asked for (Salazar et al. 2020), so vocabularies cannot be compared by it.
    "word": N counts words between white space, the same for every vocabulary; unknown tokens are not asked for and
    lower it. "_nats" is the mean whose exponential the perplexity is. Raises ConfigError where there is nothing to ask.
    """
    errors.require(given.tokens_S.sum() > 0, "sentences", len(given.tokens_S), "some with a token of the vocabulary")
    result = {"sentences": len(given.tokens_S), "tokens": int(given.tokens_S.sum()), "words": int(given.words_S.sum()),
              "unknown_tokens": int(given.unknown_S.sum()), "cut": int((given.rows_S > 1).sum())}
    for metric in METRICS:
        result[metric] = values = {}
        for unit, count_S in (("token", given.tokens_S), ("word", given.words_S)):
            nats, error = ratio(-getattr(given, f"{metric}_S"), count_S)
            perplexity = float(np.exp(np.float64(nats)))
            values |= {f"{unit}_nats": nats, f"{unit}_nats_se": error, f"{unit}_perplexity": perplexity,
                       f"{unit}_perplexity_se": perplexity * error}
    return result


def can(cfg: config.Config) -> str:
    return "" if objectives.seen(cfg) == "rest" else f"config.objective is {cfg.objective}, which masks nothing"


def work(run: Trained, part: EvaluationCase) -> int:
    """Batches that the sentences of a part (part.asked, texts) take."""
    return len(plan(clozes(run.tokenizer, part.asked, run.cfg.pack.seq_len), run.cfg.eval.batch_size))


def of_part(run: Trained, part: EvaluationCase, told: Callable) -> Scores:
    """The scores of a part's sentences."""
    score = scorer(objectives.telling(run.cfg, run.program.model), run.program.run, run.state)

    def watched(cloze):
        log_prob_B = score(cloze)
        told()
        return log_prob_B

    return scores(watched, clozes(run.tokenizer, part.asked, run.cfg.pack.seq_len), run.cfg.eval.batch_size)


def ask(run: Trained, part: EvaluationCase, told: Callable) -> dict:
    """`pseudo_perplexity` of the sentences of a part."""
    return pseudo_perplexity(of_part(run, part, told))
