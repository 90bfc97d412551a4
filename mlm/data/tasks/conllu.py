"""CoNLL-U, the files of Universal Dependencies: ten columns by name, comments, and words of several tokens."""

from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors
from mlm.data.tasks import conll, examples
from mlm.data.tasks.examples import Example, LabelParser

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
SENTENCE_ID = "# sent_id ="


def read_examples(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The sentences of a file: the words of the syntax, without lines of several (1-2) and of empty ones (8.1).

    Where `labelled` names a column of heads, a word without a head has no label. Raises ConfigError for a line
    that is not CoNLL-U.
    """
    text, label, head_column = labelled.text_column, labelled.label_column, labelled.head_column
    for index, sentence in enumerate(conll.read_sentences(path)):
        words, tags, heads, example_id = [], [], [], str(index)
        for where, line in sentence:
            if line.startswith("#"):
                if line.startswith(SENTENCE_ID):
                    example_id = line.removeprefix(SENTENCE_ID).strip() or example_id
                continue
            parts = line.split("\t")
            expected = f"{len(COLUMNS)}, separated by tabs"
            errors.require(len(parts) == len(COLUMNS), f"{where}: columns", len(parts), expected)
            cells: dict[str, str] = dict(zip(COLUMNS, parts, strict=True))
            number = cells["id"].replace("-", "", 1).replace(".", "", 1)
            errors.require(number.isdecimal(), f"{where}: id", cells["id"], "a word's number, or 1-2, or 8.1")
            if cells["id"].isdecimal():
                is_next, expected = int(number[:9]) == len(words) + 1, f"{len(words) + 1}, the next word's number"
                errors.require(is_next, f"{where}: id", number, expected)
                words.append(examples.require_text(cells[text], f"{where}: {text}"))
                tags.append((cells[label], f"{where}: {label}"))
                heads.append((cells[head_column], f"{where}: {head_column}") if head_column else ("1", where))
        errors.require(bool(words), sentence[0][0], sentence[0][1][:40], "a sentence with a word")
        head_indices = tuple(_parse_head(head, place, len(words)) for head, place in heads)
        related = [tag for tag, head in zip(tags, head_indices, strict=True) if head]
        related_labels = iter(conll.parse_tags(related, labelled.scheme, parse_label))
        labels = tuple(next(related_labels) if head else "" for head in head_indices)
        yield Example(example_id, (), tuple(words), labels, head_indices if head_column else ())


def _parse_head(value: str, where: str, num_words: int) -> int:
    valid = value.isdecimal() and value.isascii() and len(value) < 9 and int(value) <= num_words
    errors.require(valid, where, value, f"the number of a word, 1 to {num_words}, or 0")
    return int(value)
