"""Suites: models as rows, tasks as columns; nothing twice; a causal model's pairs by its likelihood; own files."""

import csv
import json

import numpy as np
import pytest
from scipy import stats
from small import get_refusal, small_config
from test_surprisal import CAUSAL, MASKED, STREAM, make_model, words

import mlm
from mlm.base import errors
from mlm.base.estimates import EvaluationMetric, EvaluationScore
from mlm.cli import evaluate
from mlm.evaluation import age_of_acquisition, suite
from mlm.training.run.directory import RunDirectory

PAIRS = [("w1 w2 w3", "w3 w2 w1"), ("w4 w4", "w5 w5"), ("w6 w7 w8 w9", "w6 w6 w6 w6")]
OWN = """
[zero_shot.order]
blimp = "pairs"

[zero_shot.wug]
wug = "wug.jsonl"
metric = "nonce_words"

[zero_shot.near]
retrieval = "near"

[zero_shot.gone]
sts = "gone"
"""
TUNED = """
[finetune.colors]
format = "tsv"
path = "colors"
train = "train.tsv"
dev = "train.tsv"
text_column = 0
label_column = 1
metric = "macro_f1"

[recipe]
epochs = [1.0]
batch_sizes = [4]
learning_rates = [0.001]
seeds = 2
"model.dropout" = 0.0
"""


