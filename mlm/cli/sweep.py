"""mlm sweep: lists, plans, runs, reports or submits the points of an experiment."""

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mlm.base import buckets, errors, extras, fields, files, user_code
from mlm.base.flag import Flag
from mlm.cli import command, config_help, sweep_compare, sweep_plan, sweep_search
from mlm.launch.cluster import CLUSTERS

NOTE = """NAME=VALUE and --config.NAME=VALUE set a field of every point; `mlm config` lists the fields. Runs and table
are in runs/EXPERIMENT-SCALE[-BUDGET], or in workdir."""
REPORT_PACKAGES = ("jinja2", "vl_convert")
WHOLE_SWEEP = ("table", "report", "search", "compare", "cancel")  # verbs that select no points
SWEEP_FLAGS = (
    command.CONFIG,
    Flag("scale", "quick", "one of the experiment's scales, such as quick, laptop or paper (quick)"),
    Flag(
        "budget",
        "steps",
        "what all points spend: steps: as the experiment says | predictions | flops | seconds (on this machine): as "
        "the first point in its steps",
        choices=("steps", "predictions", "flops", "seconds"),
    ),
)
POINTS_HELP = "only these points: names, or patterns such as '*-seed0'"
TRAINING_FLAGS = (
    Flag("workers", 1, "processes that train at the same time (1); keep 1 on an accelerator", low=1, high=1024),
    Flag("vmap_runs", 0, "points trained together in one jax.vmap, if they share a program; 0: automatic", high=1024),
)
JOB_FLAGS = (
    Flag("cluster", "", "kind of cluster", choices=(*CLUSTERS,)),
    Flag("accelerator", "", "a name of mlm/launch/cluster/accelerators.py; empty: CPU"),
    Flag("hosts", 0, "hosts that train each point together; 0: all hosts of the accelerator", high=2**16),
    command.HOURS,
    Flag("max_running", 8, "maximum number of jobs that run at the same time (8)", low=1, high=10_000),
    Flag("points_per_command", 0, "maximum number of points in a job; 0: those of a program together", high=10_000),
    command.DRY_RUN,
)
TABLE_COLUMNS = Flag(
    "columns", (), "columns to print: all, or their names (those that tell the models apart)", "NAME,..."
)

# What an experiment's file defines: a test of a value, or of what a function of one argument returns, and its words.
Contract = Mapping[str, tuple[Callable[[Any], bool], str]]


def is_table(table: Any) -> bool:
    """Whether a value is the rows and the columns of a table."""
    rows, columns = table
    return all(isinstance(row, Mapping) for row in rows) and all(hasattr(column, "title") for column in columns)


EXPERIMENT_FUNCTIONS: Contract = {
    "sweep": (lambda points: isinstance(points, Mapping), "points by name"),
    "table": (is_table, "rows, dicts of values by column, and a list of columns (mlm.report.table.Column)"),
    "tables": (lambda tables: all(hasattr(one, "stem") for one in tables), "a list of NamedTable"),
    "charts": (lambda found: all(hasattr(chart, "topic") for chart in found), "a list of Chart"),
    "claims": (lambda pairs: all(isinstance(a + b, str) for a, b in pairs), "pairs of names of groups"),
    "group": (lambda name: isinstance(name, str), "the name of a row"),
    "search_space": (lambda space: isinstance(space, Mapping), "ranges by field; {} for a row that is not searched"),
}
EXPERIMENT_VALUES: Contract = {
    "SCALES": (
        lambda scales: isinstance(scales, Mapping) and bool(scales) and all(isinstance(name, str) for name in scales),
        "a dict of scales by name, at least one",
    ),
    "SEARCHES": (lambda searches: isinstance(searches, Mapping), "what read_searches(__file__) returns"),
    "PAPER_TABLES": (lambda tables: all(hasattr(one, "ours") for one in tables), "a list of PaperTable"),
    "RESULT_TABLES": (lambda names: all(isinstance(name, str) for name in names), "names of tables"),
}


def find_experiment(name: str) -> str:
    """The path of an experiment, also by its bare name in experiments/. Raises ConfigError with the nearest path."""
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
    module = user_code.load_module("experiment", find_experiment(name), ("SCALES", "sweep", "table"))
    for name, (is_valid, expected) in EXPERIMENT_VALUES.items():
        if hasattr(module, name):
            user_code.check_value("experiment", module, name, getattr(module, name), is_valid, expected)
    for name, (is_valid, expected) in EXPERIMENT_FUNCTIONS.items():
        if hasattr(module, name):
            setattr(module, name, user_code.wrap_function("experiment", module, name, 1, is_valid, expected))
    return module


