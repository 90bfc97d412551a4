"""Experiments: every point of every scale is one that a run would take, and their tables say what the runs found."""

import ast
import importlib
import json
import math
import re
import types

import numpy as np
import pytest
from scipy import stats
from small import ROOT, read_example, train_config

from mlm.base import config, fields
from mlm.base.estimates import Estimate, EvaluationMetric, EvaluationScore
from mlm.launch.sweep import search, table_rehearsal
from mlm.objectives import mlm
from mlm.report import series, summary
from mlm.report.table import Column
from mlm.training.run import resolution
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program
from mlm.training.validation import references

# The scale that an experiment lacks: no text has what exact_teacher asks for, and no paper asks what transfer does.
LACKING = {"exact_teacher": {"paper", "text"}, "transfer": {"paper"}}
PATHS = ("data.path", "data.validation_path", "data.parallel_path", "downstream.path", "eval.sts")
IN_SUITE = {"transfer": "quick"}  # the scale that the suite resolves, where laptop has many hundred points
NAMES = sorted(path.stem for path in (ROOT / "experiments").glob("*.py"))


def check(experiment, scales):
    for scale in scales:
        prints, groups, points = {}, {}, []
        for point, own in experiment.sweep(scale).items():
            cfg = resolution.resolve(fields.override(config.Config(), own))
            prints.setdefault(fields.fingerprint(cfg), []).append(point)
            flat = fields.flatten(cfg)
            group = series.group_name({"config": flat | {"workdir": f"runs/{point}-012345"}})
            points.append(fields.override(cfg, {"workdir": f"runs/{point}-012345"}))
            groups.setdefault(group, set()).add(json.dumps({k: v for k, v in flat.items() if k != "seed"}))
        assert all(len(points) == 1 for points in prints.values()), scale
        assert all(len(members) == 1 for members in groups.values()), f"{scale}: a group differs in more than its seed"
        made_up = [table_rehearsal.make_result(cfg, number) for number, cfg in enumerate(points)]
        rows, columns = experiment.table(made_up)
        assert len(rows) > 1 and {"loss", "parameters"} <= {column.name for column in columns}
        assert scale != "paper" or cfg.data.corpus in ("tfds", "parallel")
        if hasattr(experiment, "search_space") and scale != "sharing":  # whose losses do not compare; or raises
            assert search.build_rows(experiment.search_space, experiment.sweep(scale), points, {})
        if scale == "laptop" and hasattr(experiment, "claims"):
            found = [set(pair) <= set(groups) for pair in experiment.claims(list(groups))]
            assert any(found), "no claim is about groups of this sweep"
            assert all(better != worse for better, worse in experiment.claims(list(groups)))


