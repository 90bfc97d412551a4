"""What do recurrent nets forget, and what does remembering cost: gradients, names and time by distance?

Claim      The lectures' limits of recurrent nets. The gradient of a prediction by an input far back vanishes in an
           Elman net (Bengio et al. 1994; Hochreiter & Schmidhuber 1997), less with gates, not with attention (Vaswani
           et al. 2017, table 1: paths of length 1); and an RNN's steps wait for each other, those of attention do not.
Command    python -m mlm.launch.sweep run experiments/long_distance.py --scale=laptop
Corpus     The built-in language: a passage has a protagonist, whose name comes back sentences later, and the exact
           optimum of telling which name comes is known.
Hours      quick: a minute or two a point on 2 CPU cores. laptop: 12 points, about half an hour, reckoned from the time
           of a row in architectures.py. paper: 12 points on English Wikipedia, for an accelerator, without names.
Columns    "reach" is the mean norm of the gradient by an embedding so many tokens back, as a share of that by the last
           one, when parameters are drawn and when they are trained. "recall" is the share of names, of those that stood
           in the passage before, that are found likeliest among all names, by the sentence ends between. "time" is that
           of states and gradients in rows of the longest length, over that in rows of the shortest, for as many tokens:
           what a serial net waits for along a row, on a device with room for more, and what attention pays for pairs of
           tokens; a CPU, which is full with either, shows the latter alone. Times want a machine that has nothing else
           to do: no --workers.
"""
from collections.abc import Sequence

from mlm.base.estimates import SHARE, estimate
from mlm.experiment.grid import axis, chain, named, product, without
from mlm.experiment.recipes import BEST, OWN, SMALL, of_rows
from mlm.report import series, summary
from mlm.report.table import Column

ROWS, EVERY = 32_000, 6_400  # taken in by a run, and between two evaluations
MEMBERS = {cell: {"name": cell, "model.family": "rnn", "model.cell": cell} for cell in ("elman", "gru", "lstm")} | {
    "transformer": {"name": "transformer", "model.family": "transformer"}}
FIELDS = without(SMALL, "mask") | {"objective": "causal", "eval.context_range": True, "model.size": "micro",
                                   "data.language.train_documents": ROWS}
SCALES = {"quick": {"members": ("elman", "lstm", "transformer"), "seeds": 1, "fields": FIELDS |
                    {"data.language.validation_documents": 500}}, "laptop": {"members": tuple(MEMBERS), "seeds": 3,
                                                                             "fields": FIELDS},
          "paper": {"members": tuple(MEMBERS), "seeds": 3, "fields": {"objective": "causal", "eval.context_range": True,
                                                                      "model.size": "base", "model.dtype": "bfloat16",
                                                                      "train.batch_size": 256, "train.steps": 100_000,
                                                                      "optim.learning_rate": 1e-4,
                                                                      "data.corpus": "tfds",
                                                                      "data.tfds_name": "wiki40b/en",
                                                                      "tokenizer.vocab_size": 30_522,
                                                                      "eval.max_examples": 10_000,
                                                                      "train.checkpoint_every": 5000}}}
APART = (8, 32, 64)  # tokens, of which the table has a column each
COLUMNS = (Column("model", "model"), Column("non_embedding", "non-embedding", ",d"))
MORE = (*(Column(f"{when}_{low}", f"reach {low}+ back, {when}", ".1e") for when in ("start", "trained")
          for low in APART),
        *(Column(f"recall_{low}", f"recall, {series.span(low, high)} sentence ends", ".3f")
          for low, high in ((0, 0), (1, 1), (2, 3), (4, 7), (8, None))),
        Column("time", "time, longest rows over shortest", ".1f"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    seeds = axis("seed", *range(plan["seeds"]), name="seed{}")
    own = {name: OWN[name] | of_rows(ROWS, EVERY, BEST[name]) if scale != "paper" else {} for name in plan["members"]}
    every = chain(*(product([MEMBERS[name]], [own[name]], seeds) for name in plan["members"]))
    return {name: plan["fields"] | point for name, point in named(every).items()}


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    return {"model": config["model.cell"] or config["model.family"], "non_embedding": seeds[0]["non_embedding"],
            **distances(seeds)}


def distances(seeds: Sequence[dict]) -> dict:
    """What the runs of a group answered to the question "distance", where all were asked."""
    asked = [result["answers"].get("distance", {}) for result in seeds]
    found = {}
    for when in ("start", "trained"):
        norms = [{one["low"]: one["norm"] for one in answers.get("gradient", {}).get(when, ())} for answers in asked]
        found |= {f"{when}_{low}": estimate(of_run[low] / of_run[0] for of_run in norms)
                  for low in APART if all(low in of_run for of_run in norms)}
    shares = [{one["low"]: one["accuracy"] for one in answers.get("recall", {}).get("distance", ())}
              for answers in asked]
    found |= {f"recall_{low}": estimate((of_run[low] for of_run in shares), SHARE)
              for low in sorted(set.intersection(*map(set, shares)))}
    times = [[one["seconds"] for one in answers.get("time", {}).get("lengths", ())] for answers in asked]
    return found | ({"time": estimate(of_run[-1] / of_run[0] for of_run in times)} if all(times) else {})


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Gates are better than none, attention than gates."""
    return [("lstm", "elman"), ("gru", "elman"), ("transformer", "lstm")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each net, and the optimum's recall of the same names."""
    rows, columns = summary.table(results, COLUMNS, about, MORE)
    best = {f"recall_{one['low']}": one["optimum"]
            for one in results[0]["answers"].get("distance", {}).get("recall", {}).get("distance", ())}
    return [row | best if row["model"] == "exact optimum" else row for row in rows], columns