class Sweep(NamedTuple):
    """A sweep as a command line names it."""

    experiment: ModuleType
    config_flags: command.ConfigFlags
    args: argparse.Namespace
    words: Sequence[str]  # of the command line, from "sweep" on
    root: Path  # its folder
    configs: list  # the resolved config of each selected point

    def format_flags(self) -> list[str]:
        """The flags that define the sweep, for another process."""
        flags = [f"--scale={self.args.scale}"]
        flags += [f"--budget={self.args.budget}"] if self.args.budget != "steps" else []
        return flags + [fields.format_flag(*change) for change in self.config_flags.overrides.items()]

    def load_results(self) -> list[dict]:
        """The results of the finished points, each with what it does not read as "unread"; faults go to stderr."""
        from mlm.launch.sweep import sweep_state

        results, faults = sweep_state.load_results(self.configs)
        command.print_notes(*faults, sweep_state.describe_unmatched_runs(self.configs))
        return results


def resolve_sweep(experiment: ModuleType, config_flags: command.ConfigFlags, args, words: Sequence[str]) -> Sweep:
    """The sweep, with the resolved config of each point. The command line overrides the experiment."""
    from mlm.launch.sweep import sweep_points
    from mlm.report import series
    from mlm.training.run.directory import CHECKPOINT_SCHEMES

    errors.require_one_of("--scale", args.scale, list(experiment.SCALES))
    overrides = dict(config_flags.overrides)
    root = files.make_path(overrides.pop("workdir", f"runs/{sweep_compare.name_sweep(experiment, args)}"))
    is_preview = args.verb == "plan" or (args.verb == "submit" and args.dry_run)  # works without access to the bucket
    if not (is_preview and buckets.is_bucket_path(root)):  # submit.is_reachable asks the bucket, for seconds at most
        writable = not is_preview and args.verb not in ("list", "status")
        files.check_folder("config.workdir", str(root), writable=writable, schemes=CHECKPOINT_SCHEMES)
    sweep = experiment.sweep(args.scale)
    points = sweep_points.resolve_points(config_flags.load_base(), sweep, overrides)
    warning = sweep_points.check_groups(points, getattr(experiment, "group", series.group_name))
    if warning and args.verb in ("run", "submit", "table", "report"):
        command.print_notes(f"warning: {warning}")
    resolved = list(points.values())
    if args.budget != "steps":
        from mlm.launch.sweep import budget

        resolved = budget.apply_budget(resolved, args.budget, root, measure=args.verb in ("run", "search"))
    named: dict[str, tuple[str, Any]] = {}
    for name, cfg in zip(sweep, resolved, strict=True):
        digest = fields.fingerprint(cfg)
        if digest in named:
            names = ", ".join(f"config.{field}" for field in overrides)
            reason = f"the command line sets {names}; leave out what the sweep varies" if names else "leave one out"
            raise errors.ConfigError(f"points {named[digest][0]} and {name} are the same: {reason}")
        named[digest] = name, dataclasses.replace(cfg, workdir=str(root / f"{name}-{digest[:6]}"))
    configs = sweep_points.select_points([cfg for _, cfg in named.values()], args.points)
    return Sweep(experiment, config_flags, args, words, root, configs)


