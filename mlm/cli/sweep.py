"""mlm sweep: lists, plans, runs, reports or submits the points of an experiment."""

import dataclasses
import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlm.cli import command, config_help, sweep_compare, sweep_plan, sweep_search
from mlm.launch.sweep import submit

VERBS = {
    "list": "list the points and their state",
    "plan": "print the time and memory that each point needs",
    "run": "train the points that are not done, then print the table and write the report",
    "table": "print the table of the finished points",
    "report": "write a report of the finished points",
    "search": "try recipes, equally many for each row, and write a file of the best",
    "compare": "print what differs from the committed figures, and by how many standard errors",
    "submit": "submit the points that are not done to a cluster",
    "status": "print the state of a submitted sweep's points and jobs",
    "cancel": "cancel a submitted sweep's jobs",
}
DESCRIPTION = f"""Train the points of an experiment and compare them.

    mlm sweep run experiments/architectures.py --scale=quick
    mlm sweep submit experiments/architectures.py --scale=paper --cluster=slurm

Verbs:
{chr(10).join(f"  {verb:8}{purpose}" for verb, purpose in VERBS.items())}

mlm sweep VERB --help lists a verb's flags.
"""
NOTE = """NAME=VALUE and --config.NAME=VALUE set a field of every point; `mlm config` lists the fields. Runs and table
are in runs/EXPERIMENT-SCALE[-BUDGET], or in workdir."""
BUDGETS = ("steps", "predictions", "flops", "seconds")
REPORT_PACKAGES = ("jinja2", "vl_convert")
CLUSTERS = ("slurm", "tpu", "kubernetes")
WHOLE_SWEEP = ("table", "report", "search", "compare", "cancel")  # verbs that select no points


def make_parser(verb: str = "") -> command.CommandParser:
    """The flags of a verb; "": the parser whose help lists the verbs."""
    if not verb:
        parser = command.CommandParser(prog="mlm sweep", description=DESCRIPTION)
        parser.add_argument("verb", metavar="VERB", help=" | ".join(VERBS))
        return parser
    purpose = f"{VERBS[verb][0].upper()}{VERBS[verb][1:]}."
    parser = command.CommandParser(prog=f"mlm sweep {verb}", description=f"{purpose}\n\n{NOTE}", has_fields=True)
    parser.set_defaults(verb=verb)
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="Python file with SCALES, sweep(scale) and table(results), or the bare name of one of experiments/",
    )
    parser.add_argument("--config", metavar="FILE", help="Python file whose get_config() returns the base config")
    parser.add_argument(
        "--scale", default="quick", help="one of the experiment's scales, such as quick, laptop or paper (quick)"
    )
    parser.add_argument(
        "--budget",
        choices=BUDGETS,
        default="steps",
        help="what all points spend: steps: as the experiment says | predictions | flops | seconds (on this machine): "
        "as many as the first point in its steps",
    )
    if verb not in WHOLE_SWEEP:
        without_table = "; no table is printed then" if verb == "run" else ""
        parser.add_argument(
            "--points",
            type=command.split_words,
            default=[],
            metavar="NAME,...",
            help=f"only these points: names, or patterns such as '*-seed0'{without_table}",
        )
    for add_flags in VERB_FLAGS.get(verb, ()):
        add_flags(parser)
    return parser


def add_training_flags(parser: command.CommandParser) -> None:
    """The flags that say how points are trained."""
    parser.add_argument(
        "--workers",
        type=command.Number(int, 1, 1024),
        default=1,
        help="processes that train points at the same time and share the cores (1); keep 1 on an accelerator",
    )
    parser.add_argument(
        "--vmap_runs",
        type=command.Number(int, 0, 1024),
        default=0,
        help="points trained together in one jax.vmap, if they share a program; 0: automatic",
    )


def add_malloc_flag(parser: command.CommandParser) -> None:
    """The flag that mlm/cli/process_environment.py reads before any import."""
    parser.add_argument("--no-tune_malloc", dest="tune_malloc", action="store_false", help="do not tune malloc")


def add_job_flags(parser: command.CommandParser) -> None:
    """The flags of jobs on a cluster."""
    parser.add_argument("--cluster", choices=CLUSTERS, help="kind of cluster")
    parser.add_argument("--accelerator", default="", help="a name of mlm/launch/cluster/accelerators.py; empty: CPU")
    parser.add_argument(
        "--hosts",
        type=command.Number(int, 0, 2**16),
        default=0,
        help="hosts that train each point together; 0: all hosts of the accelerator",
    )
    parser.add_argument(
        "--hours",
        type=command.Number(float, 0.01, 24 * 365),
        default=24.0,
        help="time limit of a job, in hours (24); it saves a checkpoint before the limit and is queued again",
    )
    parser.add_argument(
        "--max_running",
        type=command.Number(int, 1, 10_000),
        default=8,
        help="maximum number of jobs that run at the same time (8)",
    )
    parser.add_argument(
        "--points_per_command",
        type=command.Number(int, 0, 10_000),
        default=0,
        help="maximum number of points in a job; 0: automatic, with points of one program together",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the cluster, repeatable; a wrong name prints the valid ones",
    )
    parser.add_argument("--dry_run", action="store_true", help="print the files that would be submitted; write nothing")


