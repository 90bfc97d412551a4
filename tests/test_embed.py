"""Embeddings of sentences and the geometry of states: against numpy, all pairs, and states whose answer is known."""

import itertools
import json
import types as plain

import jax
import numpy as np
import pytest
from scipy import stats
from small import VOCAB, build, drawn_config, small_config

from mlm.base import errors, fields, types
from mlm.base.special import CLS, SEP
from mlm.data.rows import pack
from mlm.evaluation import anisotropy, sentence_similarity
from mlm.evaluation.evaluation_tasks import EVALUATIONS
from mlm.evaluation.evaluations import EvaluationCase
from mlm.report import evaluation_scores
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

WORDS = {f"w{number}": number for number in range(5, VOCAB)}
TOKENIZER = plain.SimpleNamespace(
    encode_batch=lambda texts: [[WORDS[word] for word in text.split()] for text in texts],
    starts_word_V=np.arange(VOCAB) % 3 != 0,
)
TEXTS = ["w5 w6 w7", "w8", " ".join(f"w{number}" for number in range(10, 40)), "w9 w9 w30 w31"]


def here(model):
    """What runs on this host alone, not compiled."""
    alone = parallel.build_single_device(lambda *arguments: None)._replace(
        jit_per_example=lambda function, *fixed, **_: (
            lambda state, *arguments: jax.device_get(function(*fixed, state.params, *arguments))
        ),
        put_batch=lambda batch: batch,
    )
    return plain.SimpleNamespace(model=model, partitioner=alone)


@pytest.fixture(scope="module")
def run():
    """A small model that was never trained."""
    cfg = small_config(eval__batch_size=4, model__num_layers=1)
    model, params, _ = build(cfg)
    made = plain.SimpleNamespace(model=model, partitioner=parallel.build_single_device(lambda *arguments: None))
    return TrainedRun(cfg, 0, TOKENIZER, made, types.TrainState(0, {"model": params, "objective": {}}, ()), "", None)


def test_the_three_embeddings_are_those_of_numpy(run):
    found, truncated = sentence_similarity.embed_sentences(run, TEXTS)
    assert truncated == 1 and found["cls"].shape[:2] == (4, 2)
    ids = [[WORDS[word] for word in text.split()][:14] for text in TEXTS]
    rows_BxL = np.array([[CLS, *row, SEP, *[0] * (14 - len(row))] for row in ids], np.int32)
    there_BxL = (rows_BxL > 0).astype(np.int32)
    shown = types.Tokens(rows_BxL, there_BxL, np.arange(16, dtype=np.int32) * there_BxL, np.zeros_like(rows_BxL))
    params = run.state.params["model"]
    h_BxLxD = np.asarray(jax.jit(run.program.model.encode)(params, shown)[0])
    for row, h_LxD, cls_KxD, mean_KxD, static_D in zip(ids, h_BxLxD, *found.values(), strict=True):
        assert cls_KxD[-1] == pytest.approx(h_LxD[0], abs=1e-5)
        assert mean_KxD[-1] == pytest.approx(h_LxD[1 : 1 + len(row)].mean(0), abs=1e-5)
        assert static_D == pytest.approx(params["token"]["embedding"][row].mean(0), abs=1e-6)


