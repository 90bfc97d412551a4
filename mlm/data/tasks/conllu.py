"""CoNLL-U, the files of Universal Dependencies: ten columns by name, comments, and words of several tokens."""

from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors
from mlm.data.tasks import conll, examples
from mlm.data.tasks.examples import Example, Label

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
SENTENCE = "# sent_id ="


def read(path: Path, asks: config.Labelled, label: Label) -> Iterator[Example]:
    """The sentences of a file: the words of the syntax, without lines of several (1-2) and of empty ones (8.1).

    Where `asks` names a column of heads, the label of a word that has none is not asked. Raises ConfigError for a line
    that is not CoNLL-U.
    """
    place = {name: COLUMNS.index(name) for name in (asks.text_column, asks.label_column, asks.head_column) if name}
    for count, sentence in enumerate(conll.sentences(path)):
        words, tags, heads, name = [], [], [], str(count)
        for where, line in sentence:
            if line.startswith("#"):
                if line.startswith(SENTENCE):
                    name = line.removeprefix(SENTENCE).strip() or name
                continue
            cells = line.split("\t")
            errors.require(
                len(cells) == len(COLUMNS), f"{where}: columns", len(cells), f"{len(COLUMNS)}, separated by tabs"
            )
            number = cells[0].replace("-", "", 1).replace(".", "", 1)
            errors.require(number.isdecimal(), f"{where}: id", cells[0], "a word's number, or 1-2, or 8.1")
            if cells[0].isdecimal():
                errors.require(
                    int(cells[0][:9]) == len(words) + 1,
                    f"{where}: id",
                    cells[0],
                    f"{len(words) + 1}, the next word's number",
                )
                words.append(examples.text(cells[place[asks.text_column]], f"{where}: {asks.text_column}"))
                tags.append((cells[place[asks.label_column]], f"{where}: {asks.label_column}"))
                heads.append(
                    (cells[place[asks.head_column]], f"{where}: {asks.head_column}")
                    if asks.head_column
                    else ("1", where)
                )
        errors.require(bool(words), sentence[0][0], sentence[0][1][:40], "a sentence with a word")
        head_of = tuple(_head(head, place, len(words)) for head, place in heads)
        asked = iter(conll.labels([tag for tag, head in zip(tags, head_of, strict=True) if head], asks.scheme, label))
        labels = tuple(next(asked) if head else "" for head in head_of)
        yield Example(name, (), tuple(words), labels, head_of if asks.head_column else ())


def _head(value: str, where: str, words: int) -> int:
    right = value.isdecimal() and value.isascii() and len(value) < 9 and int(value) <= words
    errors.require(right, where, value, f"the number of a word, 1 to {words}, or 0")
    return int(value)
