"""What a run gives once fine-tuned: for each task a grid of learning rates, epochs and batch sizes, of which the dev
split chooses.

A fine-tuning is a run of its own (mlm/train/finetuning_recipe.py) in a directory below that of the run which it starts from.
"""
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence

from mlm.base import config, fields, files
from mlm.base.estimates import Score, scores_of
from mlm.data.tasks import splits, tasks
from mlm.evaluation import evaluations, predictions
from mlm.evaluation.evaluations import EvaluationCase, EvaluationTask
from mlm.train import finetuning_recipe
from mlm.train.run import directory, log, loop
from mlm.train.run.trained_run import Trained
from mlm.train.step import parallel

PREDICTIONS = {"predictions": EvaluationTask(predictions.can, predictions.ask)}
# Fields of a fine-tuning that do not say what is asked: those of the run that it starts from, where the examples come
# from, whose content is digested by itself, and what a trial names.
ELSEWHERE = ("data.", "model.", "tokenizer.", "start.", "seed", "optim.learning_rate", "train.batch_size",
             "train.steps")


def can(cfg: config.Config) -> str:
    return ""


def parts(cfg: config.Config) -> list[EvaluationCase]:
    """A part for each trial of config.downstream, "TASK-DIGITS/lr0.001-e3-s0": the digits are of the task's files and
    of how they are fine-tuned for, so that what is asked of other files, or otherwise, stands beside it.
    """
    made, known = [], {}
    for trial in finetuning_recipe.trials(cfg):
        kind = trial.task, trial.variant
        if kind not in known:
            planned = finetuning_recipe.planned(cfg, trial)
            plain = fields.override(planned, {name: finetuning_recipe.RECIPE.get(name, fields.DEFAULT[name])
                                              for name in finetuning_recipe.given(cfg, trial)})
            known[kind] = files.sha256({"content": splits.content(planned.data)} | {
                name: value for name, value in fields.flatten(plain, results_only=True).items()
                if name in (*finetuning_recipe.RECIPE, "data.labelled.scores") or not name.startswith(ELSEWHERE)})
        asked = {"what": known[kind], **trial._asdict()}
        name = f"{called(trial)}-{known[kind][:6]}/{point(asked)}-s{trial.seed}"
        row = tasks.TASKS.get(trial.task)
        about = {"title": row.title, "note": row.note} if row else {"title": trial.task, "note": ""}
        made.append(EvaluationCase("tasks", name, asked, asked | about))
    return made


def called(trial: finetuning_recipe.Trial) -> str:
    """A task and what is set for it beside the recipe: "tag-layers0-featuresmix"."""
    words = (word.partition("=") for word in trial.variant.split())
    return "-".join((trial.task, *(name.rpartition(".")[2] + value for name, _, value in words)))


def point(answer: Mapping) -> str:
    """A point of the grid."""
    return f"lr{answer['learning_rate']:.9g}-e{answer['epochs']:.9g}-b{answer['batch_size']}"


def ask(run: Trained, part: EvaluationCase, told) -> dict:
    """The dev "evaluation" of the fine-tuned model, with its "scores" as a result has them, and its "run": the name of
    its directory among the run's fine-tunings, where its predictions lie; or how it "diverged".

    Its checkpoints are not kept. Raises Stopped as training does; asked again, it goes on from there.
    """
    trial = finetuning_recipe.Trial(*(part.asked[name] for name in finetuning_recipe.Trial._fields))
    cfg, packed = finetuning_recipe.resolve(config.Config(), run.cfg.workdir, finetuning_recipe.given(run.cfg, trial),
                                            epochs=trial.epochs)
    settled = [fields.fingerprint(cfg), packed.manifest["inputs"]]
    name = f"{called(trial)}-{part.name.rpartition('/')[2]}-{files.sha256(settled)[:6]}"
    cfg = fields.override(cfg, {"workdir": str(directory.fine_tuning(run.cfg.workdir, name)),
                                "eval.batch_size": run.cfg.eval.batch_size, "parallel.mode": run.cfg.parallel.mode})
    try:
        result = loop.train(cfg, packed)
    except log.Diverged as diverged:
        told()
        return {"diverged": str(diverged), "run": name}
    evaluations.finish(PREDICTIONS, cfg, predictions.parts(cfg), packed)
    if parallel.is_primary():
        files.remove_folder(directory.checkpoints(cfg.workdir))
    told()
    return {"evaluation": result["evaluation"], "scores": result["scores"], "run": name}


def summary(answers: Mapping[str, dict]) -> dict:
    """For each task and variant, by the name before a part's "/": what the best point of its grid gave.

    That is the point whose mean over seeds of the first score on dev is best, of those with most seeds. "values" are
    its seeds', "further" those of the other scores; "failed" the seeds that came to nothing; "trials" how many points
    there were; "references" what is known without the model, by whose it is; "sha256" is of all that was asked.
    """
    each: dict[str, list[dict]] = {}
    for name, answer in answers.items():
        each.setdefault(name.partition("/")[0], []).append(answer)
    return {name: _summary(of_task) for name, of_task in each.items()}


def _summary(answers: Sequence[dict]) -> dict:
    told = next((one for one in answers if "scores" in one), None)
    score = scores_of(told)[0] if told else Score("diverged", "accuracy", ("correct", "weight"), better=1, share=True)
    references = {one.reference: told["evaluation"][one.name] for one in (scores_of(told) if told else ())
                  if one.reference and one.beside == score.name}
    bar = references.get("majority class", 0.0)  # of correlations and F1 that is 0
    grid: dict[str, list[dict]] = {}
    for one in answers:
        grid.setdefault(point(one), []).append(one)

    def value(one):
        return one["evaluation"][score.name] if "evaluation" in one else bar

    most = max(map(len, grid.values()))
    best = max((of_point for of_point in grid.values() if len(of_point) == most),
               key=lambda of_point: score.better * statistics.fmean(map(value, of_point)))
    alone = {"error": best[0]["evaluation"][f"{score.name}_se"]} if most == 1 and "evaluation" in best[0] else {}
    first = answers[0]
    asked = [first["what"], sorted([point(one), one["seed"]] for one in answers)]
    own = [one.name for one in (scores_of(told)[1:] if told else ()) if not one.reference]
    further = {name: [one["evaluation"][name] for one in best if "evaluation" in one] for name in own}
    return {"task": first["task"], "variant": first["variant"], "title": first["title"], "note": first["note"],
            "score": score._asdict(), "learning_rate": best[0]["learning_rate"], "epochs": best[0]["epochs"],
            "batch_size": best[0]["batch_size"], "seeds": [one["seed"] for one in best],
            "values": [value(one) for one in best], "further": further, **alone,
            "failed": [one["seed"] for one in best if failed(one, score, bar)], "trials": len(grid),
            "references": references, "sha256": hashlib.sha256(json.dumps(asked).encode()).hexdigest()}


def failed(answer: Mapping, score: Score, bar: float) -> bool:
    """Whether a fine-tuning came to nothing, as the literature counts them (Devlin et al. 2019, section 4.1; Mosbach et
    al. 2021, arXiv 2006.04884): no better than what is had without the model, or its loss was not finite.
    """
    if "evaluation" not in answer:
        return True
    return score.better * (answer["evaluation"][score.name] - bar) <= 1e-9
