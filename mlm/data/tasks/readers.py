"""Files of labelled examples, by their format: tables, JSON lines, a token a line (CoNLL, CoNLL-U), SQuAD's JSON.

A reader takes (path, config.data.labelled, parse_label) and yields Examples. Each raises ConfigError, which names file
and line or the place in the JSON, for what does not fit `labelled`.
"""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlm.base import config, errors, text_files
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, LabelParser
from mlm.data.text import records

RECORD_KINDS = {  # of config.data.labelled.format
    **{name: name for name in records.DELIMITERS},
    "jsonl": records.JSON,
    "parquet": records.PARQUET,
    "arrow": records.ARROW,
}
CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
SENTENCE_ID = "# sent_id ="  # a comment of CoNLL-U
DOCUMENT_START = "-DOCSTART-"  # begins a line of its own where a document begins, in CoNLL
MAX_SENTENCE_WORDS = 10_000
MAX_SQUAD_BYTES = 2**29  # of a file, which is read at once


def read_table(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The rows of a file of records; csv and tsv have no header where columns are named by number.

    Content that is JSON, Parquet or Arrow decides, whatever `labelled` names.
    """
    columns, label = examples.list_columns(labelled), labelled.label_column
    layout, has_header, kind = {}, True, records.detect_kind(str(path))
    if kind in (records.TEXT, *records.DELIMITERS):
        kind = RECORD_KINDS[labelled.format]
    if kind in records.DELIMITERS:
        has_header = not labelled.text_column.isdecimal()
        layout = {"quoted": labelled.quoting == "on", "has_header": has_header}
    select = lambda column_types: examples.require_columns(columns, column_types, str(path))
    rows = records.read_records(str(path), kind, select, **layout)
    for index, (where, values) in enumerate(rows):
        examples.require_columns(columns, values, where)
        if label and not has_header and not index and not labelled.labels:
            examples.require_no_heading(values[label], f"{where}: label")
        values |= {label: _format_label(values[label], f"{where}: {label}")} if label else {}
        yield examples.make_example(labelled, values, parse_label, where, index)


def _format_label(value, where):
    """A label as a table would have it, a whole number without a point."""
    is_finite = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    errors.require(is_finite, where, value, "a label: a text or a finite number")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def read_conll(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The sentences of the CoNLL shared tasks: columns by number, separated by tabs where a line has one, or spaces."""
    text, label = int(labelled.text_column), int(labelled.label_column)
    most, index = max(text, label), 0
    for sentence in _read_sentences(path):
        words, tags = [], []
        for where, line in sentence:
            if line.startswith(DOCUMENT_START):
                continue
            cells = line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))
            expected = f"at least {most + 1}, by tabs or spaces"
            errors.require(len(cells) > most, f"{where}: columns", len(cells), expected)
            words.append(examples.require_text(cells[text], f"{where}: token"))
            tags.append((cells[label], f"{where}: tag"))
        if words:
            if not index and not labelled.labels:
                examples.require_no_heading(*tags[0])
            yield Example(str(index), (), tuple(words), parse_tags(tags, labelled.scheme, parse_label))
            index += 1


