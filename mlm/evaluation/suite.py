"""Suites: tasks by one name, on which models are compared, as a file (TOML); docs/guides/evaluate.md shows one.

A table [zero_shot.TASK] has flags of mlm evaluate as keys, [finetune.TASK] the keys of a task file, or `task`, a row of
task_specs.toml, with `path`; `metric` is the score to show, and to choose a fine-tuning by. [recipe] has fields of
config.downstream, and others by dotted name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import config, errors, fields
from mlm.base.estimates import Estimate, EvaluationScore, SeedRange
from mlm.data.tasks import examples, splits, task_file, tasks
from mlm.evaluation import evaluation_tasks, finetuned_tasks, flags
from mlm.evaluation.evaluations import EvaluationCase
from mlm.report.table import Column, format_cell
from mlm.training.run import downstream, trained_run
from mlm.training.run.trained_run import TrainedRun

FOLDER = Path(__file__).parent / "suites"  # of those that have a name
KINDS = ("zero_shot", "finetune")
RECIPE_KEYS = ("learning_rates", "epochs", "batch_sizes", "seeds")
PATHS = ("FOLDER", "FILE", "FILE,...", "GLOBS")  # what help calls the values that are paths


class SuiteTask(NamedTuple):
    """A task of a suite."""

    suite: str
    name: str
    metric: str  # the name of the score that is shown; "": all scores
    list_cases: Callable[[TrainedRun], list[EvaluationCase]]


class Suite(NamedTuple):
    """The tasks of a suite, and why those are left out whose files are not there."""

    tasks: list[SuiteTask]
    missing: dict[str, str]


class SuiteScore(NamedTuple):
    """The score of a model on a task."""

    model: str
    task: SuiteTask
    score: EvaluationScore
    is_new: bool  # evaluated in this call

    def describe(self) -> str:
        """The score in words."""
        metric, estimate = self.score.metric, self.score.estimate()
        value = format_cell(estimate, metric.format) if estimate else f"undefined: {self.score.undefined}"
        return f"{self.task.name}: {metric.title} {value} {metric.unit}".rstrip()

    def make_record(self) -> dict[str, Any]:
        """The score as a row of a file."""
        metric, estimate = self.score.metric, self.score.estimate()
        mean, low, high = estimate or (None, None, None)
        if isinstance(estimate, SeedRange):  # which is no interval
            low = high = None
        names = {"model": self.model, "suite": self.task.suite, "task": self.task.name, "metric": metric.title}
        return names | {"unit": metric.unit, "value": mean, "low": low, "high": high, "note": self.score.note}


def build_table(scores: Sequence[SuiteScore]) -> tuple[list[dict], list[Column]]:
    """A row for each model and a column for each task, with the mean of a suite whose scores are all in percent.

    Below the models stand references, such as the majority class.
    """
    columns: dict[str, Column] = {}
    rows: dict[str, dict] = {}
    references: dict[str, dict] = {}
    suites = dict.fromkeys(one.task.suite for one in scores)
    for one in scores:
        metric, key = one.score.metric, f"{one.task.suite} {one.task.name} {one.score.metric.name}"
        unit = f" ({metric.unit})" if metric.unit else ""
        name = f"{one.task.suite} {one.task.name}" if len(suites) > 1 else one.task.name  # both may have an "rte"
        columns[key] = Column(key, f"{name}: {metric.title}{unit}", metric.format, f"{name}: {one.score.note}.")
        rows.setdefault(one.model, {"model": one.model})[key] = one.score.estimate() or one.score.undefined
        for name, value in one.score.references.items():
            references.setdefault(name, {"model": name})[key] = value
    for suite in suites:
        keys = [key for key in columns if key.startswith(f"{suite} ")]
        if len(keys) > 1 and all(one.score.metric.unit == "%" for one in scores if one.task.suite == suite):
            columns[suite] = Column(suite, f"mean of {suite} (%)", ".1f")
            for row in rows.values():
                values = [row[key].mean for key in keys if isinstance(row.get(key), Estimate)]
                row[suite] = sum(values) / len(keys) if len(values) == len(keys) else None
    return [*rows.values(), *references.values()], [Column("model", "model"), *columns.values()]


def read_suite(name: str, data: Path) -> Suite:
    """Reads a suite by its name, or by the path of its file.

    data: the folder of the folders of its tasks. Raises ConfigError, which names file and key, for a wrong suite, and
    where the files of all its tasks are missing.
    """
    path = name
    if not name.endswith(task_file.SUFFIX):
        known = {path.stem: str(path) for path in sorted(FOLDER.glob(f"*{task_file.SUFFIX}"))}
        errors.require_one_of("--suite", name, known)
        path = known[name]
    content = task_file.read_toml("--suite", path, "a suite of tasks")
    examples.require_keys(content, (*KINDS, "recipe"), path)
    recipe = _parse_recipe(task_file.read_table(content, "recipe", path), path)
    found: list[SuiteTask] = []
    missing: dict[str, str] = {}
    tables = {kind: task_file.read_table(content, kind, path) for kind in KINDS}
    for kind, task in ((kind, task) for kind, table in tables.items() for task in table):
        where, settings = f"{path}: {kind}.{task}", dict(task_file.read_table(tables[kind], task, f"{path}: {kind}"))
        for key in {"metric", "task", "path"} & settings.keys():
            errors.require(isinstance(settings[key], str), f"{where}: {key}", settings[key], "a text")
        metric = settings.pop("metric", "")
        try:
            if kind == "finetune":
                list_cases = _read_finetuning(task, settings, metric, recipe, data, where)
                metric = ""  # it is the only score of the results
            else:
                list_cases = _read_zero_shot(settings, data, where)
        except FileNotFoundError as error:
            missing[task] = str(error)
        else:
            found.append(SuiteTask(Path(path).stem, task, metric, list_cases))
    expected = f"the folder of the tasks of {name}; {'; '.join(missing.values())}"
    errors.require(bool(found), "--data", str(data), expected)
    return Suite(found, missing)


def _parse_recipe(table: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The fields of config.downstream; other fields are a variant of the fine-tuning."""
    grid, words = {name: fields.DEFAULT[name] for name in (f"downstream.{key}" for key in RECIPE_KEYS)}, []
    for key, value in table.items():
        if "." in key:
            words.append(f"{key}={value}")
        else:
            examples.require_keys([key], RECIPE_KEYS, f"{path}: recipe")
            grid[f"downstream.{key}"] = value
    settings = grid | {"downstream.variants": " ".join(words)}
    cfg = fields.override(config.Config(), settings)
    with errors.name_place(f"{path}: recipe"):
        fields.check_values(cfg)
        downstream.check(cfg)
    return settings


