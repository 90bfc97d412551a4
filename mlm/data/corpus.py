"""Documents of a corpus, one at a time, divided once and for all into a train and a validation split.

The split goes by document, by a hash of its text: it depends on no order and no seed, and equal
documents stay together.
"""
import ast
import codecs
import difflib
import functools
import glob
import gzip
import hashlib
import os
import re
import sysconfig
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from absl import logging

from mlm import config

SPLITS = ("train", "validation")
MAX_DOCUMENT = 2 ** 24  # characters; longer documents are cut, so that memory stays bounded whatever the file
# Not documentation, or not part of the library itself.
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "_bundled"}


class Corpus(NamedTuple):
    """Where the documents come from: functions, so that each pass over the corpus starts anew."""

    train: Callable[[], Iterator[str]]
    validation: Callable[[], Iterator[str]] | None  # None: a share of train's documents is held out
    content: Callable[[], bytes]                    # digest of all that the documents follow from


def documents(data: config.Data, split: str) -> Iterator[str]:
    """The documents of one split ("train" or "validation"), stripped, never empty, streamed in a fixed order.

    Raises config.ConfigError for a corpus that is missing, unreadable, or has no document in the split. Bytes that are
    not UTF-8, empty documents, and training documents left out because they are held out are counted in a warning.
    """
    config.one_of("split", split, SPLITS)
    corpus = _open(data)
    return _some(_divide(corpus, data.validation_fraction, split), data, split)


def fingerprint(data: config.Data) -> str:
    """SHA-256 (hexadecimal) of the corpus's content and of how it is divided; where it lies does not enter."""
    corpus = _open(data)
    share = data.validation_fraction if corpus.validation is None else None
    return hashlib.sha256(corpus.content() + repr((data.corpus, share)).encode()).hexdigest()


def _open(data):
    config.one_of("config.data.corpus", data.corpus, list(CORPORA))
    return CORPORA[data.corpus](data)


def _digest(text):
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _divide(corpus, fraction, split):
    if corpus.validation is None:
        bound = fraction * 2.0 ** 64
        for text in corpus.train():
            held_out = int.from_bytes(_digest(text)[:8], "big") < bound
            if held_out == (split == "validation"):
                yield text
    elif split == "validation":
        yield from corpus.validation()
    else:
        held_out, dropped = {_digest(text) for text in corpus.validation()}, 0  # grows with the held-out split only
        for text in corpus.train():
            if _digest(text) in held_out:
                dropped += 1
            else:
                yield text
        if dropped:
            _warn(f"{dropped} training documents also stand in the validation split: left out of training")


def _some(texts, data, split):
    count = 0
    for text in texts:
        count += 1
        yield text
    if not count:
        name = {"text": "path", "tfds": "tfds_name"}.get(data.corpus, "corpus")
        name = "validation_path" if split == "validation" and data.validation_path else name
        ways = "" if data.corpus != "text" or data.validation_path else \
            ", or a config.data.boundary that finds more of them, or a config.data.validation_path"
        raise config.ConfigError(f"config.data.{name} = {getattr(data, name)!r}: no document in the {split} split; "
                                 f"expected enough documents for both splits{ways}")


@functools.cache  # a corpus is read several times in a run: say each thing once
def _warn(message):
    logging.warning("%s", message)


class _Trouble:
    """Counts what is wrong with the files of a corpus and says it in one line, with the first place."""

    def __init__(self, what):
        self.what, self.count, self.first = what, 0, None

    def add(self, place):
        self.count += 1
        self.first = self.first or place

    def report(self):
        if self.count:
            _warn(f"{self.count} {self.what}, the first in {self.first}")


# --------------------------------------------------------------------------------------------------------- text files
def text(data: config.Data) -> Corpus:
    """Documents in .gz and plain UTF-8 files; data.boundary says where one ends."""
    train = _find("config.data.path", data.path)
    validation = _find("config.data.validation_path", data.validation_path) if data.validation_path else None
    if data.boundary not in ("file", "blank_line"):
        try:
            re.compile(data.boundary)
        except re.error as error:
            raise config.ConfigError(f"config.data.boundary = {data.boundary!r}: expected file, blank_line or a "
                                     f"regular expression ({error})") from None

    def content():
        digest = hashlib.sha256(data.boundary.encode())
        for path in [*train, None, *(validation or [])]:
            digest.update(b"|" if path is None else _file_digest(path))
        return digest.digest()

    return Corpus(train=lambda: _read(train, data.boundary),
                  validation=validation and (lambda: _read(validation, data.boundary)), content=content)


