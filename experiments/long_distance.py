"""What do recurrent networks forget with distance, and what does remembering cost: gradients, names and time?

Paper      The known limits of recurrent networks. The gradient of a prediction with respect to a distant input vanishes
           in an Elman network (Bengio et al. 1994; Hochreiter & Schmidhuber 1997), less with gates, and not with
           attention (Vaswani et al. 2017, table 1: paths of length 1). The steps of an RNN are sequential, those of
           attention are not.
Run        mlm sweep run experiments/long_distance.py --scale=laptop
Data       The built-in language: a passage has a protagonist, whose name comes back sentences later, and the
           Bayes-optimal accuracy of predicting which name comes is known.
Cost       quick: a minute or two per point on 2 CPU cores. laptop: 12 points, about half an hour, estimated from the
           time per example in architectures.py. paper: 12 points on English Wikipedia, for an accelerator, without
           names. text: 8 points of micro on WikiText-2, 32,000 examples, two seeds, without names: 50 minutes,
           measured beside other work.
Columns    "reach" is the mean norm of the gradient with respect to an embedding so many tokens back, divided by that of
           the last token, at initialization and after training. "recall" is the share of names, among those that the
           passage has mentioned before, that are ranked first among all names, by the number of sentence ends in
           between. "time" is the time of states and gradients on the longest sequences over that on the shortest, for
           the same number of tokens: it shows the wait of a sequential network where the device has idle capacity, and
           the cost of attention over pairs of tokens. A CPU is busy with either, so it shows the latter alone. Timing
           needs a machine with no other work: do not set --workers.
Figures    experiments/results/long_distance.md
"""

from collections.abc import Sequence

from mlm.base.estimates import FRACTION, estimate_mean
from mlm.experiment.grid import cross_points, drop_fields, make_seeds, name_points
from mlm.experiment.recipes import SMALL, TUNED_FIELDS, make_member, read_text, set_training_length
from mlm.report import run_columns, series, summary
from mlm.report.table import Column, NamedTable

NUM_EXAMPLES, EVAL_INTERVAL = 32_000, 6_400  # taken in by a run, and between two evaluations
MEMBERS = ("elman", "gru", "lstm", "transformer")
BASE_FIELDS = drop_fields(SMALL, "mask") | {
    "objective": "causal",
    "eval.context_range": True,
    "model.size": "micro",
    "data.language.train_documents": NUM_EXAMPLES,
}
SCALES = {
    "quick": {
        "members": ("elman", "lstm", "transformer"),
        "seeds": 1,
        "fields": BASE_FIELDS | {"data.language.validation_documents": 500},
    },
    "laptop": {"members": MEMBERS, "seeds": 3, "fields": BASE_FIELDS},
    "text": {"members": MEMBERS, "seeds": 2, "fields": read_text(BASE_FIELDS)},
    "paper": {
        "members": MEMBERS,
        "seeds": 3,
        "fields": {
            "objective": "causal",
            "eval.context_range": True,
            "model.size": "base",
            "model.dtype": "bfloat16",
            "train.batch_size": 256,
            "train.steps": 100_000,
            "optim.learning_rate": 1e-4,
            "data.corpus": "tfds",
            "data.tfds_name": "wiki40b/en",
            "tokenizer.vocab_size": 30_522,
            "eval.max_examples": 10_000,
            "train.checkpoint_every": 5000,
        },
    },
}
GRADIENT_DISTANCES = (8, 32, 64)  # tokens, of which the table has a column each
COLUMNS = run_columns.select_columns("model", "non_embedding")
DISTANCE_COLUMNS = (
    *(
        Column(f"{when}_{low}", f"reach {low}+ back, {when}", ".1e")
        for when in ("start", "trained")
        for low in GRADIENT_DISTANCES
    ),
    *(
        Column(f"recall_{low}", f"recall, {series.format_range(low, high)} sentence ends", ".3f")
        for low, high in ((0, 0), (1, 1), (2, 3), (4, 7), (8, None))
    ),
    Column("time", "time, longest rows over shortest", ".1f"),
)
RESULT_TABLES = ("claims", "distances")


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    members = [make_member(name, scale) for name in plan["members"]]
    if scale != "paper":
        members = [
            member | set_training_length(NUM_EXAMPLES, EVAL_INTERVAL, TUNED_FIELDS[member["name"]])
            for member in members
        ]
    return name_points(cross_points(members, make_seeds(plan["seeds"])), plan["fields"])


def measure_distances(seeds: Sequence[dict]) -> dict:
    """What the runs of a group answered to the question "distance", where all were asked."""
    evaluations = [result["evaluations"].get("context_range", {}) for result in seeds]
    cells = {}
    for moment in ("start", "trained"):
        norms = [
            {bucket["low"]: bucket["norm"] for bucket in evaluation.get("gradient", {}).get(moment, ())}
            for evaluation in evaluations
        ]
        cells |= {
            f"{moment}_{low}": estimate_mean(run[low] / run[0] for run in norms)
            for low in GRADIENT_DISTANCES
            if all(low in run for run in norms)
        }
    shares = [
        {bucket["low"]: bucket["accuracy"] for bucket in evaluation.get("recall", {}).get("distance", ())}
        for evaluation in evaluations
    ]
    cells |= {
        f"recall_{low}": estimate_mean((run[low] for run in shares), FRACTION)
        for low in sorted(set.intersection(*map(set, shares)))
    }
    times = [
        [bucket["seconds"] for bucket in evaluation.get("time", {}).get("lengths", ())] for evaluation in evaluations
    ]
    return cells | ({"time": estimate_mean(run[-1] / run[0] for run in times)} if all(times) else {})


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Gates are better than none, attention than gates."""
    return [("lstm", "elman"), ("gru", "elman"), ("transformer", "lstm")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each net, and the optimum's recall of the same names."""
    rows, columns = summary.build_table(results, COLUMNS, measure_distances, DISTANCE_COLUMNS)
    optimum = {
        f"recall_{bucket['low']}": bucket["optimum"]
        for bucket in results[0]["evaluations"].get("context_range", {}).get("recall", {}).get("distance", ())
    }
    return [row | optimum if row["model"] == "Bayes optimum" else row for row in rows], columns


def tables(results: Sequence[dict]) -> list[NamedTable]:
    """Gradients and names by distance, for which the headline has no room; time means nothing with several workers."""
    rows, columns = table(results)
    shown = [column for column in columns if column in (*run_columns.select_columns("model"), *DISTANCE_COLUMNS[:-1])]
    rows = [row for row in rows if any(column.name in row for column in shown[1:])]
    return [NamedTable("distances", "Distances", "Means over seeds, by distance.", rows, shown)]
