"""SQuAD's JSON, 1.1 and 2.0: questions about passages, and where in them their answers stand."""

import os
from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors, text_files
from mlm.data.tasks import examples
from mlm.data.tasks.examples import Example, LabelParser

MAX_FILE_BYTES = 2**29  # bytes of a file, which is read at once, at most


def read_examples(path: Path, labelled: config.Labelled, parse_label: LabelParser) -> Iterator[Example]:
    """The questions of a file, each with its passage, as it stands there, and all its answers.

    Raises ConfigError, by its place in the JSON, for what is wrong, such as an answer that is not at its offset.
    """
    size = os.path.getsize(path)
    errors.require(size <= MAX_FILE_BYTES, str(path), f"{size} bytes", f"at most {MAX_FILE_BYTES} bytes")
    text = "\n".join(line for _, line in text_files.read_lines(path, MAX_FILE_BYTES))
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
    example_id = examples.require_text(_get_key(record, "id", str, where), f"{where}.id")
    question = examples.require_text(_get_key(record, "question", str, where), f"{where}.question")
    answers = tuple(
        _parse_answer(answer, passage, f"{where}.answers[{n}]")
        for n, answer in enumerate(_get_key(record, "answers", list, where))
    )
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
    if start >= 0:
        expected += f"; there it has {errors.format_value(passage[start : start + len(text)][:60])}"
    correct = start >= 0 and passage.startswith(text, start)
    errors.require(correct, f"{where}.answer_start", start, expected)
    return text, start


def _get_key(record, key, kind, where):
    """The value of an object's key. Raises ConfigError unless it is there and of this kind."""
    errors.require(isinstance(record, dict), where, record, "a JSON object")
    examples.require_column(key, list(record), where, "key")
    noun = {list: "a list", str: "a text", int: "an integer"}[kind]
    errors.require(type(record[key]) is kind, f"{where}.{key}", record[key], noun)
    return record[key]