def add_list_flags(parser: command.CommandParser) -> None:
    """The flags of a list."""
    parser.add_argument(
        "--print_config",
        action="store_true",
        help="print the value of each config field of the points, and where it comes from",
    )


VERB_FLAGS = {
    "list": (add_list_flags,),
    "run": (add_training_flags, add_malloc_flag),
    "search": (sweep_search.add_flags, add_training_flags, add_malloc_flag),
    "compare": (sweep_compare.add_flags,),
    "plan": (sweep_plan.add_plan_flags,),
    "submit": (add_training_flags, add_job_flags),
}


# What the functions of an experiment's file return, each of one argument: a test of the value, and its words.
EXPERIMENT_FUNCTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "sweep": (lambda points: isinstance(points, Mapping), "points by name"),
    "table": (
        lambda table: (
            len(rows_and_columns := [*table]) == 2
            and all(isinstance(row, Mapping) for row in rows_and_columns[0])
            and all(hasattr(column, "title") for column in rows_and_columns[1])
        ),
        "rows, dicts of values by column, and a list of columns (mlm.report.table.Column)",
    ),
    "tables": (lambda tables: all(hasattr(one, "stem") for one in tables), "a list of NamedTable"),
    "charts": (lambda found: all(hasattr(chart, "topic") for chart in found), "a list of Chart"),
    "claims": (lambda pairs: all(isinstance(a + b, str) for a, b in pairs), "pairs of names of groups"),
    "group": (lambda name: isinstance(name, str), "the name of a row"),
    "search_space": (lambda space: isinstance(space, Mapping), "ranges by field; {} for a row that is not searched"),
}
EXPERIMENT_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "SCALES": (
        lambda scales: isinstance(scales, Mapping) and bool(scales) and all(isinstance(name, str) for name in scales),
        "a dict of scales by name, at least one",
    ),
    "SEARCHES": (lambda searches: isinstance(searches, Mapping), "what read_searches(__file__) returns"),
    "RESULT_COLUMNS": (lambda names: all(isinstance(name, str) for name in names), "names of columns"),
    "RESULT_TABLES": (lambda names: all(isinstance(name, str) for name in names), "names of tables"),
}


def find_experiment(name: str) -> str:
    """The path of an experiment: a file's own, or that of a file of experiments/ whose bare name is given.

    Raises ConfigError, with the path of the nearest name, if there is no such file.
    """
    from mlm.base import errors

    folder = Path("experiments") if Path("experiments").is_dir() else Path(__file__).parents[2] / "experiments"
    paths = {file.stem: str(file) for file in sorted(folder.glob("*.py"))}
    if name in paths and not os.path.isfile(name):
        return paths[name]
    if not os.path.lexists(name):
        matches = difflib.get_close_matches(Path(name).stem[:100], paths, n=1, cutoff=0.5)
        hint = f"; did you mean {paths[matches[0]]}?" if matches else f"; {folder} has {', '.join(paths)}"
        raise errors.ConfigError(f"experiment = {name!r}: no such file{hint if paths else ''}")
    return name


def load_experiment(name: str):
    """The experiment's module. Raises ConfigError, with the line if possible, if the file is no experiment."""
    from mlm.base import user_code

    module = user_code.load_module("experiment", find_experiment(name), ("SCALES", "sweep", "table"))
    for name, (is_valid, expected) in EXPERIMENT_VALUES.items():
        if hasattr(module, name):
            user_code.check_value("experiment", module, name, getattr(module, name), is_valid, expected)
    for name, (is_valid, expected) in EXPERIMENT_FUNCTIONS.items():
        if hasattr(module, name):
            setattr(module, name, user_code.wrap_function("experiment", module, name, 1, is_valid, expected))
    return module


