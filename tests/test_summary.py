"""A table says what its runs were judged on and asked: other rows, other texts and missing seeds have a name in it."""

import copy

import numpy as np
import pytest
from test_experiments import FLOORS, OWN, about, result

from experiments import optimizers
from mlm.base import config, fields
from mlm.evaluation import evaluation_tasks
from mlm.evaluation.sentence_scores import METRIC
from mlm.objectives import mlm
from mlm.report import charts, excess_loss, series, summary, table
from mlm.training.validation import references


def make_run(group, seed, loss, unigram=5.0, **changes):
    """A run whose unigram is that, of a config with these fields, by dotted name with __ for the dots."""
    one = result(group, seed, loss)
    own = {name.replace("__", "."): value for name, value in changes.items()}
    one["config"] = fields.flatten(config.Config()) | one["config"] | own
    one["evaluation"] |= {"unigram_loss": unigram, "rows": 500, "predictions": 9000}
    return one


def build_table(results):
    found, columns = summary.build_table(results, OWN, about)
    return found, columns, " ".join(table.collect_notes(found, columns))


def test_runs_on_the_same_rows_have_no_column_of_them():
    found, columns, said = build_table(
        [make_run("one", 0, 3.0), make_run("one", 1, 3.0, 5.0 + 1e-7), make_run("two", 0, 3.1)]
    )
    assert len(found) == 3 and summary.EVALUATION_SET not in {column.name for column in columns}
    assert "Examples and masks" not in said


def test_rows_of_another_length_are_named_and_each_kind_has_its_unigram():
    found, columns, _ = build_table(
        [
            make_run("long", 0, 3.0, pack__seq_len=128, model__width=64),
            make_run("short", 0, 3.4, 5.5, pack__seq_len=64),
            make_run("wide", 0, 2.9, pack__seq_len=128, model__width=96),
        ]
    )
    assert [
        (row["model"], row[summary.EVALUATION_SET], row["loss"] if row["model"] == "unigram" else row["loss"].mean)
        for row in found
    ] == [
        ("a model", "A", 3.0),
        ("a model", "B", 3.4),
        ("a model", "A", 2.9),
        ("unigram", "A", 5.0),
        ("unigram", "B", 5.5),
    ]
    assert [row["below_unigram"].mean for row in found[:3]] == pytest.approx([2.0, 2.1, 2.1])
    assert "evaluation set" in [column.title for column in columns]
    said = (
        "A: 500 sequences, 9,000 predictions, pack.seq_len 128; B: 500 sequences, 9,000 predictions, pack.seq_len 64."
    )
    assert said in table.to_markdown(found, columns)


def test_of_many_settings_that_differ_a_description_names_the_first_that_are_no_default():
    many = {f"data__language__{name}": 7 for name in ("vocab_size", "num_scenes", "num_favorites", "zipf_exponent")}
    sets = series.group_by_examples([make_run("one", 0, 3.0), make_run("other", 0, 3.4, 5.5, **many)])
    counts = "500 sequences, 9,000 predictions"
    own = ("num_favorites", "num_scenes", "vocab_size")  # by name, where as many values differ
    said = [counts, f"{counts}, {', '.join(f'data.language.{name} 7' for name in own)} and more"]
    assert [each.description for each in sets] == said


@pytest.mark.parametrize("change", ["masks", "rows", "score", "unigram", "floor"])
def test_what_makes_losses_incomparable_is_seen(change):
    one = make_run("one", 0, 3.0)
    one["scores"] = [score._asdict() for score in (*mlm.SCORES, *FLOORS)]
    one["held_out"] = {"mlm_weight": np.full(4, 5.0)}
    one["evaluation"] |= {"floor": 2.0, "excess_loss": 1.0}
    other = copy.deepcopy(one)
    assert series.are_comparable(one, other)
    if change == "masks":
        other["held_out"]["mlm_weight"] = np.array([5.0, 5, 4, 6])
    if change == "rows":
        other["evaluation"]["rows"] = 499
    if change == "score":
        other["scores"] = [score | {"columns": ("causal_nats", "causal_weight")} for score in other["scores"]]
    if change == "floor":
        other["evaluation"] |= {"floor": 2.1, "excess_loss": 0.9}
    if change == "unigram":  # known for another corpus; the optimum, where it is known, says that the rows are the same
        other["evaluation"]["unigram_loss"] = 5.1
        assert series.are_comparable(one, other)
        for run in (one, other):
            run["scores"] = [score._asdict() for score in mlm.SCORES]
    assert not series.are_comparable(one, other)