def _read_zero_shot(settings: Mapping[str, Any], data: Path, where: str):
    known = {flag.name: flag for _, group in flags.FLAGS.values() for flag in group}
    located = {}
    for key, value in settings.items():
        examples.require_keys([key], known, where)
        if known[key].metavar in PATHS:
            parts = [str(data / part) for part in str(value).split(",")]
            for part in parts if known[key].metavar != "GLOBS" else ():
                _require_path(Path(part))
            value = ",".join(parts)
        located[key] = value
    with errors.name_place(where):
        args = flags.make_arguments(located)
        errors.require(bool(flags.find_evaluations(args)), "keys", dict(settings), "a flag of mlm evaluate as a key")
        return evaluation_tasks.read_flags(args)


def _require_path(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")


def _read_finetuning(name: str, settings: dict[str, Any], metric: str, recipe: dict[str, Any], data: Path, where: str):
    folder = data / settings.pop("path", name)
    _require_path(folder)
    if task := settings.pop("task", ""):
        errors.require_one_of(f"{where}: task", task, tasks.TASKS)
        errors.require(not settings, where, settings, "no other key beside task, path and metric")
        scores = {"data.labelled.scores": metric} if metric else {}
        task_fields = {"data.task": task, "data.task_path": str(folder), **scores}
    else:
        settings |= {"scores": metric} if metric else {}
        task_fields = task_file.parse_task(settings, where, folder, name).fields
    try:
        splits.find_files(tasks.resolve_task(task_fields).data)
    except errors.ConfigError as error:
        raise FileNotFoundError(str(error)) from None
    trials = recipe | {"downstream.tasks": name}
    return lambda run: finetuned_tasks.list_due_cases(fields.override(run.cfg, trials), task_fields)


def evaluate_model(
    source: str, suite_tasks: Sequence[SuiteTask], overrides: Mapping[str, Any], report: Callable[[str], None]
) -> Iterator[SuiteScore]:
    """Evaluates a run or a Hugging Face folder on the tasks of suites; yields its scores, task by task.

    What evaluations.json has of the same model and the same examples is not evaluated again. report: called with a line
    for each task that the model cannot be evaluated on. Raises ConfigError where there is no model.
    """
    run = trained_run.load(source, overrides)
    for task in suite_tasks:
        try:
            cases = task.list_cases(run)
            is_new = bool(evaluation_tasks.list_pending(run, cases))
            contents = evaluation_tasks.evaluate(run, cases)
        except errors.ConfigError as error:
            report(f"{source}: not evaluated on {task.name}: {error}")
            continue
        scores = evaluation_tasks.list_scores(evaluation_tasks.select_results(contents, cases))
        by_name = {score.metric.name: score for score in scores}
        if task.metric:
            errors.require_one_of(f"{task.suite}: {task.name}: metric", task.metric, by_name)
            by_name = {task.metric: by_name[task.metric]}
        yield from (SuiteScore(source, task, score, is_new) for score in by_name.values())


def plan(
    models: Sequence[str], suite_tasks: Sequence[SuiteTask], overrides: Mapping[str, Any], report: Callable[[str], None]
) -> tuple[list[dict], list[Column]]:
    """How many parts of each task are still to evaluate, a row for each model and task; report: as above."""
    rows = []
    for model in models:
        run = trained_run.load(model, overrides)
        for task in suite_tasks:
            try:
                cases = task.list_cases(run)
                missing = len(evaluation_tasks.list_pending(run, cases))
            except errors.ConfigError as error:
                report(f"{model}: cannot be evaluated on {task.name}: {error}")
            else:
                rows.append({"model": model, "task": task.name, "parts": len(cases), "missing": missing})
    numbers = (Column("parts", "parts", ",d"), Column("missing", "still to evaluate", ",d"))
    return rows, [Column("model", "model"), Column("task", "task"), *numbers]
