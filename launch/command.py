"""What the commands share: the --config flag with its overrides, and how errors reach a person."""
import logging
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from launch import environ
from mlm.base import config, errors, fields

DEFAULT = "configs/base.py"
CONFIG = config_flags.DEFINE_config_file("config", None, f"A file whose get_config() is the recipe ({DEFAULT} if not "
                                         "given); --config.mask.rate=0.4 and the like change one field of it.")
_ALLOCATOR = flags.DEFINE_bool("allocator", True, "Hold memory as launch/environ.py says: faster, and memory that was "
                               "used once is not given back.")


def overrides(argv: Sequence[str]) -> dict[str, Any]:
    """The fields that the command line sets, by dotted name, with their typed values."""
    names = [match[1] for word in argv if (match := re.match(r"--?(?:no)?config\.([\w.]+)", word))]
    flat = fields.flatten(CONFIG.value)
    return {name: flat[name] for name in names}


def run(main: Callable, ending: Callable = lambda code, line: None) -> None:
    """Calls main(argv). What the user can mend ends in one line on stderr and exit code 2, a stop in 128 + signal.

    ending: is told the exit code and the line of an error before the process ends.
    """
    def parse(argv):
        for word in argv:
            if match := re.match(r"--?(?:no)?config\.([\w.]+)", word):
                fields.check_name(match[1])
        given = any(re.match(r"--?config(=|$)", word) for word in argv)
        return flags.FLAGS(argv if given else [argv[0], f"--config={DEFAULT}", *argv[1:]])

    def ours_or_serious(record):
        return record.levelno >= logging.WARNING or "mlm" in record.pathname.split("/")

    def checked(argv):
        environ.restart(environ.compiled() | (environ.ALLOCATOR if _ALLOCATOR.value else {}))
        absl_logging.get_absl_handler().addFilter(ours_or_serious)
        if not isinstance(CONFIG.value, config.Config):
            path = config_flags.get_config_filename(flags.FLAGS["config"])
            raise errors.ConfigError(f"--config = {path!r}: expected a file whose get_config() returns an "
                                     f"mlm.base.config.Config, such as {DEFAULT}")
        return main(argv)

    try:
        app.run(checked, flags_parser=parse)
    except (errors.ConfigError, flags.Error) as error:
        print(f"error: {error}", file=sys.stderr)
        ending(2, str(error))
        sys.exit(2)
    except Exception as error:
        traceback.print_exc()
        ending(1, f"{type(error).__name__}: {error}".splitlines()[0])
        sys.exit(1)