def judge(one, perplexity=None, **suites):
    """Suites by name: the share of pairs that are right, and the SHA-256 of what was asked."""
    if perplexity:
        one["evaluations"]["pseudo_likelihood"] = {
            "all": {
                "sha256": perplexity[1],
                "sentences": 40,
                METRIC: {"word_perplexity": perplexity[0], "word_perplexity_se": 1.0},
            }
        }
    one["summary"]["minimal_pairs"] = {
        f"{name}-{sha}": {
            "suite": name,
            "sha256": sha,
            "overall": {
                **{f"{METRIC}_accuracy{end}": share for end in ("", "_low", "_high")},
                **{"pairs": 100, "paradigms": 2},
            },
        }
        for name, (share, sha) in suites.items()
    }
    one["evaluation_scores"] = evaluation_tasks.list_scores(one)
    return one


def test_a_number_never_stands_for_a_suite_that_was_not_asked_or_for_seeds_that_were_not():
    """Of a suite less was asked of one run, and a third was not asked at all."""
    results = [
        judge(result("one", 0, 3.0), (20.0, "a"), blimp=(0.6, "7788")),
        judge(result("one", 1, 3.0), (21.0, "e"), blimp=(0.9, "99aa")),
        result("one", 2, 3.0),
    ]
    found, columns, said = build_table([*results, judge(result("other", 0, 3.0), blimp=(0.9, "99aa"))])
    first, other = found[:2]
    assert first["pairs_blimp_7788"] == first["pairs_blimp_99aa"] == "1 of 3 seeds evaluated"
    assert first["pseudo_perplexity_a"] == first["pseudo_perplexity_e"] == "1 of 3 seeds evaluated"
    assert other["pairs_blimp_99aa"].mean == 90 and "pairs_blimp_7788" not in other
    assert "blimp: accuracy on pairs (%), 7788: mean of 2 paradigms, 100 pairs" in said
    assert "1 of 3 seeds evaluated" in table.to_markdown(found, columns)
    line = dict(zip(*(line.split(",") for line in table.to_csv(found, columns).splitlines()[:2]), strict=True))
    assert line["pairs_blimp_99aa"] == "" and line["pairs_blimp_99aa_note"] == "1 of 3 seeds evaluated"


def test_a_run_below_its_floor_is_named_and_one_within_three_errors_of_it_is_not():
    def run(group, seed, gap, error=0.01):
        one = make_run(group, seed, 2.0 + gap)
        one["scores"] = [score._asdict() for score in (*mlm.SCORES, *FLOORS[:3])]
        one["evaluation"] |= {"floor": 2.0, "excess_loss": gap, "excess_loss_se": error}
        return one

    found, columns, said = build_table(
        [run("fine", 0, 0.3), run("near", 0, -0.029), run("leaks", 0, 0.1), run("leaks", 1, -0.031)]
    )
    assert [row.get("leaks") for row in found[:3]] == [None, None, "seed 1: excess_loss -0.031 ± 0.010"]
    assert "below the floor" in [column.title for column in columns] and "something leaks" in said
    _, columns, said = build_table([run("fine", 0, 0.3), run("near", 0, -0.029)])
    assert "below the floor" not in [column.title for column in columns] and "leaks" not in said


def test_a_bound_over_all_masks_is_not_held_against_the_floor_of_those_that_were_drawn():
    one = make_run("one", 0, 2.3)
    scores = (*mlm.SCORES, *FLOORS[:3], *references.make_document_references(mlm.SCORES[0], 1, None, 0).scores)
    one["scores"] = [score._asdict() for score in scores]
    one["evaluation"] |= {"floor": 2.0, "excess_loss": 0.3, "excess_loss_se": 0.01, "bound": 2.2}
    found, _, _ = build_table([one])
    by_name = {row["model"]: row for row in found}
    assert by_name["exact bound"]["loss"] == 2.2 and "excess_loss" not in by_name["exact bound"]
    assert by_name["Bayes optimum"]["excess_loss"] == 0 and by_name["unigram"]["excess_loss"] == 3.0


