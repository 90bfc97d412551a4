"""Loads a Python file of the user's; reports its errors in one line that names the file and the line."""

import contextlib
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

from mlm.base import errors


def load_module(flag: str, path: str, required_names: tuple[str, ...]) -> ModuleType:
    """The file as a module that defines the required names; flag: where the user named it.

    Raises ConfigError if it cannot be read, is not Python, raises, exits, or lacks a name.
    """
    if not os.path.isfile(path):  # refuses a pipe too: opening one would wait for a writer
        reason = "this path is not a file" if os.path.exists(path) else "no such file"
        raise errors.ConfigError(f"{flag} = {path!r}: expected a Python file; {reason}")
    module = ModuleType(Path(path).stem)
    module.__file__ = path
    with report_errors(flag, path, loading=True):
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
    for name in required_names:
        if not hasattr(module, name):
            defined = ", ".join([other for other in vars(module) if not other.startswith("_")][:8])
            hint = f"; it defines {defined}" if defined else ""
            raise errors.ConfigError(f"{flag} = {path!r}: expected a file that defines {name}{hint}")
    return module


def check_value(
    flag: str, module: ModuleType, name: str, value: Any, is_valid: Callable[[Any], bool], expected: str
) -> None:
    """Raises ConfigError unless a value of a loaded file is valid: is_valid(value) is true, and does not raise."""
    try:
        valid = is_valid(value)
    except (TypeError, ValueError):
        valid = False
    errors.require(valid, f"{flag} = {str(module.__file__)!r}: {name}", value, expected)


def wrap_function(
    flag: str, module: ModuleType, name: str, num_arguments: int, is_valid: Callable[[Any], bool], expected: str
) -> Callable[..., Any]:
    """A function of a loaded file that reports its errors as `report_errors` does; iterators are returned as lists.

    Raises ConfigError if it is no function of so many arguments; when it is called, if it raises or returns what is not
    valid. flag: where the user named the file; expected: what it returns, for errors.
    """
    function, path = getattr(module, name), str(module.__file__)
    try:
        inspect.signature(function).bind(*range(num_arguments))
    except TypeError as error:
        value = name + str(inspect.signature(function)) if callable(function) else function
        takes = f"a function that takes {num_arguments} argument(s) ({errors.first_line(error)})"
        errors.require(False, f"{flag} = {path!r}: {name}", value, takes)
    except ValueError:  # a built-in function without a signature
        pass

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with report_errors(flag, path, loading=True):
            value: Any = function(*arguments)
            if inspect.isgenerator(value):
                value = [*value]
        check_value(flag, module, f"what {name}() returns ({type(value).__name__})", value, is_valid, expected)
        return value

    return call


@contextlib.contextmanager
def report_errors(flag: str, path: str, *, loading: bool = False) -> Generator[None, None, None]:
    """Turns an error of the file's code into a ConfigError with file and line; loading: every error in the block is."""
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
