"""The statistics of words: of texts whose own are known."""

import numpy as np
import pytest

from mlm.cli import floor
from mlm.data.text import word_statistics
from mlm.evaluation import readability

NUM_PASSAGES, LENGTH = 2000, 60
IDENTITY = 0.01  # nats


def compute(words_PxL):
    """The statistics of words given by number, which need not be their ranks."""
    passages = [[str(word) for word in words_L] for words_L in words_PxL]
    return word_statistics.compute_statistics(word_statistics.number_words(passages))


def select(statistics, title):
    return [value for name, value in statistics.items() if name.startswith(title)]


def test_independent_words_know_nothing_of_each_other():
    share_W = np.arange(1, 3001) ** -1.0
    share_W /= share_W.sum()
    found = compute(np.random.default_rng(0).choice(3000, (NUM_PASSAGES, LENGTH), p=share_W))
    information = select(found, "mutual information")
    assert len(information) == 7 and np.abs(information).max() < IDENTITY  # 100 is more than a passage has
    assert np.mean(select(found, "a rare word again")) == pytest.approx(1, abs=0.2)
    entropy = -(share_W * np.log(share_W)).sum()
    assert found["entropy of words (nats)"] == pytest.approx(entropy, abs=0.02)
    assert found["Zipf's exponent, ranks 1 to 100"] == pytest.approx(1, abs=0.05)
    assert found["share of rare words"] == pytest.approx(share_W[share_W < 1e-3].sum(), abs=0.03)
    perplexities = select(found, "perplexity")
    assert len(perplexities) == 5 and perplexities[0] == pytest.approx(np.exp(entropy), rel=0.05)
    assert min(perplexities) == perplexities[0]


def test_entropy_is_corrected_for_few_counts():
    """Of 400 draws of 100 words alike the plain entropy is 0.13 nats too low."""
    counts = np.random.default_rng(0).multinomial(400, np.full(100, 0.01), 50)
    assert abs(np.mean([word_statistics.compute_entropy(count_W) for count_W in counts]) - np.log(100)) < 0.03


def test_a_periodic_text_is_known_from_one_word():
    """Passages start at each of its 12 words as often; so the mutual information is log 12 at every distance."""
    found = compute((np.arange(LENGTH) + np.arange(1200)[:, None]) % 12)
    assert select(found, "mutual information") == pytest.approx([np.log(12)] * 7, abs=IDENTITY)
    unigram, *others = select(found, "perplexity")
    assert unigram == pytest.approx(12, rel=0.01) and max(others) < 1.1
    assert found["words"] == 1200 * LENGTH and found["different words in 1,000"] == 12


def test_a_favourite_word_comes_again_as_often_as_computed():
    """Of V equally frequent words a passage has a favourite, with probability q: a word comes again at any distance
    with q^2 + (1 - q^2) / V, that is V q^2 + 1 - q^2 times as often as by chance."""
    rng, size, q = np.random.default_rng(0), 2000, 0.2
    words_PxL = rng.integers(size, size=(NUM_PASSAGES, LENGTH))
    favourite_P = np.arange(NUM_PASSAGES) % size
    is_favourite_PxL = rng.random(words_PxL.shape) < q
    found = compute(np.where(is_favourite_PxL, favourite_P[:, None], words_PxL))
    repeats = select(found, "a rare word again")
    assert repeats == pytest.approx([size * q**2 + 1 - q**2] * len(repeats), rel=0.15)


def test_each_decade_of_ranks_weighs_alike_in_zipfs_exponent():
    """Two decades fall as rank^-1 and two as rank^-2, so that the line of least squares falls as rank^-1.5."""
    rank_R = np.arange(1, 10_001)
    count_R = 1e9 * np.where(rank_R <= 100, 1.0 / rank_R, 100.0 / rank_R**2)
    assert word_statistics.fit_zipf_exponent(count_R) == pytest.approx(1.5, abs=0.05)
    assert word_statistics.fit_zipf_exponent(count_R, first=101) == pytest.approx(2)
    assert np.isnan(word_statistics.fit_zipf_exponent(np.arange(9, 0, -1)))


def test_passages_are_of_one_document_and_evenly_spaced():
    documents = [list("abcde"), list("fghij"), list("kl")]
    assert word_statistics.sample_passages(documents, 3, 100) == [
        list(text) for text in ("abc", "de", "fgh", "ij", "kl")
    ]
    assert word_statistics.sample_passages(documents, 3, 6) == [list("abc"), list("kl")]
    assert word_statistics.sample_passages([], 3, 6) == []


def test_a_word_of_any_script_is_one():
    words = ["naïve", "nai\u0308ve", "हिन्दी", "क्षत्रिय", "ไทยกำลัง", "שָׁלוֹם", "한글", "x²", "a_b", "l'été"]
    words += ["\u0639\u064e\u0631\u064e\u0628", "\u0645\u06cc\u200c\u062e\u0648"]  # Arabic with vowels, Persian
    for separator in (" ", "\n", "\xa0", "\u2028", "\u3000", "\x85"):
        assert word_statistics.split_words(separator.join(words)) == words
        assert readability.WORD.findall(separator.join(words)) == words
    assert word_statistics.split_words("हिन्दी। ☺\ufe0f!") == ["हिन्दी", "।", "☺\ufe0f", "!"]


def test_words_and_marks_are_split():
    words = ["don\u2019t", "stop", ":", "the", "<unk>", "well-known", "őz", "."]
    assert word_statistics.split_words("Don\u2019t stop: the <unk> well-known Őz.") == words


def test_the_command_has_a_column_for_each_source(tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("The cat sat. " * 500)
    floor.main(["floor", "statistics", "novels", str(path), "--words=2000"])
    header, _, *lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, *lines)]
    assert cells[0] == ["statistics", "language", "novels", str(path)]
    values = {title: row for title, *row in cells}
    assert values["different words"][2] == "4" and int(values["different words"][1]) > 431
    assert values["perplexity, Kneser-Ney of order 1"][2] == "4"
    language, novels, text = values["share of words that may be noun or verb"]
    assert language == "0" and 0.05 < float(novels) < 0.25 and text == ""  # 0.114 in a million words
