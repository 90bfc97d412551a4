"""Packages that an extra of mlm installs: a missing one is one line that names the extra."""

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType

from mlm.base import errors


def import_extra(module: str, extra: str, field: str) -> ModuleType:
    """Imports a module, by its dotted name, of a package that an extra of mlm installs.

    Call it before the work whose result needs the package. field: what needs it: a command, a config field with its
    value, a path. Raises ConfigError if the package, or one that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        other = error.name is not None and error.name.partition(".")[0] != package
        reason = f" ({errors.first_line(error)})" if other else ""
        raise errors.ConfigError(f"{field}: expected {format_hint(package, extra)}{reason}") from None


def download_from_hub(field: str, path: str, patterns: Sequence[str], kind: str = "model") -> str:
    """The local folder with the files of ORG/NAME[@REVISION] on huggingface.co; kind: or "dataset".

    field: what needs it, for errors. Raises ConfigError if that fails.
    """
    hub, (name, _, revision) = import_extra("huggingface_hub", "hub", field), path.partition("@")
    try:
        return hub.snapshot_download(name, repo_type=kind, revision=revision or None, allow_patterns=list(patterns))
    except Exception as error:  # of the network, the name, the server, the disk
        expected = f"the name of a {kind} on huggingface.co, and a network"
        reason = errors.first_line(error)
        raise errors.ConfigError(f"{field}: cannot be downloaded ({reason}); expected {expected}") from None


def is_installed(package: str) -> bool:
    """Whether the package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def format_hint(package: str, extra: str) -> str:
    """The package, and the command that installs it."""
    return f'the package {package}: pip install "mlm[{extra}]"'
