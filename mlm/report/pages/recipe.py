"""What an experiment's docstring says below its question: terms, each with a text that may be broken anew."""
import re
from typing import NamedTuple


class Text(NamedTuple):
    """A piece of what is said: prose, in which a line break is meant, or (fixed) lines whose columns are below each
    other.
    """

    text: str
    fixed: bool


def entries(text: str) -> list[tuple[str, list[Text]]]:
    """Terms and what is said of each, where all of it is set as "Term   text" with indented lines below; else [].

    A line of prose stays a line of its own where the next word would have fitted into it.
    """
    lines, found, column = text.splitlines(), [], 0
    width = max(map(len, lines), default=0)
    for before, line in zip(["", *lines], lines, strict=False):
        begun = re.match(r"(\S+) {2,}(?=\S)", line)
        if begun:
            column = begun.end()
            found.append((begun[1], []))
        elif not (found and line.strip()) or line[:column].strip():
            return []
        said, own = found[-1][1], line[column:]
        fixed = re.search(r"\S {2}", own) is not None
        if not said or said[-1].fixed != fixed:
            said.append(Text(own if fixed else own.strip(), fixed))
        else:
            meant = fixed or len(before) + 1 + len(own.split()[0]) <= width
            said[-1] = Text(said[-1].text + ("\n" if meant else " ") + (own if fixed else own.strip()), fixed)
    return found
