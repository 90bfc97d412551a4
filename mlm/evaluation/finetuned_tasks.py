"""Scores of a run after fine-tuning, where each task's dev split selects from a grid of hyperparameters.

The grid is of learning rates, epochs and batch sizes. Each fine-tuning is a run of its own
(mlm/training/run/finetuning_recipe.py), in a directory below that of the pretrained run.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mlm.base import config, fields, files, groups
from mlm.base.estimates import PERCENT, UNBOUNDED, EvaluationMetric, EvaluationScore, Score, read_scores
from mlm.base.storage import get_storage
from mlm.data.rows.preprocessors import PREPROCESSORS
from mlm.data.tasks import splits, tasks
from mlm.evaluation import evaluations, predictions
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress, get_results, get_summary, group_results
from mlm.report.table import format_count
from mlm.training.run import finetuning_recipe, hooks, loop
from mlm.training.run.directory import RunDirectory
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

# Fields that do not identify the fine-tuning task: those of the pretrained run, the examples' source (their content has
# a digest of its own), and those that a trial names.
UNHASHED_FIELDS = (
    *("data.", "model.", "tokenizer.", "init."),
    *("seed", "optim.learning_rate", "train.batch_size", "train.steps"),
)
# Of a task whose fine-tunings all diverged.
UNKNOWN_SCORE = Score("diverged", "accuracy", ("correct", "weight"), better=1, share=True)


def list_due_cases(cfg: config.Config, task_fields: Mapping[str, Any] = MappingProxyType({})) -> list[EvaluationCase]:
    """A case for each trial of config.downstream, such as "TASK-DIGITS/lr0.001-e3-b32-s0".

    The digits are a digest of the task's files and of the fine-tuning recipe, so that results of other files or of
    another recipe stay beside these. task_fields: as for `finetuning_recipe.make_overrides`.
    """
    cases, digests = [], {}
    for trial in finetuning_recipe.list_trials(cfg):
        kind = trial.task, trial.variant
        if kind not in digests:
            digests[kind] = _hash_recipe(cfg, trial, task_fields)
        inputs = {"task_sha256": digests[kind], **trial._asdict()}
        name = f"{format_task_name(trial)}-{digests[kind][:6]}/{format_point(inputs)}-s{trial.seed}"
        task = tasks.TASKS.get(trial.task)
        titles = {"title": task.title, "note": task.note} if task else {"title": trial.task, "note": ""}
        cases.append(EvaluationCase("finetuned_tasks", name, inputs, inputs | titles, settings=task_fields))
    return cases


def _hash_recipe(cfg: config.Config, trial: finetuning_recipe.Trial, task_fields: Mapping[str, Any]) -> str:
    trial_cfg = finetuning_recipe.plan_config(cfg, trial, task_fields)
    # How an example becomes a vector follows from the model, which the digest leaves out.
    names = (*finetuning_recipe.make_overrides(cfg, trial), "finetune.pooling")
    recipe = {name: finetuning_recipe.RECIPE.get(name, fields.DEFAULT[name]) for name in names}
    hashed = {
        name: value
        for name, value in fields.select_changed(fields.override(trial_cfg, recipe)).items()
        if name in (*finetuning_recipe.RECIPE, "data.labelled.scores") or not name.startswith(UNHASHED_FIELDS)
    }
    encoding = PREPROCESSORS[trial_cfg.objective].format
    if encoding > 1 and trial.task not in tasks.LANGUAGE_TASKS:  # whose examples all fit
        hashed["encoding"] = encoding
    return files.json_sha256(hashed | {"content": splits.hash_content(trial_cfg.data)})


def format_task_name(trial: finetuning_recipe.Trial) -> str:
    """The task and its settings beyond the recipe, such as "tag-trainable_layers0-layer_featuresmix"."""
    settings = (setting.partition("=") for setting in trial.variant.split())
    return "-".join((trial.task, *(name.rpartition(".")[2] + value for name, _, value in settings)))


def format_point(trial: Mapping) -> str:
    """A point of the hyperparameter grid."""
    return f"lr{trial['learning_rate']:.9g}-e{trial['epochs']:.9g}-b{trial['batch_size']}"


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Fine-tunes the run and returns the "evaluation" and "scores" on dev, as in a run's result.

    "run" names the directory of the fine-tuned run, which also holds its predictions; its checkpoints are removed.
    "diverged" says how training diverged, instead of scores. Raises RunStopped as training does; the next call resumes
    it.
    """
    trial = finetuning_recipe.Trial(*(case.inputs[name] for name in finetuning_recipe.Trial._fields))
    overrides = finetuning_recipe.make_overrides(run.cfg, trial, case.settings)
    overrides |= {"data.cache_dir": run.cfg.data.cache_dir}
    layer, source = fields.Layer("config.downstream", overrides), run.cfg.workdir if run.has_data else run.cfg.init.hub
    resolved, packed = finetuning_recipe.prepare_finetuning(source, [layer], epochs=trial.epochs)
    cfg = resolved.config
    digest = files.json_sha256([fields.fingerprint(cfg), packed.manifest["inputs"]])
    name = f"{format_task_name(trial)}-{case.name.rpartition('/')[2]}-{digest[:6]}"
    local = {"eval.batch_size": run.cfg.eval.batch_size, "parallel.mode": run.cfg.parallel.mode}
    cfg = fields.override(cfg, local | {"workdir": str(RunDirectory(run.cfg.workdir).tasks / name)})
    try:
        loop.check(cfg)
        result = loop.train(cfg, packed)
    except hooks.DivergenceError as error:
        return {"diverged": str(error), "run": name}
    evaluations.finish_evaluations({"predictions": evaluations.make_evaluation(predictions)}, cfg, packed)
    if parallel.is_primary():
        get_storage(cfg.workdir).remove_folder(RunDirectory(cfg.workdir).checkpoints)
    return {"evaluation": result["evaluation"], "scores": result["scores"], "run": name}


