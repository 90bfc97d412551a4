"""The column of a task: chosen on dev, failures counted, intervals over pretraining seeds, the optimum in its row."""

import numpy as np
import pytest
from scipy import stats
from test_experiments import FLOORS, OWN, about, result

from mlm.base import config, fields
from mlm.base.estimates import Score
from mlm.evaluation import evaluation_tasks, finetuned_tasks, prompts
from mlm.objectives import mlm
from mlm.report import summary, table
from mlm.training.run import finetuning_recipe

ACCURACY = Score("accuracy", "held-out accuracy", ("correct", "weight"), better=1, share=True)
BESIDE = [
    Score(name, whose, ("right", "weight"), share=True, reference=whose, reference_for="accuracy")
    for name, whose in (("most", "majority class"), ("optimum", "Bayes optimum"))
]
MATTHEWS = Score("matthews", "held-out Matthews correlation", ("correct", "weight"), better=1)


def tuned(rate, seed, value, score=ACCURACY, task="topic", what="ab" * 32, title="", note=""):
    scores = [score, *BESIDE] if score == ACCURACY else [score]
    error = 0.0 if value in (0, 1) else 0.02
    values = {score.name: value, f"{score.name}_se": error, "most": 0.125, "optimum": 0.92, "predictions": 40}
    found = (
        {"diverged": "step 3"} if value is None else {"evaluation": values, "scores": [one._asdict() for one in scores]}
    )
    return {
        "task_sha256": what,
        "task": task,
        "variant": "",
        "learning_rate": rate,
        "epochs": 3.0,
        "batch_size": 32,
        "seed": seed,
        "title": title or task,
        "note": note,
        **found,
    }


def answers(*each, name="topic-abab"):
    return {f"{name}/{finetuned_tasks.format_point(one)}-s{one['seed']}": one for one in each}


def test_the_point_of_the_grid_with_the_best_mean_is_chosen_among_those_with_most_seeds():
    found = finetuned_tasks.summarize(
        answers(
            tuned(1e-3, 0, 0.8), tuned(2e-3, 0, 0.95), tuned(1e-3, 1, 0.7), tuned(2e-3, 1, 0.5), tuned(4e-3, 0, 0.99)
        )
    )
    (one,) = found.values()
    assert (one["learning_rate"], one["epochs"], one["values"], one["trials"]) == (1e-3, 3.0, [0.8, 0.7], 3)
    assert one["failed"] == [] and one["references"] == {"majority class": 0.125, "Bayes optimum": 0.92}
    assert "error" not in one


@pytest.mark.parametrize(
    ("score", "value", "failed"),
    [
        (ACCURACY, 0.125, True),
        (ACCURACY, 0.1, True),
        (ACCURACY, 0.126, False),
        (MATTHEWS, 0.0, True),
        (MATTHEWS, -0.1, True),
        (MATTHEWS, 0.01, False),
        (ACCURACY, None, True),
    ],
)
def test_a_fine_tuning_that_is_no_better_than_none_has_failed(score, value, failed):
    good = tuned(1e-3, 0, 0.8, score)
    (one,) = finetuned_tasks.summarize(answers(good, tuned(1e-3, 1, value, score))).values()
    assert one["failed"] == ([1] if failed else [])
    assert one["values"] == [0.8, 0.125 if value is None else value]  # what has diverged counts as the majority class


def test_an_accuracy_of_all_or_none_has_an_interval_with_a_width():
    for right in (0, 40):
        prompted = {
            "task": "a",
            "accuracy": right / 40,
            "accuracy_se": 0.0,
            "examples": 40,
            "majority": 0.5,
            "sha256": "",
        }
        found = finetuned_tasks.summarize(answers(tuned(1e-3, 0, right / 40)))
        contents = {"evaluations": {"zero_shot": {"a": prompted}}, "summary": {"finetuned_tasks": found}}
        expected = stats.binomtest(right, 40).proportion_ci(0.95, "wilson")
        for scores in (prompts.list_scores(contents), finetuned_tasks.list_scores(contents)):
            assert next(scores).estimate()[1:] == pytest.approx((100 * expected.low, 100 * expected.high))


