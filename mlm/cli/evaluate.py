"""mlm evaluate: evaluates trained runs."""

import argparse
import functools
import sys
from collections.abc import Callable

from mlm.base import errors, files
from mlm.cli import command
from mlm.evaluation import evaluation_tasks
from mlm.evaluation.evaluations import EvaluationCase
from mlm.report import evaluation_scores, milestone_curves
from mlm.report.table import Column, to_markdown
from mlm.training.run import checkpoint, pretrained_folder, trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.run.trained_run import TrainedRun

DESCRIPTION = """Evaluate trained runs. Without flags: pseudo-perplexity of held-out sentences.

    mlm evaluate runs/a [runs/b ...] --blimp=FOLDER --sentences='held-out/*.txt'
    mlm evaluate runs/a --anisotropy --sts=FOLDER
    mlm evaluate runs/text --prompt=sst2 --task_path=FOLDER [--few_shot]
    mlm evaluate runs/text --prompt=reviews.toml --sts=pairs.toml
    mlm evaluate runs/a --beams=1,4 [--pairs=SOURCES,REFERENCES]
    mlm evaluate runs/a --milestones --blimp=FOLDER
    mlm evaluate runs/a HUGGING_FACE_FOLDER --blimp=FOLDER

Results are written to evaluations.json in each run's directory, which the sweep's table reads; those of a Hugging Face
folder NAME to runs/NAME, or to workdir=DIR. A second call computes only what is missing. NAME=VALUE sets a field that
cannot change a result, such as eval.batch_size or data.cache_dir.
"""


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(prog="mlm evaluate", description=DESCRIPTION, has_fields=True)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="directories of runs, or Hugging Face folders; a directory without a trained model is skipped",
    )
    parser.add_argument(
        "--milestones",
        action="store_true",
        help="evaluate the model at each milestone of its training (train.milestones), in place of the newest",
    )
    groups = {}
    for evaluation in evaluation_tasks.EVALUATIONS.values():
        for flag in evaluation.FLAGS:
            if evaluation.TOPIC not in groups:
                groups[evaluation.TOPIC] = parser.add_argument_group(evaluation.TOPIC)
            command.add_flag(groups[evaluation.TOPIC], flag)
    return parser


def read_flags(args: argparse.Namespace) -> Callable[[TrainedRun], list[EvaluationCase]]:
    """Reads what the flags name; returns the function from a run to its cases. Raises ConfigError for what is wrong."""
    named = {}
    for name, evaluation in evaluation_tasks.EVALUATIONS.items():
        for flag in evaluation.FLAGS:
            value = getattr(args, flag.name)
            if value == flag.default:
                continue
            needed = flag.needs.lstrip("-").partition("=")[0]
            shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
            errors.require(not needed or bool(getattr(args, needed)), f"--{flag.name}", shown, f"{flag.needs} with it")
            named[name] = evaluation
    evaluations = named or {evaluation_tasks.DEFAULT: evaluation_tasks.EVALUATIONS[evaluation_tasks.DEFAULT]}
    readers = [evaluation.read_flags for evaluation in evaluations.values() if evaluation.read_flags]
    list_cases = [read(args) for read in readers]
    return lambda run: [case for function in list_cases for case in function(run)]


def select_runs(workdirs: list[str]) -> list[str]:
    """The directories with a trained model. Prints which have none, and which are not fully trained.

    Raises ConfigError if several are given and none has a trained model.
    """
    skipped: dict[str, list[str]] = {}
    selected = []
    for workdir in workdirs:
        if pretrained_folder.is_pretrained_folder(workdir):
            selected.append(workdir)
            continue
        steps = [int(path.name) for path in RunDirectory(workdir).checkpoints.glob("*") if path.name.isdigit()]
        try:
            identity = RunDirectory(workdir).read_identity()
        except files.DamagedFile:
            skipped.setdefault("skipped, damaged config", []).append(workdir)
            continue
        except errors.ConfigError:  # another version: loading it raises an error that says so
            selected.append(workdir)
            continue
        if identity is None:
            skipped.setdefault("skipped, not runs", []).append(workdir)
        elif not steps:
            skipped.setdefault("skipped, no checkpoint yet", []).append(workdir)
        else:
            selected.append(workdir)
            if max(steps) < identity["config"]["train.steps"]:
                skipped.setdefault("not trained to the end", []).append(
                    f"{workdir} (step {max(steps):,} of {identity['config']['train.steps']:,})"
                )
    notes = [f"{what}: {', '.join(names)}" for what, names in skipped.items()]
    if len(workdirs) == 1 and not selected:
        return workdirs  # loading it raises an error with the reason
    errors.require(
        bool(selected), "directories", len(workdirs), f"at least one with a trained model; {'; '.join(notes)}"
    )
    for line in notes:
        print(line, file=sys.stderr, flush=True)
    return selected


