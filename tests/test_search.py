"""A search: equal for all rows, on what no table reads, the same whenever it is continued; and the best of k trials."""

import itertools

import numpy as np
import pytest
from scipy import stats
from small import get_refusal

from experiments import architectures, modern_bert, objectives, optimizers, scaling
from mlm.base import config, errors, fields
from mlm.cli import sweep as command
from mlm.experiment import search_space, searches
from mlm.experiment.search_space import Choice, LogUniform, Uniform
from mlm.launch.sweep import search, sweep_points, sweep_state, table_rehearsal
from mlm.report import expected_best
from mlm.report.pages import sweep as page

SPACE = {
    "optim.learning_rate": LogUniform(1e-3, 1e-1),
    "optim.warmup_fraction": Uniform(0.0, 0.5),
    "train.batch_size": Choice((8, 16)),
}
PLAN = search.SearchPlan(8, (0.25, 0.5, 1.0), 0)
EXPERIMENT = """from mlm.experiment.recipes import QUICK
from mlm.experiment import searches
from mlm.experiment.search_space import Choice, LogUniform, Uniform
from mlm.report import summary
from mlm.report.table import Column

SCALES = {"quick": QUICK}
SEARCHES = searches.read_searches(__file__)
FAMILIES = {"lstm": "rnn", "transformer": "transformer"}


def sweep(scale):
    points = {
        f"{cell}-seed{seed}": QUICK | {"model.family": family, "model.cell": cell if family == "rnn" else "", "seed": seed}
        for cell, family in FAMILIES.items()
        for seed in (0, 1)
    }
    return searches.apply_choices(points, SEARCHES, scale)


def search_space(point):
    return {
        "optim.learning_rate": LogUniform(1e-3, 1e-1),
        "model.chrono_init": Choice((0, 16)),
        "train.batch_size": Choice((8, 16)),
    }


def table(results):
    return summary.build_table(results, [Column("model", "model")], lambda seeds: {"model": seeds[0]["config"]["model.family"]})
"""


def write_experiment(folder, text=EXPERIMENT):
    path = folder / "families.py"
    path.write_text(text)
    return path


def load_rows(path, overrides=(), text=EXPERIMENT):
    experiment = command.load_experiment(str(path))
    points = experiment.sweep("quick")
    configs = list(sweep_points.resolve_points(config.Config(), points, dict(overrides)).values())
    return search.build_rows(experiment.search_space, points, configs, dict(overrides))


def test_all_rows_get_the_same_draws_and_a_longer_search_begins_with_the_shorter():
    spaces = {"a": SPACE, "b": SPACE | {"optim.b2": Uniform(0.9, 0.999)}}
    trials = search_space.draw_trials(spaces, 8, seed=3)
    assert [{name: values[name] for name in SPACE} for values in trials["b"]] == trials["a"]
    assert search_space.draw_trials(spaces, 13, seed=3)["b"][:8] == trials["b"]
    assert search_space.draw_trials(spaces, 8, seed=4) != trials
    assert len(search_space.draw_trials(spaces, 1, 0)["a"]) == 1
    assert sorted(values["train.batch_size"] for values in trials["a"]) == [8] * 4 + [16] * 4


def test_draws_fill_their_ranges():
    rates = [one["optim.learning_rate"] for one in search_space.draw_trials({"a": SPACE}, 256, seed=0)["a"]]
    warmups = [one["optim.warmup_fraction"] for one in search_space.draw_trials({"a": SPACE}, 256, seed=0)["a"]]
    assert stats.kstest(np.log10(rates), stats.uniform(-3, 2).cdf).statistic < 0.02
    assert stats.kstest(warmups, stats.uniform(0, 0.5).cdf).statistic < 0.02
    for kind, value in itertools.product((LogUniform(1e-3, 1e-1), Uniform(0.001, 0.1)), (0.002, 0.05)):
        assert kind.pick(kind.find_share(value)) == pytest.approx(value, rel=1e-3)
    chosen = {"optim.learning_rate": 0.09, "optim.warmup_fraction": 0.25, "train.batch_size": 8}
    assert search_space.find_edges(SPACE, chosen) == ["optim.learning_rate"]


