"""The description in an experiment's docstring: terms, each with text whose lines may be rewrapped."""

import re
from typing import NamedTuple


class DocstringBlock(NamedTuple):
    """A block of text: prose, whose remaining line breaks are intended, or preformatted lines with aligned columns."""

    text: str
    preformatted: bool


def parse_entries(text: str) -> list[tuple[str, list[DocstringBlock]]]:
    """The terms and their blocks, if every line is "Term   text" or an indented continuation; else [].

    A line break in prose is intended if the next word would have fitted into the line.
    """
    lines, entries, indent = text.splitlines(), [], 0
    width = max(map(len, lines), default=0)
    for previous, line in zip(["", *lines], lines, strict=False):
        match = re.match(r"(\S+) {2,}(?=\S)", line)
        if match:
            indent = match.end()
            entries.append((match[1], []))
        elif not (entries and line.strip()) or line[:indent].strip():
            return []
        blocks, content = entries[-1][1], line[indent:]
        is_preformatted = re.search(r"\S {2}", content) is not None
        content = content if is_preformatted else content.strip()
        if not blocks or blocks[-1].preformatted != is_preformatted:
            blocks.append(DocstringBlock(content, is_preformatted))
        else:
            is_intended = is_preformatted or len(previous) + 1 + len(content.split()[0]) <= width
            blocks[-1] = DocstringBlock(blocks[-1].text + ("\n" if is_intended else " ") + content, is_preformatted)
    return entries
