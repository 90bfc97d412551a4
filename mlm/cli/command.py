"""What the commands share: the --config flag with its overrides, and how errors reach a person."""
import errno
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from mlm.base import buckets, config, errors, fields, user_code
from mlm.cli import end, process_environment

DEFAULT = "configs/base.py"
BASE = Path(__file__).parents[2] / DEFAULT  # from wherever the command is called
CONFIG = config_flags.DEFINE_config_file("config", None, f"A file whose get_config() is the recipe ({DEFAULT} if not "
                                         "given); --config.mask.rate=0.4 and the like change one field of it.")
_ALLOCATOR = flags.DEFINE_bool("allocator", True,
                               "Hold memory as mlm/cli/process_environment.py says: faster, and memory that was used once is not given back.")
# What libraries say, in an error of their own, of a machine that has no more.
FULL = {"No space left on device": "the disk is full; the same command continues when there is room",
        "Disk quota exceeded": "the disk quota is used up; the same command continues when there is room",
        "futures but timed out": "a checkpoint took longer than Orbax waits for it, or the clock of this machine "
                                 "was set meanwhile; the same command continues",
        "RESOURCE_EXHAUSTED: Out of memory": "out of memory; python -m mlm.launch.sweep plan says what a step takes"}


def overrides(argv: Sequence[str]) -> dict[str, Any]:
    """The fields that the command line sets, by dotted name, with their typed values."""
    names = [match[1] for word in argv if (match := re.match(r"--?(?:no)?config\.([\w.]+)", word))]
    flat = fields.flatten(CONFIG.value)
    return {name: flat[name] for name in names}


def base() -> config.Config:
    """The --config file's own config, without what the command line changes of it."""
    return recipe(config_flags.get_config_filename(flags.FLAGS["config"]))


def given() -> str:
    """The --config file, "" where the command line names none."""
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    return "" if path == str(BASE) else path


def recipe(path: str) -> config.Config:
    """What get_config() of a file returns. Raises ConfigError, naming file and line, where that is no Config."""
    file, _, argument = path.partition(":") if not os.path.exists(path) else (path, "", "")
    module = user_code.load("--config", file, ("get_config",))
    with user_code.blamed("--config", file):
        found = module.get_config(argument) if argument else module.get_config()
    errors.require(isinstance(found, config.Config), "--config", path, "a file whose get_config() returns an "
                  f"mlm.base.config.Config, such as {DEFAULT}, not {type(found).__name__}")
    fields.check_values(found)
    return found


def run(main: Callable, ending: Callable = lambda code, line: None) -> None:
    """Calls main(argv). What the user can mend ends in one line on stderr and exit code 2, what the machine lacks in
    one and 1, a stop in one and 128 + signal; a reader of stdout that is gone, in 141 and silence.

    ending: is told the exit code and the line of an error before the process ends.
    """
    def parse(argv):
        for word in argv:
            if match := re.match(r"--?(?:no)?config\.([^=]+)", word):
                fields.check_name(match[1])
        given = re.findall(r"(?:^|\n)--?config(?:=|\n)([^\n]*)", "\n".join(argv))
        argv = argv if given else [argv[0], f"--config={BASE}", *argv[1:]]
        recipe(given[-1] if given else str(BASE))
        try:
            return flags.FLAGS(argv)
        except flags.Error:
            raise
        except Exception as error:  # whatever the flags' own code makes of a value
            raise errors.ConfigError(f"the command's flags: {errors.first_line(error)}") from None

    def ours_or_serious(record):
        told = record.exc_info and "orbax" in record.pathname  # of an error in a thread, which is raised later
        return (record.levelno >= logging.WARNING and not told) or "mlm" in record.pathname.split("/")

    def checked(argv):
        process_environment.restart(process_environment.compiled() |
                                    (process_environment.ALLOCATOR if _ALLOCATOR.value else {}))
        absl_logging.get_absl_handler().addFilter(ours_or_serious)
        try:
            return main(argv)
        finally:
            sys.stdout.flush()

    try:
        app.run(checked, flags_parser=parse)
    except (errors.ConfigError, flags.Error) as error:
        leave(2, f"error: {error}", ending)
    except KeyboardInterrupt:
        leave(128 + signal.SIGINT, "stopped")
    except Exception as error:
        said = outside(error)
        if said is None:
            traceback.print_exc()
            ending(1, f"{type(error).__name__}: {errors.first_line(error)}")
            sys.exit(1)
        leave(*said, ending)
    finally:
        signal.signal(signal.SIGINT, end)


def listen() -> None:
    """From here on Ctrl-C is an exception, which lets files be closed: called when all is imported."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def outside(error: Exception) -> tuple[int, str] | None:
    """Exit code and line for what the machine, not the program, is at fault for; None for anything else."""
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE, ""
    for words, told in FULL.items():
        if words in str(error):
            where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
            return 1, f"error: {told}{where}"
    if said := buckets.unreachable(error):
        return 1, f"error: {said}"
    if isinstance(error, MemoryError):
        return 1, f"error: {FULL['RESOURCE_EXHAUSTED: Out of memory']}"
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        names = ", ".join(str(name) for name in (error.filename, error.filename2) if name)
        return 1, f"error: {error.strerror or type(error).__name__}" + (f": {names}" if names else "")
    return None


def leave(code: int, said: str, ending: Callable = lambda code, line: None) -> None:
    """Ends the process with a line on stderr; what cannot be written to a stdout that is gone is dropped."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if said:
        print(" ".join(said.split("\n")), file=sys.stderr)
    ending(code, said.removeprefix("error: "))
    if buckets.CONTINUES in said:
        os._exit(code)  # threads of tensorstore's would go on trying for a quarter of an hour
    sys.exit(code)