def _file_digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _find(field, patterns):
    """The files that the comma-separated globs name, sorted, each once."""
    paths = set()
    for pattern in filter(None, (p.strip() for p in patterns.split(","))):
        found = [p for p in glob.glob(os.path.expanduser(pattern), recursive=True) if os.path.isfile(p)]
        if not found:
            raise config.ConfigError(f"{field} = {patterns!r}: no file matches {pattern!r}{_nearest(pattern)}")
        paths.update(found)
    config.expect(bool(paths), field, patterns, "globs of text files, separated by commas")
    return sorted(paths)


def _nearest(pattern):
    path = Path(os.path.expanduser(pattern))
    if path.is_dir():
        return f"; did you mean {str(path / '*.txt')!r}?"
    while not path.parent.is_dir() and path.parent != path:
        path = path.parent
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.4)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def _read(paths, boundary) -> Iterator[str]:
    undecodable = _Trouble("stretches of bytes that are not UTF-8, replaced by U+FFFD")
    empty = _Trouble("empty files")
    long = _Trouble(f"documents longer than {MAX_DOCUMENT} characters, cut")
    for path in paths:
        found = False
        for document in _documents(path, _lines(path, undecodable), boundary, long):
            if document := document.strip():
                found = True
                yield document
        if not found:
            empty.add(f"{path} at byte 0")
    for trouble in (undecodable, empty, long):
        trouble.report()


def _lines(path, undecodable) -> Iterator[tuple[int, str]]:
    """Pairs (byte offset, line) of a file, in pieces of a bounded size where a line never ends."""
    offset, rest = 0, b""
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            while raw := file.readline(MAX_DOCUMENT):
                raw = rest + raw
                try:
                    line, used = codecs.utf_8_decode(raw, "strict", False)  # False: a character cut in two is kept
                except UnicodeDecodeError as error:
                    undecodable.add(f"{path} at byte {offset + error.start}")
                    line, used = codecs.utf_8_decode(raw, "replace", False)
                yield offset, (line.removeprefix("\ufeff") if offset == 0 else line).replace("\r\n", "\n")
                offset, rest = offset + used, raw[used:]
        if rest:
            undecodable.add(f"{path} at byte {offset}")
            yield offset, rest.decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise config.ConfigError(f"config.data.path: cannot read {path} after byte {offset} of its text ({error}); "
                                 "expected a whole, readable file") from None


def _documents(path, lines, boundary, long) -> Iterator[str]:
    heading = re.compile(boundary) if boundary not in ("file", "blank_line") else None
    parts, size = [], 0
    for offset, line in lines:
        over = size > 0 and size + len(line) > MAX_DOCUMENT
        if over:
            long.add(f"{path} at byte {offset}")
        blank = boundary == "blank_line" and not line.strip()
        if over or blank or (heading and heading.fullmatch(line.removesuffix("\n"))):
            yield "".join(parts)
            parts, size = [], 0
        parts.append(line)
        size += len(line)
    yield "".join(parts)


# --------------------------------------------------------------------------------------------------------- docstrings
def docstrings(data: config.Data) -> Corpus:
    """The English documentation in this Python's standard library: a document holds all docstrings of a module.

    About 1.7 MB that every machine has. What it holds follows the Python version.
    """
    texts = _library()
    return Corpus(train=lambda: iter(texts), validation=None,
                  content=lambda: hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest())


@functools.cache  # parsing the library takes seconds, and its size does not grow with anything
def _library() -> tuple[str, ...]:
    root = Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in sorted(root.rglob("*.py")):
        if NOT_LIBRARY.intersection(path.relative_to(root).parts):
            continue
        try:
            with warnings.catch_warnings():  # old escapes in the library's strings are not our concern
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # templates that are not Python
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        if module := "\n\n".join(filter(None, found)).strip():
            texts.append(module)
    config.expect(bool(texts), "config.data.corpus", "docstrings", "a Python whose standard library has its .py files; "
                  "set config.data.path to text of your own")
    return tuple(texts)


CORPORA = {"text": text, "docstrings": docstrings}