@pytest.mark.parametrize("is_in_suite", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", NAMES)
def test_every_point_of_every_scale_is_a_run_of_its_own(name, is_in_suite):
    experiment = importlib.import_module(f"experiments.{name}")
    assert {"quick", "laptop", "text", "paper"} - (LACKING.get(name) or set()) <= experiment.SCALES.keys()
    own = IN_SUITE.get(name, "laptop")
    check(experiment, [scale for scale in experiment.SCALES if (scale == own) == is_in_suite])


@pytest.mark.parametrize("name", [name for name in NAMES if "text" not in LACKING.get(name, ())])
def test_a_text_scale_reads_what_the_user_puts_in_texts(name):
    points = importlib.import_module(f"experiments.{name}").sweep("text")
    if name == "masking_rate":  # older than the folder: its figures name the paths
        return
    on_text = {point: own for point, own in points.items() if not point.startswith("language-")}  # transfer has both
    for own in on_text.values():
        assert not any(field.startswith("data.language.") for field in own)
        paths = [own[field] for field in PATHS if field in own]
        assert paths and all(path == "texts" or path.startswith("texts/") for path in paths)


def test_each_experiment_says_what_it_asks_and_where_its_figures_stand():
    results = (ROOT / "experiments" / "RESULTS.md").read_text()
    pages = dict(re.findall(r"^\| `(\w+)\.py` \|.*\| (.*?) ?\|$", results, re.MULTILINE))
    assert sorted(pages) == NAMES
    for name, links in pages.items():
        text = ast.get_docstring(ast.parse((ROOT / "experiments" / f"{name}.py").read_text()))
        entries = dict(re.findall(r"^([A-Z]\w+) {2,}(.*(?:\n .*)*)", text, re.MULTILINE))
        assert "?" in text.partition("\n\n")[0] and {"Run", "Cost"} <= entries.keys(), name
        assert entries.keys() & {"Paper", "Papers"}, name
        cost = re.search(r"\btext: .*\b(estimated|measured)", entries["Cost"], re.DOTALL)
        assert cost or "text" in LACKING.get(name, ()), name
        linked = re.findall(r"\((results/\w+\.md)\)", links)
        assert entries["Figures"].split() == ([f"experiments/{page}" for page in linked] or ["none", "yet"]), name
        assert all((ROOT / "experiments" / page).exists() for page in linked)


@pytest.mark.parametrize("name", ["embeddings", "long_distance"])
def test_a_page_has_what_was_measured_and_the_headline_leaves_out(name):
    experiment = importlib.import_module(f"experiments.{name}")
    points = [resolution.resolve(fields.override(config.Config(), own)) for own in experiment.sweep("text").values()]
    titles = {"sts_mean": "Spearman", "explained_adjusted": "variance", "anisotropy": "cosine"}
    curve = [{"low": low, "norm": 2.0 / (1 + low)} for low in (0, 8, 32, 64)]
    results = []
    for number, cfg in enumerate(points):
        made = table_rehearsal.make_result(fields.override(cfg, {"workdir": f"runs/{number}-012345"}), number)
        scores = [EvaluationScore(EvaluationMetric(key, title, "0f"), 0.5, 0.1) for key, title in titles.items()]
        evaluations = {"context_range": {"gradient": {"start": curve, "trained": curve}}}
        results.append(made | {"evaluation_scores": scores, "evaluations": evaluations})
    (found,) = experiment.tables(results)
    expected = {"model", *titles} if name == "embeddings" else {"model", "start_8", "trained_8", "trained_64"}
    assert found.stem in experiment.RESULT_TABLES and len(found.rows) == len(points)
    assert expected <= {column.name for column in found.columns} <= found.rows[0].keys()


def test_the_experiment_of_the_readme_is_one():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) < 25
    experiment = types.ModuleType("of_the_readme")
    exec(code, experiment.__dict__)
    check(experiment, ("quick", "laptop"))
    made, _ = experiment.table([result("window5", 0, 3.0) | {"config": {"workdir": "window5", "model.window": 5}}])
    assert made[0]["window"] == "5 on each side"


def test_the_objective_of_the_documentation_is_the_file():
    (_, row), (_, file) = read_example("An objective").values()
    assert file == (ROOT / "mlm/objectives/causal.py").read_text()
    assert row in (ROOT / "mlm/objectives/__init__.py").read_text()


FLOORS = references.make_floor_references(mlm.SCORES[0], dict.fromkeys(("floor", "window_floor"))).scores


def result(group, seed, loss, scores=mlm.SCORES, **more):
    """A run as `RunDirectory.read_finished` gives it, in what tables read."""
    about = {
        "loss": loss,
        "perplexity": math.exp(loss),
        "accuracy": 0.5,
        "unigram_loss": 5.0,
        "unigram_accuracy": 0.1,
        "realised_rate": 0.15,
    }
    about |= {f"{name}_se": 0.01 for name in ("loss", "perplexity", "accuracy", "realised_rate")}
    return {
        "config": {"workdir": f"runs/{group}-seed{seed}-0123{seed:02d}", "mask.rate": 0.3, "seed": seed},
        "parameters": 10,
        "flops": 2e9,
        "predictions": 100.0 + seed,
        "evaluation": about,
        "evaluations": {},
        "summary": {},
        "scores": json.loads(json.dumps([score._asdict() for score in scores])),
        **more,
    }


