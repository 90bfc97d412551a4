"""Extractive question answering: where in a passage an answer starts and ends (Devlin et al. 2019, 4.2 and 4.3).

The best answer is that of all windows of an example; its scores follow SQuAD's rules.

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

import jax
import jax.numpy as jnp
import numpy as np
import regex

from mlm.base import types
from mlm.base.estimates import Score
from mlm.objectives import heads, labelled, scores

SCORE_NAMES = ("f1", "exact")  # allowed in config.data.labelled.scores
SCORES = {
    name: Score(name, f"held-out {title}", (f"answer_{name}", "answer_weight"), better=1, share=True, chart=True)
    for name, title in (("f1", "answer F1"), ("exact", "exact match"))
}
NULL_COLUMNS = {name: (f"null_{name}",) for name in SCORE_NAMES}  # the scores of no answer
NUM_CANDIDATES = 20  # starts, and ends, of a window that are tried
MAX_ANSWER_TOKENS = 30
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
# Of scripts that write no space between words.
UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\u3099\u309a\u30fc\uff70\uff9e\uff9f\p{Thai}\p{Lao}\p{Khmer}"
    r"\p{Myanmar}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}\p{Javanese}\p{Balinese}\p{Tibetan}]"
)


def build(cfg: types.StaticConfig, dataset: types.DatasetInfo) -> types.Objective:
    """The objective on windows of passages with start_B and end_B, both 0 where a window holds no answer.

    The nats of a window are the mean of those of its start and its end, each among all its tokens. In evaluation the
    sums include the logits, from which `compute_answer_metrics` makes "predicted" and "score". All windows of an
    example are in one split; answer_weight counts windows in training and examples in evaluation. Where some questions
    have no answer, the majority class is that none has one.
    """

    def compute_loss(params, model, batch, key_B, train):
        h_BxLxD = heads.read_features(cfg, params, model, batch, key_B)
        logits_Bx2xL = jnp.moveaxis(heads.apply_word_head(cfg, params["objective"], h_BxLxD, None), -1, 1)
        real_BxL, real_B = batch.text.segments_BxL > 0, heads.flag_real_examples(batch.text)
        log_prob_Bx2xL = jax.nn.log_softmax(jnp.where(real_BxL[:, None], logits_Bx2xL, -1e9))
        target_Bx2 = jnp.stack([batch.labels["start_B"], batch.labels["end_B"]], 1)
        nats_Bx2 = -jnp.take_along_axis(log_prob_Bx2xL, target_Bx2[..., None], axis=-1)[..., 0]
        correct_B = (log_prob_Bx2xL.argmax(-1) == target_Bx2).all(1) * real_B
        sums = {"correct": correct_B, "answer_weight": real_B}
        if not train:
            start_BxL, end_BxL = jnp.moveaxis(logits_Bx2xL * real_BxL[:, None], 1, 0)
            sums |= {"start_logit": start_BxL, "end_logit": end_BxL}
        return nats_Bx2.mean(1) * real_B, real_B, sums

    has_unanswerable = bool(dataset.class_counts) and np.frombuffer(dataset.class_counts, np.int64)[-1] > 0
    model_scores = tuple(SCORES[name] for name in scores.parse_score_names(cfg, SCORE_NAMES))
    return labelled.build_objective(
        cfg,
        "extractive_qa",
        lambda key, width: heads.init_word_head(cfg, key, width, 2),
        compute_loss,
        (
            *model_scores,
            scores.build_loss_score("extractive_qa", "nats per window"),
            *(scores.build_majority_scores(model_scores, dataset, NULL_COLUMNS) if has_unanswerable else ()),
        ),
        Score("accuracy", "training exact spans", ("correct", "extractive_qa_weight"), share=True),
        host_metrics=compute_answer_metrics,
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
    answers = []
    for number in number_E:
        spans, places = examples[number]["spans"], np.flatnonzero(rows["example"][:count] == number)
        windows = [_get_window(columns, rows, window, spans) for window in places]
        answers.append(find_best_answer(windows, examples[number]["texts"][1]))
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

    texts_E = [answer.text if is_answered else "" for answer, is_answered in zip(answers, is_answered_E, strict=True)]
    values_by_name = {
        **{f"answer_{name}": np.where(is_answered_E, *value_Ex2.T) for name, value_Ex2 in values.items()},
        **{f"null_{name}": value_Ex2[:, 1] for name, value_Ex2 in values.items()},
        "answer_weight": np.ones(len(answers)),
        "score": margin_E,
        "predicted": np.asarray(texts_E),
    }
    metrics = {name: column for name, column in columns.items() if name not in ("start_logit", "end_logit")}
    for name, values_E in values_by_name.items():
        metrics[name] = np.zeros(count, values_E.dtype)
        metrics[name][first_window_E] = values_E
    return metrics | {"threshold": np.full(count, threshold)}


def _get_window(columns, rows, window, spans):
    passage, first = int(rows["passage"][window]), int(rows["first"][window])
    num_tokens = max(int((rows["segments"][window] > 0).sum()) - 1 - passage, 0)  # without the last [SEP]
    logits = columns["start_logit"][window], columns["end_logit"][window]
    return *logits, passage, np.asarray(spans[first : first + num_tokens])


SPEC = labelled.build_spec(build, SCORE_NAMES, prediction_rates=labelled.PREDICT_ONCE)
