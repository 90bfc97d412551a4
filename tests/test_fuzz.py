"""Inputs that a user could get wrong end in one line and create nothing."""

import importlib
import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import environment, get_refusal, run_mlm

from mlm.base import config, errors, fields, user_code
from mlm.cli import command as cli
from mlm.cli import entry, sweep_compare
from mlm.cli import sweep as command
from mlm.data.tasks import task_file
from mlm.data.text import files
from mlm.experiment import search_space
from mlm.launch import rendezvous
from mlm.launch.sweep import sweep_points
from mlm.serve import app
from mlm.training.run import checkpoint, loop, resolution
from tests.fuzz import cases

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    cases.write_files(folder)
    return folder


def assert_refused(words, call, *arguments):
    line = get_refusal(call, *arguments)
    assert all(word in line for word in words), line


def test_every_field_refuses_what_is_not_of_its_kind():
    """In a line with the field's own bounds, not those of the type that stores it."""
    for name, value in cases.DEFAULT.items():
        for wrong in (*cases.VALUES[type(value)], None):
            line = get_refusal(resolution.resolve, config.Config(), {name: wrong})
            assert line.startswith(f"config.{name} = ") and "-2147483648 <= value" not in line, line
        assert_refused([f"config.{name}x: no such field"], fields.override, config.Config(), {f"{name}x": value})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("syntax", ["line 1", "invalid syntax"]),
        ("raises", ["line 2", "ZeroDivisionError"]),
        ("exits", ["line 2", "exit(3)"]),
        ("empty", ["defines get_config"]),
        ("nul", ["null bytes"]),
        ("nothing", ["get_config() returns", "NoneType"]),
        ("wrong", ["get_config() returns", "dict"]),
        ("types", ["config.seed = 'a'", "int"]),
        ("none", ["no such file"]),
    ],
)
def test_a_config_file_that_is_none(folder, name, words):
    from mlm.cli import command

    assert_refused(words, command.load_config_file, str(folder / f"{name}.py"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("syntax", ["line 1"]),
        ("raises", ["line 2", "ZeroDivisionError"]),
        ("exits", ["line 2", "exit(3)"]),
        ("no_scales", ["defines SCALES", "sweep, table"]),
        ("unknown_field", ["point a", "did you mean config.mask.rate"]),
        ("sweep_empty", ["sweep() returns"]),
        ("wrong_type", ["point a", "config.seed = '1'"]),
        *(
            (name, ["a point's name = "])
            for name in ("slash", "dots", "newline", "nul_name", "empty_name", "long_name", "number")
        ),
        ("contradiction", ["point a", "nothing reads it"]),
    ],
)
def test_an_experiment_that_is_none(folder, name, words):
    def resolve_sweep():
        experiment = command.load_experiment(str(folder / f"{name}.py"))
        with user_code.report_errors("experiment", experiment.__file__):
            sweep = experiment.sweep("quick")
        sweep_points.resolve_points(config.Config(), sweep, {})

    assert_refused(words, resolve_sweep)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{}", ["not a file"]),
        ("{}/pipe", ["not a file"]),
        ("experiments/masking_rat.py", ["did you mean", "/masking_rate.py?"]),
        ("mask_rate", ["did you mean", "/masking_rate.py?"]),
        ("xyz", ["has architectures, "]),
    ],
)
def test_a_path_that_is_no_experiment_is_not_opened(folder, path, words):
    assert_refused(words, command.load_experiment, path.format(folder))


