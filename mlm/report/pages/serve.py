"""The page on which models are asked, side by side; what they answer comes from the server that sends it."""
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.report import palette

WHAT = {"fill": "Fills in", "predict": "Predicts", "similar": "Texts like this", "word": "Words like",
        "attend": "Looks at"}


class Column(NamedTuple):
    """A model. cannot: why it cannot be asked something, by what."""

    name: str
    about: str
    cannot: dict[str, str]


def html(shown: Sequence[Column], example: str, texts: bool) -> str:
    """The page. example: the text that it begins with. texts: whether there are some to search."""
    return _made("serve.html", shown=shown, example=example, texts=texts, what=WHAT)


def css() -> str:
    return _made("sweep.css", palette=palette) + _made("serve.css")


def js() -> str:
    return Path(__file__).with_suffix(".js").read_text()


def _made(name, **given) -> str:
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("mlm.report.pages", "."), autoescape=True,
                                     trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.get_template(name).render(**given)