OWN = (Column("model", "model"), Column("rate", "rate", ".2f"))


def about(seeds):
    return {"model": "a model", "rate": seeds[0]["config"]["mask.rate"]}


def test_a_row_is_a_group_of_seeds_with_students_interval_and_the_unigram_stands_below():
    losses = [3.0, 3.4, 3.2]
    results = [result("one", seed, loss) for seed, loss in enumerate(losses)] + [result("other", 0, 4.0)]
    made, columns = summary.build_table(results, OWN, about)
    assert [row["model"] for row in made] == ["a model", "a model", "unigram"]
    low, high = stats.t.interval(0.95, 2, np.mean(losses), stats.sem(losses))
    assert made[0]["loss"] == pytest.approx((np.mean(losses), low, high)) and "loss_se" not in made[0]
    assert made[0]["below_unigram"].mean == pytest.approx(1.8) and made[0]["predictions"] == 101
    assert made[1]["loss"] == (4.0, None, None) and made[1]["loss_se"] == 0.01  # one seed: over held-out rows
    assert made[2]["loss"] == 5.0 and made[2]["perplexity"] == pytest.approx(math.exp(5))
    costs, scores = "parameters, training FLOPs, predictions", "loss (nats), perplexity, accuracy, nats below unigram"
    assert ", ".join(column.title for column in columns) == f"model, rate, seeds, {costs}, {scores}"


@pytest.mark.exhaustive  # its table: the test of every point; a sweep: tests/test_sweep.py
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "dynamic_masking"])  # by the command, below
def test_a_quick_scale_trains_to_its_table(name, tmp_path_factory):
    """On shorter rows and for fewer steps than the scale's own, on the devices of this process: two points of each
    program, as the others differ from them in traced values alone.
    """
    experiment, folder = importlib.import_module(f"experiments.{name}"), tmp_path_factory.getbasetemp()
    results, programs = [], []
    for point, own in experiment.sweep("quick").items():
        programs.append(program.make_static_config(resolution.resolve(fields.override(config.Config(), own))))
        if programs.count(programs[-1]) > 2:
            continue
        fewer = {
            "train.steps": 8,
            "train.eval_every": 8,
            "train.log_every": 4,
            "train.batch_size": 8,
            "eval.max_examples": 16,
            "eval.batch_size": 16,
            "eval.mask_rates": own.get("eval.mask_rates", ())[:2],
            "pack.seq_len": 32,
            "model.scan_unroll": 1,
            "data.cache_dir": str(folder / "cache"),
            "workdir": str(folder / name / point),
        } | {field: 0.0 for field in own if field.endswith("dropout")}
        if own.get("data.corpus") != "docstrings":
            fewer |= {"data.language.train_documents": 64, "data.language.validation_documents": 16}
        else:
            fewer |= {
                "data.corpus": "text",
                "data.path": str(ROOT / "experiments" / "*.py"),
                "data.validation_fraction": 0.3,
                "tokenizer.vocab_size": 512,
            }
        if own.get("eval.beams"):
            width = "model.rnn_dim" if own["model.cell"] == "gru" else "model.mlp_dim"
            fewer |= {"eval.beams": own["eval.beams"][-1:], "model.width": 32, width: 64}
        train_config(resolution.resolve(fields.override(config.Config(), own | fewer)))
        results.append(RunDirectory(fewer["workdir"]).read_finished())
    made, columns = experiment.table(results)
    groups = series.group_runs(results)
    rows, rest = divmod(sum("seeds" in row for row in made), len(groups))  # one a group, or one for each of its parts
    assert rest == 0 and sum(row.get("seeds", 0) for row in made) == rows * len(results) > 0
    for row in made:
        value = row["loss"]
        assert 0 < (value.mean if isinstance(value, Estimate) else value) < 10
    filled = {column.name for column in columns}
    assert {"loss", "accuracy"} <= filled and all(any(column in row for row in made) for column in filled)