def test_similarities_are_the_correlations_of_cosines(run):
    draws = np.random.default_rng(0)
    texts = [" ".join(draws.choice(list(WORDS), 5)) for _ in range(40)]
    pairs = [[*draws.choice(texts, 2), float(value)] for value in draws.integers(0, 6, 60)]
    part, told = EvaluationCase("sts", "stsb/dev", {"pairs": pairs, "format": 1}), []
    found = EVALUATIONS["sts"].evaluate(run, part, told.append)
    assert told == sorted(told) and told[-1] == 1 < len(told) and found["pairs"] == 60
    vectors, _ = sentence_similarity.embed_sentences(run, texts)
    at = {text: place for place, text in enumerate(texts)}
    for of, h_SxD in (
        (found["static"], vectors["static"]),
        (found["layers"][-1]["mean"], vectors["mean"][:, -1]),
        (found["layers"][-1]["cls"], vectors["cls"][:, -1]),
    ):
        h_SxD = h_SxD.astype(np.float64)
        cosines = [
            h_SxD[at[a]] @ h_SxD[at[b]] / np.linalg.norm(h_SxD[at[a]]) / np.linalg.norm(h_SxD[at[b]])
            for a, b, _ in pairs
        ]
        values = [value for *_, value in pairs]
        assert of["spearman"] == pytest.approx(stats.spearmanr(np.round(cosines, 9), values)[0])
        assert of["pearson"] == pytest.approx(stats.pearsonr(cosines, values)[0], abs=1e-5)
        assert 0.05 < of["spearman_se"] < 0.3
    same_P = sentence_similarity.compute_cosines(vectors["mean"][:, -1], vectors["mean"][:, -1])
    assert {*same_P} == {1.0}  # same texts share a rank
    kept = {"evaluations": {"sts": {"stsb/dev": found | {"sha256": "ab"}}}, "summary": {}}
    columns = {score.metric.name: score.value for score in sentence_similarity.list_scores(kept)}
    assert columns == {
        "stsb_dev_static": found["static"]["spearman"],
        **{f"stsb_dev_{read}": found["layers"][-1][read]["spearman"] for read in ("mean", "cls")},
    }
    names = ("static", *(f"{read}, {layer}" for layer in ("embeddings", "layer 1") for read in ("cls", "mean")))
    assert tuple(row["embedding"] for row in sentence_similarity.build_tables(kept)[0].rows) == names
    (below,) = (row for row in sentence_similarity.build_tables(kept)[0].rows if row["embedding"] == "cls, embeddings")
    assert below["spearman"] == below["pearson"] == "undefined: all cosines are equal"  # [CLS] alone knows no text
    assert found["layers"][0]["cls"]["spearman"] is None and "NaN" not in json.dumps(found)
    found["layers"].append({"mean": found["layers"][0]["cls"]})  # a last layer that says the same of all
    kept |= {"config": {"workdir": "runs/a"}, "evaluation_scores": [*sentence_similarity.list_scores(kept)]}
    columns = evaluation_scores.build_columns([kept])
    (cell,) = (column.name for column in columns.values() if column.name.endswith("_mean"))
    assert evaluation_scores.build_cells([kept], columns)[cell] == "undefined: all cosines are equal"
    constant = sentence_similarity.compute_correlations(np.arange(3.0), np.ones(3))
    assert constant["undefined"] == "all similarities are equal"
    left = run._replace(cfg=fields.override(run.cfg, {"model.directionality": "causal"}))
    layers = sentence_similarity.evaluate(left, part, lambda share: None)["layers"]
    assert layers[-1].keys() == {"mean"}  # [CLS] has seen nothing


def test_anisotropy_is_the_mean_over_all_pairs_of_different_rows():
    draws = np.random.default_rng(0)
    row_W, h_WxD = np.sort(draws.integers(0, 9, 60)), draws.normal(size=(60, 5)) + 0.5
    u_WxD = h_WxD / np.linalg.norm(h_WxD, axis=1, keepdims=True)
    every = [u_WxD[i] @ u_WxD[j] for i, j in itertools.combinations(range(60), 2) if row_W[i] != row_W[j]]
    assert anisotropy.compute_anisotropy(h_WxD, row_W)[0] == pytest.approx(np.mean(every), abs=1e-12)
    with pytest.raises(errors.ConfigError, match=r"^held-out examples = 1: expected two or more"):
        anisotropy.compute_anisotropy(h_WxD, np.zeros(60, int))


def test_a_round_cloud_has_no_anisotropy_and_a_shifted_one_that_of_its_shift():
    draws = np.random.default_rng(1)
    row_W, h_WxD = np.repeat(np.arange(100), 20), draws.normal(size=(2000, 256))
    mean, error = anisotropy.compute_anisotropy(h_WxD, row_W)
    assert abs(mean) < 5 * error < 2e-3
    for shift in (1.0, 3.0):  # of a unit cloud in D dimensions: shift^2 / (shift^2 + 1)
        mean, error = anisotropy.compute_anisotropy(h_WxD + shift, row_W)
        assert mean == pytest.approx(shift**2 / (shift**2 + 1), abs=2e-3)
    own_RxD = draws.normal(size=(100, 8)).repeat(20, axis=0)  # rows that differ: their error is over rows, not words
    h_WxD = draws.normal(size=(2000, 8)) + own_RxD + 1
    mean, error = anisotropy.compute_anisotropy(h_WxD, row_W)
    again = []
    for _ in range(300):
        rows = draws.integers(0, 100, 100)
        index = (rows[:, None] * 20 + np.arange(20)).ravel()
        again.append(anisotropy.compute_anisotropy(h_WxD[index], row_W)[0])
    assert error == pytest.approx(np.std(again), rel=0.2)