def summarize(results: Mapping[str, dict]) -> dict:
    """The results of the best grid point of each task and variant, by the part of a case's name before the "/".

    The best point has the best mean over seeds of the first dev score, among the points with the most seeds. "values"
    are that score's by seed, "other_scores" the values of the other scores; "failed" lists the seeds whose fine-tuning
    diverged or is no better than the baseline, "trials" counts the points, "references" has the values that need no
    model, by reference, and "sha256" is of all inputs; "unscored", where there are any, counts the labels of dev
    without a prediction.
    """
    return {name: _summarize_task([*by_trial.values()]) for name, by_trial in group_results(results).items()}


def _summarize_task(results: Sequence[dict]) -> dict:
    scored = [result for result in results if "scores" in result]
    score, *others = read_scores(scored[0]) if scored else [UNKNOWN_SCORE]
    references = {
        other.reference: scored[0]["evaluation"][other.name]
        for other in others
        if other.reference and other.reference_for == score.name
    }
    baseline = references.get("majority class", 0.0)  # that of correlations and F1 is 0
    grid = groups.group_values((format_point(result), result) for result in results)

    def get_value(result):  # of one that diverged, the baseline's
        return result["evaluation"][score.name] if "evaluation" in result else baseline

    max_seeds = max(map(len, grid.values()))
    best = max(
        (point for point in grid.values() if len(point) == max_seeds),
        key=lambda point: score.better * statistics.fmean(map(get_value, point)),
    )
    evaluated = [result["evaluation"] for result in best if "evaluation" in result]
    first = best[0].get("evaluation", {})
    inputs = [results[0]["task_sha256"], sorted([format_point(result), result["seed"]] for result in results)]
    return {
        **{name: results[0][name] for name in ("task", "variant", "title", "note")},
        "score": score._asdict(),
        **{name: best[0][name] for name in ("learning_rate", "epochs", "batch_size")},
        "seeds": [result["seed"] for result in best],
        "values": [get_value(result) for result in best],
        "other_scores": {
            other.name: [evaluation[other.name] for evaluation in evaluated] for other in others if not other.reference
        },
        **({"error": first[f"{score.name}_se"], "items": first["predictions"]} if max_seeds == 1 and first else {}),
        **({"unscored": first["unscored"]} if first.get("unscored") else {}),
        # A failure is what Devlin et al. 2019, section 4.1, and Mosbach et al. 2021, arXiv 2006.04884, count as one.
        "failed": [result["seed"] for result in best if score.better * (get_value(result) - baseline) <= 1e-9],
        "trials": len(grid),
        "references": references,
        "sha256": files.json_sha256(inputs),
    }


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """The mean over fine-tuning seeds of each task and variant on dev; of a single seed with an error over examples."""
    baselines = get_results(contents, "text_baseline")
    for task in get_summary(contents, "finetuned_tasks").values():
        yield _build_score(task, baselines.get(task["task"], {}))


def _build_score(task: Mapping, baseline: Mapping) -> EvaluationScore:
    score, seeds = Score(**task["score"]), task["seeds"]
    factor, form, bounds = (100, ".1f", PERCENT) if score.share else (1, score.format, UNBOUNDED)
    references, below = dict(task["references"]), ""
    if score.name in baseline.get("scores", {}):
        below = baseline["title"]
        references[below] = baseline["scores"][score.name]
    several = f"the best of {task['trials']} trials (learning rate x epochs x batch size)"
    trials = several if task["trials"] > 1 else "one trial"
    note = f"dev, {'mean of ' if len(seeds) > 1 else ''}{format_count(len(seeds), 'fine-tuning seed')}, {trials}"
    if "unscored" in task:
        note += f"; {format_count(task['unscored'], 'label')} not scored"
    name, title, unit = f"task_{task['task']}", score.title.removeprefix("held-out "), "%" if score.share else ""
    return EvaluationScore(
        EvaluationMetric(name, title, task["sha256"], task["title"], unit, form, bounds, score.better, task["variant"]),
        factor * (sum(task["values"]) / len(seeds)),
        factor * task["error"] if "error" in task else None,
        f"{note}; {task['note']}" if task["note"] else note,
        values=tuple(factor * value for value in task["values"]),
        failed=tuple(task["failed"]),
        references={name: factor * value for name, value in references.items()},
        baseline=below,
        items=task.get("items", 0) if score.name == "accuracy" else 0,
    )