def print_table(sweep: Sweep, *, has_report: bool = False) -> None:
    """Prints the headline, or --columns, and writes tables and figures; has_report: the page, too, if that can be."""
    from mlm.report import table
    from mlm.report.headline import make_readable
    from mlm.report.pages import sweep as page

    results, root = sweep.load_results(), sweep.root
    print(f"{len(results)} of {len(sweep.configs)} points are done")
    if not results:
        return
    report = page.write_files(root, sweep.experiment, results)
    figures = f"figures/: {table.format_count(len(report.charts), 'chart')} (.pdf, .png, .svg, .csv)"
    if not extras.is_installed("vl_convert"):
        figures = f"no figures; they need {extras.format_hint('vl_convert', 'report')}"
    assert report.headline is not None
    rows, shown = report.headline.table[-2:]
    if columns := getattr(sweep.args, "columns", ()):
        by_name = {column.name: column for column in report.columns}
        names = list(by_name) if columns == ("all",) else columns
        for name in names:
            errors.require_one_of("--columns", name, list(by_name))
        rows, shown = report.rows, make_readable([by_name[name] for name in names], results)
    print()
    texts = [f"{extra.title}. {extra.caption}" for extra in report.tables] + [report.headline.sentence]
    contents = [*(extra[-2:] for extra in report.tables), (rows, shown)]
    for text, content in zip(texts, contents, strict=True):  # the headline is the last that a terminal shows
        table.print_paragraph(text)
        print()
        table.print_table(*content)
        print()
    stems = ", ".join(f"{extra.stem}.md" for extra in (report.headline.table, report.claims, *report.tables))
    print(f"written in {root}: table.md, .csv, .tex (every column), {stems}; {figures}")
    if has_report and all(map(extras.is_installed, REPORT_PACKAGES)):
        print(f"report: {page.write_page(root, sweep.experiment, report, results, len(sweep.configs))}")


def run_points(sweep: Sweep) -> None:
    """Trains the points that are not done, then prints the table. Exits with 1 if a point failed."""
    from mlm.launch.sweep import runner, sweep_state, table_rehearsal

    args, configs = sweep.args, sweep.configs
    if not args.points:
        table_rehearsal.check_table(sweep.experiment, configs)
    sweep_runner = runner.SweepRunner(sweep.root, configs, num_workers=args.workers, vmap_runs=args.vmap_runs)
    sweep_runner.run()
    try:
        if args.points:
            num_done = sum(map(sweep_state.is_done, configs))
            print(f"{num_done} of {len(configs)} selected points are done")
        else:
            print_table(sweep, has_report=True)
    finally:
        command.print_notes(*sweep_state.describe_failures(sweep_runner.failures))
    if sweep_runner.failures:
        sys.exit(1)


def submit_points(sweep: Sweep) -> None:
    """Submits the points that are not done, or with --dry_run prints what would be submitted."""
    from mlm.launch.sweep import submit, table_rehearsal

    args, (path, _) = sweep.args, sweep.config_flags
    errors.require(bool(args.cluster), "--cluster", "", f"one of {', '.join(CLUSTERS)}")
    if not args.points:
        table_rehearsal.check_table(sweep.experiment, sweep.configs)
    values = {flag.name: getattr(args, flag.name) for flag in TRAINING_FLAGS}
    training = [f"--{flag.name}={values[flag.name]}" for flag in TRAINING_FLAGS if values[flag.name] != flag.default]
    flags, base = tuple(sweep.format_flags()), sweep.config_flags.load_base()
    submitted = submit.Sweep(args.experiment, sweep.root, sweep.configs, flags, tuple(training), base, path)
    submit.submit_sweep(submitted, args)


def list_points(sweep: Sweep) -> None:
    """Prints the state of each point, with --print_config its fields too. If steps are unknown, so is the directory."""
    from mlm.launch.sweep import sweep_points, sweep_state

    args, (base, command_line) = sweep.args, sweep.config_flags.load_layers()
    for cfg in sweep.configs:
        workdir = cfg.workdir if cfg.train.steps else cfg.workdir.rpartition("-")[0]
        print(f"{workdir}: {sweep_state.read_state(cfg)}", flush=True)
        if args.print_config:
            name = sweep_points.point_name(cfg)
            point = fields.Layer(f"{args.experiment}: {name}", sweep.experiment.sweep(args.scale)[name])
            origins = sweep_points.find_origins(cfg, base, point, command_line)
            if args.budget != "steps":
                origins["train.steps"] = f"--budget={args.budget}"
            config_help.print_origins(cfg, origins)
    if not args.points:
        command.print_notes(sweep_state.describe_unmatched_runs(sweep.configs))


def write_report(sweep: Sweep) -> None:
    """Writes the page, the tables and the figures of the points that are done."""
    from mlm.report.pages import sweep as page

    results, count = sweep.load_results(), len(sweep.configs)
    path = page.write_report(sweep.root, sweep.experiment, results, count)
    print(f"{len(results)} of {count} points are done; written: {path}, figures/ and table.*")


