"""Columns of what trained runs were asked since: a column for the same texts alone, a number for all seeds or none."""
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mlm.base.estimates import PERCENT, REAL, estimate
from mlm.report.table import Column

METRIC = "pll_word_l2r"


class Text(NamedTuple):
    """Texts that a run can be asked: the column of the table, what it is called there, and the SHA-256 of them all."""

    column: str
    title: str
    sha256: str


class Answer(NamedTuple):
    """What a run answered: the value, its standard error over what was asked, and how much that was."""

    value: float
    error: float | None
    about: str


def answers(result: dict) -> Iterator[tuple[Text, Answer]]:
    """What a run was asked of sentences, and of each suite of minimal pairs, by PLL-word-l2r."""
    held = result["answers"].get("sentences", {}).get("all")
    if held:
        values = held[METRIC]
        yield (Text("pseudo_perplexity", "pseudo-perplexity per word", held["sha256"]),
               Answer(values["word_perplexity"], values["word_perplexity_se"] if held["sentences"] > 1 else None,
                      f"{held['sentences']:,} sentences"))
    for suite in result["summary"].get("pairs", {}).values():
        overall = suite["overall"]
        yield (Text(f"pairs_{suite['suite']}", f"{suite['suite']}: pairs right (%)", suite["sha256"]),
               Answer(100 * overall[f"{METRIC}_accuracy"], None,
                      f"{overall['pairs']:,} pairs in {overall['paradigms']:,} paradigms"))


def columns(results: Sequence[dict]) -> dict[Text, Column]:
    """A column for each text that some run was asked; the digits of its SHA-256 tell apart those of one title."""
    found = {text: answer.about for result in results for text, answer in answers(result)}
    titles = [text.column for text in found]
    made = {}
    for text, about in found.items():
        many, digits = titles.count(text.column) > 1, text.sha256[:4]
        title = f"{text.title}, {digits}" if many else text.title
        form = ".2f" if text.column == "pseudo_perplexity" else ".1f"
        made[text] = Column(f"{text.column}_{digits}" if many else text.column, title, form, f"{title}: {about}.")
    return made


def cells(seeds: Sequence[dict], columns: dict[Text, Column]) -> dict:
    """A group's cells: the mean over its runs where all were asked the same, and how many were where not all were."""
    row, every = {}, [dict(answers(result)) for result in seeds]
    for text, column in columns.items():
        found = [of_run[text] for of_run in every if text in of_run]
        if len(found) == len(seeds):
            within = PERCENT if text.column.startswith("pairs_") else REAL
            row[column.name] = estimate((answer.value for answer in found), within)
            if len(found) == 1 and found[0].error is not None:
                row[f"{column.name}_se"] = found[0].error
        elif found:
            row[column.name] = f"{len(found)} of {len(seeds)} seeds judged"
    return row
