"""Statistics of words, by which the built-in language and texts are compared: both cut into passages of one length.

All statistics depend on how many words are counted, so that sources are compared at equal numbers. Letters in array
names: P passages, L places of a passage, W words of the vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import regex

from mlm.base.special import CLS, NUM_SPECIAL
from mlm.data.rows import ngram

# With vowel signs and accents, which are letters of their own in many scripts, and joiners as of Persian.
LETTER = r"\p{L}\p{M}\p{N}_"
WORD = rf"[{LETTER}]+(?:['\u2019\u200c\u200d-][{LETTER}]+)*"
WORD_OR_MARK = regex.compile(rf"<[{LETTER}]+>|{WORD}|[^{LETTER}\s\x1c-\x1f]\p{{M}}*")  # or a corpus's <unk>
DISTANCES = (1, 2, 3, 5, 10, 20, 50, 100)
RARE = 1e-3  # a word is rare below this share of all words: it says what a passage is about
NUM_COMMON = 1000  # words that mutual information tells apart; all others count as one
HELD_OUT = 10  # one of so many passages is held out from the n-gram models
MAX_ORDER = 5


def split_words(text: str) -> list[str]:
    """The words and punctuation marks of a text, in lower case."""
    return WORD_OR_MARK.findall(text.lower())


def sample_passages(documents: Iterable[Sequence[str]], length: int, num_words: int) -> list[Sequence[str]]:
    """Passages of at most `length` words, each of one document, evenly spaced: about num_words in all, if there are."""
    cut = [words[i : i + length] for words in documents for i in range(0, len(words), length)]
    most = max(1, round(num_words / max(1, np.mean([len(passage) for passage in cut])))) if cut else 0
    return [cut[i] for i in np.linspace(0, len(cut) - 1, min(most, len(cut))).round().astype(int)]


def number_words(passages: Sequence[Sequence[str]]) -> np.ndarray:
    """words_PxL: the rank of each word by its frequency, from 0; -1 after a passage's end."""
    count = Counter(word for passage in passages for word in passage)
    rank = {word: i for i, (word, _) in enumerate(count.most_common())}
    words_PxL = np.full((len(passages), max(map(len, passages))), -1)
    for row_L, passage in zip(words_PxL, passages, strict=True):
        row_L[: len(passage)] = [rank[word] for word in passage]
    return words_PxL


def compute_statistics(words_PxL: np.ndarray) -> dict[str, float]:
    """Each statistic by its title; words_PxL: of `number_words`. Those of more words than there are, are left out."""
    flat_T = words_PxL[words_PxL >= 0]
    count_W = np.bincount(flat_T)
    seen = {"words": len(flat_T), "different words": len(count_W)}
    sizes = [10**power for power in range(3, 8) if 10**power <= len(flat_T)]
    seen |= {f"different words in {size:,}": len(np.unique(flat_T[:size])) for size in sizes}
    return seen | {
        "Zipf's exponent, ranks 1 to 100": fit_zipf_exponent(count_W[:100]),
        "Zipf's exponent, ranks 101 to 5,000": fit_zipf_exponent(count_W[:5000], first=101),
        "entropy of words (nats)": compute_entropy(count_W),
        "share of rare words": float(count_W[count_W < RARE * len(flat_T)].sum() / len(flat_T)),
        **measure_repeats(words_PxL, count_W),
        **measure_mutual_information(words_PxL),
        **measure_perplexities(words_PxL, len(count_W)),
    }


def fit_zipf_exponent(count_R: np.ndarray, first: int = 1) -> float:
    """Minus the slope of log frequency by log rank, from rank `first` on, where each rank weighs 1 / rank: each decade
    of ranks counts alike. Words that came fewer than five times are left out; NaN where fewer than ten words remain.
    """
    rank_R = np.arange(1, len(count_R) + 1)
    kept_R = (rank_R >= first) & (count_R >= 5)
    if kept_R.sum() < 10:
        return np.nan
    slope, _ = np.polyfit(np.log(rank_R[kept_R]), np.log(count_R[kept_R]), 1, w=rank_R[kept_R] ** -0.5)
    return -float(slope)


