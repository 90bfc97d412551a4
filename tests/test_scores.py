"""Scores of labelled rows: equal to reference implementations, case by case, and their errors to a bootstrap's."""

import functools
import warnings

import numpy as np
import pytest
from scipy import stats

from mlm.base import estimates
from mlm.objectives import regression, scores, tagging

CASES = 300
CLASSES = ("no", "yes", "perhaps", "never")


def columns(predicted_N, label_N, classes):
    weight_N = np.ones(len(label_N))
    return {
        "correct": (predicted_N == label_N) * weight_N,
        "weight": weight_N,
        **scores.count_classes(predicted_N, label_N, weight_N, classes),
    }


def labels(rng, classes):
    """A few predictions and labels: none right, all right, all of one class, or neither."""
    rows, kind = rng.integers(1, 30), rng.integers(5)
    predicted_N, label_N = rng.integers(0, classes, (2, rows))
    if kind == 0:
        predicted_N = label_N
    if kind in (1, 3):
        predicted_N = np.full(rows, rng.integers(classes))
    if kind in (2, 3):
        label_N = np.full(rows, rng.integers(classes))
    return predicted_N, label_N


def test_accuracy_f1_and_matthews_are_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for case in range(CASES):
        classes = 2 + case % 3
        predicted_N, label_N = labels(rng, classes)
        of = columns(predicted_N, label_N, classes)

        def compute(score, of=of):
            return estimates.compute_score(score, of)[0]

        with warnings.catch_warnings(action="ignore"):  # of a single class
            assert compute(scores.build_score("accuracy", "weight")) == pytest.approx(
                metrics.accuracy_score(label_N, predicted_N)
            )
            assert compute(scores.build_score("matthews", "weight", CLASSES[:classes])) == pytest.approx(
                metrics.matthews_corrcoef(label_N, predicted_N), abs=1e-9
            )
            if classes == 2:
                assert compute(scores.build_score("f1", "weight", CLASSES[:2])) == pytest.approx(
                    metrics.f1_score(label_N, predicted_N, zero_division=0), abs=1e-12
                )


def values(rng):
    """Two values of a few rows: with ties, at an offset that eats digits, constant, or one the other's opposite."""
    rows, kind = rng.integers(2, 30), rng.integers(5)
    x_N, y_N = rng.normal(size=(2, rows))
    y_N += rng.normal() * x_N
    if kind == 0:
        x_N, y_N = x_N.round(), y_N.round()
    if kind == 1:
        x_N = x_N + 1e6
    if kind == 2:
        x_N = np.full(rows, 0.1)
    if kind == 3:
        y_N = -x_N
    return x_N, y_N


def test_pearson_and_spearman_are_scipys_and_0_of_a_constant():
    rng = np.random.default_rng(2)
    for _ in range(CASES):
        x_N, y_N = values(rng)
        padding = np.zeros(3)  # rows that fill up a batch
        of = regression.compute_correlations(
            {
                "predicted": np.append(x_N, padding),
                "value": np.append(y_N, padding),
                "regression_weight": np.append(np.ones(len(x_N)), padding),
            },
            {},
            [],
        )
        with warnings.catch_warnings(action="ignore"):
            expected = {"pearson": stats.pearsonr(x_N, y_N), "spearman": stats.spearmanr(x_N, y_N)}
        for name, found in expected.items():
            value, error = estimates.compute_score(scores.build_score(name, regression.WEIGHT), of)
            assert value == pytest.approx(np.nan_to_num(found.statistic), abs=1e-8), name
            assert 0 <= error < 10 if np.isfinite(found.statistic) else error == 0
    raw = {
        "x": [0.1] * 7,
        "xx": [0.1 * 0.1] * 7,
        "y": range(7),
        "yy": np.arange(7) ** 2,
        "xy": 0.1 * np.arange(7),
        "regression_weight": [1] * 7,
    }
    assert estimates.compute_score(scores.build_score("pearson", regression.WEIGHT), raw) == (0.0, 0.0)


@functools.cache
def resample(rows=400, times=2000):
    """How often each row stands in each of the bootstrap's samples."""
    return np.random.default_rng(3).multinomial(rows, np.full(rows, 1 / rows), times)


def spread(score, of):
    """The bootstrap's standard error of a score."""
    sums_RxC = resample() @ np.stack([of[name] for name in score.columns], -1).astype(float)
    return np.std([estimates.SCORE_FUNCTIONS[score.function](*sums_C) for sums_C in sums_RxC])


