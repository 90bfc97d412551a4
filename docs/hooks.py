"""Pages that mkdocs makes from the code, experiments/RESULTS.md and kept runs at each build: none goes out of date."""

import contextlib
import importlib
import inspect
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from unittest import mock

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "experiments" / "figures"
ARCHIVE = ".tar.xz"  # of a sweep's runs; a file of figures has the same name
FILES = {"results.md": "experiments/RESULTS.md", "changes.md": "CHANGELOG.md"}  # pages that are a file of the project
SEARCH_BOOSTS = {"guides": 4, "scaling.md": 0.5, "results.md": 0.002, "changes.md": 0.002}
HELP_COLUMNS = "76"  # width of a command's help


def on_files(files: Files, config) -> Files:
    """Adds the generated pages. mkdocs calls it by its name."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    pages = {
        "reference/configuration.md": render_configuration,
        "reference/commands.md": render_commands,
        "reference/python.md": render_python,
    }
    for path, render in pages.items():
        files.append(File.generated(config, path, content=render()))
    archives = sorted(FIGURES.glob(f"{config.extra['reports']}{ARCHIVE}"))
    names = [path.name.removesuffix(ARCHIVE) for path in archives]
    for path, name in FILES.items():
        files.append(File.generated(config, path, content=render_file(name, names)))
    for path in FIGURES.glob("*.svg"):
        files.append(File.generated(config, f"figures/{path.name}", content=path.read_text()))
    for path in archives:
        for name, content in make_report(path).items():
            copied = File.generated(config, name.replace(".md", ".md.txt"), content=content)  # no page of the site
            copied.dest_uri = name
            files.append(copied)
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Turns links to a page or figure of the project, which are right in a clone, into the site's. mkdocs calls it.

    Searches find guides first, and tables of results last.
    """
    page.meta["search"] = {"boost": SEARCH_BOOSTS.get(page.file.src_uri.split("/")[0], 1)}
    for path, name in FILES.items():
        target = "../" * page.file.src_uri.count("/") + path
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(name)}(?=[#)])", f"]({target}", markdown)
    figures = f"]({'../' * page.file.src_uri.count('/')}figures/"
    return re.sub(r"\]\((?:\.\./)+experiments/figures/", figures, markdown)


def render_configuration() -> str:
    """A table for each group of config fields, with an anchor for each field."""
    from mlm.cli import config_help

    groups: dict[str, list[str]] = {}
    for name, default, meaning in config_help.list_fields():
        group = ".".join(name.split(".")[:-1])
        kind = type(default).__name__
        groups.setdefault(group, []).append(
            f'| <span id="{name}">`{name}`</span> | {kind} | `{default!r}` | {escape_cell(meaning)} |'
        )
    parts = [
        "# Configuration",
        "Each field is `NAME=VALUE` on the command line, a keyword of a point in an experiment, and an attribute of "
        "`mlm.Config` in Python. `mlm config --search=WORD` finds a field by a word. This page is generated from the "
        "code.",
    ]
    for group, rows in groups.items():
        parts += [f"## {group or 'run'}", "| field | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def render_commands() -> str:
    """The help of each command as its parser prints it."""
    from mlm.cli import entry, sweep

    parts = [
        "# Commands",
        "`python -m mlm` is the same as `mlm`. A wrong flag, field or value ends in one line on standard error, with "
        "exit code 2. This page is generated from the code.",
        f"```text\n{entry.format_overview()}\n```",
    ]
    with mock.patch.dict(os.environ, {"COLUMNS": HELP_COLUMNS, "NO_COLOR": "1"}):
        for name, (_, purpose) in entry.COMMANDS.items():
            text = make_parser(name).format_help().rstrip()
            parts += [f"## mlm {name}", f"{purpose[0].upper()}{purpose[1:]}.", f"```text\n{text}\n```"]
            for verb in sweep.VERBS if name == "sweep" else ():
                parts += [f"### mlm sweep {verb}", f"```text\n{sweep.make_parser(verb).format_help().rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def make_parser(name: str, verb: str = ""):
    """The argument parser of a command, or of a verb of mlm sweep."""
    from mlm.cli import entry, sweep

    if name == "sweep":
        return sweep.make_parser(verb)
    module = importlib.import_module(f"mlm.cli.{entry.COMMANDS[name][0]}")
    return module.make_parser(name) if inspect.signature(module.make_parser).parameters else module.make_parser()


def render_python() -> str:
    """The public names of the package, each with the documentation of what it names; imports no JAX."""
    import mlm

    parts = ["# Python", "These are the public names of `mlm`. `mlm.__version__` is the version."]
    public = [name for name in mlm.__all__ if not name.startswith("_")]
    for name in sorted(public, key=lambda name: (name[0].isupper(), name)):  # functions before classes
        options = {"show_root_heading": "true", "heading": f"mlm.{name}", "toc_label": f"mlm.{name}"}
        if name == "Config":
            parts.append("The fields of `mlm.Config` are listed in [Configuration](configuration.md).")
            options["members"] = "false"
        lines = [f"::: {mlm._MODULES[name]}.{name}", "    options:"]
        parts.append("\n".join([*lines, *(f"      {key}: {option}" for key, option in options.items())]))
    return "\n\n".join(parts) + "\n"


def render_file(name: str, reports: Collection[str]) -> str:
    """A Markdown file of the project with its figures, without its links to files that are no page.

    A link to an archive of runs leads to their report, if it is among `reports`. No line breaks within a number and its
    interval.
    """
    text = (ROOT / name).read_text()
    text = re.sub(r" ± (?=\d)", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}", text)
    text = re.sub(r"(?<=\d) \[(-?[\d.]+), (?=-?[\d.]+\])", "\N{NO-BREAK SPACE}[\\1,\N{NO-BREAK SPACE}", text)
    joined = "\N{NO-BREAK SPACE}(\\1\N{WORD JOINER}\N{EN DASH}\N{WORD JOINER}\\2)"
    text = re.sub(r"(?<=\d) \(([\d.,]+)\N{EN DASH}([\d.,]+)\)", joined, text)
    text = re.sub(r"seed \d+: [\d.]+ at step \d+", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    for report in reports:
        text = text.replace(f"(figures/{report}{ARCHIVE})", f"(reports/{report}/report.html)")
    return re.sub(r"\[([^\]]+)\]\((?!#|https?:|figures/[\w-]+\.svg\)|reports/)[^)]*\)", r"\1", text)


def make_report(archive: Path) -> dict[str, bytes]:
    """The files of the report of an archive's runs, as `mlm sweep report` writes them, by their path in the site."""
    name = archive.name.removesuffix(ARCHIVE)
    reproduction = importlib.import_module("mlm.report.reproduction")
    experiment, *flags = reproduction.read_figures(FIGURES / f"{name}.json").sweep_words
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(archive, folder, filter="data")
        workdir = Path(folder) / name
        words = ["sweep", "report", str(ROOT / experiment), *flags, f"workdir={workdir}"]
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module("mlm.cli.sweep").main(words)
        paths = [path for path in (*workdir.glob("*"), *workdir.glob("figures/*")) if path.is_file()]
        return {f"reports/{name}/{path.relative_to(workdir)}": path.read_bytes() for path in paths}


def escape_cell(text: str) -> str:
    """Plain text as a cell of a Markdown table."""
    return re.sub(r"([\\|*_\[\]<>`])", r"\\\1", text)
