"""Pages that mkdocs makes from the code, the pages of results and kept runs at each build: none goes out of date."""

import ast
import base64
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import re
import shlex
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
RESULTS = "experiments/RESULTS.md"  # it links the pages of experiments/results
NOTEBOOKS = {  # pages of the site by notebook
    "experiments/use.ipynb": "notebooks/use.md",
    "experiments/own_corpus.ipynb": "notebooks/own_corpus.md",
}
ALT = r"!\[((?:[^\[\]]|\[[^\[\]]*\])*)\]"  # what a picture shows, [MASK] perhaps
FIGURE = re.compile(rf"{ALT}\((?:\.\./)*experiments/figures/([\w-]+)\.tar\.xz#([\w-]+)\)")  # a picture of an archive
DARK = {
    "ink": "#e6e9ed",
    "soft": "#a3abb6",
    "rule": "#363c45",
    "heat": "#6f9bf0",
}  # colors of specs.PAPER on a dark page
EXAMPLE_RUN = {  # the run of the notebook on a run in use
    "model.size": "micro",
    "train.steps": 300,
    "train.batch_size": 16,
    "data.language.train_documents": 4800,
    "data.language.validation_documents": 100,
}
PICTURE = re.compile(rf"{ALT}\(((?:\.\./)*figures/[\w-]+)\.svg\)")  # a committed one, ARCHIVE-CHART.svg
HEAD = re.compile(  # how a page of results begins: its title, its question, the sentence that answers it
    r"# (?P<title>.+)\n+(?P<question>(?:(?!\*\*).+\n)*)\n*\*\*(?P<answer>[^*]+)\*\*\n\n"
)
README_PICTURE = "architectures-laptop-excess_loss-intervals"  # it has a dark one beside it, since README is no page
SEARCH_BOOSTS = {
    "guides": 6,
    "faq.md": 0.7,
    "scaling.md": 0.5,
    "results.md": 0.1,
    "results": 0.002,
    "changes.md": 0.002,
}
HELP_COLUMNS = "76"  # width of a command's help
WIDE = 600  # pixels of a picture that would be too small in the column of a phone, and scrolls there
TALL = 1.1  # times its width: a picture of which a card shows the upper part


def on_config(config):
    """Adds the pages of results to the navigation. mkdocs calls it by its name."""
    pages = ["answers.md", "results.md", *({title: path} for path, title in list_results().items())]
    config.nav = [{"Results": pages} if item == {"Results": "results.md"} else item for item in config.nav]
    return config


