"""What the commands share: the --config flag with its overrides, and how errors reach a person."""
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from mlm import config

CONFIG = config_flags.DEFINE_config_file("config", "configs/base.py", "A file whose get_config() is the recipe; "
                                         "--config.mask.rate=0.4 and the like change one field of it.")


def overrides(argv: Sequence[str]) -> dict[str, Any]:
    """The fields that the command line sets, by dotted name, with their typed values."""
    names = [match[1] for word in argv if (match := re.match(r"--?(?:no)?config\.([\w.]+)", word))]
    flat = config.flatten(CONFIG.value)
    return {name: flat[name] for name in names}


def run(main: Callable) -> None:
    """Calls main(argv). What the user can mend ends in one line on stderr and exit code 2, a stop in 128 + signal."""
    def parse(argv):
        for word in argv:
            if match := re.match(r"--?(?:no)?config\.([\w.]+)", word):
                config.check_name(match[1])
        return flags.FLAGS(argv)

    def checked(argv):
        if not isinstance(CONFIG.value, config.Config):
            raise config.ConfigError("--config: expected a file whose get_config() returns an mlm.config.Config, "
                                     "such as configs/base.py")
        return main(argv)

    try:
        app.run(checked, flags_parser=parse)
    except (config.ConfigError, flags.Error) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