def masked(group, realised, **changes):
    """A run that masked this share of its tokens, and was to mask 15%."""
    return make_run(group, 0, 3.0, mask__rate=0.15, **changes) | {"realised_rate": realised}


def test_realised_masking_rates_are_shown_where_one_is_not_what_was_asked_for():
    found, columns, said = build_table([masked("token", 0.1502), masked("word", 0.1436), masked("span", 0.1429)])
    titles = [column.title for column in columns]
    assert titles.index("masking rate, realised") == titles.index("masking rate, target") + 1
    assert [(row["target_rate"], row["realised_rate"].mean) for row in found[:3]] == [
        (0.15, 0.1502),
        (0.15, 0.1436),
        (0.15, 0.1429),
    ]
    assert "Compare runs at equal realised rates" in said
    half = {"mask__schedule": "linear", "mask__final_rate": 0.45}
    _, columns, _ = build_table([masked("token", 0.1512), masked("word", 0.3, **half), make_run("causal", 0, 3.0)])
    assert not {"target_rate", "realised_rate"} & {column.name for column in columns}


def test_the_table_names_runs_that_masked_too_little():
    short, full = (make_run("one", seed, 3.0) | {"realised_rate": rate} for seed, rate in ((1, 0.13), (2, 0.39)))
    rows, _, notes = build_table([short, full])
    assert rows[0]["rate_shortfall"] == "seed 1: 0.130" and "nine tenths" in notes
    assert "rate_shortfall" not in {column.name for column in build_table([full])[1]}


def test_a_run_that_ended_no_better_than_token_frequencies_is_named():
    runs = [make_run("one", 0, 5.2), make_run("one", 1, 4.9), make_run("two", 0, 3.1)]
    found, columns, said = build_table(runs)
    name = "above_unigram"
    assert found[0][name] == "seed 0: 5.20, unigram 5.00" and name not in found[1]
    assert name in {column.name for column in columns} and "learnt nothing that a comparison could be of" in said
    assert name not in {column.name for column in build_table(runs[1:])[1]}


@pytest.mark.parametrize(
    ("changes", "examples", "lengths"),
    [
        ({}, (8, 8, 8, 8), (16, 16, 16, 16)),
        ({"phases__shares": (0.5, 0.5), "phases__seq_len": (8, 32), "pack__seq_len": 32}, (8,) * 4, (8, 8, 32, 32)),
        ({"phases__shares": (0.25, 0.75), "phases__batch_size": (2, 8)}, (2, 8, 8, 8), (16, 16, 16, 16)),
        (
            {"train__grad_accum_steps": 4, "train__batch_warmup_fraction": 0.75, "train__initial_batch_fraction": 0.25},
            (2, 4, 6, 8),
            (16, 16, 16, 16),
        ),
    ],
)
def test_costs_until_a_step_are_those_of_the_steps_before_it(changes, examples, lengths):
    """Of steps that differ in their examples, or in their tokens."""
    own = {"train__steps": 4, "train__batch_size": 8, "pack__seq_len": 16} | changes
    tokens = np.cumsum(np.multiply(examples, lengths))
    for step in (1, 2, 3, 4):
        one = make_run("one", 0, 3.0, **own)
        history = [{"step": each, "eval_loss": 6.0 - 3 * (each == step)} for each in (1, 2, 3, 4)]
        one |= {"flops": 100.0, "steps": 4, "tokens": 100.0, "tokens_per_second": 10.0, "history": history}
        one["evaluation"] |= {"floor": 2.9}
        assert charts.add_flops(one)["history"][step - 1]["flops"] == pytest.approx(100 * tokens[step - 1] / tokens[-1])
        cells = excess_loss.measure_plateau([one]) | optimizers.measure_thresholds([one])
        assert cells["plateau"].mean == sum(examples[:step]) and cells["steps_0.2"].mean == step
        assert cells["seconds_0.2"].mean == pytest.approx(10 * tokens[step - 1] / tokens[-1])
        # A tenth of the way from 5 to 2.9 is 4.79.
        left = one | {"history": [{"step": each, "eval_loss": 4.8 - 0.02 * (each >= step)} for each in (1, 2, 3, 4)]}
        assert excess_loss.measure_plateau([left])["plateau"].mean == sum(examples[:step])
