"""mlm evaluate: evaluates trained runs."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlm.base import errors, files, groups
from mlm.base.flag import Flag
from mlm.cli import command, use
from mlm.evaluation.flags import FLAGS, find_evaluations

DESCRIPTION = """Evaluate trained runs. Without flags: pseudo-perplexity of held-out sentences.

    mlm evaluate runs/a [runs/b ...] --blimp=FOLDER --sentences='held-out/*.txt'
    mlm evaluate runs/a --anisotropy --sts=FOLDER
    mlm evaluate runs/text --prompt=sst2 --task_path=FOLDER [--few_shot]
    mlm evaluate runs/text --prompt=reviews.toml --sts=pairs.toml
    mlm evaluate runs/a --beams=1,4 [--pairs=SOURCES,REFERENCES]
    mlm evaluate runs/a --milestones --blimp=FOLDER
    mlm evaluate runs/a HUGGING_FACE_FOLDER --blimp=FOLDER
    mlm evaluate runs/a hf:ORG/NAME FOLDER --suite=babylm,glue --data=FOLDER [--out=table.csv]

Results are written to evaluations.json in each run's directory, which the sweep's table reads; those of a Hugging Face
folder NAME to runs/NAME, or to workdir=DIR. A second call computes only what is missing. NAME=VALUE sets a field that
cannot change a result, such as eval.batch_size or data.cache_dir.
"""
MILESTONES = Flag(
    "milestones", False, "evaluate the model at each milestone of its training (train.milestones), not the newest"
)
SUITE = (
    Flag("data", "", "of --suite: the folder that holds a folder for each task", "FOLDER"),
    Flag("out", "", "of --suite: writes its scores, a line for each model and task, .csv or .jsonl", "FILE"),
    Flag("plan", False, "of --suite: only says what would be evaluated"),
)


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(prog="mlm evaluate", description=DESCRIPTION, has_fields=True)
    runs_help = "directories of runs, or Hugging Face folders; a directory without a trained model is skipped"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=runs_help)
    command.add_flags(parser, MILESTONES)
    suites_help = "--suite=NAME,... or your own file (.toml) compares models, a row a model"
    suites = parser.add_argument_group("suites of tasks", suites_help)
    command.add_flags(suites, *SUITE)
    topics = {topic: parser.add_argument_group(topic) for topic in dict.fromkeys(topic for topic, _ in FLAGS.values())}
    for topic, flags in FLAGS.values():
        command.add_flags(topics[topic], *flags)
    return parser


def select_runs(workdirs: list[str], overrides: Mapping[str, Any]) -> list[str]:
    """The directories with a trained model. Prints what others lack. Raises ConfigError if none of several has one."""
    from mlm.training.run import pretrained_folder

    found = [(workdir, *describe_training(workdir)) for workdir in workdirs]
    # Loading one that is not trained raises an error with the reason.
    selected = [workdir for workdir, is_trained, _ in found if is_trained or len(workdirs) == 1]
    parts = ((workdir, note.partition(": ")) for workdir, _, note in found if note)
    notes = groups.group_values((what, f"{workdir}{detail}") for workdir, (what, _, detail) in parts)
    lines = [f"{what}: {', '.join(names)}" for what, names in notes.items()]
    expected = f"at least one with a trained model; {'; '.join(lines)}"
    errors.require(bool(selected), "directories", len(workdirs), expected)
    workdir = overrides.get("workdir", "")
    errors.require(not workdir or len(selected) == 1, "config.workdir", workdir, "none, with several runs")
    folders = filter(pretrained_folder.is_pretrained_folder, dict.fromkeys(selected))
    by_folder = groups.group_values((str(pretrained_folder.choose_workdir(name)), name) for name in folders)
    shared = {folder: ", ".join(names) for folder, names in by_folder.items() if len(names) > 1}
    lines += [f"{folder} keeps the results of the last alone: {names}" for folder, names in shared.items()]
    command.print_notes(*lines)
    return selected


def describe_training(workdir: str) -> tuple[bool, str]:
    """Whether a directory has a model to evaluate, and a note: "" for one trained to its end."""
    from mlm.training.run import pretrained_folder
    from mlm.training.run.directory import RunDirectory

    if pretrained_folder.is_pretrained_folder(workdir):
        return True, ""
    steps = [int(path.name) for path in RunDirectory(workdir).checkpoints.glob("*") if path.name.isdigit()]
    try:
        identity = RunDirectory(workdir).read_identity()
    except files.DamagedFile:
        return False, "skipped, damaged config"
    except errors.ConfigError:  # another version: loading it raises an error that says so
        return True, ""
    if identity is None or not steps:
        return False, "skipped, not runs" if identity is None else "skipped, no checkpoint yet"
    step, num_steps = max(steps), identity["config"]["train.steps"]
    return True, f"not trained to the end:  (step {step:,} of {num_steps:,})" if step < num_steps else ""


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    config_flags, others = command.extract_config_flags(words[1:])
    args = make_parser().parse_words(others)
    if args.suite and not args.blimp:
        evaluate_suites(args, config_flags.overrides)
        return
    command.refuse_flags(args, SUITE, "--suite=NAME with it, and no --blimp")
    find_evaluations(args)
    from mlm.evaluation import evaluated_run, evaluation_tasks
    from mlm.training.run import trained_run

    command.raise_on_interrupt()
    overrides = config_flags.overrides
    read_cases, report_once = evaluation_tasks.read_flags(args), functools.cache(command.print_notes)

    def list_cases(run):
        cases = read_cases(run)
        for case in cases:
            report_once(case.announcement)
        return cases

    workdirs, failed, evaluated = select_runs(args.runs, overrides), [], {}
    for workdir in workdirs:
        try:
            if args.milestones:
                by_step = evaluated_run.evaluate_milestones(workdir, list_cases, overrides)
                print_milestones(workdir, by_step)
                folder, written = workdir, f"milestone_evaluations/ ({len(by_step)} milestones)"
            else:
                run = trained_run.load(workdir, overrides)
                evaluated[workdir] = evaluation_tasks.evaluate(run, list_cases(run))
                print_evaluations(evaluated[workdir])
                folder, written = run.cfg.workdir, f"evaluations.json (step {run.step:,})"
        except errors.ConfigError as error:
            if len(workdirs) == 1:
                raise
            failed.append(workdir)
            command.print_notes(f"not evaluated: {workdir}: {error}")
        else:
            print(f"\nwritten: {folder.rstrip('/')}/{written}")
    if len(evaluated) > 1:
        print_comparison(evaluated)
    if failed:
        raise errors.ConfigError(f"{len(failed)} of {len(workdirs)} runs could not be evaluated: {', '.join(failed)}")


def evaluate_suites(args, overrides: dict) -> None:
    """Evaluates models on the tasks of suites, and prints one table, a row for each model."""
    flags = [flag for _, flags in FLAGS.values() for flag in flags if flag.name != "suite"]
    command.refuse_flags(args, flags, "none beside --suite; a copy of the suite's file may have it as a key")
    command.refuse_flags(args, [MILESTONES], "none beside --suite")
    errors.require(bool(args.data), "--data", args.data, "the folder that holds a folder for each task, with --suite")
    out = use.check_output(args.out, ".csv", ".jsonl") if args.out else None
    from mlm.evaluation import suite
    from mlm.report.table import print_table

    command.raise_on_interrupt()
    suites = [suite.read_suite(name, Path(args.data).expanduser()) for name in args.suite.split(",")]
    suite_tasks = [task for one in suites for task in one.tasks]
    for one in suites:
        command.print_notes(*(f"left out: {name}: {reason}" for name, reason in one.missing.items()))
    models = select_runs(args.runs, overrides)
    if args.plan:
        print_table(*suite.plan(models, suite_tasks, overrides, command.print_notes))
        return
    scores, failed = [], []
    for model in models:
        try:
            for one in suite.evaluate_model(model, suite_tasks, overrides, command.print_notes):
                scores.append(one)
                if one.is_new:
                    print(f"{model}: {one.describe()}", flush=True)
        except errors.ConfigError as error:
            if len(models) == 1:
                raise
            failed.append(model)
            command.print_notes(f"not evaluated: {model}: {error}")
    expected = f"a task that one of the models can be evaluated on, of {', '.join(task.name for task in suite_tasks)}"
    errors.require(bool(scores), "--suite", args.suite, expected)
    print()
    print_table(*suite.build_table(scores))
    if out:
        use.write_records(out, [one.make_record() for one in scores])
        print(f"\nwritten: {out}")
    if failed:
        raise errors.ConfigError(f"{len(failed)} of {len(models)} models could not be evaluated: {', '.join(failed)}")


def print_evaluations(contents: dict) -> None:
    """Prints the tables of a run's evaluations."""
    from mlm.evaluation import evaluation_tasks
    from mlm.report.table import print_table

    for evaluation in evaluation_tasks.EVALUATIONS.values():
        for table in evaluation.build_tables(contents):
            if table.rows:
                print(f"\n{table.heading}\n" if table.heading else "")
                print_table(table.rows, table.columns)


def print_comparison(evaluated: dict[str, dict]) -> None:
    """Prints a table with a row for each of several runs, by their directories, and a column for each evaluation."""
    from mlm.evaluation import evaluation_tasks
    from mlm.report import evaluation_scores
    from mlm.report.table import Column, print_table

    results = [
        evaluation_tasks.add_scores(contents | {"config": {"workdir": workdir}})
        for workdir, contents in evaluated.items()
    ]
    columns = evaluation_scores.build_columns(results)
    cells = (evaluation_scores.build_cells([result], columns) for result in results)
    rows = [{"run": workdir} | row for workdir, row in zip(evaluated, cells, strict=True)]
    print()
    print_table(rows, [Column("run", "run"), *columns.values()])


def print_milestones(workdir: str, by_step: dict[int, dict]) -> None:
    """Prints the evaluations of a run at its milestones, a row for each."""
    from mlm.evaluation import evaluation_tasks
    from mlm.report import evaluation_scores
    from mlm.report.table import print_table

    milestones = {step: evaluation_tasks.add_scores(contents) for step, contents in by_step.items()}
    run = {"config": {"workdir": workdir}, "milestones": milestones}
    print()
    print_table(*evaluation_scores.build_milestone_table([run]))
