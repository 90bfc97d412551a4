"""Answers in a passage: the best over all windows of an example, and its scores by SQuAD's rules.

Letters in array names: N windows, the packed examples of a split; L tokens of a window; E questions; T passage
tokens of a window.
"""

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import regex

NUM_CANDIDATES = 20  # starts, and ends, of a window that are tried
MAX_ANSWER_TOKENS = 30
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
# Of scripts that write no space between words.
UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\u3099\u309a\u30fc\uff70\uff9e\uff9f\p{Thai}\p{Lao}\p{Khmer}"
    r"\p{Myanmar}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}\p{Javanese}\p{Balinese}\p{Tibetan}]"
)


class Answer(NamedTuple):
    """The best answer to a question over its windows."""

    text: str  # the best answer that is not empty; empty where there is none
    score: float  # sum of its start's and end's logits
    null_score: float  # the same of no answer, both at the first token: the least over windows


def normalize_answer(text: str) -> str:
    """Normalizes an answer: lower case, then no punctuation, no articles, and single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def compute_exact_match(text: str, references: Sequence[str]) -> float:
    """1 where the normalized text equals that of a reference, else 0 (Rajpurkar et al. 2016, section 6.1)."""
    return max(float(normalize_answer(text) == normalize_answer(reference)) for reference in references)


def compute_f1(text: str, references: Sequence[str]) -> float:
    """F1 of the words shared with the best reference; where either text is empty, whether both are."""

    def compute_reference_f1(reference):
        words, reference_words = (normalize_answer(one).split() for one in (text, reference))
        num_shared = (Counter(words) & Counter(reference_words)).total()
        if not words or not reference_words:
            return float(words == reference_words)
        return 2 * num_shared / (len(words) + len(reference_words))

    return max(compute_reference_f1(reference) for reference in references)


def get_reference_texts(answers: Sequence[Sequence]) -> list[str]:
    """The texts of a question's answers, (text, start) each; the empty text where all normalize to nothing."""
    return [text for text, *_ in answers if normalize_answer(text)] or [""]


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return UNSPACED.match(character) is not None


def snap_to_words(passage: str, start: int, end: int) -> tuple[int, int]:
    """The start and end of a span in a passage, in characters, moved outwards to those of its first and last word.

    A word is a run of letters, marks and digits, as BERT's tokenizer cuts words before their pieces. In scripts without
    spaces the span stays where it is, at the tokenizer's own boundaries.
    """

    def is_inside_word(index):
        return 0 < index < len(passage) and all(
            unicodedata.category(letter)[0] in "LMN" and not is_unspaced(letter)
            for letter in passage[index - 1 : index + 1]
        )

    while is_inside_word(start):
        start -= 1
    while is_inside_word(end):
        end += 1
    return start, end


def find_best_answer(windows: Sequence[tuple[np.ndarray, np.ndarray, int, np.ndarray]], passage: str) -> Answer:
    """The answer with the highest sum of logits over a question's windows, at most MAX_ANSWER_TOKENS long.

    Its text is that of whole words, as in BERT's reference code. Each window is (start_L, end_L, first,
    characters_Tx2): the logits (Devlin et al. 2019, sections 4.2 and 4.3); the position where the passage begins; where
    each passage token begins and ends in the passage, in characters.
    """
    best_sum, text = -math.inf, ""
    for start_L, end_L, first, characters_Tx2 in windows:
        start_T, end_T = (np.asarray(x_L[first : first + len(characters_Tx2)], np.float64) for x_L in (start_L, end_L))
        starts, ends = (np.argsort(-x_T, kind="stable")[:NUM_CANDIDATES] for x_T in (start_T, end_T))
        lengths = ends - starts[:, None] + 1
        is_possible = (lengths > 0) & (lengths <= MAX_ANSWER_TOKENS)
        sums = np.where(is_possible, start_T[starts][:, None] + end_T[ends], -math.inf)
        if sums.size and sums.max() > best_sum:
            start, end = np.unravel_index(sums.argmax(), sums.shape)
            best_sum = float(sums.max())
            span = int(characters_Tx2[starts[start]][0]), int(characters_Tx2[ends[end]][1])
            text = passage[slice(*snap_to_words(passage, *span))]
    return Answer(text, best_sum, min(float(start_L[0] + end_L[0]) for start_L, end_L, _, _ in windows))