def _read_sentences(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Pairs (where, line) of each stretch without blank lines."""
    sentence: list[tuple[str, str]] = []
    for number, line in records.read_lines(path):
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


def read_conllu(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The sentences of Universal Dependencies: the words of the syntax, without lines of several (1-2) and of empty
    ones (8.1). Where `labelled` names a column of heads, a word without a head has no label.
    """
    text, label, head_column = labelled.text_column, labelled.label_column, labelled.head_column
    for index, sentence in enumerate(_read_sentences(path)):
        words, tags, heads, example_id = [], [], [], str(index)
        for where, line in sentence:
            if line.startswith("#"):
                if line.startswith(SENTENCE_ID):
                    example_id = line.removeprefix(SENTENCE_ID).strip() or example_id
                continue
            parts = line.split("\t")
            errors.require(len(parts) == len(CONLLU_COLUMNS), f"{where}: columns", len(parts), "10, separated by tabs")
            cells: dict[str, str] = dict(zip(CONLLU_COLUMNS, parts, strict=True))
            number = cells["id"].replace("-", "", 1).replace(".", "", 1)
            errors.require(number.isdecimal(), f"{where}: id", cells["id"], "a word's number, or 1-2, or 8.1")
            if cells["id"].isdecimal():
                following = len(words) + 1
                errors.require(int(number[:9]) == following, f"{where}: id", number, f"{following}, the next word's")
                words.append(examples.require_text(cells[text], f"{where}: {text}"))
                tags.append((cells[label], f"{where}: {label}"))
                heads.append((cells[head_column], f"{where}: {head_column}") if head_column else ("1", where))
        errors.require(bool(words), sentence[0][0], sentence[0][1][:40], "a sentence with a word")
        head_indices = tuple(_parse_head(head, place, len(words)) for head, place in heads)
        related = [tag for tag, head in zip(tags, head_indices, strict=True) if head]
        related_labels = iter(parse_tags(related, labelled.scheme, parse_label))
        labels = tuple(next(related_labels) if head else "" for head in head_indices)
        yield Example(example_id, (), tuple(words), labels, head_indices if head_column else ())


def _parse_head(value: str, where: str, num_words: int) -> int:
    valid = value.isdecimal() and value.isascii() and len(value) < 9 and int(value) <= num_words
    errors.require(valid, where, value, f"the number of a word, 1 to {num_words}, or 0")
    return int(value)


def read_squad(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The questions of SQuAD 1.1 or 2.0, each with its passage, as it stands there, and all its answers."""
    text = "\n".join(line for _, line in records.read_lines(path, MAX_SQUAD_BYTES))
    found = text_files.parse_json(text, path)
    seen: set[str] = set()
    for i, article in enumerate(_get_key(found, "data", list, f"{path}, line 1")):
        for j, paragraph in enumerate(_get_key(article, "paragraphs", list, f"{path}, data[{i}]")):
            where = f"{path}, data[{i}].paragraphs[{j}]"
            passage = _get_key(paragraph, "context", str, where)
            examples.require_text(passage, f"{where}.context")
            for k, record in enumerate(_get_key(paragraph, "qas", list, where)):
                one = _parse_question(record, passage, f"{where}.qas[{k}]")
                errors.require(one.id not in seen, f"{where}.qas[{k}].id", one.id, "an id that no other question has")
                seen.add(one.id)
                yield one


def _parse_question(record, passage, where) -> Example:
    texts = ((_get_key(record, key, str, where), f"{where}.{key}") for key in ("id", "question"))
    example_id, question = itertools.starmap(examples.require_text, texts)
    found = enumerate(_get_key(record, "answers", list, where))
    answers = tuple(_parse_answer(answer, passage, f"{where}.answers[{n}]") for n, answer in found)
    impossible = record.get("is_impossible", False)
    errors.require(isinstance(impossible, bool), f"{where}.is_impossible", impossible, "true or false")
    expected = "none, since is_impossible is true" if impossible else "one or more, or is_impossible: true"
    errors.require(bool(answers) != impossible, f"{where}.answers", list(answers), expected)
    return Example(example_id, (question, passage), label=answers)


def _parse_answer(answer, passage, where) -> tuple[str, int]:
    text, start = _get_key(answer, "text", str, where), _get_key(answer, "answer_start", int, where)
    examples.require_text(text, f"{where}.text")
    at = passage.find(text)
    expected = f"where the passage has {errors.format_value(text[:60])}"
    expected += f", such as {at}" if at >= 0 else "; it does not have it"
    errors.require(start >= 0 and passage.startswith(text, start), f"{where}.answer_start", start, expected)
    return text, start


def _get_key(record, key, kind, where):
    """The value of an object's key. Raises ConfigError unless it is there and of this kind."""
    errors.require(isinstance(record, dict), where, record, "a JSON object")
    examples.require_keys([key], record, where)
    noun = {list: "a list", str: "a text", int: "an integer"}[kind]
    errors.require(type(record[key]) is kind, f"{where}.{key}", record[key], noun)
    return record[key]


READERS = {**dict.fromkeys(RECORD_KINDS, read_table), "conll": read_conll, "conllu": read_conllu, "squad": read_squad}
