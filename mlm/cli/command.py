"""What all commands share: parsing of flags and config fields, and how errors reach a person."""

import argparse
import difflib
import errno
import functools
import io
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mlm
from mlm.base import buckets, config, errors, fields, files, text_files, user_code
from mlm.base.flag import Flag
from mlm.launch import rendezvous
from mlm.training.run import heartbeat

RESOURCE_ERRORS = {  # words of a library's error when the machine has no more -> the line that we print
    "No space left on device": "the disk is full; the same command continues when there is room",
    "Disk quota exceeded": "the disk quota is used up; the same command continues when there is room",
    "futures but timed out": "a checkpoint took longer than Orbax waits for it, or the clock of this machine "
    "was set meanwhile; the same command continues",
    "RESOURCE_EXHAUSTED: Out of memory": "out of memory; mlm sweep plan prints the memory that a step needs",
}
DEVICE_ERRORS = re.compile(
    "CUDA_ERROR_|CUBLAS_STATUS_|cuBLAS|DNN library init|No visible GPU|already in use by|allocate"
)
OUR_FOLDER = os.path.join(os.path.dirname(mlm.__file__), "")
MAX_COUNT = 2**31 - 1  # the largest int32
PATH_METAVARS = ("FILE", "FOLDER", "OUT", "RUN", "MODEL", "EXPERIMENT")  # of arguments that are paths
PATH_FIELDS = ("data.sources", "tokenizer.path", "downstream.path", "eval.sts")  # that must be there
CONFIG = Flag("config", "", "Python file whose get_config() returns the base config", "FILE")
PRINT_CONFIG = Flag(
    "print_config", False, "print the value of each config field and where it comes from; train nothing"
)
HOURS = Flag(
    "hours",
    24.0,
    "time limit of a job (24), which is queued again and goes on from what is saved",
    low=0.05,
    high=24 * 365,
)
DRY_RUN = Flag("dry_run", False, "print the files that would be submitted; write nothing")
NO_TUNE_MALLOC = Flag(  # read by entry.py, before any import
    "no-tune_malloc", False, "do not tune malloc (tuned, it is faster and never returns memory to the system)"
)


class HelpFormatter(argparse.HelpFormatter):
    """Formats a description as `wrap_text` does."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrap_text(text, width)


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line; has_fields: whether words may set config fields, too."""

    def __init__(self, *, has_fields: bool = False, **options):
        self.has_fields = has_fields
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)

    def error(self, message: str):
        """Raises ConfigError where argparse would end the process; for a wrong choice with the nearest right one."""
        if match := re.match(r"argument (?:\S+/)?(\S+): (.*)", message):
            if choice := re.fullmatch(r"invalid choice: '(.*)' \(choose from (.*)\)", match[2]):
                errors.require_one_of(match[1], choice[1], re.findall(r"[\w-]+", choice[2]))
            raise errors.ConfigError(f"{match[1]}: {match[2]}")
        raise errors.ConfigError(f"{self.prog}: {message}")

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses; raises ConfigError for an unknown flag, with the nearest right name, and for a stray word."""
        check_encoding(words)
        parsed, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            flag, _, value = unknown[0].partition("=")
            if not flag.startswith("-"):
                hint = "config fields are set as NAME=VALUE" if self.has_fields else f"see {self.prog} --help"
                raise errors.ConfigError(f"unexpected argument {unknown[0]!r}; {hint}")
            near = self.suggest_word(flag.lstrip("-"), value or "VALUE")
            hint = f"did you mean {near}?" if near else f"see {self.prog} --help"
            raise errors.ConfigError(f"{flag}: no such flag of {self.prog}; {hint}")
        for action in self._actions:
            value = getattr(parsed, action.dest, None)
            if value and str(action.metavar or action.dest).upper().removesuffix(",...") in PATH_METAVARS:
                name = action.option_strings[-1] if action.option_strings else str(action.metavar)
                paths = [resolve_path(name, path) for path in ([value] if isinstance(value, str) else value)]
                setattr(parsed, action.dest, paths[0] if isinstance(value, str) else paths)
        return parsed

    def suggest_word(self, name: str, value: str) -> str:
        """The flag that an unknown one may stand for, or the field with its value; "": none is near."""
        field = fields.suggest_name(name) if self.has_fields else ""
        if field.rpartition(".")[2] == name.rpartition(".")[2]:
            return f"{field}={value}" if field else ""
        flags = {option.lstrip("-"): option for option in self._option_string_actions}
        matches = difflib.get_close_matches(name, flags, n=1, cutoff=0.6)
        return flags[matches[0]] if matches else f"{field}={value}" if field else ""


class ConfigFlags(NamedTuple):
    """The config flags of a command line."""

    path: str  # the value of --config; "": not given
    overrides: dict[str, Any]  # field by dotted name -> typed value

    def load_base(self) -> config.Config:
        """The --config file's own config, without the overrides."""
        return load_config_file(self.path) if self.path else config.Config()

    def load_layers(self) -> list[fields.Layer]:
        """The layers of the --config file and of the command line."""
        base = fields.find_changes(self.load_base())
        return [fields.Layer(self.path, base), fields.Layer("command line", self.overrides)]