def test_an_experiment_is_named_by_its_file_or_by_a_bare_name_of_the_folder(tmp_path, monkeypatch):
    """A directory of the same name, such as one of runs, is none; a folder experiments/ here comes before mlm's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directions").mkdir()
    path = command.find_experiment("directions")
    assert Path(path).is_absolute() and path.endswith("/experiments/directions.py")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "own.py").touch()
    assert command.find_experiment("own") == "experiments/own.py"
    assert command.find_experiment("experiments/own.py") == "experiments/own.py"
    assert_refused(["did you mean experiments/own.py?"], command.find_experiment, "owl")


def test_what_is_asked_of_a_sweep_must_be_read_by_one_of_its_points():
    sweep = {"a": {"model.family": "rnn"}, "b": {"model.positions": "rotary"}}
    found = sweep_points.resolve_points(config.Config(), sweep, {"model.num_heads": 4})
    assert found["b"].model.num_heads == 4 and found["a"] == resolution.resolve(config.Config(), sweep["a"])
    assert_refused(
        ["config.model.window = 4", "no point reads it"],
        sweep_points.resolve_points,
        config.Config(),
        sweep,
        {"model.window": 4},
    )


@pytest.mark.parametrize(
    "workdir",
    ["", " ", "{}/empty.py", "{}/empty.py/below/it", "{}/" + "n" * 256, "{}/" + "n/" * 2100, "/dev/null", "{}/pipe"],
)
def test_a_workdir_that_can_be_no_folder(folder, workdir):
    assert_refused(
        ["config.workdir = '"],
        lambda: loop.check(resolution.resolve(config.Config(), {"workdir": workdir.format(folder)})),
    )


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("", 2, 0, False), ["--coordinator"]),
        (("", 1, 1, False), ["--coordinator"]),
        (("localhost:1", 2, 0, True), ["with --distributed"]),
        (("localhost:1", 2, 2, False), ["--process = 2", "counted"]),
        *(
            ((address, 2, 1, False), ["HOST:PORT"])
            for address in (
                "localhost",
                "localhost:",
                ":1",
                "localhost:0",
                "a:65536",
                "a:port",
                "a:-1",
                "a:1.5",
                "a:" + "9" * 5000,
            )
        ),
    ],
)
def test_processes_that_cannot_be(asked, words):
    assert_refused(words, rendezvous.check_config, rendezvous.RendezvousConfig(*asked, 1))


def list_parsers():
    """The parser of each command, and of each verb of sweep."""
    for name, (module_name, _) in entry.COMMANDS.items():
        make_parser = importlib.import_module(f"mlm.cli.{module_name}").make_parser
        for verb in command.VERBS if name == "sweep" else [name]:
            yield make_parser(*[verb] * len(inspect.signature(make_parser).parameters))


def parse(parser, action, value):
    """Parses a value of one argument beside the positional ones that the parser needs."""
    words = [f"{action.option_strings[-1]}={value}"] if action.option_strings else []
    positional = [one for one in parser._actions if not one.option_strings and (one is action or one.nargs != "?")]
    return parser.parse_words(
        words + [value if one is action else next(iter(one.choices or ["x"])) for one in positional]
    )


PARSERS = list(list_parsers())
NO_NUMBERS = ("\u0661\u0662", "nan", "inf", "1e400", "9" * 5000, "", "1,2", "-1e30")


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_every_argument_refuses_what_is_no_path_number_or_list(folder, parser):
    paths = ["~nouser/x", f"{folder}/pipe", "/dev/zero"]
    for action in parser._actions:
        is_path = str(action.metavar or action.dest).upper().removesuffix(",...") in cli.PATH_METAVARS
        values = [*paths, f"{paths[0]},{paths[0]}"] if is_path and action.dest != "config" else []
        reader = getattr(action.type, "func", None)
        values += NO_NUMBERS if reader is cli.parse_bounded else ["1,,2", ",1"] * (reader is cli.split_values)
        for value in values:
            assert_refused(
                [action.option_strings[-1] if action.option_strings else action.metavar], parse, parser, action, value
            )
        if is_path and action.dest != "config":
            assert str(Path.home()) in str(getattr(parse(parser, action, "~/x"), action.dest))


@pytest.mark.parametrize("name", entry.COMMANDS)
def test_every_command_refuses_bytes_that_are_not_utf8(name):
    assert_refused(["argument = ", "UTF-8"], entry.run_command, [name, "a", "--b=\udcff"])


@pytest.mark.parametrize("name", cases.DEFAULT)
def test_every_field_refuses_digits_homes_and_bytes_that_are_none(name):
    default = cases.DEFAULT[name]
    if type(default) in (int, float, tuple):
        for text in ("\u0661", "1,,2", ",1", "1,"[: 1 + (type(default) is not tuple)] + "x"):
            assert_refused([f"config.{name} = "], fields.parse_value, name, text)
    if type(default) is str:
        changed = fields.replace_values(config.Config(), {name: "a\udcff"})
        assert_refused([f"config.{name} = "], fields.check_values, changed)
    if name in fields.PATH_FIELDS:
        for door in (
            fields.parse_value,
            lambda name, path: fields.flatten(fields.override(config.Config(), {name: path}))[name],
        ):
            assert_refused([f"config.{name} = ", "home folder"], door, name, "~nouser/x")
            assert door(name, "~/x") == str(Path.home() / "x")
    if name.endswith("seed"):
        assert_refused([f"config.{name} = -1"], fields.check_values, fields.override(config.Config(), {name: -1}))


@pytest.mark.parametrize("name", [*command.EXPERIMENT_FUNCTIONS, *command.EXPERIMENT_VALUES])
def test_every_function_and_value_of_an_experiment_is_checked(folder, name):
    text = cases.EXPERIMENT.format("{'a': {}}", "[], []")
    for definition, words in (
        ("3", [f"{name} = 3"]),
        ("lambda: {}", [name]),
        ("lambda a, b: {}", [name]),
        ("lambda a: 3", [f"what {name}() returns (int) = 3"]),
        ("lambda a: [3]", [f"what {name}() returns (list) = [3]"]),
        ("lambda a: 1 / 0", ["line 6", "ZeroDivisionError"]),
        ("lambda a: (1 / 0 for _ in [1])", ["line 6", "ZeroDivisionError"]),
    ):
        (folder / "edge.py").write_text(f"{text}{name} = {definition}\n")
        words = [name] if name in command.EXPERIMENT_VALUES else words
        assert_refused(words, lambda: getattr(command.load_experiment(str(folder / "edge.py")), name)({}))


@pytest.mark.parametrize("bounds", [("a", "b"), (False, True), (None, 1.0), (0.1, float("inf")), (float("nan"), 1.0)])
@pytest.mark.parametrize("kind", [search_space.Uniform, search_space.LogUniform])
def test_a_range_has_two_numbers(kind, bounds):
    assert_refused(["low < high", "finite numbers"], search_space.check_space, {"optim.b2": kind(*bounds)}, "space")


@pytest.mark.parametrize(
    "text", ["log:99999999999", "log:" + "9" * 5000, "9" * 5000, "9" * 5000 + "Mw", "1,,2", ",", "log:0"]
)
def test_milestones_are_bounded(text):
    assert_refused(["config.train.milestones = "], checkpoint.parse_milestones, text)


def test_what_a_hint_suggests_is_another_name(folder, tmp_path):
    (tmp_path / "deep.toml").write_text(f"a = {'[' * 5000}{']' * 5000}")
    assert_refused(["expected TOML"], task_file.read_task_file, "--task", str(tmp_path / "deep.toml"))
    os.mkfifo(tmp_path / "pipe.toml")
    for line in (
        get_refusal(task_file.read_task_file, "--task", str(tmp_path / "pipe.toml")),
        get_refusal(files.find_files, "--sentences", str(folder / "pipe")),
        get_refusal(fields.check_name, "mask.rate "),
        get_refusal(command.find_experiment, str(folder / "none.py")),
    ):
        asked, _, suggested = line.partition("did you mean ")
        assert not suggested or suggested.strip("?'") not in asked
    assert_refused(
        ["expected one of '' (none), tfidf"], errors.require_one_of, "config.eval.baseline", "x", ["", "tfidf"]
    )


@pytest.mark.parametrize("flags", ["--nope", "'", "--max_pairs=-1", "config.x=1"])
def test_flags_that_a_file_of_figures_keeps_are_those_of_evaluate(flags):
    assert get_refusal(sweep_compare.check_evaluation, flags)


@pytest.mark.parametrize("host", ["", "0", "0.0"])
def test_only_a_host_that_says_so_listens_on_every_address(host):
    with pytest.raises(OSError, match=r"0\.0\.0\.0"):
        app.bind_socket(host, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", cases.COMMAND_LINES, ids=" ".join)
def test_no_command_line_ends_in_a_traceback(folder, tmp_path, words):
    """Many are refused; what is fine, such as an empty option that means none, ends well."""
    words = [word.replace("{}", str(folder)) for word in words]
    if words[0] == "train":
        small = {
            "workdir": tmp_path / "run",
            "data.cache_dir": tmp_path / "cache",
            "train.steps": 1,
            "model.size": "micro",
        }
        set_names = {word.partition("=")[0].removeprefix("--config.") for word in words}
        words += [f"--config.{name}={value}" for name, value in small.items() if name not in set_names]
    done = run_mlm(*words)
    assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr, done.stderr
    assert not done.returncode or done.stderr.strip().splitlines()[-1].startswith("error: "), done.stderr


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_the_start_is_one_line(folder):
    words = ["train", f"--config.workdir={folder}/run", f"--config.data.cache_dir={folder}/cache"]
    ends = set()
    for wait in (0.05, 0.3, 1.0):
        started = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "mlm", *words],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in started.stderr:
            if line.endswith(" mlm.cli.entry\n"):  # Python itself has begun, and may begin again with other settings
                break
        time.sleep(wait)
        started.send_signal(signal.SIGINT)
        said = [line for line in started.stderr if not line.startswith("import time:")]
        ends.add(started.wait(timeout=60))
        assert "Traceback" not in "".join(said), said
        assert len("".join(said).split()) < 40
    assert 130 in ends and ends <= {130, 0, 2, -signal.SIGINT}  # the last: Python itself was about to end


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_reader_that_is_gone_and_a_disk_that_is_full_end_quietly(folder):
    listed = f"{sys.executable} -m mlm sweep list {folder}/many.py"
    (folder / "many.py").write_text(cases.EXPERIMENT.format("{str(i): {'seed': i} for i in range(300)}", "[], []"))
    piped = subprocess.run(
        ["bash", "-c", f"{listed} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert piped.returncode in (141, 0) and "Traceback" not in piped.stderr and "Exception" not in piped.stderr
    small = {
        "config.data.language.train_documents": 64,
        "config.data.language.validation_documents": 32,
        "config.model.size": "micro",
        "config.train.steps": 2,
        "config.workdir": folder / "full",
        "config.data.cache_dir": folder / "full-cache",
        "config.train.batch_size": 8,
        "config.eval.batch_size": 8,
    }
    words = " ".join(f"--{name}={value}" for name, value in small.items())
    run = f"{sys.executable} -m mlm train {words}"
    full = subprocess.run(
        ["bash", "-c", f"ulimit -f 4; {run}"], cwd=ROOT, text=True, capture_output=True, check=False, env=environment()
    )
    assert full.returncode == 1 and "Traceback" not in full.stderr, full.stderr
    assert full.stderr.strip().splitlines()[-1].startswith("error: File too large")
    assert not list((folder / "full-cache").glob(".*.part-*")) and not list(folder.glob("full/result.json"))
    after = subprocess.run(
        ["bash", "-c", run], cwd=ROOT, text=True, capture_output=True, check=False, env=environment()
    )
    assert after.returncode == 0 and "done:" in after.stdout, after.stderr