def test_a_mean_of_partial_credit_has_the_interval_of_its_error():
    f1 = Score("f1", "held-out answer F1", ("answer_f1", "weight"), better=1, share=True)
    found = finetuned_tasks.summarize(answers(tuned(1e-3, 0, 0.8, f1)))
    (score,) = finetuned_tasks.list_scores({"evaluations": {}, "summary": {"finetuned_tasks": found}})
    assert score.estimate() == pytest.approx((80, 80 - 1.96 * 2, 80 + 1.96 * 2))


def test_no_two_fine_tunings_share_a_seed():
    """Of three runs by three seeds each."""
    make = lambda seed, own: finetuning_recipe.make_overrides(
        fields.override(config.Config(), {"seed": seed}), finetuning_recipe.Trial("topic", "", 1e-3, 3.0, 32, own)
    )
    assert len({make(seed, own)["seed"] for seed in range(3) for own in range(3)}) == 9


def add_tasks(one, *each):
    one["summary"]["finetuned_tasks"] = finetuned_tasks.summarize(answers(*each))
    one["evaluation_scores"] = evaluation_tasks.list_scores(one)
    return one


def test_a_column_has_the_mean_over_fine_tuning_seeds_and_the_interval_over_pretraining_seeds():
    values = [(0.80, 0.82), (0.70, 0.74), (0.75, 0.125)]
    results = [
        add_tasks(
            result("one", seed, 3.0, (*mlm.SCORES, *FLOORS)),
            tuned(1e-3, 0, a),
            tuned(1e-3, 1, b),
            tuned(1e-6, 0, 0.1),
            tuned(1e-6, 1, 0.1),
        )
        for seed, (a, b) in enumerate(values)
    ]
    other = add_tasks(result("other", 0, 3.0, (*mlm.SCORES, *FLOORS)), tuned(1e-3, 0, 0.6))
    for one in (*results, other):
        one["evaluation"] |= {"floor": 2.0, "excess_loss": 1.0, "excess_loss_se": 0.1, "floor_accuracy": 0.6}
    made, columns = summary.build_table(results, OWN, about)
    (column,) = (column for column in columns if column.name == "task_topic")
    means = [100 * np.mean(pair) for pair in values]
    low, high = stats.t.interval(0.95, 2, np.mean(means), stats.sem(means))
    assert column.title == "topic: accuracy (%)" and high > 100
    assert made[0]["task_topic"] == pytest.approx((np.mean(means), low, 100))
    rows = {row["model"]: row for row in made}
    assert rows["Bayes optimum"]["loss"] == 2.0 and rows["Bayes optimum"]["task_topic"] == 92.0
    assert rows["majority class"] == {"model": "majority class", "task_topic": 12.5}
    others_examples = {"evaluation": results[2]["evaluation"] | {"predictions": 7}}
    several, _ = summary.build_table([*results[:2], results[2] | others_examples], OWN, about)
    assert [row[summary.EVALUATION_SET] for row in several if row["model"] == "majority class"] == ["A, B"]
    said = table.to_markdown(made, columns)
    assert "dev, mean of 2 fine-tuning seeds, the best of 2 trials (learning rate x epochs x batch size); f" in said
    assert "1 of 6: one-seed2-012302 s1." in said
    made, columns = summary.build_table([*results, other], OWN, about)  # of one seed, and of another grid
    titles = [column.title for column in columns if column.name.startswith("task_topic_")]
    assert len(titles) == 2 and all(title.startswith("topic: accuracy (%), ") for title in titles)
    (name,) = (name for name in made[1] if name.startswith("task_") and not name.endswith("_se"))
    assert made[1][name] == pytest.approx((60, None, None), nan_ok=True) and made[1][f"{name}_se"] == 2.0
    assert name not in made[0]