class JoinValues(argparse.Action):
    """A flag of several values, which may also be given several times."""

    def __call__(self, parser, namespace, values: Any, option_string=None):
        """Adds the values to those before."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, tuple(values) if before is self.default else (*before, *values))


def wrap_text(text: str, width: int = 0) -> str:
    """The text with its paragraphs wrapped to a width; 0: the terminal's; unchanged where there is no terminal.

    An indented line stays a line of its own. Wrapped, a command goes on after a backslash, and the meaning of a name,
    two spaces behind it, below its start.
    """
    if not width and not sys.stdout.isatty():
        return text
    width, lines = width or shutil.get_terminal_size().columns, list[str]()
    for line in re.sub(r"(?<=\S)\n(?=\S)", " ", text.strip("\n")).split("\n"):
        margin, name = re.findall(r"^( *)(\S+  +)?", line)[0]
        is_command = bool(margin) and line.lstrip().startswith("mlm ")
        hang, width_left = " " * (len(margin + name) + 4 * is_command), width - 2 * is_command
        wrapped = textwrap.wrap(
            line, width_left, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
        )
        lines.append((" \\\n" if is_command else "\n").join(wrapped))
    return "\n".join(lines)


def add_flags(group, *flags: Flag) -> None:
    """Adds flags to a parser, or to a group of its flags."""
    for flag in flags:
        kind, shared = type(flag.default), {"default": flag.default, "help": flag.help}
        if kind is bool:
            group.add_argument(f"--{flag.name}", action="store_true", **shared)
            continue
        if kind is tuple:
            parse = text_files.split_paths if flag.metavar == "FILE,..." else functools.partial(split_values, flag.kind)
            shared["action"] = JoinValues
        else:
            parse = str if kind is str else functools.partial(parse_bounded, kind, flag.low, flag.high)
        group.add_argument(f"--{flag.name}", type=parse, metavar=flag.metavar, choices=flag.choices, **shared)


def add_cluster_option(group) -> None:
    """Adds --option of a command that submits a job to a cluster."""
    help_text = "option of the cluster, repeatable; a wrong name prints the valid ones"
    group.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=help_text)


def split_values(kind: Callable[[str], Any], text: str) -> tuple:
    """A tuple of words, or of numbers, between commas. Raises ArgumentTypeError for an empty one, or no number."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    try:
        if all(words):
            return tuple(words if kind is str else (fields.parse_number(kind, word) for word in words))
    except ValueError:
        pass
    what = "words" if kind is str else "numbers"
    raise argparse.ArgumentTypeError(f"{text!r}: expected {what} separated by single commas")


def parse_bounded(kind: type, low: float, high: float | None, text: str):
    """A number between two bounds, both included; high: None: the largest that float32 and int32 hold.

    Raises ArgumentTypeError, which names the bounds, for any other text.
    """
    largest = (fields.FLOAT32_MAX if kind is float else MAX_COUNT) if high is None else high
    try:
        value = fields.parse_number(kind, text)
    except ValueError:
        value = float("nan")
    if not low <= value <= largest:
        raise argparse.ArgumentTypeError(f"{errors.format_value(text)}: expected {low} <= value <= {largest}")
    return value