def test_a_static_vector_explains_all_of_rank_one_and_one_share_of_many_directions():
    draws = np.random.default_rng(0)
    v_D = draws.normal(size=16)
    assert anisotropy.compute_explained_variance(draws.normal(size=(7, 1)) * v_D) == pytest.approx(1)
    assert anisotropy.compute_explained_variance(np.eye(16)[:8]) == pytest.approx(1 / 8)
    assert anisotropy.compute_explained_variance(np.diag([2.0, 1, 1, 1])) == pytest.approx(4 / 7)
    assert anisotropy.compute_explained_variance(np.zeros((5, 16))) == 1
    h_XxD = draws.normal(size=(6, 16))
    cosine_XxX = anisotropy.l2_normalize(h_XxD) @ anisotropy.l2_normalize(h_XxD).T
    assert anisotropy.compute_self_similarity(h_XxD) == pytest.approx(cosine_XxX[~np.eye(6, dtype=bool)].mean())
    assert anisotropy.compute_self_similarity(np.tile(v_D, (5, 1))) == pytest.approx(1)
    h_WxD, groups = draws.normal(size=(12, 16)), np.split(np.arange(12), 3)
    found = anisotropy.measure_geometry(h_WxD, np.arange(12), groups, groups[::-1])
    similarities = [anisotropy.compute_self_similarity(h_WxD[word_X]) for word_X in groups]
    assert found["self_similarity_se"] == pytest.approx(stats.sem(similarities))


def test_words_are_their_pieces_and_their_states_the_mean():
    # 6, 9, 12 continue a word; 2 and 3 are [CLS] and [SEP], 1 is unknown
    ids_BxL = np.array([[2, 5, 6, 9, 7, 1, 6, 3], [2, 6, 5, 6, 9, 3, 0, 0]], np.int32)
    h_BxKxLxD = np.arange(2 * 2 * 8 * 3, dtype=np.float32).reshape(2, 2, 8, 3)
    keys, row_W, h_WxKxD = anisotropy.pool_words(
        (TOKENIZER.starts_word_V | (np.arange(VOCAB) < 5))[ids_BxL], ids_BxL, h_BxKxLxD
    )
    assert [np.frombuffer(key, np.int32).tolist() for key in keys] == [[5, 6, 9], [7], [5, 6, 9]]
    assert row_W.tolist() == [0, 0, 1]
    for word, (row, first, end) in zip(h_WxKxD, ((0, 1, 4), (0, 4, 5), (1, 2, 5)), strict=True):
        assert word == pytest.approx(h_BxKxLxD[row, :, first:end].mean(1))
    row_W = np.array([0, 0, 1, 2, 3, 3, 4, 5])
    groups = anisotropy.group_contexts([b"a", b"a", b"a", b"a", b"a", b"b", b"a", b"b"], row_W)
    assert [places.tolist() for places in groups] == [[0, 2, 3, 4, 6]]  # b stands in two rows
    for place_X in anisotropy.sample_random_words(row_W, [6, 3]):
        assert len({*row_W[place_X]}) == len(place_X)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    cfg = drawn_config(
        tmp_path_factory.mktemp("cache"),
        eval__batch_size=16,
        model__num_layers=1,
        model__width=8,
        model__mlp_dim=8,
        data__language__validation_documents=40,
        eval__anisotropy=True,
    )
    return cfg, pack.load_dataset(cfg)


def build_table_run(cfg, rows):
    """A run whose model's states are rows of a table."""
    table_VxD = np.random.default_rng(0).normal(size=(rows.dataset_info.vocab_size, 8)).astype(np.float32) + 0.5
    model = types.Model(
        ("both",),
        8,
        None,
        None,
        None,
        encode_layers=lambda params, text, source=None, *, key_B=None: jax.numpy.asarray(table_VxD)[text.ids_BxL][None],
    )
    return TrainedRun(
        cfg, 0, rows.tokenizer, here(model), types.TrainState(0, {"model": None}, ()), "", rows.dataset_info, rows
    )


def test_states_that_know_no_context_are_their_words_alone(small_run):
    cfg, rows = small_run
    run = build_table_run(cfg, rows)
    part = anisotropy.list_cases()[0]
    found = EVALUATIONS["anisotropy"].evaluate(run, part, lambda share: None)
    (of_layer,) = found["layers"]
    assert found["examples"] == 40 and found["words"] > 20 and found["occurrences"] >= 5 * found["words"]
    assert of_layer["self_similarity"] == pytest.approx(1) and of_layer["explained"] == pytest.approx(1)
    assert 0 < of_layer["anisotropy"] < 0.9 and of_layer["explained_random"] < 0.9
    assert of_layer["explained_adjusted"] == pytest.approx(1 - of_layer["explained_random"])
    assert of_layer["self_similarity_adjusted"] == pytest.approx(1 - of_layer["anisotropy"])
    assert anisotropy.evaluate(run, part, lambda share: None) == found  # nothing of it is chance
    few = run._replace(cached_data=rows._replace(validation={name: x[:2] for name, x in rows.validation.items()}))
    with pytest.raises(errors.ConfigError, match=r"^words that 5 or more of 2 held-out examples hold = 0: expected"):
        anisotropy.evaluate(few, part, lambda share: None)
