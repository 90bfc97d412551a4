"""Answers in passages: SQuAD's rules for their texts, the best span over windows, and the threshold for none."""

import collections
import math
import re

import numpy as np
import pytest
from small import make_dataset_info, small_config

from mlm.base import estimates
from mlm.data.rows import loader
from mlm.objectives import extractive_qa

CASES = 1000


def plain_words(text):
    """The definition, read again: lower case, then no punctuation, then no articles, then words."""
    kept = [letter for letter in text.lower() if letter not in set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")]
    return [word for word in re.split(r"\s+", re.sub(r"\b(a|an|the)\b", " ", "".join(kept))) if word]


def plain_f1(found, right):
    if not found or not right:
        return float(found == right)
    rest, same = collections.Counter(right), 0
    for word in found:
        if rest[word] > 0:
            rest[word] -= 1
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(found), same / len(right)
    return 2 * precision * recall / (precision + recall)


def test_exact_match_and_f1_are_the_definition():
    rng = np.random.default_rng(0)
    pieces = ["the", "The", "a", "an", "and", "cat", "Cat", "dog's", "dogs", "U.S.", "us", "-", "...", "(the)", "  "]
    seen = set()
    for _ in range(CASES):
        texts = [" ".join(rng.choice(pieces, rng.integers(0, 5))) for _ in range(rng.integers(2, 5))]
        found, references = plain_words(texts[0]), [plain_words(text) for text in texts[1:]]
        exact = extractive_qa.compute_exact_match(texts[0], texts[1:])
        f1 = extractive_qa.compute_f1(texts[0], texts[1:])
        assert exact == float(found in references)
        assert f1 == pytest.approx(max(plain_f1(found, words) for words in references))
        seen.add((exact, 0 < f1 < 1))
    assert len(seen) == 3


def test_what_a_passage_s_words_give_as_references():
    assert extractive_qa.normalize_answer(" The  U.S.-led, a-b theatre\tAN end ") == "usled ab theatre end"
    assert extractive_qa.get_reference_texts([("the", 0), ("cat", 4)]) == ["cat"]
    assert extractive_qa.get_reference_texts([]) == extractive_qa.get_reference_texts([("the", 0)]) == [""]


def test_the_best_answer_is_that_of_all_pairs_in_all_windows():
    rng = np.random.default_rng(1)
    passage = " ".join(map(chr, range(100, 200)))
    spans = [[2 * at, 2 * at + 1] for at in range(100)]
    for case in range(200):
        windows, found, nulls = [], {}, []
        for first in range(0, 40, 20):
            start_L, end_L = rng.normal(size=(2, 64)).round(0 if case % 5 == 0 else 9)
            if case % 5 == 1:  # the best starts stand behind the best ends
                start_L, end_L = np.sort(start_L), np.sort(end_L)[::-1]
            size = int(rng.integers(0, 60))
            windows.append((start_L, end_L, 3, np.array(spans[first : first + size])))
            nulls.append(start_L[0] + end_L[0])
            starts, ends = (
                sorted(range(3, 3 + size), key=lambda at, x_L=x_L: (-x_L[at], at))[:20] for x_L in (start_L, end_L)
            )
            for start in starts:
                for end in ends:
                    if start <= end < start + 30:
                        text = passage[2 * (first + start - 3) : 2 * (first + end - 3) + 1]
                        found[text] = max(found.get(text, -math.inf), start_L[start] + end_L[end])
        answer = extractive_qa.find_best_answer(windows, passage)
        assert answer.null_score == min(nulls)
        assert answer.score == max(found.values(), default=-math.inf)
        assert (found[answer.text] == answer.score) if found else answer.text == ""


def test_answers_are_whole_words():
    rng = np.random.default_rng(3)
    passage = "The (re)unification's 1,000th day: Zo\u00eb, co-author_2 of caf\u00e9s."
    words = [match.span() for match in re.finditer(r"[^\W_]+", passage)]
    for _ in range(CASES):
        first, last = np.sort(rng.choice(len(passage), 2, replace=False)).tolist()
        start_T = end_T = np.zeros(2)
        answer = extractive_qa.find_best_answer([(start_T, end_T, 0, np.array([[first, last]]))], passage)
        start = next((a for a, b in words if a < first < b), first)
        end = next((b for a, b in words if a < last < b), last)
        assert answer.text == passage[start:end]
    for text, span, words in (
        ("the unhappily wed", (6, 9), "unhappily"),
        ("\u0928\u093f\u0930 \u0928", (0, 1), "\u0928\u093f\u0930"),  # a vowel sign is part of its word
        ("\u4e2d\u534e\u4eba", (1, 2), "\u534e"),  # ideographs are words
        ("well-read (yes)", (5, 9), "read"),
    ):
        assert text[slice(*extractive_qa.snap_to_words(text, *span))] == words


def test_the_threshold_is_the_best_there_is():
    rng = np.random.default_rng(2)
    for _ in range(CASES):
        margin_E = rng.normal(size=rng.integers(1, 12)).round(int(rng.integers(0, 3)))
        answered_E, silent_E = rng.integers(0, 3, (2, len(margin_E))) / 2

        def count_right(cut, margin_E=margin_E, answered_E=answered_E, silent_E=silent_E):
            return np.where(margin_E > cut, answered_E, silent_E).sum()

        found = extractive_qa.choose_threshold(margin_E, answered_E, silent_E)
        assert count_right(found) == max(map(count_right, [-math.inf, *margin_E]))


# Two examples of three rows: a passage in two windows, and one that does not say.
PASSAGE = "Ann met the old king"
SPANS = [[0, 3], [4, 7], [8, 11], [12, 15], [16, 20]]
EXAMPLES = [
    {"id": "a", "texts": ("Who?", PASSAGE), "label": (("king", 16), ("old king", 12)), "spans": SPANS},
    {"id": "b", "texts": ("Why?", PASSAGE), "label": (), "spans": SPANS},
]
ROWS = {
    "example": np.array([0, 0, 1]),
    "passage": np.array([2, 2, 2]),
    "first": np.array([0, 2, 0]),
    "segments": np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]]),
}