def resolve_path(flag: str, path: str) -> str:
    """A path with its home folder. Raises ConfigError for a pipe or a device: to open one may wait for ever."""
    path = files.expand_home(flag, path)
    is_special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    errors.require(not is_special, flag, path, "a file or folder; this is a pipe or a device")
    return path


def refuse_flags(args: argparse.Namespace, flags: Iterable[Flag], expected: str) -> None:
    """Raises ConfigError for a flag that is set; expected: what stands with it, or in its place."""
    for flag in flags:
        value = getattr(args, flag.name)
        errors.require(value == flag.default, f"--{flag.name}", value, expected)


def print_notes(*lines: str) -> None:
    """Prints lines that are no results to stderr, without empty ones."""
    for line in filter(None, lines):
        print(line, file=sys.stderr, flush=True)


def check_encoding(words: Sequence[str]) -> None:
    """Raises ConfigError for a word whose bytes are not UTF-8: no file that stores it could be read again."""
    for word in words:
        errors.require(not text_files.SURROGATE.search(word), "argument", word, "text in UTF-8")


def extract_config_flags(words: Sequence[str]) -> tuple[ConfigFlags, list[str]]:
    """Separates --config=FILE and --config.NAME=VALUE from the other words of a command line. Raises ConfigError.

    NAME=VALUE without --config. sets a field, too, unless a file of that name exists.
    """
    path, overrides, others = "", {}, []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, equals, text = word.partition("=")
        if name in ("--config", "-config"):
            if not equals:
                errors.require(bool(remaining), "--config", "", "a file whose get_config() returns a Config")
                text = remaining.pop(0)
            path = text
        elif match := re.fullmatch(r"--?(no)?config\.(.+)", name):
            field = match[2]
            fields.check_name(field)
            if not equals:
                boolean = isinstance(fields.DEFAULT[field], bool)
                errors.require(boolean or bool(remaining), f"config.{field}", "", "a value: --config.NAME=VALUE")
                text = str(not match[1]) if boolean else remaining.pop(0)
            overrides[field] = fields.parse_value(field, text)
        elif equals and re.fullmatch(r"[a-z_0-9]+(\.[a-z_0-9]+)*", name) and not os.path.exists(word):
            fields.check_name(name)
            overrides[name] = fields.parse_value(name, text)
        else:
            others.append(word)
    return ConfigFlags(path, overrides), others


def check_layers(layers: Sequence[fields.Layer]) -> None:
    """Raises ConfigError, before JAX is imported, for a value that no field can have, and a path that is not there."""
    from mlm.data.text import files as corpus_files
    from mlm.data.text import records

    values = {name: value for layer in layers for name, value in layer.values.items()}
    fields.check_values(fields.override(config.Config(), values))
    for name, value in values.items():
        if value and name in ("data.path", "data.validation_path"):
            column = (
                "" if values.get("pack.mode") == "stream" else values.get("data.text_column", records.DEFAULT_COLUMN)
            )
            corpus_files.find_files(f"config.{name}", value, column)
        elif value and name in PATH_FIELDS and not buckets.is_bucket_path(value):
            is_there = os.path.exists(os.path.expanduser(value))
            hint = "" if is_there else text_files.suggest_path(value)
            errors.require(is_there, f"config.{name}", value, f"a path that is there{hint}")


def load_config_file(path: str) -> config.Config:
    """The config that get_config() of a file returns. Raises ConfigError with file and line if it returns none."""
    path = files.expand_home("--config", path)
    file, _, argument = path.partition(":") if not os.path.exists(path) else (path, "", "")
    module = user_code.load_module("--config", file, ("get_config",))
    arguments, is_config = [argument] if argument else [], lambda value: isinstance(value, config.Config)
    expected = "a mlm.Config, such as configs/base.py returns"
    loaded = user_code.wrap_function("--config", module, "get_config", len(arguments), is_config, expected)(*arguments)
    fields.check_values(loaded)
    return loaded


