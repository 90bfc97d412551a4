"""A copy of the code for jobs on a cluster, so that no later change of the project reaches them."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from mlm.base import errors, files
from mlm.training.run import provenance

ROOT = Path(__file__).parents[2]
PACKAGES = ("mlm", "configs", "experiments")
SETUP_FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")  # with which a host installs the project
USER_FOLDER = "user"  # holds the user's files that are in none of the packages


class CodeSnapshot(NamedTuple):
    """A copy of the code: where it lies, and what is in it."""

    folder: Path  # named by a digest of its content, so that jobs of the same code share it
    files: dict[str, Path]  # where the files are now, by their paths in the folder

    def find_copy(self, path: str) -> str:
        """The copy of one of the user's files, given as FILE or FILE:ARGUMENT."""
        file = strip_argument(path)
        return f"{self.folder / path_in_snapshot(file)}{path.removeprefix(file)}"


def make_snapshot(root: Path, user_files: tuple[str, ...]) -> CodeSnapshot:
    """What to copy below a folder: the packages, the files that install them, and the user's files."""
    sources = {
        str(path.relative_to(ROOT)): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)
    }
    sources |= {name: ROOT / name for name in SETUP_FILES if (ROOT / name).exists()}
    sources |= {path_in_snapshot(path): Path(path) for path in map(strip_argument, user_files)}
    return CodeSnapshot(Path(files.local_folder(root).absolute(), "code", hash_files(sources)), sources)


def strip_argument(path: str) -> str:
    """The file of FILE:ARGUMENT, as --config takes it."""
    return path if Path(path).exists() else path.partition(":")[0]


def path_in_snapshot(path: str) -> str:
    """The path in the copy of a user's file, which may be in one of the packages."""
    real = Path(path).resolve()
    if real.is_relative_to(ROOT) and real.relative_to(ROOT).parts[0] in PACKAGES:
        return str(real.relative_to(ROOT))
    return f"{USER_FOLDER}/{real.name}"


def hash_files(paths: dict[str, Path]) -> str:
    """Twelve hexadecimal digits that identify the files' names and contents."""
    text = "".join(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for name, path in sorted(paths.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write_snapshot(snapshot: CodeSnapshot) -> None:
    """Copies the files, unless that was done before. Raises ConfigError if the existing copy has changed."""
    if snapshot.folder.exists():
        copies = {name: snapshot.folder / name for name in snapshot.files}
        unchanged = all(path.is_file() for path in copies.values()) and hash_files(copies) == snapshot.folder.name
        expected = "an unchanged copy; remove it once no job runs that was submitted with it"
        errors.require(unchanged, "copied code", str(snapshot.folder), expected)
        return
    with files.atomic_folder(snapshot.folder) as temporary:
        for name, path in snapshot.files.items():
            copy = temporary / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        files.write_json(temporary / provenance.SNAPSHOT_FILE, provenance.describe_source())
