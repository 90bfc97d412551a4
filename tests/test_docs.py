"""The site builds without warnings and reads nothing from the network; commands, fields, files and Python in README and
docs are those of the code.
"""

import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from small import make_run_config, train_config

from mlm.base import buckets, config, errors, fields
from mlm.cli import command, entry, sweep
from mlm.data.language import grammar
from mlm.launch.cluster import slurm
from mlm.launch.sweep import sweep_points, target_compiler

ROOT = Path(__file__).parents[1]
REPORT = "architectures-long"  # the only report of the tested site
DOCS, RESULTS = ROOT / "docs", ROOT / "experiments" / "results"
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}
WITH_FIELDS = ("pack", "train", "finetune", "evaluate", "sweep", "floor")  # commands that take config fields
NOT_RUN = r"<!-- not run(?:: [^\n]+)? -->"
FENCE = re.compile(rf"(?P<skip>{NOT_RUN}\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def find_commands(page: str) -> list[str]:
    """The command lines of a page: in fenced and indented blocks, and in text those with an argument."""
    text = PAGES[page].replace("\\\n", " ")
    blocks = [match["code"] for match in FENCE.finditer(text) if match["language"] in ("bash", "")]
    rest = FENCE.sub("", text)
    blocks += [match[0] for match in INDENTED.finditer(rest)] if page == "README.md" else []
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += [code for code in INLINE.findall(rest) if re.search(r" .*[-/=]", code)]
    lines = [re.sub(r"^([A-Z_]+=\S+ )*", "", line) for line in lines]
    return [line for line in lines if line.startswith("mlm ") and "COMMAND" not in line]


def find_python(page: str) -> list[tuple[str, bool]]:
    """The Python blocks of a page, and whether each is run."""
    text = PAGES[page]
    blocks = [(match["code"], not match["skip"]) for match in FENCE.finditer(text) if match["language"] == "python"]
    return blocks + [
        (re.sub(r"^    ", "", match[0], flags=re.MULTILINE), True)
        for match in INDENTED.finditer(FENCE.sub("", text))
        if page == "README.md" and "import mlm" in match[0]
    ]


def test_what_is_not_run_says_why():
    assert [page for page, text in PAGES.items() if "<!-- not run -->" in text] == []


NUMBER = r"[-+<]?\d[-+\d.,e±() \[\];to\u2013\u2060\u00a0]*"  # also with its bounds, or several of them
DIVIDER = re.compile(r"^\|(?: *:?-+:? *\|)+$")


def find_left_numbers(text: str) -> list[str]:
    """The titles of the columns of numbers in Markdown that are not right-aligned."""
    found, lines = [], text.splitlines()
    for i, line in enumerate(lines):
        if DIVIDER.match(line):
            rows = [
                row.strip("|").split("|") for row in itertools.takewhile(lambda row: row[:1] == "|", lines[i + 1 :])
            ]
            titles, alignments = (lines[place].strip("|").split("|") for place in (i - 1, i))
            for column, (title, alignment) in enumerate(zip(titles, alignments, strict=True)):
                cells = [row[column].strip(" *") for row in rows if row[column:] and row[column].strip()]
                is_number = cells and all(re.fullmatch(NUMBER, cell) for cell in cells)
                if is_number and not alignment.rstrip().endswith(":"):
                    found.append(title.strip())
    return found


def test_columns_of_numbers_are_right_aligned():
    texts = PAGES | {path.name: path.read_text() for path in (ROOT / "experiments").rglob("*.md")}
    assert {name: titles for name, text in texts.items() if (titles := find_left_numbers(text))} == {}
    assert find_left_numbers("| a | b | c |\n|---|---|:---|\n| x | **1.5 ± 0.2** | 3 |\n| y | | 4 |") == ["b", "c"]


def load_hooks():
    sys.path.insert(0, str(DOCS))
    try:
        import hooks
    finally:
        sys.path.remove(str(DOCS))
    return hooks


def check_command(line: str) -> None:
    """Parses a command line without running it. Raises ConfigError for what its parser or the config does not know."""
    words = shlex.split(line, comments=True)[1:]
    for alternative in words[1].split("|") if words[0] == "sweep" else ["-"]:
        if alternative != "-":
            errors.require_one_of("verb", alternative, list(sweep.VERBS))
            words[1] = alternative
    errors.require_one_of("command", words[0], list(entry.COMMANDS))
    flags, others = (command.ConfigFlags("", {}), words[1:])
    if words[0] in WITH_FIELDS:
        flags, others = command.extract_config_flags(words[1:])
    if flags.path:
        flags.load_base()
    verb, others = (others[0], others[1:]) if words[0] == "sweep" else ("", others)
    args = load_hooks().make_parser(words[0], verb).parse_words(others)
    if words[0] == "sweep" and Path(args.experiment).name != "window_width.py":  # the reader's own
        scales = sweep.load_experiment(args.experiment).SCALES
        for scale in args.scale.split("|"):
            errors.require_one_of("--scale", scale, list(scales))


@pytest.mark.parametrize("page", PAGES)
def test_commands_parse(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for line in find_commands(page):
        try:
            check_command(line)
        except errors.ConfigError as error:
            pytest.fail(f"{page}: {line}\n{error}")


def test_wrong_commands_do_not():
    for line in (
        "mlm trian workdir=a",
        "mlm train mask.raet=0.4",
        "mlm train --longer=3",
        "mlm fill",
        "mlm sweep rnu experiments/architectures.py",
        "mlm sweep run experiments/architectures.py --scale=huge",
    ):
        with pytest.raises(errors.ConfigError):
            check_command(line)


def test_the_guides_have_commands_for_these_tests():
    assert len(find_commands("README.md")) > 10
    assert all(find_commands(page) for page in PAGES if "/guides/" in page and "index" not in page)


@pytest.mark.parametrize("page", PAGES)
def test_fields_and_files_in_the_text_exist(page):
    groups = {name.partition(".")[0] for name in fields.DEFAULT if "." in name}
    for code in INLINE.findall(FENCE.sub("", PAGES[page])):
        for word in code.split():
            name = word.partition("=")[0]
            is_field = re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", name) and name.partition(".")[0] in groups
            if is_field and not name.endswith((".safetensors", ".py", ".json", ".jsonl")):
                fields.check_name(name)
            if re.fullmatch(r"(mlm|experiments|tests|launch|configs)/[\w./]+", word):
                assert (ROOT / word).exists(), f"{page}: {word}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_of_a_clone(page):
    """But for the pages of the reference, which the site makes of the code."""
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", FENCE.sub("", PAGES[page]))
    files = [target for target in targets if not target.lstrip("./").startswith("reference/")]
    assert [target for target in files if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_the_trip_of_a_run_names_files_and_their_functions():
    first, second = PAGES["docs/design/trip.md"].split("\n## ")
    for part, most in ((first, 15), (second, 6)):
        stations = re.findall(r"^\| M?\d+ \|.*\| `(\S+)` \| `(\w+)` \|$", part, re.MULTILINE)
        assert 0 < len(stations) <= most
        for file, name in stations:
            assert re.search(rf"^(?:def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE), (file, name)


NOTEBOOKS = {path.name: json.loads(path.read_text()) for path in (ROOT / "experiments").glob("*.ipynb")}
SOURCES = PAGES | {
    **{name: "\n".join("".join(cell["source"]) for cell in book["cells"]) for name, book in NOTEBOOKS.items()},
    **{str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "mlm").rglob("*.py"))},
}
QUOTED = r'"[^"{}\n]+"'
TEXT_COMMANDS = r"mlm (?:fill|embed|similar|score|predict|generate|translate|readability|attention|floor) \S+"
TEXT_METHODS = (
    r"\.(?:fill_mask|encode|similar|logits|pseudo_log_likelihood|surprisal|predict|generate|translate|attentions)\(\[?"
)


def find_sentences(source: str) -> list[str]:
    """The example texts of a page: of commands and methods that read texts, and all that end as a sentence does."""
    after = re.findall(rf"(?:{TEXT_COMMANDS}|{TEXT_METHODS})((?:[ ,]*{QUOTED})+)", SOURCES[source])
    texts = re.findall(QUOTED, " ".join(after)) + re.findall(r'"[^"{}\n]+ \."', SOURCES[source])
    return [text.strip('"') for text in texts if " " in text]


def test_example_sentences_have_no_word_that_the_built_in_language_lacks():
    known = {*grammar.build_grammar(config.Language(max_words=16)).words, "[MASK]"}
    found = {(source, text) for source in SOURCES for text in find_sentences(source)}
    assert len({source for source, _ in found}) >= 9 and len(found) > 25
    assert {(source, text) for source, text in found if not known >= set(text.split())} == set()


SUBMIT_COMMANDS = [line for line in find_commands("docs/guides/clusters.md") if line.startswith("mlm sweep submit")]


@pytest.mark.parametrize("line", SUBMIT_COMMANDS)
def test_the_dry_runs_of_the_guide_show_their_files(line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(slurm, "PRIVATE_FOLDERS", ())  # this clone may be in one
    monkeypatch.setitem(buckets.LIBRARIES, "gs", "no_such_library")
    sweep.main([*shlex.split(line)[1:], "--points=*large*-0.15-seed0*"])
    said = capsys.readouterr().out
    assert "2 to submit" in said and "==> " in said and "masking_rate" in said


@pytest.mark.exhaustive(but=("LIBTPU_INIT_ARGS",))
@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_the_compilers_know_the_flags_that_the_guide_names(variable, tmp_path):
    if variable == "LIBTPU_INIT_ARGS" and not importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is not installed")
    rows = [line for line in PAGES["docs/guides/clusters.md"].splitlines() if f"| `{variable}`<br>" in line]
    flags = re.findall(r"--\w+=\w+", " ".join(rows))
    code = "import jax; jax.numpy.ones(1)"
    if variable == "LIBTPU_INIT_ARGS":
        code = "from jax.experimental import topologies as t; t.get_topology_desc('v5e:2x2', 'tpu')"

    def run(flags):
        environment = os.environ | target_compiler.TPU_ENVIRONMENT | {"JAX_PLATFORMS": "cpu", variable: flags}
        command = [sys.executable, "-c", code]  # one flag writes into the working directory
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True).returncode

    assert len(flags) > 5 and run(" ".join(flags)) == 0
    assert run("--xla_no_such_flag=true") != 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trained run, runs/a."""
    folder = tmp_path_factory.mktemp("docs")
    train_config(make_run_config(folder / "cache", folder / "runs" / "a"))
    return folder


def test_readme_s_table_is_of_the_runs_of_its_figure():
    names = re.findall(
        r'(?:src|srcset)="experiments/figures/([\w-]+)-excess_loss-intervals(?:-dark)?\.svg"', PAGES["README.md"]
    )
    (name,) = {*names}
    pictures = [path.read_text() for path in (ROOT / "experiments/figures").glob(f"{name}-excess_loss-intervals*.svg")]
    kept = json.loads((ROOT / f"experiments/figures/{name}.json").read_text())["rows"]
    rows = re.findall(r"^\| ([\w ]+) \| ([\d.]+) ± ([\d.]+) \| ([\d.]+) ±", PAGES["README.md"], re.MULTILINE)
    assert len(rows) == 7 and len(pictures) == len(names) == 2
    assert load_hooks().darken(pictures[0]) in pictures or load_hooks().darken(pictures[1]) in pictures
    for model, excess, half, accuracy in rows:
        assert all(f">{excess} ± {half}<" in picture for picture in pictures)
        cells = kept[f"{model.split()[0]}-tiny"]
        assert (excess, accuracy) == (f"{cells['excess_loss'][0]:.3f}", f"{100 * cells['accuracy'][0]:.1f}")
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)


def test_pictures_are_of_archives_and_those_of_findings_readable_in_a_column_of_a_paper():
    archives = tuple(f"{path.name.removesuffix('.tar.xz')}-" for path in (ROOT / "experiments/figures").glob("*.xz"))
    pictures = [path.stem for path in load_hooks().list_pictures()]
    assert pictures and all(name.startswith(archives) for name in pictures)
    names = re.findall(r"\(figures/([\w-]+\.svg)\)", (ROOT / "experiments/RESULTS.md").read_text())
    assert len(names) >= 3
    for name in names:
        svg = (ROOT / "experiments/figures" / name).read_text()
        width = float(re.search(r'<svg[^>]* width="([\d.]+)"', svg)[1])
        sizes = {float(size) for size in re.findall(r'font-size="([\d.]+)px"', svg)}
        assert min(sizes) / width * 85 / 25.4 * 72 > 5.5, name  # points, 85 mm wide


def test_a_sweep_kept_in_part_has_no_report(tmp_path, monkeypatch):
    hooks = load_hooks()
    monkeypatch.setattr(hooks, "FIGURES", tmp_path)
    for name in ("a-long.tar.xz", "a-long.json", "a-text.tar.xz", "b-long.tar.xz", "b-long.json"):
        (tmp_path / name).touch()
    assert [path.name for path in hooks.list_archives("a*")] == ["a-long.tar.xz"]


@pytest.mark.exhaustive(but=("README.md", "docs/index.md", "docs/guides/evaluate.md"))
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if find_python(page)])
def test_python_runs(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {"__name__": page}
    for code, is_run in find_python(page):
        compiled = compile(code, page, "exec")
        if is_run:
            exec(compiled, names)
    if "SCALES" in names:  # an experiment
        for scale in names["SCALES"]:
            assert sweep_points.resolve_points(config.Config(), names["sweep"](scale), {})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, with one report."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "MLM_REPORTS": REPORT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_site_reads_nothing_from_the_network(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text())
        assert not [tag for tag in tags if re.search(r"""(src|href)=["']?(https?:)?//""", tag)], page


@pytest.mark.exhaustive
@pytest.mark.slow
def test_generated_pages_are_those_of_the_code(site):
    configuration = (site / "reference" / "configuration.html").read_text()
    assert not [name for name in fields.DEFAULT if f'id="{name}"' not in configuration]
    commands = (site / "reference" / "commands.html").read_text()
    assert not [name for name in entry.COMMANDS if f"usage: mlm {name} " not in commands]
    as_text = r"<p>(?:mlm (?:sweep|train|evaluate|finetune)|python -m|bash) "  # a command that is no code
    assert [page for page in (site / "results").glob("*.html") if re.search(as_text, page.read_text())] == []
    names = {path.stem for path in RESULTS.glob("*.md")}
    assert names == {path.stem for path in (site / "results").glob("*.html")}  # each is linked from the first
    page = "".join(path.read_text() for path in (site / "results").glob("*.html"))
    assert not re.search(r"\d ± \d", page) and "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}" in page  # on one line
    assert not re.search(r"\d \([\d.,]+\N{EN DASH}", page) and "\N{WORD JOINER}\N{EN DASH}" in page


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_archive_of_runs_has_its_report(site):
    pages = "".join(path.read_text() for path in (site / "results").glob("*.html"))
    assert re.findall(r'href="\.\./(reports/[^"]*)"', pages) == [f"reports/{REPORT}/report.html"]
    report = site / "reports" / REPORT / "report.html"
    targets = re.findall(r'href="([^"#:]+)"', report.read_text())
    assert {"table.md", "figures/excess_loss-intervals.pdf"} <= set(targets)
    assert [target for target in targets if not (report.parent / target).exists()] == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_no_link_is_dead_and_the_search_finds_guides_from_a_folder(site, chromium):
    pages = [page for page in site.rglob("*.html") if page.name not in ("404.html", "report.html")]
    links = [
        (page, link) for page in pages for link in re.findall(r'(?:href|src|srcset)="([^"#?:]+)["#?]', page.read_text())
    ]
    assert [(page, link) for page, link in links if not page.parent.joinpath(link).exists()] == []
    tab = chromium.new_page()
    for words in ("learning rate", "resume", "LaTeX"):
        tab.goto((site / "concepts.html").as_uri())
        tab.keyboard.press("/")
        tab.keyboard.type(words, delay=20)
        tab.keyboard.press("ArrowDown")
        first = tab.locator(".md-search-result__item a").first
        first.wait_for(state="attached")
        assert "/guides/" in first.get_attribute("href"), words
    tab.close()


BEYOND_THE_WINDOW = """() => [...document.querySelectorAll("table, pre, img, svg")].filter(element => {
    const { right, width } = element.getBoundingClientRect();
    if (!width || right <= innerWidth + 1) return false;
    for (let box = element.parentElement; box; box = box.parentElement)
        if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return false;
    return true;
}).map(element => element.outerHTML.slice(0, 80))"""


LEFT_NUMBERS = """() => [...document.querySelectorAll("table")].flatMap(table => [...table.rows[0].cells].filter(head => {
    const cells = [...table.rows].slice(1).map(row => row.cells[head.cellIndex]).filter(cell => cell?.innerText.trim());
    const isNumber = cell => !cell.querySelector("code") && new RegExp(NUMBER).test(cell.innerText.trim());
    return cells.length && cells.every(isNumber) && !cells.every(cell => /right|end/.test(getComputedStyle(cell).textAlign));
}).map(head => head.innerText))""".replace("NUMBER", json.dumps(f"^{NUMBER}$"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_numbers_of_all_tables_are_right_aligned(site, chromium):
    tab, seen = chromium.new_page(), 0
    for page in site.rglob("*.html"):
        tab.goto(page.as_uri())
        assert tab.evaluate(LEFT_NUMBERS) == [], page
        seen += tab.evaluate(
            "[...document.querySelectorAll('td')].filter(cell => cell.style.textAlign == 'right').length"
        )
    assert seen > 1000
    tab.close()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 390])
def test_no_page_is_wider_than_its_window(site, chromium, width):
    tab = chromium.new_page(viewport={"width": width, "height": 844})
    for page in site.rglob("*.html"):
        tab.goto(page.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, page
        assert tab.evaluate(BEYOND_THE_WINDOW) == [], page
    tab.close()


TOO_FAINT = """() => {  // texts whose contrast to what is behind them is below 4.5
    const read = color => [...color.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
    const lay = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
    const light = color => color.map(v => v / 255).map(v => v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0.05);
    const style = element => getComputedStyle(element);
    return [...document.querySelectorAll("body *:not(script, style, svg *)")].filter(element => {
        if (![...element.childNodes].some(node => node.nodeType == 3 && node.data.trim())) return false;
        if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return false;
        const line = [];
        for (let each = element; each; each = each.parentElement) line.unshift(style(each));
        const behind = line.reduce((color, each) => lay(read(each.backgroundColor), color), [255, 255, 255]);
        const ink = read(style(element).color);
        ink[3] *= line.reduce((product, each) => product * each.opacity, 1);
        const [low, high] = [light(behind), light(lay(ink, behind))].sort((a, b) => a - b);
        return high / low < 4.45;
    }).map(element => element.outerHTML.slice(0, 90));
}"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_is_too_faint(site, chromium, scheme):
    tab = chromium.new_page(viewport={"width": 1440, "height": 844}, color_scheme=scheme)
    for page in site.rglob("*.html"):
        if page.name != "404.html":  # whose style is at the root of a server
            tab.goto(page.as_uri())
            assert tab.evaluate(TOO_FAINT) == [], page
    tab.close()


def test_results_link_each_archive_of_runs():
    names = [path.name.removesuffix(".tar.xz") for path in (ROOT / "experiments" / "figures").glob("*.tar.xz")]
    pages = "".join(path.read_text() for path in RESULTS.glob("*.md"))
    links = re.findall(r"\(\.\./figures/([^)]*)\.tar\.xz\)", pages)
    assert names and sorted(links) == sorted(names)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_of_results_begins_with_its_question_and_the_answer(path):
    """One bold sentence with a figure and its interval, or why it has none."""
    title, question, answer = load_hooks().read_head(path.read_text())
    assert question in " ".join(path.read_text().split("**")[0].split()) and len(title) < 70
    assert re.search(r"\d.*(±|\[-?[\d.]+, |one seed|no interval)", answer) and answer.endswith(".")
    assert len(answer.split()) < 70


def test_each_committed_picture_has_its_dark_one_beside_it():
    pages = PAGES | {f"docs/results/{path.name}": path.read_text() for path in RESULTS.glob("*.md")}
    for name, text in pages.items():
        page = SimpleNamespace(meta={}, file=SimpleNamespace(src_uri=name.removeprefix("docs/")))
        shown = load_hooks().on_page_markdown(text, page, SimpleNamespace(extra={"drawn": []}))
        assert shown.count("-dark.svg#only-dark") == len(re.findall(r"figures/[\w-]+\.svg\)", text)), name


def test_a_card_cuts_tall_pictures_alone_and_a_phone_scrolls_wide_ones():
    shapes = {"modern_bert-laptop-excess_loss-intervals": "tall", "small_bert-laptop-loss-by-step": "wide"}
    for name in [*shapes, "masking_mix-text-loss-intervals"]:
        kind = " ".join(filter(None, ("drawn", shapes.get(name))))
        assert load_hooks().shade_picture("", f"figures/{name}").count(f'class="{kind}"') == 2
