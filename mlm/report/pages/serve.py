"""The page on which models are asked, side by side; what they answer comes from the server that sends it."""
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.report.pages import template

WHAT = {"fill": "Fills in", "predict": "Predicts", "similar": "Texts like this", "word": "Words like",
        "attend": "What it looks at"}
SEARCHES = ("similar", "word")


class Column(NamedTuple):
    """A model. cannot: why it cannot be asked something, by what."""

    name: str
    about: str
    cannot: dict[str, str]


def html(shown: Sequence[Column], example: str, longest: int, texts: bool) -> str:
    """The page. example: the text that it begins with. longest: characters of one. texts: whether there are some to
    search."""
    there = {name for name in WHAT if texts or name not in SEARCHES}
    if all("predict" in one.cannot for one in shown):
        there.remove("predict")
    return template.filled("serve.html", shown=shown, example=example, longest=longest, there=there, what=WHAT)


def css() -> str:
    return template.filled("sweep.css") + template.filled("serve.css")


def js() -> str:
    return Path(__file__).with_suffix(".js").read_text()
