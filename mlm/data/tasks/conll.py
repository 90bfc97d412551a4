"""A token a line, columns by number, a blank line after each sentence: the files of the CoNLL shared tasks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mlm.base import config, errors
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, Label

WORDS = 10_000  # of a sentence, at most
DOCUMENT = "-DOCSTART-"  # begins a line of its own where a document begins


def read(path: Path, asks: config.Labelled, label: Label) -> Iterator[Example]:
    """The sentences of a file; columns are separated by tabs where a line has one, else by spaces.

    Raises ConfigError for a line that is not as `asks` says.
    """
    place = {"text": int(asks.text_column), "label": int(asks.label_column)}
    count = 0
    for sentence in sentences(path):
        words, tags = [], []
        for where, line in sentence:
            if line.startswith(DOCUMENT):
                continue
            cells = line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))
            errors.require(
                len(cells) > max(place.values()),
                f"{where}: columns",
                len(cells),
                f"at least {max(place.values()) + 1}, separated by tabs or spaces",
            )
            words.append(examples.text(cells[place["text"]], f"{where}: token"))
            tags.append((cells[place["label"]], f"{where}: tag"))
        if words:
            if not count:
                examples.no_heading(*tags[0])
            yield Example(str(count), (), tuple(words), labels(tags, asks.scheme, label))
            count += 1


def sentences(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Pairs (where, line) of each stretch without blank lines."""
    sentence: list[tuple[str, str]] = []
    for number, line in examples.lines(path):
        if line.strip():
            sentence.append((f"{path}, line {number}", line))
            errors.require(
                len(sentence) <= WORDS,
                f"{path}, line {number}",
                line[:40],
                f"a blank line after at most {WORDS} lines, since one ends a sentence",
            )
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def labels(tags: Sequence[tuple[str, str]], scheme: str, label: Label) -> tuple[str, ...]:
    """The labels of a sentence from pairs (tag, where), in the scheme BIO where they are of any.

    bio: B-X begins a stretch and I-X continues one of X. iob1: I-X begins one too, B-X only after another of X (Tjong
    Kim Sang and Veenstra 1999, cs/9907006). Raises ConfigError for a tag that is not of the scheme.
    """
    found, last = [], ""
    for tag, where in tags:
        tag = tag.strip()
        if scheme:
            right = tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)
            errors.require(right, where, tag, f"O, B-KIND or I-KIND, since config.data.labelled.scheme is {scheme}")
            if tag[:2] == "I-" and last != tag[2:]:
                errors.require(
                    scheme == "iob1",
                    where,
                    tag,
                    f"B-{tag[2:]}, since it continues no {tag[2:]} "
                    "(config.data.labelled.scheme = iob1 lets I- begin one)",
                )
                tag = f"B-{tag[2:]}"
            last = tag[2:]
        found.append(label(tag, where))
    return tuple(found)
