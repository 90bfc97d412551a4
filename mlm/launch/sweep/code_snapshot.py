"""The project's code as it is now, copied beside a sweep's runs, where what is changed later does not reach it."""
import hashlib
from pathlib import Path
from typing import NamedTuple

from mlm.base import errors, files
from mlm.train.run import provenance

ROOT = Path(__file__).parents[3]
PACKAGES = ("mlm", "configs", "experiments")
SETUP = ("setup.py", "pyproject.toml")  # by which a host without the project installs it
ELSEWHERE = "elsewhere"  # folder of files of the user's that lie in none of them


class Code(NamedTuple):
    folder: Path              # named by what it holds, so that a sweep submitted twice shares it
    files: dict[str, Path]    # by their path in it, where they lie now


def code(root: Path, own: tuple[str, ...]) -> Code:
    """What is to be copied below a sweep's folder: the packages, what installs them, and files of the user's."""
    found = {str(path.relative_to(ROOT)): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*"))
             if path.is_file() and not any(part.startswith(".") or part == "__pycache__"
                                           for part in path.relative_to(ROOT).parts)}
    found |= {name: ROOT / name for name in SETUP if (ROOT / name).exists()}
    found |= {within(path): Path(path) for path in own}
    return Code(Path(files.here(root).absolute(), "code", digest(found)), found)


def within(path: str) -> str:
    """The path in the copy of a file of the user's, which may lie in one of the packages."""
    real = Path(path).resolve()
    if real.is_relative_to(ROOT) and real.relative_to(ROOT).parts[0] in PACKAGES:
        return str(real.relative_to(ROOT))
    return f"{ELSEWHERE}/{real.name}"


def digest(found: dict[str, Path]) -> str:
    told = "".join(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for name, path in sorted(found.items()))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def write(made: Code) -> None:
    """Copies, once. Raises ConfigError where what was copied before is no longer what its name says."""
    if made.folder.exists():
        there = {name: made.folder / name for name in made.files}
        whole = all(path.is_file() for path in there.values()) and digest(there) == made.folder.name
        errors.require(whole, "copied code", str(made.folder), "what it was copied as; something changed it: remove it "
                      "once no job of this sweep runs")
        return
    with files.atomic_folder(made.folder) as aside:
        for name, path in made.files.items():
            place = aside / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
        files.write_json(aside / provenance.COPIED, provenance.source())
