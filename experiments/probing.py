"""At which of its layers does a model know what a word is, by architecture?

Paper      Tenney et al. 2019 (arXiv:1905.05950): BERT finds parts of speech in its lower layers, syntactic relations
           above them, and meaning above those. Recurrent and feedforward models are not compared.
Run        mlm sweep run experiments/probing.py --scale=laptop --workers=2
           parts of speech and dependencies of English: --config.data.path=TEXT --config.tokenizer.vocab_size=2048
           --config.downstream.tasks=ud_pos,ud_dep --config.downstream.path=..., UD-EWT in folders of these names
Data       quick, laptop: the built-in language and its tagging task, each hidden word's class and number, whose
           Bayes-optimal accuracy is known. The embeddings see [MASK] alone, so they know the most frequent class and no
           more: the table lists their probes as failed, as it should. paper: English Wikipedia; UD-EWT in place of the
           paper's OntoNotes.
Method     For each layer k, a probe reads a learned mix of the frozen model's layers 0 (the embeddings) to k. "Expected
           layer" is the mean over the layers from 1 on, weighted by the gain of each in score; a loss counts, too.
           "Center of gravity" is the mean over all layers, weighted by their shares in the deepest probe's mix.
           Intervals are over pretraining seeds, each the mean of its probes; for a single run, over probe seeds.
Cost       quick: a minute or two per point. laptop: 9 points of 15 probes, a quarter of an hour each on 2 CPU cores: an
           estimate from 20 ms per step. paper: one point of the large model, for an accelerator; not estimated. text: 6
           points of micro with four layers on WikiText-2, 16,000 examples, two seeds, and the parts of speech of
           UD-EWT: 20 minutes, estimated.
Published  large model, expected layer and center of gravity: parts of speech 3.39, 11.68; dependencies 5.69, 13.75.
Figures    experiments/results/fine_tuning.md
"""

import re
from collections.abc import Sequence

import numpy as np

from mlm.base.estimates import estimate_mean
from mlm.experiment.grid import cross_points, make_seeds, name_points
from mlm.experiment.recipes import BERT, LAPTOP, QUICK, TEXT, make_member
from mlm.report import evaluation_scores, run_columns, summary
from mlm.report.table import Column

MEMBERS = ("window", "lstm", "transformer")
TAG_TASK = {"downstream.tasks": "tag", "downstream.learning_rates": (4e-3,)}
PROBE = "objective=edge_probing finetune.trainable_layers=0"
PROBE_ACCURACY = (
    f"{PROBE} data.labelled.scores=accuracy"  # a word has one class: the one that the probe finds likeliest
)
PAPER = {"ud_pos": (3.39, 11.68), "ud_dep": (5.69, 13.75)}  # BERT large: expected layer, centre of gravity

SCALES = {
    "quick": {
        "fields": QUICK | TAG_TASK | {"downstream.epochs": (1.0,), "downstream.seeds": 2},
        "layers": 2,
        "probe": PROBE_ACCURACY,
        "members": ("lstm", "transformer"),
        "seeds": 1,
    },
    "laptop": {
        "fields": LAPTOP | TAG_TASK | {"downstream.seeds": 3},
        "layers": 4,
        "probe": PROBE_ACCURACY,
        "members": MEMBERS,
        "seeds": 3,
    },
    "text": {
        "fields": TEXT
        | TAG_TASK
        | {"downstream.tasks": "ud_pos", "downstream.path": "texts", "downstream.epochs": (1.0,)},
        "layers": 4,
        "probe": PROBE,
        "members": MEMBERS,
        "seeds": 2,
    },
    "paper": {
        "fields": BERT
        | {
            "model.size": "large",
            "downstream.tasks": ",".join(PAPER),
            "downstream.path": "tasks",
            "downstream.learning_rates": (1e-4,),
            "downstream.seeds": 3,
        },
        "layers": 24,
        "probe": PROBE,
        "members": ("transformer",),
        "seeds": 1,
    },
}