def columns():
    """The windows hold "Ann met the", "the old king" and "Ann met the old"; [SEP] and padding would win if asked."""
    start_NxL, end_NxL = np.full((2, 3, 7), -5.0)
    start_NxL[:, 5:], end_NxL[:, 5:] = 9, 9
    start_NxL[2, 5], end_NxL[2, 5] = -5, -5  # there it is a token of the passage
    start_NxL[0, 2], end_NxL[0, 2] = 1, 1  # "Ann": 2
    start_NxL[1, 2], end_NxL[1, 4] = 3, 2  # "the old king": 5
    start_NxL[2, 3], end_NxL[2, 3] = 2, 1  # "met": 3
    start_NxL[:, 0], end_NxL[:, 0] = [1, 2, 4], 0  # none
    return {"start_logit": start_NxL, "end_logit": end_NxL, "extractive_qa_nats": np.ones(3)}


def test_examples_are_counted_once_whatever_their_windows():
    found = extractive_qa.compute_answer_metrics(columns(), ROWS, EXAMPLES)
    assert found["predicted"].tolist() == ["the old king", "", ""] and found["score"].tolist() == [4, 0, -1]
    assert found["answer_weight"].tolist() == [1, 0, 1] and found["answer_exact"].tolist() == [1, 0, 1]
    values = {name: estimates.compute_score(score, found)[0] for name, score in extractive_qa.SCORES.items()}
    assert values == {"f1": 1, "exact": 1}
    assert not {"start_logit", "end_logit"} & found.keys() and found["extractive_qa_nats"].tolist() == [1, 1, 1]
    assert found["threshold"].tolist() == [1.5] * 3
    assert found["null_exact"].tolist() == found["null_f1"].tolist() == [0, 0, 1]
    info, cfg = make_dataset_info(small_config(objective="extractive_qa")), small_config(objective="extractive_qa")
    for counts, names in (([3, 1], {"majority_f1": 0.5}), ([4, 0], {}), ([], {})):
        counted = info._replace(class_counts=np.array(counts, np.int64).tobytes())
        references = [score for score in extractive_qa.build(cfg, counted).scores if score.reference]
        assert {score.name: estimates.compute_score(score, found)[0] for score in references} == names
        assert all((score.reference, score.reference_for) == ("majority class", "f1") for score in references)


def test_a_threshold_is_tuned_where_some_have_no_answer_and_none_is_given():
    every = [EXAMPLES[0], EXAMPLES[1] | {"label": (("the", 8),)}]  # there is an answer, though it is normalized away
    assert extractive_qa.compute_answer_metrics(columns(), ROWS, every)["predicted"].tolist() == [
        "the old king",
        "",
        "met",
    ]
    given = columns() | {"threshold": np.full(3, 4.5)}
    assert extractive_qa.compute_answer_metrics(given, ROWS, EXAMPLES)["predicted"].tolist() == ["", "", ""]
    sizes = [loader.count_eval_examples(ROWS | {"ids": ROWS["segments"]}, most) for most in range(5)]
    assert sizes == [3, 2, 2, 3, 3]  # no question lacks some of its windows
    some = {name: value_N[:2] for name, value_N in columns().items()}  # an evaluation of the first rows alone
    assert extractive_qa.compute_answer_metrics(some, ROWS, EXAMPLES)["answer_weight"].tolist() == [1, 0]