def choose_threshold(margin_E: np.ndarray, answer_score_E: np.ndarray, null_score_E: np.ndarray) -> float:
    """The margin (score minus null score) above which answering gives the highest sum of scores, halfway between two.

    Of equal sums it takes the one that answers most. The scores are those of each question if it is answered, and if
    not.
    """
    order_E = np.argsort(-margin_E, kind="stable")
    margin_E, gain_E = margin_E[order_E], (answer_score_E - null_score_E)[order_E]
    cuts = np.flatnonzero(np.append(margin_E[:-1] > margin_E[1:], True)) + 1  # numbers of answers; equal margins stay
    total = np.append(0.0, np.cumsum(gain_E)[cuts - 1])
    best = len(total) - 1 - int(np.argmax(total[::-1]))
    if best == 0:
        return math.inf
    count = cuts[best - 1]
    return -math.inf if count == len(margin_E) else float((margin_E[count - 1] + margin_E[count]) / 2)


def compute_answer_metrics(
    columns: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], examples: Sequence[Mapping]
) -> dict:
    """The columns, extended by each question's exact match and F1 in its first window, whose answer_weight is 1.

    "predicted" is the text of the answer, "score" its margin over no answer. "null_exact" and "null_f1" are the exact
    match and F1 of no answer. Where some question has no answer, one is given only above a threshold:
    columns["threshold"] if there is one, else that of the highest F1.

    rows: "example", the question's number; "passage", where the passage begins in the window; "first", the number of
    its token there. examples: "texts", question and passage; "label", (text, start) of each answer; "spans", each
    token's.
    """
    count = len(columns["start_logit"])
    number_E, first_window_E = np.unique(rows["example"][:count], return_index=True)
    windows_by_question = {number: np.flatnonzero(rows["example"][:count] == number) for number in number_E}
    answers = [
        find_best_answer(
            [_get_window(columns, rows, window, examples[number]["spans"]) for window in windows_by_question[number]],
            examples[number]["texts"][1],
        )
        for number in number_E
    ]
    references = [get_reference_texts(examples[number]["label"]) for number in number_E]
    margin_E = np.array([answer.score - answer.null_score for answer in answers])
    pairs = [(answer.text, texts) for answer, texts in zip(answers, references, strict=True)]
    values = {
        name: np.array([[metric(text, texts), metric("", texts)] for text, texts in pairs])
        for name, metric in (("exact", compute_exact_match), ("f1", compute_f1))
    }
    has_unanswerable = any(not examples[number]["label"] for number in number_E)
    threshold = choose_threshold(margin_E, *values["f1"].T) if has_unanswerable else -math.inf
    threshold = columns["threshold"][0] if "threshold" in columns else threshold
    is_answered_E = margin_E > threshold

    def place_in_first_window(values_E):
        column_N = np.zeros(count, np.asarray(values_E).dtype)
        column_N[first_window_E] = values_E
        return column_N

    texts_E = [answer.text if is_answered else "" for answer, is_answered in zip(answers, is_answered_E, strict=True)]
    return {name: column for name, column in columns.items() if name not in ("start_logit", "end_logit")} | {
        **{
            f"answer_{name}": place_in_first_window(np.where(is_answered_E, *value_Ex2.T))
            for name, value_Ex2 in values.items()
        },
        **{f"null_{name}": place_in_first_window(value_Ex2[:, 1]) for name, value_Ex2 in values.items()},
        "answer_weight": place_in_first_window(np.ones(len(answers))),
        "score": place_in_first_window(margin_E),
        "predicted": place_in_first_window(texts_E),
        "threshold": np.full(count, threshold),
    }


def _get_window(columns, rows, window, spans):
    passage, first = int(rows["passage"][window]), int(rows["first"][window])
    num_tokens = max(int((rows["segments"][window] > 0).sum()) - 1 - passage, 0)  # without the last [SEP]
    logits = columns["start_logit"][window], columns["end_logit"][window]
    return *logits, passage, np.asarray(spans[first : first + num_tokens])
