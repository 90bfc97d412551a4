"""A token a line, columns by number, a blank line after each sentence: the files of the CoNLL shared tasks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mlm.base import config, errors, text_files
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, LabelParser

MAX_SENTENCE_WORDS = 10_000  # of a sentence, at most
DOCUMENT_START = "-DOCSTART-"  # begins a line of its own where a document begins


def read_examples(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The sentences of a file; columns are separated by tabs where a line has one, else by spaces.

    Raises ConfigError for a line that does not fit `labelled`.
    """
    text, label = int(labelled.text_column), int(labelled.label_column)
    index = 0
    for sentence in read_sentences(path):
        words, tags = [], []
        for where, line in sentence:
            if line.startswith(DOCUMENT_START):
                continue
            cells = line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))
            expected = f"at least {max(text, label) + 1}, separated by tabs or spaces"
            errors.require(len(cells) > max(text, label), f"{where}: columns", len(cells), expected)
            words.append(examples.require_text(cells[text], f"{where}: token"))
            tags.append((cells[label], f"{where}: tag"))
        if words:
            if not index:
                examples.require_no_heading(*tags[0])
            yield Example(str(index), (), tuple(words), parse_tags(tags, labelled.scheme, parse_label))
            index += 1


def read_sentences(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Pairs (where, line) of each stretch without blank lines."""
    sentence: list[tuple[str, str]] = []
    for number, line in text_files.read_lines(path):
        if line.strip():
            sentence.append((f"{path}, line {number}", line))
            expected = f"a blank line after at most {MAX_SENTENCE_WORDS} lines, since one ends a sentence"
            errors.require(len(sentence) <= MAX_SENTENCE_WORDS, sentence[-1][0], line[:40], expected)
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def parse_tags(tags: Sequence[tuple[str, str]], scheme: str, parse_label: LabelParser) -> tuple[str, ...]:
    """The labels of a sentence from pairs (tag, where), in the scheme BIO where they are of any.

    bio: B-X begins a stretch and I-X continues one of X. iob1: I-X begins one too, B-X only after another of X (Tjong
    Kim Sang and Veenstra 1999, cs/9907006). Raises ConfigError for a tag that is not of the scheme.
    """
    labels, open_kind = [], ""
    for tag, where in tags:
        tag = tag.strip()
        if scheme:
            valid = tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)
            errors.require(valid, where, tag, f"O, B-KIND or I-KIND, since config.data.labelled.scheme is {scheme}")
            if tag[:2] == "I-" and open_kind != (kind := tag[2:]):
                hint = "config.data.labelled.scheme = iob1 lets I- begin one"
                errors.require(scheme == "iob1", where, tag, f"B-{kind}, since it continues no {kind} ({hint})")
                tag = f"B-{kind}"
            open_kind = tag[2:]
        labels.append(parse_label(tag, where))
    return tuple(labels)
