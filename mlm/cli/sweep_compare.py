"""mlm sweep compare: the figures of a sweep beside those that are committed, and the pages that show them."""

import shlex
import sys
from pathlib import Path

from mlm.base import errors, files
from mlm.base.flag import Flag
from mlm.cli import command

FLAGS = (
    Flag(
        "figures",
        "",
        "committed figures (figures/NAME-SCALE.json beside the experiment, NAME-SCALE-BUDGET.json with --budget)",
        "FILE",
    ),
    Flag("write", False, "write the figures in place of comparing with them"),
    Flag(
        "pages",
        (),
        "Markdown files whose parts between <!-- figures: NAME-SCALE --> and <!-- end of figures --> are written from "
        "the files of figures",
        "FILE,...",
    ),
)
EVALUATE = (
    "flags of mlm evaluate that made a part of the figures; the file keeps them, and without this flag has those that "
    "it had"
)


def name_sweep(experiment, args) -> str:
    """NAME-SCALE, or NAME-SCALE-BUDGET where a budget other than the steps is compared."""
    name = f"{Path(experiment.__file__).stem}-{args.scale}"
    return name if args.budget == "steps" else f"{name}-{args.budget}"


def check_evaluation(flags: str) -> None:
    """Raises ConfigError unless mlm evaluate takes these flags."""
    from mlm.cli import evaluate

    with errors.explain(f"--evaluate = {flags!r}", "flags of mlm evaluate", ValueError):  # an open quotation mark
        words = shlex.split(flags)
    _, others = command.extract_config_flags(words)
    evaluate.make_parser().parse_words(["RUN", *others])


def compare_points(sweep) -> None:
    """Writes the figures of a finished sweep and its whole table, or prints what differs from the committed figures
    and exits with 1.
    """
    from mlm.report import reproduction, table
    from mlm.report.pages import sweep as page

    experiment, args, results, num_points = sweep.experiment, sweep.args, sweep.load_results(), len(sweep.configs)
    check_evaluation(args.evaluate or "")
    done = f"{len(results)} of {num_points} points are done"
    errors.require(len(results) == num_points, "sweep", done, "all of them")
    source = Path(experiment.__file__)
    path = Path(args.figures) if args.figures else source.parent / "figures" / f"{name_sweep(experiment, args)}.json"
    overrides = sweep.config_flags.overrides.items()
    changes = {name: value for name, value in overrides if name not in ("workdir", "data.cache_dir")}
    words = [f"experiments/{source.name}", f"--scale={args.scale}"]
    words += [f"--budget={args.budget}"] if args.budget != "steps" else []
    line = f"mlm sweep run {shlex.join([*words, *(f'{name}={value}' for name, value in changes.items())])}"
    tables = page.collect_tables(experiment, results)
    by_stem = {one.stem: one for one in (tables.claims, *tables.tables)}
    names, search = getattr(experiment, "RESULT_TABLES", ()), f"search-{args.scale}"
    if search in by_stem:  # in place of another scale's
        names = [search if name.startswith("search-") else name for name in names]
    assert tables.headline is not None  # a sweep without results ended above
    selected = [by_stem[name] for name in names if name in by_stem and by_stem[name].rows]
    shown = reproduction.render_tables(tables.headline, tables.columns, selected, tables.experiment_tables)
    if args.evaluate is None:
        evaluate = reproduction.read_figures(path).evaluate if path.exists() else ""
    else:
        evaluate = args.evaluate and f"mlm evaluate runs/{name_sweep(experiment, args)}/*/ {args.evaluate}"
    found = reproduction.collect_figures(source.stem, args.scale, line, results, shown, evaluate)
    if args.write:
        path.parent.mkdir(parents=True, exist_ok=True)
        reproduction.write_figures(path, found)
        files.write_text(path.with_suffix(".csv"), table.to_csv(tables.rows, tables.columns))
        print(f"written: {path}")
    pages = [Path(file) for file in args.pages]
    for file in pages:
        errors.require(file.is_file(), "--pages", str(file), "a Markdown file")
    committed = reproduction.read_figures(path)
    reproduction.write_pages(pages, path.parent)
    differences = reproduction.compare_figures(committed, found)
    count = sum(map(len, committed.rows.values()))
    print(
        f"{path.stem}: {count} figures of commit {committed.commit}, {len(differences)} differ by more than "
        f"{reproduction.MAX_ERRORS:g} standard errors"
    )
    if differences:
        command.print_notes(*(f"  {difference}" for difference in differences))
        sys.exit(1)