def test_a_trial_reads_as_many_examples_as_its_row_and_documents_that_no_point_reads(tmp_path):
    rows = load_rows(write_experiment(tmp_path), {"train.steps": 80})
    assert [*rows] == ["lstm", "transformer"]
    assert [*rows["transformer"].space] == ["optim.learning_rate", "train.batch_size"]  # it reads no gates
    values, make_point = search.build_trials(rows, PLAN, tmp_path / "search", config.Config(), {"train.steps": 80})
    prints = set()
    for row, number, rung in itertools.product(rows, range(8), range(3)):
        cfg, own = make_point(row, number, rung), rows[row].cfg
        assert cfg.train.steps * cfg.train.batch_size == 80 * own.train.batch_size * PLAN.rungs[rung]
        assert cfg.data.language.seed != own.data.language.seed and cfg.seed >= search.TRIAL_SEED
        assert {name: fields.flatten(cfg)[name] for name in values[row][number]} == values[row][number]
        assert cfg.downstream.tasks == "" and cfg.eval.mask_rates == ()
        prints.add(fields.fingerprint(cfg))
    assert len(prints) == 2 * 8 * 3
    assert search.find_search_split(fields.override(own, {"data.corpus": "text"})) == {
        "data.search_fraction": search.SEARCH_FRACTION
    }


class Sweep:
    """Points whose score follows from their config, in place of training; like a sweep's, they stay once made."""

    def __init__(self, monkeypatch, lost=()):
        self.trained, self.lost = [], lost
        monkeypatch.setattr(sweep_state, "read_failure", self.read_failure)
        monkeypatch.setattr(search, "read_score", self.read_score)

    def train(self, points):
        assert not any(self.read_failure(cfg)[0] for cfg in points)
        self.trained.append([cfg for cfg in points if cfg not in itertools.chain(*self.trained)])

    def is_lost(self, cfg):
        return cfg.seed - search.TRIAL_SEED in self.lost

    def read_failure(self, cfg):
        was_tried = cfg in itertools.chain(*self.trained)
        return (f"{search.DIVERGED}: step 3" if self.is_lost(cfg) and was_tried else "", "")

    def read_score(self, cfg):
        assert cfg in itertools.chain(*self.trained)
        if self.is_lost(cfg):
            return "", 0, None
        return "loss", -1, abs(np.log(cfg.optim.learning_rate / 0.02)) + 1 / cfg.train.steps


def run(tmp_path, made, plan=PLAN):
    rows = load_rows(write_experiment(tmp_path), {"train.steps": 80})
    values, make_point = search.build_trials(rows, plan, tmp_path / "search", config.Config(), {"train.steps": 80})
    scores, _, better = search.run_search([*rows], plan, make_point, made.train)
    return values, scores, search.choose(rows, values, scores, better)


def test_the_same_pruning_for_every_row_keeps_the_best_and_spends_as_much_at_each_rung(tmp_path, monkeypatch):
    made = Sweep(monkeypatch)
    values, scores, chosen = run(tmp_path, made)
    assert [len(points) for points in made.trained] == [16, 8, 4]
    spent = [sum(cfg.train.steps * cfg.train.batch_size for cfg in points) for points in made.trained]
    assert spent == [spent[0]] * 3
    for row in scores:
        by_rung = [[own[rung] if len(own) > rung else np.inf for own in scores[row]] for rung in range(3)]
        for rung in range(2):  # whoever goes on was better than all that did not
            goes_on = np.array([len(own) > rung + 1 for own in scores[row]])
            assert np.max(np.array(by_rung[rung])[goes_on]) <= np.min(np.array(by_rung[rung])[~goes_on])
        assert chosen[row].chosen == values[row][int(np.argmin(by_rung[2]))]
    run(tmp_path, made)
    assert [len(points) for points in made.trained[3:]] == [0, 0, 0]  # a second call trains nothing again


def test_what_diverged_is_never_chosen_nor_tried_again(tmp_path, monkeypatch):
    made = Sweep(monkeypatch, lost=(0, 1, 2, 3, 4, 5))
    values, scores, chosen = run(tmp_path, made)
    assert [len(points) for points in made.trained] == [16, 4, 4] and scores["lstm"][0] == [None]
    assert chosen["lstm"].chosen in values["lstm"][6:]
    run(tmp_path, made)
    assert sum(map(len, made.trained)) == 24
    with pytest.raises(errors.ConfigError, match="row lstm = '8 trials': expected one that does not diverge"):
        run(tmp_path, Sweep(monkeypatch, lost=range(8)))


