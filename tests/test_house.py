"""The house: which room may import which, who alone says what, and how long a file may be. Read from the sources."""

import ast
import functools
import itertools
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path.relative_to(ROOT) for top in ("mlm", "launch", "experiments", "configs") for path in (ROOT / top).rglob("*.py")
)
ROOMS = {  # of mlm/, each with those that it may import
    "base": set(),
    "data": {"base"},
    "models": {"base"},
    "objectives": {"base"},
    "report": {"base"},
    "training": {"base", "data", "models", "objectives"},
    "inference": {"base", "data", "models", "objectives", "training"},
    "evaluation": {"base", "data", "models", "objectives", "report", "training", "inference"},
    "experiment": {"base"},
    "serve": {"base", "data", "models", "objectives", "report", "training", "inference", "evaluation"},
    "launch": {"base", "data", "models", "objectives", "report", "training", "inference", "evaluation", "experiment"},
}
ROOMS["cli"] = {*ROOMS}  # all others
ABOVE = ("cli", "launch")  # packages that start processes
DISTRIBUTIONS = {  # of modules that are not called as the package that installs them
    "absl": "absl-py",
    "fsspec": "etils",
    "mlflow": "mlflow-skinny",
    "orbax": "orbax-checkpoint",
    "tensorflow_datasets": "tensorflow-datasets",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
    "yaml": "PyYAML",
}
SPELT = re.compile(
    r"""["'](?:\*/)?(?:config|provenance|result|evaluations)\.json["']|["'](?:\*/)?metrics\.jsonl["']|"""
    r"""held_out\.npz["']|["']error\.txt["']"""
)


@functools.cache
def source(path) -> str:
    return (ROOT / path).read_text()


@functools.cache
def imports(path) -> set[str]:
    """Dotted names of all modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@functools.cache
def code(path) -> str:
    """A file without its comments and strings that stand for themselves."""
    tree = ast.parse(source(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [
                line for line in node.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            ] or [ast.Pass()]
    return ast.unparse(tree)


def test_the_rooms_are_those_of_the_plan():
    rooms = {path.name for path in (ROOT / "mlm").iterdir() if path.is_dir()} - {"__pycache__"}
    assert rooms == set(ROOMS)
    assert {path.name for path in (ROOT / "mlm").glob("*.py")} == {"__init__.py", "__main__.py", "api.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_no_import_runs_up(room):
    for path in FILES:
        if path.parts[:2] == ("mlm", room):
            for name in imports(path):
                parts = name.split(".")
                assert parts[0] not in ("configs", "experiments"), f"{path}: {name}"
                assert parts[:2] != ["jax", "_src"], f"{path}: {name}"  # what JAX does not make public
                if parts[0] == "mlm" and len(parts) > 1:
                    assert parts[1] == room or parts[1] in ROOMS[room], f"{path}: {name}"
                assert parts[0] != "flax" or room == "models", f"{path}: {name}"
    assert not any(
        name.startswith("experiments")
        for path in FILES
        if path.parts[0] in ("launch", "configs")
        for name in imports(path)
    )


def test_no_two_files_import_each_other_in_a_circle():
    modules = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in FILES if path.parts[0] == "mlm"
    }

    def module(found):  # the longest part of a dotted name that is a module
        while found and found not in modules:
            found = found.rpartition(".")[0]
        return found

    edges = {name: {module(found) for found in imports(path)} - {name, "", "mlm"} for name, path in modules.items()}
    done: set[str] = set()

    def visit(name, way):
        assert name not in way, " -> ".join([*way, name])
        if name not in done:
            for other in edges[name]:
                visit(other, [*way, name])
            done.add(name)

    for name in modules:
        visit(name, [])


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        (
            r"process_index|process_count|device_count|local_devices|jax\.devices|make_mesh|Mesh\(",
            {"mlm/training/step/parallel.py"},
        ),
        (r"\bMODELS\b", {"mlm/models/__init__.py", "mlm/training/step/program.py"}),
        (r"\bOBJECTIVES\b", {"mlm/objectives/__init__.py", "mlm/training/step/program.py"}),
        (r"\.rename\(", {"mlm/base/files.py", "mlm/base/storage.py", "mlm/data/rows/store.py"}),
        (r"is_bucket_path", {"mlm/base/buckets.py", "mlm/base/storage.py"}),
        (r"unraisablehook|filterwarnings|simplefilter", {"mlm/data/text/corpus.py"}),  # for a block alone
    ],
    ids=["devices", "models", "objectives", "renaming", "buckets", "warnings"],
)
def test_one_place_alone_says_it(words, alone):
    assert {
        str(path)
        for path in FILES
        if path.parts[0] == "mlm" and path.parts[1] not in ABOVE and re.search(words, code(path))
    } <= alone


def test_what_is_imported_is_a_dependency_or_of_an_extra_that_its_absence_names():
    project = tomllib.loads(source("pyproject.toml"))["project"]

    def packages(requirements):
        return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}

    always = packages(project["dependencies"]) | {"jaxlib", "mlm", *sys.stdlib_module_names}  # jaxlib: of jax
    by_extra = {name: packages(requirements) for name, requirements in project["optional-dependencies"].items()}
    for path in FILES:
        if path.parts[0] != "mlm" or path.name.endswith("_mlm.py"):  # those are of a folder that torch reads
            continue
        optional = set()
        trees = [ast.parse(source(file)) for file in {path, path.with_name("__init__.py")}]  # which runs before it
        for call in itertools.chain(*map(ast.walk, trees)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("import_extra", "format_hint"):
                module, extra, *_ = call.args
                if isinstance(module, ast.Constant) and isinstance(extra, ast.Constant):
                    top = module.value.partition(".")[0]
                    assert DISTRIBUTIONS.get(top, top) in by_extra[extra.value], f"{path}: {top}, {extra.value}"
                    optional.add(top)
        for name in imports(path):
            top = name.partition(".")[0]
            assert DISTRIBUTIONS.get(top, top) in always or top in optional, f"{path}: {name}"


def test_a_run_s_file_names_are_spelt_in_its_directory_alone():
    """Hugging Face calls one of its files as we do one of a run's."""
    assert {str(path) for path in FILES if path.parts[0] in ("mlm", "launch") and SPELT.search(code(path))} == {
        "mlm/training/run/directory.py",
        "mlm/models/hub/settings.py",
        "mlm/data/tokenizers/hub.py",
    }


def test_no_objective_is_known_outside_its_room():
    """Neither by its name nor by that of its columns."""
    names = re.compile(r"""["'](?:nsp|(?:mlm|nsp|causal)_(?:nats|weight|correct|accuracy))["']""")
    for path in FILES:
        if (
            path.parts[0] == "mlm"
            and path.parts[1] != "objectives"
            and path.name not in ("config.py", "types.py", "recipes.py")
        ):
            assert not names.search(code(path)), path


def test_no_file_is_long():
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.html", "*.js", "*.css", "*.sh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    every = listed.stdout.split() if listed.returncode == 0 and listed.stdout else map(str, FILES)
    every = [name for name in every if (ROOT / name).exists()]
    long = {name: source(name).count("\n") for name in every}
    if asked := sorted(name for name, lines in long.items() if lines > 400):
        warnings.warn(f"above 400 lines, a question and no fault: {', '.join(asked)}", stacklevel=1)
    # The config is a list of fields: its length is their number.
    assert {name: lines for name, lines in long.items() if lines > 500 and name != "mlm/base/config.py"} == {}