def manage_jobs(sweep: Sweep) -> None:
    """Prints the state of each point and of the submitted jobs, or cancels these."""
    from mlm.launch.sweep import jobs

    if sweep.args.verb == "status":
        jobs.show_status(sweep.root, sweep.configs)
    else:
        jobs.cancel_jobs(sweep.root)


class Verb(NamedTuple):
    """What mlm sweep does: its purpose in words, the function that does it, and the flags beside those of all verbs."""

    purpose: str
    run: Callable[[Sweep], None]
    flags: tuple[Flag, ...] = ()


RUN_FLAGS = (*TRAINING_FLAGS, command.NO_TUNE_MALLOC)
VERBS = {
    "list": Verb("list the points and their state", list_points, (command.PRINT_CONFIG,)),
    "plan": Verb("print the time and memory that each point needs", sweep_plan.print_plan, sweep_plan.FLAGS),
    "run": Verb("train the points that are not done, then print the table and write the report", run_points, RUN_FLAGS),
    "table": Verb("print the table of the finished points", print_table, (TABLE_COLUMNS,)),
    "report": Verb("write a report of the finished points", write_report),
    "search": Verb(
        "try recipes, equally many for each row, and write a file of the best",
        sweep_search.search_points,
        (*sweep_search.FLAGS, *RUN_FLAGS),
    ),
    "compare": Verb(
        "print what differs from the committed figures, and by how many standard errors",
        sweep_compare.compare_points,
        sweep_compare.FLAGS,
    ),
    "submit": Verb("submit the points that are not done to a cluster", submit_points, (*TRAINING_FLAGS, *JOB_FLAGS)),
    "status": Verb("print the state of a submitted sweep's points and jobs", manage_jobs),
    "cancel": Verb("cancel a submitted sweep's jobs", manage_jobs),
}
DESCRIPTION = f"""Train the points of an experiment and compare them.

    mlm sweep run experiments/architectures.py --scale=quick
    mlm sweep submit experiments/architectures.py --scale=paper --cluster=slurm

Verbs:
{chr(10).join(f"  {name:9}{verb.purpose}" for name, verb in VERBS.items())}

mlm sweep VERB --help lists a verb's flags.
"""


def make_parser(verb: str = "") -> command.CommandParser:
    """The flags of a verb; "": the parser whose help lists the verbs."""
    if not verb:
        parser = command.CommandParser(prog="mlm sweep", description=DESCRIPTION)
        parser.add_argument("verb", metavar="VERB", help=" | ".join(VERBS))
        return parser
    purpose = VERBS[verb].purpose[0].upper() + VERBS[verb].purpose[1:]
    parser = command.CommandParser(prog=f"mlm sweep {verb}", description=f"{purpose}.\n\n{NOTE}", has_fields=True)
    parser.set_defaults(verb=verb, points=())
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="Python file with SCALES, sweep(scale) and table(results), or the bare name of one of experiments/",
    )
    command.add_flags(parser, *SWEEP_FLAGS)
    if verb not in WHOLE_SWEEP:
        help_text = POINTS_HELP + ("; no table is printed then" if verb == "run" else "")
        command.add_flags(parser, Flag("points", (), help_text, "NAME,..."))
    command.add_flags(parser, *VERBS[verb].flags)
    if verb == "compare":
        parser.add_argument("--evaluate", metavar="FLAGS", help=sweep_compare.EVALUATE)
    if verb == "submit":
        command.add_cluster_option(parser)
    return parser


def main(words: Sequence[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    config_flags, others = command.extract_config_flags(words[1:])
    verb = others[0] if others else ""
    if verb in ("-h", "--help"):
        make_parser().parse_words([verb])
    errors.require_one_of("verb", verb, list(VERBS))
    args = make_parser(verb).parse_words(others[1:])
    for package in REPORT_PACKAGES if verb == "report" else ():
        extras.import_extra(package, "report", "mlm sweep report")
    experiment = load_experiment(args.experiment)
    args.experiment = experiment.__file__
    from mlm.launch.sweep import subprocess_worker

    try:
        sweep = resolve_sweep(experiment, config_flags, args, words)
        if verb in ("plan", "run", "search", "submit"):
            import jax

            jax.config.update("jax_platforms", "cpu")  # workers and running jobs need the accelerator
        VERBS[verb].run(sweep)
    except subprocess_worker.WorkerEnded as error:
        command.print_notes(f"error: {error}")
        sys.exit(1)