@pytest.mark.parametrize(
    "score",
    [
        scores.build_score("accuracy", "weight"),
        scores.build_score("f1", "weight", CLASSES[:2]),
        scores.build_score("matthews", "weight", CLASSES[:2]),
        scores.build_score("matthews", "weight", CLASSES),
    ],
    ids=["accuracy", "f1", "matthews of two", "matthews of four"],
)
def test_errors_of_scores_of_classes_are_the_bootstraps(score):
    rng = np.random.default_rng(4)
    classes = max(2, (len(score.columns) - 2) // 2)
    label_N = rng.choice(classes, 400, p=np.arange(1, classes + 1) / np.arange(1, classes + 1).sum())
    predicted_N = np.where(rng.random(400) < 0.6, label_N, rng.integers(0, classes, 400))
    of = columns(predicted_N, label_N, classes)
    assert estimates.compute_score(score, of)[1] == pytest.approx(spread(score, of), rel=0.1)


@pytest.mark.parametrize("ties", [False, True])
def test_errors_of_correlations_are_the_bootstraps(ties):
    rng = np.random.default_rng(5)
    x_N, noise_N = rng.standard_t(5, (2, 400))
    y_N = x_N + 1.5 * noise_N
    if ties:
        x_N, y_N = x_N.round(), y_N.round()
    of = scores.compute_correlation_columns(x_N, y_N) | {"regression_weight": np.ones(400)}
    pearson, spearman = (
        estimates.compute_score(scores.build_score(name, regression.WEIGHT), of)[1] for name in ("pearson", "spearman")
    )
    assert pearson == pytest.approx(spread(scores.build_score("pearson", regression.WEIGHT), of), rel=0.1)
    drawn_RxN = np.stack([np.repeat(np.arange(400), times_N) for times_N in resample()])
    ranks_R2xN = (stats.rankdata(value_N[drawn_RxN], axis=1) for value_N in (x_N, y_N))
    u_RxN, v_RxN = (rank_RxN - rank_RxN.mean(1, keepdims=True) for rank_RxN in ranks_R2xN)
    rho_R = (u_RxN * v_RxN).sum(1) / np.sqrt((u_RxN**2).sum(1) * (v_RxN**2).sum(1))
    assert spearman == pytest.approx(rho_R.std(), rel=0.1)


def test_entities_and_their_f1_are_seqevals():
    """Tags drawn at random are broken more often than not."""
    metrics, scheme = pytest.importorskip("seqeval.metrics"), pytest.importorskip("seqeval.scheme")
    rng, classes = np.random.default_rng(6), ("O", "B-A", "I-A", "B-B", "I-B")
    for case in range(CASES):
        predicted_NxL, tag_NxL = rng.integers(0, 5, (2, 3, 8))
        if case % 4 == 0:
            predicted_NxL = np.where(rng.random((3, 8)) < 0.3, predicted_NxL, tag_NxL)
        if case % 10 == 0:
            tag_NxL = 0 * tag_NxL  # no entity is there
        if case % 7 == 0:
            predicted_NxL = 0 * predicted_NxL
        of = tagging.count_entities(predicted_NxL, tag_NxL, np.ones((3, 8), int), classes) | {"weight": np.full(3, 8)}
        named = [[[classes[tag] for tag in tag_L] for tag_L in rows] for rows in (tag_NxL, predicted_NxL)]
        loose, strict = (estimates.compute_score(score, of)[0] for score in tagging.build_entity_scores("weight"))
        with warnings.catch_warnings(action="ignore"):  # where nothing is there
            assert loose == pytest.approx(metrics.f1_score(*named, zero_division=0))
            assert strict == pytest.approx(metrics.f1_score(*named, zero_division=0, mode="strict", scheme=scheme.IOB2))


def test_an_entity_s_type_may_have_a_hyphen_and_no_entity_crosses_segments_or_words_without_a_tag():
    assert tagging.find_entities(["O", "B-creative-work", "I-creative-work"], strict=True) == {("creative-work", 1, 3)}
    tag_NxL = np.array([[-1, 1, -1, 2, 2], [1, 2, 2, 1, 1]])  # B I I, of which the last stands in another segment
    of = tagging.count_entities(
        np.zeros((2, 5), int), tag_NxL, np.array([[1, 1, 1, 1, 2], [0] * 5]), ("O", "B-A", "I-A")
    )
    assert of["entities_actual"].tolist() == [2, 0] and of["strict_entities_actual"].tolist() == [1, 0]


def test_windows_of_a_sentence_count_as_the_merged_sentence():
    rng, classes = np.random.default_rng(7), ("O", "B-A", "I-A", "B-B", "I-B")
    for _ in range(CASES // 10):
        sizes = rng.integers(1, 4, 4)  # windows of each sentence
        first = np.cumsum([0, *sizes])
        sentences = rng.integers(0, 5, (4, 2, 12))  # predicted and actual tags of 12 words
        predicted_NxL, tag_NxL = rng.integers(0, 5, (first[-1], 16)), np.full((first[-1], 16), -1)
        for sentence, row, count in zip(sentences, first, sizes, strict=False):
            window_W = np.sort(rng.integers(0, count, 12))  # of each word that with most context
            for window in range(count):
                place = np.sort(rng.choice(16, (window_W == window).sum(), replace=False))
                predicted_NxL[row + window, place], tag_NxL[row + window, place] = sentence[:, window_W == window]
        examples = [
            {"row": int(row), "rows": int(count), "label": ["O"] * 13}  # one more than there are predictions
            for row, count in zip(first, sizes, strict=False)
        ]
        segments_NxL = np.ones_like(tag_NxL)
        sentence_N = np.repeat(first[:-1], sizes)
        found = tagging.count_entities(predicted_NxL, tag_NxL, segments_NxL, classes, sentence_N)
        whole = tagging.count_entities(sentences[:, 0], sentences[:, 1], np.ones((4, 12), int), classes)
        for name, value_S in whole.items():
            assert found[name][first[:-1]].tolist() == value_S.tolist() and found[name].sum() == value_S.sum()
        correct_N = ((predicted_NxL == tag_NxL) & (tag_NxL >= 0)).sum(1).astype(np.float32)
        weight_N = (tag_NxL >= 0).sum(1).astype(np.float32)
        columns = {"correct": correct_N, "tagging_weight": weight_N, "predicted": predicted_NxL}
        merged = scores.merge_windows(columns, "tagging_weight", examples)
        assert merged["correct"][first[:-1]].tolist() == (sentences[:, 0] == sentences[:, 1]).sum(1).tolist()
        assert merged["tagging_weight"].sum() == 4 * 12 and merged["unscored"].sum() == 4
        assert merged["predicted"] is predicted_NxL and correct_N.sum() == merged["correct"].sum()
        cut = scores.merge_windows({name: x_Nx[:-1] for name, x_Nx in columns.items()}, "tagging_weight", examples)
        assert cut["tagging_weight"].sum() == 3 * 12 and cut["unscored"].sum() == 3  # the last sentence is not whole
