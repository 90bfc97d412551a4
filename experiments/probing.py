"""At which of its layers does a model know what a word is, by family?

Claim      Tenney et al. 2019 (arXiv:1905.05950): BERT finds parts of speech in its lower layers, what stands in which
           relation to what above them, and meaning above that. No recurrent or feedforward model stands beside it.
Command    python -m mlm.launch.sweep run experiments/probing.py --scale=laptop --workers=2
           parts of speech and dependencies of English: --config.data.path=TEXT --config.tokenizer.vocab_size=2048
           --config.downstream.tasks=ud_pos,ud_dep --config.downstream.path=..., UD-EWT in folders of these names
Corpus     quick, laptop: the built-in language, and its task of each hidden word's class and number, whose best
           possible accuracy is known: the embeddings, which see [MASK] alone, know the most frequent class and no more
           (so that their probes are listed as failed, as they should be).
           paper: English Wikipedia; UD-EWT, where theirs is OntoNotes.
How        For each layer k a probe that reads a learnt mix of the layers 0 (the embeddings) to k of the frozen model.
           "Expected layer" is the mean of the layers from 1 on by what each adds to the score, a loss counted too;
           "centre of gravity" that of all layers by their shares in the deepest probe's mix. Intervals are over seeds
           of pretraining, each the mean of its probes; of one run, over seeds of the probes.
Hours      quick: a minute or two a point. laptop: 9 points, 15 probes each, a quarter of an hour each on 2 CPU cores:
           an estimate from 20 ms a step. paper: one point of the large model, an accelerator's; not reckoned.
Expected   paper, large, expected layer and centre of gravity: parts of speech 3.39, 11.68; dependencies 5.69, 13.75.
"""
import re
from collections.abc import Sequence

import numpy as np

from mlm.experiment.grid import axis, named, product
from mlm.experiment.recipes import BERT, LAPTOP, OWN, QUICK
from mlm.report import layers, summary
from mlm.report.table import Column

MEMBERS = {"window": {"model.family": "feedforward", "model.cell": "window"},
           "lstm": {"model.family": "rnn", "model.cell": "lstm"}, "transformer": {"model.family": "transformer"}}
OWN_TASK = {"downstream.tasks": "tag", "downstream.learning_rates": (4e-3,)}
PROBE = "objective=edge finetune.trainable_layers=0"
RIGHT = f"{PROBE} data.labelled.scores=accuracy"  # a word has one class: the one that the probe finds likeliest
PAPER = {"ud_pos": (3.39, 11.68), "ud_dep": (5.69, 13.75)}  # BERT large: expected layer, centre of gravity

SCALES = {
    "quick": {"fields": QUICK | OWN_TASK | {"downstream.epochs": (1.0,), "downstream.seeds": 2}, "layers": 2,
              "probe": RIGHT, "members": ("lstm", "transformer"), "own": OWN, "seeds": 1},
    "laptop": {"fields": LAPTOP | OWN_TASK | {"downstream.seeds": 3}, "layers": 4, "probe": RIGHT,
               "members": tuple(MEMBERS), "own": OWN, "seeds": 3},
    "paper": {"fields": BERT | {"model.size": "large", "downstream.tasks": ",".join(PAPER), "downstream.path": "tasks",
                                "downstream.learning_rates": (1e-4,), "downstream.seeds": 3},
              "layers": 24, "probe": PROBE, "members": ("transformer",), "own": {"transformer": {}}, "seeds": 1},
}

COLUMNS = (Column("model", "model"), Column("size", "size"))
FOUND = {"expected": "expected layer", "gravity": "centre of gravity"}


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets: a pretraining, and a probe of each depth."""
    plan = SCALES[scale]
    members = [{"name": member} | MEMBERS[member] | plan["own"][member] for member in plan["members"]]
    points = product(members, axis("seed", *range(plan["seeds"]), name="seed{}"))
    probes = [f"{plan['probe']} finetune.max_layer={depth}" for depth in range(plan["layers"] + 1)]
    shape = {"model.num_layers": plan["layers"], "downstream.variants": ",".join(probes)}
    return {name: plan["fields"] | shape | point for name, point in named(points).items()}


def depths(result: dict) -> dict[str, list[dict]]:
    """What a run gave when probed for each task, from the embeddings alone to all layers; of those asked at each."""
    wanted, found = range(result["config"]["model.num_layers"] + 1), {}
    for task in result["summary"].get("tasks", {}).values():
        if depth := re.search(r"tune\.depth=(\d+)$", task["variant"]):
            alike = task["task"], task["variant"][:depth.start()], task["trials"], tuple(task["seeds"])
            found.setdefault(alike, {})[int(depth[1])] = task
    return {name: [of[depth] for depth in wanted] for (name, *_), of in found.items() if {*wanted} <= of.keys()}


def about(seeds: Sequence[dict]) -> dict:
    """A row's model, and for each task where it is found."""
    config, each = seeds[0]["config"], [result["depths"] for result in seeds]
    row = {"model": config["model.cell"] or config["model.family"], "size": config["model.size"]}
    for task in each[0]:
        if not all(task in of_run and of_run[task][-1]["further"].get("gravity") for of_run in each):
            continue
        score_RxKxS = [[one["values"] for one in of_run[task]] for of_run in each]
        gravity_RxS = [of_run[task][-1]["further"]["gravity"] for of_run in each]
        score_SxK, gravity_S = ((np.transpose(score_RxKxS[0]), gravity_RxS[0]) if len(each) == 1 else
                                ([np.mean(of_run, -1) for of_run in score_RxKxS],
                                 [np.mean(of_run) for of_run in gravity_RxS]))
        row |= {f"{task}_expected": layers.expected_over_seeds(score_SxK),
                f"{task}_gravity": layers.gravity_over_seeds(gravity_S, config["model.num_layers"])}
        if task in PAPER and config["model.size"] == "large":
            row |= {f"{task}_{name}_paper": value for name, value in zip(FOUND, PAPER[task], strict=True)}
    return row


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model: the score of each depth, and where that puts the task."""
    tasks = {name: found[0]["title"] for result in results for name, found in depths(result).items()}
    more = [column for name, title in tasks.items() for what, called in FOUND.items() for column in (
        Column(f"{name}_{what}", f"{title}: {called}", ".2f"),
        Column(f"{name}_{what}_paper", f"paper's {title}: {called}", ".2f"))]
    return summary.table([by_depth(result) for result in results], COLUMNS, about, more)


def by_depth(result: dict) -> dict:
    """A run with its "depths", the score of each a column."""
    found = depths(result)
    tasks = {f"{name}_{depth}": task | {"task": f"{name}_{depth}", "variant": "",
                                        "title": f"{task['title']}, layers 0 to {depth}"}
             for name, of in found.items() for depth, task in enumerate(of)}
    probes = [one for of in found.values() for one in of]
    rest = {name: one for name, one in result["summary"].get("tasks", {}).items() if one not in probes}
    return result | {"depths": found, "summary": result["summary"] | {"tasks": rest | tasks}}