COLUMNS = run_columns.select_columns("model", "size")
LAYER_MEASURES = {"expected": "expected layer", "gravity": "centre of gravity"}


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets: a pretraining, and a probe of each depth."""
    plan = SCALES[scale]
    members = [make_member(member, scale) for member in plan["members"]]
    points = cross_points(members, make_seeds(plan["seeds"]))
    probes = [f"{plan['probe']} finetune.max_layer={depth}" for depth in range(plan["layers"] + 1)]
    shape = {"model.num_layers": plan["layers"], "downstream.variants": ",".join(probes)}
    return name_points(points, plan["fields"] | shape)


def measure_depths(result: dict) -> dict[str, list[dict]]:
    """What a run gave when probed for each task, from the embeddings alone to all layers; of those asked at each."""
    all_depths, tasks_by_probe = range(result["config"]["model.num_layers"] + 1), {}
    for task in result["summary"].get("finetuned_tasks", {}).values():
        if depth := re.search(r"finetune\.max_layer=(\d+)$", task["variant"]):
            probe = task["task"], task["variant"][: depth.start()], task["trials"], tuple(task["seeds"])
            tasks_by_probe.setdefault(probe, {})[int(depth[1])] = task
    return {
        name: [task_by_depth[depth] for depth in all_depths]
        for (name, *_), task_by_depth in tasks_by_probe.items()
        if {*all_depths} <= task_by_depth.keys()
    }


def compute_expected_layer(score_xK: np.ndarray) -> np.ndarray:
    """The mean layer number from 1 on, weighted by the gain of the probe that may read the layer over the previous one.

    Negative gains are not clipped. NaN if the last probe scores as the first does. score_xK: of the probes that may
    read layers 0 to 0, 0 to 1, and so on (Tenney et al. 2019, section 3).
    """
    gain_xK = np.diff(np.asarray(score_xK, np.float64))
    total_x = gain_xK.sum(-1)
    return gain_xK @ np.arange(1, gain_xK.shape[-1] + 1) / np.where(total_x == 0, np.nan, total_x)


def describe_row(seeds: Sequence[dict]) -> dict:
    """For each task, where in the model it is found."""
    config, depths_by_run = seeds[0]["config"], [result["depths"] for result in seeds]
    row = {}
    for task in depths_by_run[0]:
        if not all(task in run and run[task][-1]["other_scores"].get("gravity") for run in depths_by_run):
            continue
        score_RxKxS = [[result["values"] for result in run[task]] for run in depths_by_run]
        gravity_RxS = [run[task][-1]["other_scores"]["gravity"] for run in depths_by_run]
        score_SxK, gravity_S = (
            (np.transpose(score_RxKxS[0]), gravity_RxS[0])
            if len(depths_by_run) == 1
            else ([np.mean(run, -1) for run in score_RxKxS], [np.mean(run) for run in gravity_RxS])
        )
        row |= {
            f"{task}_expected": estimate_mean(compute_expected_layer(score_SxK)),
            f"{task}_gravity": estimate_mean(gravity_S, (0.0, float(config["model.num_layers"]))),
        }
        if task in PAPER and config["model.size"] == "large":
            row |= {f"{task}_{name}_paper": value for name, value in zip(LAYER_MEASURES, PAPER[task], strict=True)}
    return row


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model: the score of each depth, and where that puts the task."""
    tasks = {
        name: depth_results[0]["title"] for result in results for name, depth_results in measure_depths(result).items()
    }
    columns = [
        column
        for name, title in tasks.items()
        for measure, title_suffix in LAYER_MEASURES.items()
        for column in (
            Column(f"{name}_{measure}", f"{title}: {title_suffix}", ".2f"),
            Column(f"{name}_{measure}_paper", f"paper's {title}: {title_suffix}", ".2f"),
        )
    ]
    return summary.build_table([build_depth_rows(result) for result in results], COLUMNS, describe_row, columns)


def build_depth_rows(result: dict) -> dict:
    """A run with its "depths", the score of each a column."""
    depths, probes = measure_depths(result), {}
    for name, depth_results in depths.items():
        for depth, task in enumerate(depth_results):
            subject = f"{task['title']}, layers 0 to {depth}"
            place = {"name": f"task_{name}_{depth}", "subject": subject, "variant": ""}
            probes[f"task_{task['task']}", task["variant"], task["sha256"]] = place
    scores = [
        score._replace(metric=metric._replace(**probes.get((metric.name, metric.variant, metric.sha256), {})))
        for metric, score in evaluation_scores.index_scores(result).items()
    ]
    return result | {"depths": depths, "evaluation_scores": scores}
