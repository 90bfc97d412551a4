"""A corpus as one running text, white space and all: its files one after another, its end held out."""

from collections.abc import Iterator

from mlm.base import config, errors
from mlm.data.text import files
from mlm.data.text.corpus import SPLITS


def read_running_text(data: config.Data, split: str) -> Iterator[str]:
    """The text of one split in parts of at most a line, of which no character is lost.

    Held out are the files of config.data.validation_path, or the last config.data.validation_fraction of the
    characters; with config.data.search_fraction that share of the rest, at its end. Raises ConfigError for a file that
    is missing or unreadable, and for a split without text.
    """
    errors.require_one_of("split", split, SPLITS)
    field = "validation_path" if split == "validation" and data.validation_path and not data.search_fraction else "path"
    paths, found = files.find_files(f"config.data.{field}", getattr(data, field)), False
    is_whole = data.validation_path and not data.search_fraction
    for part in files.read_lines(paths) if is_whole else _read_part(paths, data, split):
        found = True
        yield part.replace(data.word_separator, " ") if data.word_separator else part
    errors.require(found, f"config.data.{field}", getattr(data, field), f"files with text for the {split} split")


def _read_part(paths, data, split):
    end = size = sum(map(len, files.read_lines(paths)))
    if data.search_fraction:
        end = size if data.validation_path else int(size * (1 - data.validation_fraction))
        bound = int(end * (1 - data.search_fraction))
    else:
        bound = int(size * (1 - data.validation_fraction))
    first, end = (bound, end) if split == "validation" else (0, bound)
    at = 0
    for line in files.read_lines(paths):
        if part := line[max(0, first - at) : max(0, end - at)]:
            yield part
        at += len(line)