def resolve_sweep(experiment, config_flags: command.ConfigFlags, args) -> tuple[Path, list]:
    """The sweep's folder and the resolved config of each point. The command line overrides the experiment."""
    from mlm.base import buckets, errors, fields, files
    from mlm.launch.sweep import sweep_points
    from mlm.report import series
    from mlm.training.run.directory import CHECKPOINT_SCHEMES

    errors.require_one_of("--scale", args.scale, list(experiment.SCALES))
    overrides = dict(config_flags.overrides)
    root = files.make_path(overrides.pop("workdir", f"runs/{sweep_compare.name_sweep(experiment, args)}"))
    is_preview = args.verb == "plan" or (args.verb == "submit" and args.dry_run)  # works without access to the bucket
    if not (is_preview and buckets.is_bucket_path(root)):  # submit.is_reachable asks the bucket, for seconds at most
        files.check_folder(
            "config.workdir",
            str(root),
            writable=not is_preview and args.verb not in ("list", "status"),
            schemes=CHECKPOINT_SCHEMES,
        )
    sweep = experiment.sweep(args.scale)
    points = sweep_points.resolve_points(config_flags.load_base(), sweep, overrides)
    warning = sweep_points.check_groups(points, getattr(experiment, "group", series.group_name))
    if warning and args.verb in ("run", "submit", "table", "report"):
        print(f"warning: {warning}", file=sys.stderr)
    resolved = list(points.values())
    if args.budget != "steps":
        from mlm.launch.sweep import budget

        resolved = budget.apply_budget(resolved, args.budget, root, measure=args.verb in ("run", "search"))
    configs, names = [], {}
    for name, cfg in zip(sweep, resolved, strict=True):
        digest = fields.fingerprint(cfg)
        if digest in names:
            names_set = ", ".join(f"config.{field}" for field in overrides)
            reason = (
                f"the command line sets {names_set}; leave out what the sweep varies" if overrides else "leave one out"
            )
            raise errors.ConfigError(f"points {names[digest]} and {name} are the same: {reason}")
        names[digest] = name
        configs.append(dataclasses.replace(cfg, workdir=str(root / f"{name}-{digest[:6]}")))
    return root, configs if args.verb in WHOLE_SWEEP else sweep_points.select_points(configs, args.points)


def format_sweep_flags(config_flags: command.ConfigFlags, args) -> list[str]:
    """The flags of this command line that define the sweep."""
    flags = [f"--scale={args.scale}", *([f"--budget={args.budget}"] if args.budget != "steps" else [])]
    return [*flags, *(submit.format_config_flag(name, value) for name, value in config_flags.overrides.items())]


def format_training_flags(args) -> list[str]:
    """The flags of this command line that say how points are trained."""
    defaults = {"workers": 1, "vmap_runs": 0}
    return [f"--{name}={getattr(args, name)}" for name, value in defaults.items() if getattr(args, name) != value]


def load_results(configs) -> list[dict]:
    """The results of the finished points, each with the fields that it does not read as "unread".

    Prints damaged runs, and runs of another sweep, to stderr.
    """
    from mlm.base import conditional_fields
    from mlm.launch.sweep import sweep_state
    from mlm.training.run import resolution

    results, faults = sweep_state.load_results(configs)
    for line in (*faults, sweep_state.describe_unmatched_runs(configs)):
        if line:
            print(line, file=sys.stderr)
    for result in results:
        result["unread"] = sorted(conditional_fields.find_unread_fields(resolution.FIELD_CONDITIONS, result["config"]))
    return results


def print_table(experiment, root: Path, configs, *, has_report: bool = False) -> None:
    """Prints and writes the table and the figures of the finished points.

    has_report: writes the page too, where the extra `report` is installed.
    """
    from mlm.base import extras
    from mlm.report import table
    from mlm.report.pages import sweep as page

    results = load_results(configs)
    print(f"{len(results)} of {len(configs)} points are done")
    if results:
        report = page.write_files(root, experiment, results)
        figures = f"figures/ (.pdf, .png, .svg, .csv): {', '.join(chart.name for chart in report.charts)}"
        if not extras.is_installed("vl_convert"):
            figures = f"no figures; they need {extras.format_hint('vl_convert', 'report')}"
        print(
            f"\n{table.to_markdown(report.rows, report.columns)}\n\n"
            + "".join(f"{table.to_markdown(extra.rows, extra.columns)}\n\n" for extra in report.tables)
            + f"written in {root}: table.md, .csv, .tex; claims.md; "
            + "".join(f"{extra.stem}.md; " for extra in report.tables)
            + figures
        )
        if has_report and all(map(extras.is_installed, REPORT_PACKAGES)):
            print(f"report: {page.write_page(root, experiment, report, results, len(configs))}")