def test_a_scale_reads_what_a_search_chose_and_its_report_states_the_trials(tmp_path, monkeypatch):
    path = write_experiment(tmp_path)
    _, _, chosen = run(tmp_path, Sweep(monkeypatch))
    before = command.load_experiment(str(path)).sweep("quick")
    file = tmp_path / "searches" / "families-quick.json"
    file.parent.mkdir()
    origin = {"num_trials": PLAN.num_trials, "seed": PLAN.seed, "command": "mlm", "commit": "a"}
    searches.write_search(file, found := searches.Search("quick", chosen, [*PLAN.rungs], "loss", -1, origin))
    assert searches.read_search(file) == found
    experiment = command.load_experiment(str(path))
    points = experiment.sweep("quick")
    for name, point in points.items():
        assert point.items() >= chosen[name.partition("-")[0]].chosen.items()
        examples = [one["train.steps"] * one["train.batch_size"] for one in (point, before[name])]
        assert examples[0] == examples[1]
    resolved = sweep_points.resolve_points(config.Config(), points, {})
    configs = [fields.override(cfg, {"workdir": f"runs/{name}-012345"}) for name, cfg in resolved.items()]
    results = [table_rehearsal.make_result(cfg, number) for number, cfg in enumerate(configs)]
    findings = page.collect_findings(experiment, results)
    (stated,) = (one for one in findings.tables if one.stem == "search-quick")
    chart = findings.charts[-1]
    assert [row["trials"] for row in stated.rows] == [8, 8] and len(chart.series[0].x) == 8
    others = [result | {"config": result["config"] | {"optim.learning_rate": 1.0}} for result in results[:2]]
    assert not page.select_searches(experiment, {"lstm": others})  # these are not its choice


def test_the_expected_best_of_k_is_that_of_draws_with_replacement():
    score_T = np.array([3.0, 1.0, 2.0, 2.0])
    mean_K, deviation_K = expected_best.compute_expected_best(score_T, better=-1)
    for k in (1, 2, 3):
        best = [min(draw) for draw in itertools.product(score_T, repeat=k)]
        assert mean_K[k - 1] == pytest.approx(np.mean(best)) and deviation_K[k - 1] == pytest.approx(np.std(best))
    highest_K, _ = expected_best.compute_expected_best(score_T, better=1)
    assert highest_K[1] == pytest.approx(np.mean([max(draw) for draw in itertools.product(score_T, repeat=2)]))
    trials = [searches.Trial({}, scores) for scores in ([3.0, 1.0], [None], [2.0], [1.5, None])]
    assert expected_best.collect_scores(searches.RowSearch({}, trials, {}), -1).tolist() == [1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("{'optim.learning_rte': Uniform(0.1, 0.2)}", "did you mean config.optim.learning_rate?"),
        ("{'optim.b2': Uniform(0.99, 0.9)}", "expected low < high"),
        ("{'train.batch_size': Choice((8, 'b'))}", "expected a tuple of int"),
        ("{'model.window': Choice((1, 2))}", "search_space = 'model.window': expected fields that some row reads"),
    ],
)
def test_a_bad_space_ends_in_one_line(tmp_path, space, message):
    head, _, _ = EXPERIMENT.partition('    return {\n        "optim')
    text = f"{head}    return {space}\n\n\ndef table(results):\n    return [], []\n"
    assert message in get_refusal(load_rows, write_experiment(tmp_path, text))


@pytest.mark.exhaustive(but=("experiments.architectures", "experiments.optimizers"))
@pytest.mark.parametrize("experiment", [architectures, modern_bert, objectives, optimizers, scaling])
def test_every_row_of_an_experiment_has_a_space_that_its_trials_can_have(experiment, tmp_path):
    scale = "laptop" if experiment is not scaling else "quick"
    points = experiment.sweep(scale)
    first = {name: point for name, point in points.items() if name.endswith("seed0")}
    configs = list(sweep_points.resolve_points(config.Config(), first, {}).values())
    rows = search.build_rows(experiment.search_space, first, configs, {})
    _, make_point = search.build_trials(rows, search.SearchPlan(2, (1.0,), 0), tmp_path, config.Config(), {})
    for row in list(rows)[::5]:
        rates = [make_point(row, trial, 0).optim.learning_rate for trial in range(2)]
        assert rates[0] != rates[1]
