"""Answers that stand in a passage: the best of all windows of an example, and how right its text is, by SQuAD's rules.

Letters in array names: N rows of a split, which are windows; L tokens of a row; E examples.
"""
import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

BEST = 20                # starts, and ends, of a window that are tried
LONGEST = 30             # tokens of an answer
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class Answer(NamedTuple):
    """What was found in the windows of an example."""

    text: str             # the best answer that is not empty; empty where there is none
    score: float          # the sum of its start's and its end's logit
    null: float           # that of no answer, both at the first token: the least over windows


def normalized(text: str) -> str:
    """In lower case, without punctuation, without articles, and with single spaces, in that order."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(found: str, references: Sequence[str]) -> float:
    """1 where the normalized text is that of one of the references, else 0 (Rajpurkar et al. 2016, section 6.1)."""
    return max(float(normalized(found) == normalized(one)) for one in references)


def f1(found: str, references: Sequence[str]) -> float:
    """F1 of the words that it shares with a reference, of the one with most; of an empty text, whether both are."""
    def of(one):
        words, right = (normalized(text).split() for text in (found, one))
        shared = (Counter(words) & Counter(right)).total()
        return 2 * shared / (len(words) + len(right)) if words and right else float(words == right)

    return max(of(one) for one in references)


def references(answers: Sequence[Sequence]) -> list[str]:
    """The texts of an example's answers, (text, start) each; of none, or of none that says anything, the empty text."""
    return [text for text, *_ in answers if normalized(text)] or [""]


def best(windows: Sequence[tuple[np.ndarray, np.ndarray, int, np.ndarray]], passage: str) -> Answer:
    """The answer with the highest sum of logits over an example's windows, at most LONGEST tokens long.

    windows: start_L and end_L, their logits; the place where the passage begins; and characters_Tx2, where in the
    passage each of its T tokens that the window holds begins and ends (Devlin et al. 2019, sections 4.2 and 4.3).
    """
    top, text = -math.inf, ""
    for start_L, end_L, first, characters_Tx2 in windows:
        start_T, end_T = (np.asarray(x_L[first:first + len(characters_Tx2)], np.float64) for x_L in (start_L, end_L))
        starts, ends = (np.argsort(-x_T, kind="stable")[:BEST] for x_T in (start_T, end_T))
        tokens = ends - starts[:, None] + 1
        sums = np.where((tokens > 0) & (tokens <= LONGEST), start_T[starts][:, None] + end_T[ends], -math.inf)
        if sums.size and sums.max() > top:
            at, to = np.unravel_index(sums.argmax(), sums.shape)
            top, text = float(sums.max()), passage[characters_Tx2[starts[at]][0]:characters_Tx2[ends[to]][1]]
    return Answer(text, top, min(float(start_L[0] + end_L[0]) for start_L, end_L, _, _ in windows))


def threshold(margin_E: np.ndarray, answered_E: np.ndarray, silent_E: np.ndarray) -> float:
    """The margin, score less null, from which on answers are given, so that the sum of what is got is the highest.

    answered_E: what each example gets with its answer, silent_E: with none. Halfway between two margins; of equal sums
    the one that answers most.
    """
    order_E = np.argsort(-margin_E, kind="stable")
    margin_E, gain_E = margin_E[order_E], (answered_E - silent_E)[order_E]
    cuts = np.flatnonzero(np.append(margin_E[:-1] > margin_E[1:], True)) + 1  # how many answer: all of equal margin
    total = np.append(0.0, np.cumsum(gain_E)[cuts - 1])
    most = len(total) - 1 - int(np.argmax(total[::-1]))
    if most == 0:
        return math.inf
    count = cuts[most - 1]
    return -math.inf if count == len(margin_E) else float((margin_E[count - 1] + margin_E[count]) / 2)


def tally(columns: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], examples: Sequence[Mapping]) -> dict:
    """The columns with each example's exact match and F1 on the first of its rows, whose answer_weight is 1; 0 on
    others.

    rows: "example", its number; "passage", the place at which the passage begins in the row; "first", the number of the
    passage's token that stands there. examples: "texts", a question and its passage; "label", (text, start) of each
    answer; "spans", where in the passage each of its tokens begins and ends, in characters. "predicted" is the text of
    the answer, and "score" its logits' sum less that of no answer. Where some example has no answer, one is given only
    where that is above a threshold: columns["threshold"] where that is there, else the one of the highest F1 here.
    """
    count = len(columns["start_logit"])
    example_N, first_of_E = np.unique(rows["example"][:count], return_index=True)
    rows_of = {example: np.flatnonzero(rows["example"][:count] == example) for example in example_N}
    found = [best([_window(columns, rows, row, examples[example]["spans"]) for row in rows_of[example]],
                  examples[example]["texts"][1]) for example in example_N]
    right = [references(examples[example]["label"]) for example in example_N]
    margin_E = np.array([one.score - one.null for one in found])
    got = {name: np.array([[of(one.text, texts), of("", texts)] for one, texts in zip(found, right, strict=True)])
           for name, of in (("exact", exact), ("f1", f1))}
    some_none = any(not examples[example]["label"] for example in example_N)
    cut = columns["threshold"][0] if "threshold" in columns else (
        threshold(margin_E, *got["f1"].T) if some_none else -math.inf)
    answers_E = margin_E > cut

    def on_first(values_E):
        column_N = np.zeros(count, np.asarray(values_E).dtype)
        column_N[first_of_E] = values_E
        return column_N

    return {name: column for name, column in columns.items() if name not in ("start_logit", "end_logit")} | {
        **{f"answer_{name}": on_first(np.where(answers_E, *got_Ex2.T)) for name, got_Ex2 in got.items()},
        "answer_weight": on_first(np.ones(len(found))), "score": on_first(margin_E),
        "predicted": on_first([one.text if said else "" for one, said in zip(found, answers_E, strict=True)]),
        "threshold": np.full(count, cut)}


def _window(columns, rows, row, spans):
    place, first = int(rows["passage"][row]), int(rows["first"][row])
    room = max(int((rows["segments"][row] > 0).sum()) - 1 - place, 0)  # [SEP] stands behind it
    return columns["start_logit"][row], columns["end_logit"][row], place, np.asarray(spans[first:first + room])
