"""Loads a Python file of the user's; reports its errors in one line that names the file and the line."""

import contextlib
import os
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

from mlm.base import errors


def load_module(flag: str, path: str, required_names: tuple[str, ...]) -> ModuleType:
    """The file as a module. flag: where the user named the file; required_names: what the file must define.

    Raises:
        ConfigError: the file cannot be read, is not Python, raises, exits, or lacks a required name.
    """
    if not os.path.isfile(path):  # refuses a pipe too: opening one would wait for a writer
        raise errors.ConfigError(
            f"{flag} = {path!r}: expected a Python file; "
            + ("this path is not a file" if os.path.exists(path) else "no such file")
        )
    module = ModuleType(Path(path).stem)
    module.__file__ = path
    with report_errors(flag, path, loading=True):
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
    for name in required_names:
        if not hasattr(module, name):
            defined = [other for other in vars(module) if not other.startswith("_")][:8]
            raise errors.ConfigError(
                f"{flag} = {path!r}: expected a file that defines {name}"
                + (f"; it defines {', '.join(defined)}" if defined else "")
            )
    return module


@contextlib.contextmanager
def report_errors(flag: str, path: str, *, loading: bool = False) -> Generator[None, None, None]:
    """Turns an error that the file's code raises in the block into a ConfigError with file, line and message.

    loading: the block only loads the file, so every error in it is the file's.
    """
    try:
        yield
    except errors.ConfigError:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            lines, message = [error.lineno], error.msg
        elif isinstance(error, SystemExit):
            message = f"it calls exit({error.code!r})"
        else:
            message = f"{type(error).__name__}: {errors.first_line(error)}"
        if not lines and not loading:
            raise
        where = f", line {lines[-1]}" if lines else ""
        raise errors.ConfigError(f"{flag} = {path!r}{where}: {message}") from None