def compute_entropy(count_X: np.ndarray) -> float:
    """The entropy of counts in nats, with the correction of Miller (1955) and Madow: (outcomes seen - 1) / 2 counts."""
    count_X = count_X[count_X > 0]
    share_X = count_X / count_X.sum()
    return float(-(share_X * np.log(share_X)).sum() + (len(count_X) - 1) / (2 * count_X.sum()))


def measure_repeats(words_PxL: np.ndarray, count_W: np.ndarray) -> dict[str, float]:
    """How often a rare word comes again at each distance, divided by how often independent words would (burstiness)."""
    share_W = count_W / count_W.sum()
    is_rare_W = share_W < RARE
    chance = (share_W[is_rare_W] ** 2).sum() / max(share_W[is_rare_W].sum(), 1e-300)
    found = {}
    for distance in DISTANCES:
        first_T, second_T = pair_words(words_PxL, distance)
        rare_T = is_rare_W[first_T]
        if chance and rare_T.any():
            repeats = (first_T == second_T)[rare_T].mean()
            found[f"a rare word again after {distance}, over chance"] = float(repeats / chance)
    return found


def pair_words(words_PxL: np.ndarray, distance: int) -> tuple[np.ndarray, np.ndarray]:
    """The words of one passage at this distance: first_T and second_T."""
    first_PxL, second_PxL = words_PxL[:, :-distance], words_PxL[:, distance:]
    is_pair_PxL = second_PxL >= 0
    return first_PxL[is_pair_PxL], second_PxL[is_pair_PxL]


def measure_mutual_information(words_PxL: np.ndarray) -> dict[str, float]:
    """Mutual information (nats) of words at each distance, above that of shuffled pairs: the bias of so many counts."""
    rng = np.random.default_rng(0)
    found = {}
    for distance in DISTANCES:
        first_T, second_T = (np.minimum(word_T, NUM_COMMON) for word_T in pair_words(words_PxL, distance))
        if len(first_T):
            bias = compute_mutual_information(first_T, rng.permutation(second_T))
            information = compute_mutual_information(first_T, second_T) - bias
            found[f"mutual information at {distance} (nats)"] = information
    return found


def compute_mutual_information(first_T: np.ndarray, second_T: np.ndarray) -> float:
    """The mutual information of pairs in nats, by their relative frequencies, whose bias is not corrected."""
    size = 1 + max(first_T.max(), second_T.max())
    joint_XxX = np.bincount(first_T * size + second_T, minlength=size**2).reshape(size, size) / len(first_T)
    product_XxX = joint_XxX.sum(1)[:, None] * joint_XxX.sum(0)
    seen_XxX = joint_XxX > 0
    return float((joint_XxX[seen_XxX] * np.log(joint_XxX[seen_XxX] / product_XxX[seen_XxX])).sum())


def measure_perplexities(words_PxL: np.ndarray, vocab_size: int) -> dict[str, float]:
    """Perplexities on held-out passages of n-grams with modified Kneser-Ney smoothing (mlm/data/rows/ngram.py).

    Their vocabulary is that of all passages.
    """
    ids_PxL = np.pad(words_PxL + NUM_SPECIAL, ((0, 0), (1, 0)), constant_values=CLS)
    rows = {"ids": ids_PxL, "segments": (ids_PxL >= NUM_SPECIAL) | (ids_PxL == CLS)}
    is_held_out_P = np.arange(len(words_PxL)) % HELD_OUT == HELD_OUT - 1
    train, held_out = ({name: x[keep_P] for name, x in rows.items()} for keep_P in (~is_held_out_P, is_held_out_P))
    if not is_held_out_P.any():
        return {}
    grams = ngram.count_ngrams(train, vocab_size + NUM_SPECIAL, MAX_ORDER)
    found = {}
    for order in range(1, len(grams) + 1):
        nats_P, count_P = ngram.compute_nats(ngram.smooth_counts(grams, order), held_out, int(is_held_out_P.sum()))
        found[f"perplexity, Kneser-Ney of order {order}"] = float(np.exp(nats_P.sum() / count_P.sum()))
    return found
