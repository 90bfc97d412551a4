"""The page that queries models side by side; the server that sends it computes their answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.report.pages import template

TASK_TITLES = {
    "fill_mask": "Tokens for [MASK]",
    "predict": "Predictions",
    "similar": "Similar texts",
    "word": "Similar words",
    "attend": "Attention",
}
SEARCH_PAGES = ("similar", "word")


class ModelColumn(NamedTuple):
    """The column of a model."""

    name: str
    description: str
    unsupported: dict[str, str]  # why it does not support a task, by task


def render_html(models: Sequence[ModelColumn], example: str, max_chars: int, has_texts: bool) -> str:
    """The HTML page; example: the text that it starts with; has_texts: whether there are texts to search."""
    tasks = {name: title for name, title in TASK_TITLES.items() if has_texts or name not in SEARCH_PAGES}
    if all("predict" in column.unsupported for column in models):
        del tasks["predict"]
    return template.render("serve.html", models=models, example=example, max_chars=max_chars, tasks=tasks)


def render_error(line: str) -> str:
    """The HTML page of a frame that has nothing to show; the line says why."""
    return template.render("serve_error.html", line=line)


def render_css() -> str:
    """The style of the page."""
    return template.render("sweep.css") + template.render("serve.css")


def read_js() -> str:
    """The script of the page."""
    return Path(__file__).with_suffix(".js").read_text()