@pytest.fixture(scope="module")
def data(words, tmp_path_factory):
    """A folder of tasks, two models and the files of suites."""
    top = tmp_path_factory.mktemp("suite")
    for name, changes in (("masked", MASKED), ("causal", CAUSAL)):
        make_model(words, **changes).save_pretrained(str(top / name))
    for folder in ("pairs", "near", "colors"):
        (top / folder).mkdir()
    write = lambda name, rows: (top / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write("pairs/order.jsonl", [{"sentence_good": good, "sentence_bad": bad} for good, bad in PAIRS])
    write("wug.jsonl", [{"sentences": "\t".join(pair), "ratio": i / 3} for i, pair in enumerate(PAIRS)])
    write("near/corpus.jsonl", [{"_id": str(i), "title": "w1", "text": f"w{i} w{i}"} for i in range(12)])
    write("near/queries.jsonl", [{"_id": "5", "text": "w1 w5 w5"}, {"_id": "b", "text": "w9"}])
    grades = "".join(f"5\t{i}\t{1 + (i == 4)}\n" for i in range(12) if i != 5)
    (top / "near" / "qrels-test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{grades}")
    (top / "colors" / "train.tsv").write_text("w1 w2\tred\nw3 w4\tblue\n" * 4)
    (top / "own.toml").write_text(OWN)
    (top / "tuned.toml").write_text(TUNED)
    return top


def run(data, monkeypatch, *flags, models=("masked", "causal")):
    monkeypatch.chdir(data)  # where runs/NAME has the results of folders
    evaluate.main(["evaluate", *models, f"--data={data}", *flags])


def test_models_are_rows_and_a_second_call_prints_only_what_is_new(data, monkeypatch, capsys):
    run(data, monkeypatch, f"--suite={data / 'own.toml'}", "--out=scores.csv")
    first = capsys.readouterr()
    assert "left out: gone" in first.err and first.out.count("masked: order: ") == 1
    rows = list(csv.DictReader((data / "scores.csv").open()))
    assert [(row["model"], row["task"]) for row in rows] == [
        (model, task) for model in ("masked", "causal") for task in ("order", "wug", "near")
    ]
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    causal = mlm.load(str(data / "causal"))
    nats = np.array([text[0].nats for text in causal.surprisal([text for pair in PAIRS for text in pair], by="text")])
    assert float(rows[3]["value"]) == pytest.approx(100 * np.mean(nats[::2] < nats[1::2]))
    chosen = stats.spearmanr(nats[1::2] - nats[::2], range(3)).statistic  # people chose the first ever more often
    assert float(rows[4]["value"]) == pytest.approx(chosen)
    (data / "pairs" / "more.jsonl").write_text((data / "pairs" / "order.jsonl").read_text())
    run(data, monkeypatch, f"--suite={data / 'own.toml'}")
    again = capsys.readouterr().out
    assert "masked: order: " in again and "masked: wug: " not in again and "| causal" in again
    found = mlm.evaluate("causal", suite=str(data / "own.toml"), data=data)["scores"]
    assert [(one["task"], one["value"]) for one in found[1:]] == [(r["task"], float(r["value"])) for r in rows[4:]]
    with pytest.raises(errors.ConfigError, match="expected no other option"):
        mlm.evaluate("causal", suite="blimp", data=data, anisotropy=True)


def test_retrieval_is_by_hand_what_the_cosines_say(data, monkeypatch):
    run(data, monkeypatch, f"--suite={data / 'own.toml'}")
    (result,) = RunDirectory(str(data / "runs" / "masked")).read_evaluations()["evaluations"]["retrieval"].values()
    model = mlm.load(str(data / "masked"))
    texts = [f"w1 w{i} w{i}" for i in range(12)]
    states = model.encode([*texts, "w1 w5 w5"], pooling=None)
    vectors = np.stack([np.asarray(h_LxD)[1:-1].mean(0) for h_LxD in states])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest, *ranked = np.argsort(-(vectors[:12] @ vectors[12])).tolist()
    assert nearest == 5  # whose name the query has: itself
    discount_R = 1 / np.log2(2 + np.arange(10))
    gain, best = (discount_R @ (1 + (np.array(order[:10]) == 4)) for order in (ranked, [4, *[0] * 9]))
    assert result["queries"] == 1 and result["ndcg"] == pytest.approx(gain / best)
    assert result["recall"] == 1  # of eleven, though ten count for the gain


@pytest.mark.parametrize(("name", "metric"), [("masked", "pll_word_l2r"), ("causal", "causal")])
def test_ages_are_compared_with_the_surprisal_of_words_that_stand_alone(data, monkeypatch, capsys, name, metric):
    """Two words may be one entry, and a word may stand twice; one that the vocabulary lacks is left out."""
    monkeypatch.chdir(data)
    rows = [("w3", "b", 20), ("w1", "a", 30), ("w7", "a", 14), ("w2 w5", "a", 25), ("w3", "a", 22), ("other", "b", 16)]
    lines = [",".join(map(str, row)) for row in (("word_clean", "lexical_category", "aoa"), *rows)]
    (data / "ages.csv").write_text("\n".join(lines))
    evaluate.main(["evaluate", name, "--aoa=ages.csv"])
    assert "spearman" in capsys.readouterr().out.lower()
    contents = RunDirectory(str(data / "runs" / name)).read_evaluations()
    result = contents["evaluations"]["age_of_acquisition"]["all"]
    found, (words, groups, ages) = result["correlations"], map(np.array, zip(*rows[:-1], strict=True))
    nats = np.array([text[0].nats for text in mlm.load(name).surprisal(words.tolist(), by="text", metric=metric)])
    np.testing.assert_allclose([result["nats"][word] for word in words], nats, rtol=1e-5)
    for group, chosen in (("words", groups != ""), ("a", groups == "a")):
        assert found[group]["words"] == chosen.sum()
        expected = stats.spearmanr(nats[chosen], ages[chosen]).statistic
        assert found[group]["spearman"] == pytest.approx(expected)
    assert found["b"]["words"] == 1 and found["b"]["undefined"] == "all surprisals are equal"
    scores = {score.metric.name: score for score in age_of_acquisition.list_scores(contents)}
    assert scores["aoa_words"].estimate().mean == found["words"]["spearman"] and scores["aoa_b"].estimate() is None
    for content, message in (
        ("word_clean,lexical_category,aoa", "two words"),
        ("word,lexical_category,aoa\na,a,3", "no column 'word_clean'"),
        ("word_clean,lexical_category,aoa\na,a,x", "aoa = 'x'"),
    ):
        (data / "wrong.csv").write_text(content)
        assert message in get_refusal(evaluate.main, ["evaluate", name, "--aoa=wrong.csv"])
    assert "stream" in age_of_acquisition.get_unsupported_reason(small_config(**STREAM))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_task_is_fine_tuned_for_each_seed_and_kept(data, monkeypatch, capsys):
    flags = f"--suite={data / 'tuned.toml'}", "--out=tuned.jsonl"
    run(data, monkeypatch, *flags, "--plan", models=("masked",))
    assert "| masked" in capsys.readouterr().out and not (data / "tuned.jsonl").exists()
    run(data, monkeypatch, *flags, models=("masked",))
    assert capsys.readouterr().out.count("masked: colors: F1, mean over classes") == 1
    (record,) = [json.loads(line) for line in (data / "tuned.jsonl").open()]
    assert record["model"] == "masked" and "2 fine-tuning seeds" in record["note"]
    run(data, monkeypatch, *flags, models=("masked",))
    assert "masked: colors" not in capsys.readouterr().out


def test_suites_that_have_a_name_are_read_and_others_are_refused_in_a_line(data, tmp_path):
    for name in sorted(path.stem for path in suite.FOLDER.glob("*.toml")):
        for task in ("cola", "boolq", "wsc"):
            (tmp_path / task).mkdir(exist_ok=True)
        assert "--data" in get_refusal(suite.read_suite, name, tmp_path)
    assert "did you mean 'blimp'?" in get_refusal(suite.read_suite, "blmp", data)
    for content, message in (
        ("[zero_shots]", "did you mean 'zero_shot'?"),
        ('[zero_shot.a]\nblim = "pairs"', "did you mean 'blimp'?"),
        ("[zero_shot.a]\nmax_pairs = 3", "--blimp=FOLDER with it"),
        ('[finetune.colors]\ntask = "col"', "did you mean 'cola'?"),
        ("[recipe]\nepoch = 3", "did you mean 'epochs'?"),
        ('[recipe]\nepochs = ["3"]', "config.downstream.epochs"),
        ('[recipe]\n"model.dropuot" = 0.0', "did you mean config.model.dropout?"),
    ):
        (tmp_path / "own.toml").write_text(content)
        assert message in get_refusal(suite.read_suite, str(tmp_path / "own.toml"), data), content
    for flags, message in (
        (["--suite=blimp"], "--data"),
        (
            [f"--suite={data / 'own.toml'}", f"--data={data}", str(data / "causal"), "workdir=a"],
            "none, with several runs",
        ),
        (["--suite=blimp", f"--data={data}", "--anisotropy"], "--anisotropy"),
        ([f"--data={data}"], "--suite=NAME with it"),
    ):
        assert message in get_refusal(evaluate.main, ["evaluate", str(data / "masked"), *flags])


def test_a_file_has_the_bounds_of_intervals_and_none_of_two_seeds():
    """Whose lowest and highest value a table shows, as such."""
    task, metric = suite.SuiteTask("glue", "rte", "", lambda run: []), EvaluationMetric("rte", "accuracy", "")
    scores = [EvaluationScore(metric, 0.5, values=values) for values in ((0.4, 0.6), (0.4, 0.5, 0.6))]
    two, three = (suite.SuiteScore("a", task, score, True) for score in scores)
    assert two.score.estimate() == (0.5, 0.4, 0.6)
    assert (two.make_record()["low"], two.make_record()["high"]) == (None, None)
    assert three.make_record()["low"] < 0.4 < 0.6 < three.make_record()["high"]