def keep_accelerators_free() -> None:
    """Keeps this process from touching an accelerator, which workers and running jobs need."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def run_points(experiment, root: Path, configs, args) -> None:
    """Trains the points that are not done, then prints the table. Exits with 1 if a point failed."""
    from mlm.launch.sweep import runner, sweep_state, table_rehearsal

    keep_accelerators_free()
    if not args.points:
        table_rehearsal.check_table(experiment, configs)
    with sweep_state.SweepDisplay(configs) as display:
        sweep_runner = runner.SweepRunner(root, configs, num_workers=args.workers, vmap_runs=args.vmap_runs)
        sweep_runner.run(display)
    if sweep_runner.signal is not None:
        num_done = len(sweep_state.load_results(configs)[0])
        print(f"stopped; {num_done} of {len(configs)} points are done; the same command continues")
        sys.exit(128 + sweep_runner.signal)
    if args.points:
        print(f"{len(sweep_state.load_results(configs)[0])} of {len(configs)} selected points are done")
    try:
        if not args.points:
            print_table(experiment, root, configs, has_report=True)
    finally:
        if sweep_runner.failures:
            title = f"{len(sweep_runner.failures)} failed; the same command tries again:"
            print("\n".join([title, *sweep_state.describe_failures(sweep_runner.failures)]), file=sys.stderr)
    if sweep_runner.failures:
        sys.exit(1)


def submit_points(experiment, root: Path, configs, config_flags: command.ConfigFlags, args) -> None:
    """Submits the points that are not done, or with --dry_run prints what would be submitted."""
    from mlm.base import errors
    from mlm.launch.sweep import table_rehearsal

    errors.require(args.cluster is not None, "--cluster", "", f"one of {', '.join(CLUSTERS)}")
    keep_accelerators_free()
    if not args.points:
        table_rehearsal.check_table(experiment, configs)
    options = submit.SubmitOptions(
        args.cluster,
        args.accelerator,
        args.hosts,
        args.hours,
        args.max_running,
        args.points_per_command,
        tuple(args.option),
        args.dry_run,
    )
    submit.submit_sweep(
        submit.Sweep(
            args.experiment,
            root,
            configs,
            tuple(format_sweep_flags(config_flags, args)),
            tuple(format_training_flags(args)),
            config_flags.load_base(),
            config_flags.path,
        ),
        options,
    )


def main(words: Sequence[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    from mlm.base import errors, extras
    from mlm.launch.sweep import status, subprocess_worker

    config_flags, others = command.extract_config_flags(words[1:], allow_bare=True)
    verb = others[0] if others else ""
    if verb in ("-h", "--help"):
        make_parser().parse_words([verb])
    errors.require_one_of("verb", verb, list(VERBS))
    args = make_parser(verb).parse_words(others[1:])
    for package in REPORT_PACKAGES if args.verb == "report" else ():
        extras.import_extra(package, "report", "mlm sweep report")
    experiment = load_experiment(args.experiment)
    args.experiment = experiment.__file__
    try:
        root, configs = resolve_sweep(experiment, config_flags, args)
        if args.verb == "list":
            list_points(experiment, configs, config_flags, args)
        elif args.verb == "plan":
            keep_accelerators_free()
            sweep_plan.print_plan(configs, args)
        elif args.verb == "run":
            run_points(experiment, root, configs, args)
        elif args.verb == "search":
            keep_accelerators_free()
            sweep_search.search_points(experiment, root, configs, config_flags, args, words)
        elif args.verb == "compare":
            sweep_compare.compare_points(experiment, config_flags, args, load_results(configs), len(configs))
        elif args.verb == "report":
            write_report(experiment, root, configs)
        elif args.verb == "submit":
            submit_points(experiment, root, configs, config_flags, args)
        elif args.verb == "status":
            status.show_status(root, configs)
        elif args.verb == "cancel":
            status.cancel_jobs(root)
        else:
            print_table(experiment, root, configs)
    except (subprocess_worker.CannotStart, subprocess_worker.WorkerEnded) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def list_points(experiment, configs, config_flags: command.ConfigFlags, args) -> None:
    """Prints the state of each point, with --print_config its fields too. If steps are unknown, so is the directory."""
    from mlm.base import fields
    from mlm.launch.sweep import sweep_points, sweep_state

    base, command_line = config_flags.load_layers()
    for cfg in configs:
        workdir = cfg.workdir if cfg.train.steps else cfg.workdir.rpartition("-")[0]
        print(f"{workdir}: {sweep_state.read_state(cfg)}", flush=True)
        if args.print_config:
            name = sweep_points.point_name(cfg)
            point = fields.Layer(f"{args.experiment}: {name}", experiment.sweep(args.scale)[name])
            origins = sweep_points.find_origins(cfg, base, point, command_line)
            if args.budget != "steps":
                origins["train.steps"] = f"--budget={args.budget}"
            config_help.print_origins(cfg, origins)
    if not args.points and (line := sweep_state.describe_unmatched_runs(configs)):
        print(line, file=sys.stderr)


def write_report(experiment, root: Path, configs) -> None:
    """Writes the page, the tables and the figures of the points that are done."""
    from mlm.report.pages import sweep as page

    results = load_results(configs)
    path = page.write_report(root, experiment, results, len(configs))
    print(f"{len(results)} of {len(configs)} points are done; written: {path}, figures/ and table.*")
