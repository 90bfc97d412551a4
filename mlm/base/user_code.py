"""A Python file of the user's as a module, whose faults are told in one line that names the file and the line."""
import contextlib
import importlib.util
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from mlm.base import errors


def load(flag: str, path: str, needs: tuple[str, ...]) -> ModuleType:
    """The module that the file makes. flag: what the user named it by; needs: the names that it must define.

    Raises ConfigError for a file that cannot be read, is not Python, raises, exits, or lacks one of the names.
    """
    if not os.path.isfile(path):  # which a pipe is not: to open one would wait for who writes to it
        raise errors.ConfigError(f"{flag} = {path!r}: expected a Python file; there is "
                                 + ("something else" if os.path.exists(path) else "none of this name"))
    spec = importlib.util.spec_from_loader(Path(path).stem, loader=None, origin=path)
    module = importlib.util.module_from_spec(spec)
    module.__file__ = path
    with blamed(flag, path, reading=True):
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
    for name in needs:
        if not hasattr(module, name):
            raise errors.ConfigError(f"{flag} = {path!r}: expected a file that defines {name}"
                                     + (f"; it defines {', '.join(said)}" if (said := _public(module)) else ""))
    return module


def _public(module):
    return [name for name in vars(module) if not name.startswith("_")][:8]


@contextlib.contextmanager
def blamed(flag: str, path: str, *, reading: bool = False) -> Iterator[None]:
    """Where the block fails in code of the file, raises ConfigError with the file, the line and what happened.

    reading: in anything, then, as the block does nothing else.
    """
    try:
        yield
    except errors.ConfigError:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            lines, said = [error.lineno], error.msg
        elif isinstance(error, SystemExit):
            said = f"it ends Python by exit({error.code!r})"
        else:
            said = f"{type(error).__name__}: {errors.first_line(error)}"
        if not lines and not reading:
            raise
        where = f", line {lines[-1]}" if lines else ""
        raise errors.ConfigError(f"{flag} = {path!r}{where}: {said}") from None