class LogFormatter(logging.Formatter):
    """Formats a log record as a line without time and place; its level stands before it, except for information."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


def configure_logs(*, has_progress: bool) -> None:
    """Prints the warnings and errors of all libraries, and of mlm, if has_progress is set, what it is doing, too."""
    from absl import logging as absl_logging

    def is_ours_or_serious(record):
        if record.pathname.startswith(OUR_FOLDER):
            return True
        raised_later = record.exc_info and "orbax" in record.pathname  # an error in a thread, which is raised later
        return record.levelno >= logging.WARNING and not raised_later

    absl_logging.set_verbosity(absl_logging.INFO if has_progress else absl_logging.WARNING)
    handler = logging.StreamHandler()
    handler.addFilter(is_ours_or_serious)
    handler.setFormatter(LogFormatter())
    logging.getLogger().handlers = [handler]


def hide_orbax_threads() -> None:
    """Hides errors of threads after a failed save or restore: they use an event loop that orbax has closed."""

    def report_others(unraisable):
        # "_ssock": of a loop that could not be opened, with too many open files, which is an error of its own
        if str(unraisable.exc_value) != "Event loop is closed" and "'_ssock'" not in str(unraisable.exc_value):
            sys.__unraisablehook__(unraisable)

    sys.unraisablehook = report_others
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")


def run_main(main: Callable[[], None]) -> None:
    """Calls main and ends the process on an error, with one line on stderr.

    Exit codes: 2 for bad input; 1 if the machine or a bucket fails; 128 + signal after a signal; 141, without a line,
    if stdout is closed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal's encoding lacks
    try:
        main()
        sys.stdout.flush()
    except errors.ConfigError as error:
        exit_with_line(2, f"error: {error}")
    except KeyboardInterrupt:
        exit_with_line(128 + signal.SIGINT, "stopped")
    except Exception as error:
        failure = describe_machine_failure(error)
        if failure is None:
            traceback.print_exc(file=sys.__stderr__)  # in a process of several, that is its log
            failure = 1, describe_crash(error) if heartbeat.connect_to_parent() else ""
        exit_with_line(*failure)


def raise_on_interrupt() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, so that files are closed. Call it after all imports."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def describe_machine_failure(error: Exception) -> tuple[int, str] | None:
    """Exit code and line of an error that the machine caused; None for any other error."""
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE, ""
    if isinstance(error, ConnectionAbortedError):  # another process of the run ended: rendezvous.agreement names it
        return 1, f"error: {error.strerror or error}"
    for words, line in RESOURCE_ERRORS.items():
        if words in str(error):
            path_note = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
            return 1, f"error: {line}{path_note}"
    if line := buckets.describe_error(error):
        return 1, f"error: {line}"
    last_file = ([""] + [frame.filename for frame in traceback.extract_tb(error.__traceback__)])[-1]
    if last_file.endswith("xla_bridge.py") or (isinstance(error, RuntimeError) and DEVICE_ERRORS.search(str(error))):
        platforms, reason = os.environ.get("JAX_PLATFORMS", ""), errors.first_line(error) or "JAX finds none"
        return 2, f"error: JAX_PLATFORMS = {platforms!r}: expected a device that is there and free ({reason})"
    if isinstance(error, MemoryError):
        return 1, f"error: {RESOURCE_ERRORS['RESOURCE_EXHAUSTED: Out of memory']}"
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        names = ", ".join(str(name) for name in (error.filename, error.filename2) if name)
        return 1, f"error: {error.strerror or type(error).__name__}" + (f": {names}" if names else "")
    return None


def describe_crash(error: Exception) -> str:
    """The line for an error that nobody expects. In a run of several processes it may follow from another's end."""
    line = f"{type(error).__name__}: {errors.first_line(error)}"
    if rendezvous.has_joined():
        return f"error: {rendezvous.PEER_END}, or this one failed ({line}); restart all processes to continue"
    return f"error: {line}"


def exit_with_line(code: int, line: str) -> None:
    """Ends the process with a line on stderr. Output that a closed stdout cannot take is dropped."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    line = " ".join(line.split("\n"))
    if line and not heartbeat.send_end(heartbeat.ERROR, code, line):
        print(line, file=sys.stderr)
    # Threads of tensorstore would retry for a quarter of an hour; JAX would wait as long for the other processes.
    if buckets.RETRY_HINT in line or rendezvous.has_joined():
        os._exit(code)
    sys.exit(code)
