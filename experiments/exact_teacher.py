"""What can an architecture not represent, and what has it only not learnt?

Question   A held-out loss above the floor has two causes: no parameters of the model give the best possible
           predictions, or training on samples did not find them. An exact teacher takes the noise of the samples away:
           the target of a masked token is its whole posterior distribution (distillation.teacher=posterior), which only
           a language whose optimum is known can offer. What the excess loss loses by it was not learnt; what is left
           was not represented, or not found by the optimizer either.
Paper      Hinton et al. 2015 (arXiv:1503.02531) train on a teacher's probabilities, whose own errors the student learns
           too. Here the teacher has none.
Rule       Written before the runs. Each architecture is compared with itself, posterior minus tokens; seeds are blocks,
           their spread pooled over the rows (mlm/report/compare.py), and the p-values (two-sided) have Holm's
           correction for all architectures.
Run        mlm sweep run experiments/exact_teacher.py --scale=laptop --workers=2
Cost       quick: a minute on 2 CPU cores. laptop: 24 points, about half an hour with --workers=2: an estimate. The
           posterior is computed in the step; it takes half as long again.
Figures    experiments/results/exact_teacher.md
"""

from collections.abc import Mapping, Sequence

from mlm.experiment.grid import cross_points, make_seeds, name_points
from mlm.experiment.recipes import QUICK, SMALL, TUNED_FIELDS, make_member, set_training_length
from mlm.report import compare, excess_loss, run_columns, series
from mlm.report.table import Column

NUM_EXAMPLES, EVAL_INTERVAL = 32_000, 6_400  # taken in by a run, and between two evaluations
SHARED_FIELDS = SMALL | {"model.size": "micro", "mask.rate": 0.3, "data.language.train_documents": NUM_EXAMPLES}
LENGTHS = {
    name: set_training_length(NUM_EXAMPLES, EVAL_INTERVAL, tuned) for name, tuned in TUNED_FIELDS.items()
}  # every example once
SCALES = {
    "quick": {"members": ("transformer", "lstm"), "fields": lambda name: QUICK | {"mask.rate": 0.3}, "seeds": 1},
    "laptop": {
        "members": ("transformer", "lstm", "gru", "window"),
        "fields": lambda name: SHARED_FIELDS | LENGTHS[name],
        "seeds": 3,
    },
}
TARGETS = [{"name": "tokens"}, {"name": "posterior", "distillation.teacher": "posterior"}]
COLUMNS = (
    Column("model", "model"),
    Column("target", "target"),
    *run_columns.select_columns("learning_rate", "tokens_per_second"),
    Column("difference", "loss with the posterior as target minus with tokens (nats)", "+.3f"),
    Column("p", "p (Holm)", ".2g", note="p: two-sided, seeds as blocks; Holm's correction for all architectures."),
)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    members = [plan["fields"](name) | make_member(name, scale) for name in plan["members"]]
    return name_points(cross_points(members, TARGETS, make_seeds(plan["seeds"])))


def find_row(config: Mapping) -> tuple[str, str]:
    """The model of a run, and what it is trained to predict."""
    return config["model.cell"] or config["model.family"], config["distillation.teacher"] or "tokens"


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model and target."""
    primary = series.select_primary_score(results).name
    values: dict[tuple[str, str], dict[int, float]] = {}
    for result in results:
        values.setdefault(find_row(result["config"]), {})[result["config"]["seed"]] = result["evaluation"][primary]
    pairs = [(row, (row[0], "tokens")) for row in values if row[1] != "tokens"]
    tests = {row: test for (row, _), test in compare.correct_p(compare.compare_rows(values, pairs)).items()}

    def describe_row(seeds):
        row = find_row(seeds[0]["config"])
        test = tests.get(row)
        return {"model": row[0], "target": row[1], **({} if test is None else test._asdict())}

    return excess_loss.build_table(results, COLUMNS, describe_row)