def evaluate_run(workdir: str, args, overrides, step: int | None = None) -> dict:
    """Evaluates a run as the arguments say and stores the results; returns {"evaluations", "summary"}.

    step: of the milestone to evaluate; None: the newest checkpoint. With --milestones the result of each, by step.
    """
    list_cases = read_flags(args)
    if args.milestones:
        errors.require(step is None, "milestones", True, f"a run: this model was loaded from its step {step}")
        return evaluate_milestones(workdir, overrides, list_cases)
    run = trained_run.load(workdir, overrides, step=step)
    return evaluation_tasks.evaluate(run, list_cases(run))


def evaluate_milestones(workdir: str, overrides, list_cases) -> dict[int, dict]:
    """Evaluates the models at all milestones of a run; returns what `evaluate_run` does, by step.

    Raises ConfigError if the run has none.
    """
    RunDirectory(workdir).require_identity()
    steps, cases, by_step = checkpoint.list_milestones(workdir), None, {}
    if not steps:
        raise errors.ConfigError(
            f"run {workdir!r}, --milestones: it has none; train one with train.milestones=log:24, or evaluate without "
            "--milestones"
        )
    for step in steps:
        run = trained_run.load(workdir, overrides, step=step)
        cases = list_cases(run) if cases is None else cases
        by_step[step] = evaluation_tasks.evaluate(run, cases)
    return by_step


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    config_flags, others = command.extract_config_flags(words[1:], allow_bare=True)
    args = make_parser().parse_words(others)
    command.raise_on_interrupt()
    list_flagged = read_flags(args)
    list_cases = lambda run: announce(list_flagged(run))
    workdirs, failed, evaluated = select_runs(args.runs), [], {}
    workdir = config_flags.overrides.get("workdir", "")
    errors.require(not workdir or len(workdirs) == 1, "config.workdir", workdir, "none, with several runs")
    for workdir in workdirs:
        try:
            if args.milestones:
                by_step = evaluate_milestones(workdir, config_flags.overrides, list_cases)
                print_milestones(workdir, by_step)
                folder, written = workdir, f"milestone_evaluations/ ({len(by_step)} milestones)"
            else:
                run = trained_run.load(workdir, config_flags.overrides)
                evaluated[workdir] = evaluation_tasks.evaluate(run, list_cases(run))
                print_evaluations(evaluated[workdir])
                folder, written = run.cfg.workdir, f"evaluations.json (step {run.step:,})"
        except errors.ConfigError as error:
            if len(workdirs) == 1:
                raise
            failed.append(workdir)
            print(f"not evaluated: {workdir}: {error}", file=sys.stderr, flush=True)
        else:
            print(f"\nwritten: {folder.rstrip('/')}/{written}")
    if len(evaluated) > 1:
        print_comparison(evaluated)
    if failed:
        raise errors.ConfigError(f"{len(failed)} of {len(workdirs)} runs could not be evaluated: {', '.join(failed)}")


def announce(cases: list[EvaluationCase]) -> list[EvaluationCase]:
    """The cases, after what they announce was printed."""
    for case in cases:
        print_once(case.announcement)
    return cases


@functools.cache  # every run has the same cases
def print_once(line: str) -> None:
    """Prints a line that is not empty to stderr, once in a process."""
    if line:
        print(line, file=sys.stderr, flush=True)


def print_evaluations(contents: dict) -> None:
    """Prints the tables of a run's evaluations."""
    for evaluation in evaluation_tasks.EVALUATIONS.values():
        for table in evaluation.build_tables(contents):
            if table.rows:
                heading = f"{table.heading}\n\n" if table.heading else ""
                print(f"\n{heading}{to_markdown(table.rows, table.columns)}")


def print_comparison(evaluated: dict[str, dict]) -> None:
    """Prints a table with a row for each of several runs, by their directories, and a column for each evaluation."""
    results = [
        evaluation_tasks.add_scores(contents | {"config": {"workdir": workdir}})
        for workdir, contents in evaluated.items()
    ]
    columns = evaluation_scores.build_columns(results)
    cells = (evaluation_scores.build_cells([result], columns) for result in results)
    rows = [{"run": workdir} | row for workdir, row in zip(evaluated, cells, strict=True)]
    print("\n" + to_markdown(rows, [Column("run", "run"), *columns.values()]))


def print_milestones(workdir: str, by_step: dict[int, dict]) -> None:
    """Prints the evaluations of a run at its milestones, a row for each."""
    milestones = {step: evaluation_tasks.add_scores(contents) for step, contents in by_step.items()}
    run = {"config": {"workdir": workdir}, "milestones": milestones}
    print("\n" + to_markdown(*milestone_curves.build_table([run])))
