"""This machine's cache folder. Imports nothing slow."""

import os


def cache_folder(name: str) -> str:
    """The user's cache folder of this name; "" if the user has no home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "mlm", name) if os.path.isabs(folder) else ""