def on_files(files: Files, config) -> Files:
    """Adds the generated pages. mkdocs calls it by its name."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    archives = list_archives(config.extra["reports"])
    names = config.extra["drawn"] = [path.name.removesuffix(ARCHIVE) for path in archives]
    pages = {
        "reference/configuration.md": render_configuration(),
        "reference/commands.md": render_commands(),
        "reference/python.md": render_python(),
        "changes.md": render_file("CHANGELOG.md", ()),
        "answers.md": render_answers(),
        "results.md": render_file(RESULTS, names),
        **{path: render_file(f"experiments/{path}", names) for path in list_results()},
    }
    for path in list_pictures():
        svg = path.read_text()
        pages |= {f"figures/{path.name}": svg, f"figures/{path.stem}-dark.svg": darken(svg)}
    for notebook, path in NOTEBOOKS.items():
        pages |= render_notebook(ROOT / notebook, path, is_run=bool(names))
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    for archive in archives:
        for name, content in make_report(archive).items():
            copied = File.generated(config, name.replace(".md", ".md.txt"), content=content)  # no page of the site
            copied.dest_uri = name
            files.append(copied)
    return files


def on_page_markdown(markdown: str, page, config, **_) -> str:
    """Turns links to files of the project, which are right in a clone, into the site's. mkdocs calls it.

    A picture of an archive, FIGURES/NAME.tar.xz#CHART, is the one that the archive's report draws; a build without that
    report has none. Searches find guides first, and tables of results last.
    """
    page.meta["search"] = {"boost": SEARCH_BOOSTS.get(page.file.src_uri.split("/")[0], 1)}
    up, drawn = "../" * page.file.src_uri.count("/"), config.extra["drawn"]
    markdown = FIGURE.sub(lambda found: render_picture(*found.groups(), up) if found[2] in drawn else "", markdown)
    markdown = re.sub(r"\]\((?:\.\./)+experiments/(?=figures/|results/)", f"]({up}", markdown)
    markdown = PICTURE.sub(lambda found: shade_picture(*found.groups()), markdown)
    markdown = re.sub(r"\]\((?:\.\./)+experiments/RESULTS\.md", f"]({up}results.md", markdown)
    for notebook, path in NOTEBOOKS.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(notebook)}\)", f"]({up}{path})", markdown)
    markdown = re.sub(r"\]\((?:\.\./)+CHANGELOG\.md", f"]({up}changes.md", markdown)
    return markdown.replace("<!-- reports -->", render_cards([link_report(name) for name in drawn]))


def on_page_content(html: str, **_) -> str:
    """Lets no line end in the hyphens of a flag. mkdocs calls it by its name."""
    return re.sub(r"<code>(--[^<\s]{1,30})</code>", r'<code class="flag">\1</code>', html)


def render_picture(text: str, archive: str, chart: str, up: str) -> str:
    """A picture that a report draws, for light and for dark pages, with a link to that report."""
    picture = shade_picture(text, f"{up}reports/{archive}/figures/{chart}")
    return f'<a href="{up}reports/{archive}/report.html">{picture}</a>'


def shade_picture(text: str, path: str) -> str:
    """The picture PATH.svg on a light page, PATH-dark.svg on a dark one, whichever of them the reader has chosen."""
    committed = FIGURES / f"{Path(path).name}.svg"
    size = (
        re.search(r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"', committed.read_text())
        if committed.exists()
        else None
    )
    width, height = map(float, size.groups()) if size else (0, 0)
    kind = "drawn wide" if width > WIDE else "drawn tall" if height > TALL * width else "drawn"
    return "".join(
        f'<img class="{kind}" src="{path}{ending}" alt="{text}" loading="lazy">'
        for ending in (".svg#only-light", "-dark.svg#only-dark")
    )


def list_archives(pattern: str) -> list[Path]:
    """The archives whose names match and whose figures are kept; a sweep that was kept in part has none yet."""
    names = [path.name.removesuffix(ARCHIVE) for path in sorted(FIGURES.glob(f"{pattern}{ARCHIVE}"))]
    return [FIGURES / f"{name}{ARCHIVE}" for name in names if (FIGURES / f"{name}.json").exists()]


def list_pictures() -> list[Path]:
    """The committed pictures of archives."""
    return [path for path in sorted(FIGURES.glob("*.svg")) if not path.stem.endswith("-dark")]


def darken(svg: str) -> str:
    """A figure with the colors of dark pages in place of those of paper."""
    specs = importlib.import_module("mlm.report.specs")
    colors = dict(zip(specs.LIGHT, specs.DARK, strict=True)) | {specs.PAPER[name]: DARK[name] for name in DARK}
    colors |= {specs.PAPER["ground"]: specs.DARK_BACKGROUND, "black": DARK["ink"], "white": specs.DARK_BACKGROUND}
    names = "|".join(map(re.escape, colors))
    return re.sub(rf'(?<=")({names})(?=")', lambda found: colors[found[1]], svg)


def link_report(name: str) -> str:
    """A card of an archive's report: its name, and the question of its experiment."""
    experiment = json.loads((FIGURES / f"{name}.json").read_text())["command"].split()
    path = next(word for word in experiment if word.endswith(".py"))
    question = (ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").split("\n\n")[0].replace("\n", " ")
    return f"[**{name}**](reports/{name}/report.html): {question}"


def render_cards(cards: Collection[str]) -> str:
    """Cards, side by side where there is room."""
    return '<div class="grid cards" markdown>\n\n' + "\n".join(f"- {card}" for card in cards) + "\n\n</div>\n"


def render_answers() -> str:
    """A card for each page of results: its first picture, its question, and the sentence that answers it."""
    cards = []
    for path in list_results():
        page = render_file(f"experiments/{path}", ())
        title, question, answer = read_head(page)
        found = PICTURE.search(page)
        picture = f"[{found[0].replace('(../', '(')}]({path})\n\n    " if found else ""
        cards.append(f"{picture}[**{title}**]({path}) {question if question != title else ''}\n\n    {answer}\n")
    intro = "Each page of results in one sentence: a figure, its interval, and what it was measured on."
    return f"# Questions and answers\n\n{intro} [Results](results.md) has the ten findings.\n\n{render_cards(cards)}"


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
        text = text.replace(f"figures/{report}{ARCHIVE})", f"reports/{report}/report.html)")
    pages = r"#|https?:|(?:\.\./)?(?:figures/[\w-]+\.svg\)|reports/)|(?:results/)?[a-z_]+\.md"
    return re.sub(rf"\[([^\]]+)\]\((?!{pages})[^)]*\)", r"\1", text)


def list_results() -> dict[str, str]:
    """The titles of the pages of results by their path in the site, in the order in which RESULTS.md links them."""
    names = dict.fromkeys(re.findall(r"\(results/(\w+)\.md", (ROOT / RESULTS).read_text()))
    paths = [f"results/{name}.md" for name in names]
    return {path: (ROOT / "experiments" / path).read_text().partition("\n")[0].removeprefix("# ") for path in paths}


def read_head(page: str) -> tuple[str, str, str]:
    """The title of a page of results, its question (the title, where that is one) and the sentence that answers it."""
    title, question, answer = (part.replace("\n", " ") for part in HEAD.match(page).groups())
    return title, (question or title).partition("?")[0] + "?", answer


def render_notebook(notebook: Path, path: str, *, is_run: bool) -> dict[str, str | bytes]:
    """The page of a notebook at a path, and its pictures; with its output if it is run and nbclient is installed."""
    cells = json.loads(notebook.read_text())["cells"]
    if is_run and importlib.util.find_spec("nbclient"):
        cells = run_notebook(notebook)
    parts, pages = [], {}
    for number, cell in enumerate(cells):
        code = "".join(cell["source"])
        parts.append(code if cell["cell_type"] == "markdown" else f"```python\n{code}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            text = "".join(data.get("text/plain", output.get("text", "")))
            if "image/png" in data:
                pages[f"notebooks/{notebook.stem}-{number}.png"] = base64.b64decode(data["image/png"])
                parts.append(f"![The figure that this cell draws]({notebook.stem}-{number}.png){{ .figure-image }}")
            elif text.strip() and output.get("name") != "stderr":
                parts.append("".join(data.get("text/markdown", "")) or f"```text\n{text.rstrip()}\n```")
    return pages | {path: "\n\n".join(parts) + "\n"}


def run_notebook(notebook: Path) -> list:
    """The cells of a notebook with their output; MLM_RUN names a run of EXAMPLE_RUN."""
    import nbclient
    import nbformat

    content = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        paths = {"MLM_RUN": f"{folder}/run", "PYTHONPATH": str(ROOT)}
        if "MLM_RUN" in notebook.read_text():
            cache = {"workdir": paths["MLM_RUN"], "data.cache_dir": f"{folder}/cache"}
            with contextlib.redirect_stdout(io.StringIO()):
                importlib.import_module("mlm").train(EXAMPLE_RUN | cache)
        with mock.patch.dict(os.environ, paths):
            resources = {"metadata": {"path": str(notebook.parent)}}
            nbclient.NotebookClient(content, timeout=600, kernel_name="python3", resources=resources).execute()
    return content.cells


def make_report(archive: Path) -> dict[str, bytes]:
    """The files of the report of an archive's runs, as `mlm sweep report` writes them, by their path in the site."""
    name = archive.name.removesuffix(ARCHIVE)
    reproduction = importlib.import_module("mlm.report.reproduction")
    experiment, *flags = shlex.split(reproduction.read_figures(FIGURES / f"{name}.json").command)[3:]
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(archive, folder, filter="data")
        workdir = Path(folder) / name
        words = ["sweep", "report", str(ROOT / experiment), *flags, f"workdir={workdir}"]
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module("mlm.cli.sweep").main(words)
        for path in [*workdir.glob("figures/*.svg")]:
            path.with_name(f"{path.stem}-dark.svg").write_text(darken(path.read_text()))
        paths = [path for path in (*workdir.glob("*"), *workdir.glob("figures/*")) if path.is_file()]
        return {f"reports/{name}/{path.relative_to(workdir)}": path.read_bytes() for path in paths}


def escape_cell(text: str) -> str:
    """Plain text as a cell of a Markdown table."""
    return re.sub(r"([\\|*_\[\]<>`])", r"\\\1", text)


def draw_pictures() -> None:
    """Draws the committed pictures again, after a change of an archive or of how charts look."""
    charts: dict[str, list[str]] = {}  # by archive
    archives = [path.name.removesuffix(ARCHIVE) for path in list_archives("*")]
    for picture in list_pictures():
        archive = max((name for name in archives if picture.stem.startswith(f"{name}-")), key=len)
        charts.setdefault(archive, []).append(picture.stem.removeprefix(f"{archive}-"))
    for archive, names in charts.items():
        report = make_report(FIGURES / f"{archive}{ARCHIVE}")
        for name in names:
            (FIGURES / f"{archive}-{name}.svg").write_bytes(report[f"reports/{archive}/figures/{name}.svg"])
    readme = FIGURES / f"{README_PICTURE}.svg"
    readme.with_stem(f"{README_PICTURE}-dark").write_text(darken(readme.read_text()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    draw_pictures()
