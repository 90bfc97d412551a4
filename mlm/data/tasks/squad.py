"""SQuAD's JSON, 1.1 and 2.0: questions about passages, and where in them their answers stand."""

import os
from collections.abc import Iterator
from pathlib import Path

from mlm.base import config, errors
from mlm.data.tasks import examples, jsonl
from mlm.data.tasks.examples import Example, Label

SIZE = 2**29  # bytes of a file, which is read at once, at most


def read(path: Path, asks: config.Labelled, label: Label) -> Iterator[Example]:
    """The questions of a file, each with its passage, as it stands there, and all its answers.

    Raises ConfigError, by its place in the JSON, for what is not as said, such as an answer that is not at its offset.
    """
    try:
        size = os.path.getsize(path)
        errors.require(size <= SIZE, str(path), f"{size} bytes", f"at most {SIZE} bytes")
        raw = path.read_bytes()
    except OSError as error:
        raise errors.ConfigError(f"{path}: expected a file that can be read ({error.strerror})") from None
    number = 1 + raw[: _undecodable(raw)].count(b"\n")
    found = jsonl.loads(examples.decoded(raw.removeprefix(b"\xef\xbb\xbf"), f"{path}, line {number}"), path)
    seen: set[str] = set()
    for i, article in enumerate(_part(found, "data", list, f"{path}, line 1")):
        for j, paragraph in enumerate(_part(article, "paragraphs", list, f"{path}, data[{i}]")):
            where = f"{path}, data[{i}].paragraphs[{j}]"
            passage = _part(paragraph, "context", str, where)
            examples.text(passage, f"{where}.context")
            for k, asked in enumerate(_part(paragraph, "qas", list, where)):
                one = _question(asked, passage, f"{where}.qas[{k}]")
                errors.require(one.id not in seen, f"{where}.qas[{k}].id", one.id, "an id that no other question has")
                seen.add(one.id)
                yield one


def _undecodable(raw):
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _question(asked, passage, where) -> Example:
    name = examples.text(_part(asked, "id", str, where), f"{where}.id")
    question = examples.text(_part(asked, "question", str, where), f"{where}.question")
    answers = tuple(
        _answer(answer, passage, f"{where}.answers[{n}]")
        for n, answer in enumerate(_part(asked, "answers", list, where))
    )
    impossible = asked.get("is_impossible", False)
    errors.require(isinstance(impossible, bool), f"{where}.is_impossible", impossible, "true or false")
    errors.require(
        bool(answers) != impossible,
        f"{where}.answers",
        list(answers),
        "none, since is_impossible is true" if impossible else "one or more, or is_impossible: true",
    )
    return Example(name, (question, passage), label=answers)


def _answer(answer, passage, where) -> tuple[str, int]:
    text, start = _part(answer, "text", str, where), _part(answer, "answer_start", int, where)
    examples.text(text, f"{where}.text")
    at = passage.find(text)
    there = start >= 0 and passage.startswith(text, start)
    errors.require(
        there,
        f"{where}.answer_start",
        start,
        f"where the passage has {errors.format_value(text[:60])}"
        + (f", such as {at}" if at >= 0 else "; it does not have it")
        + (f"; there it has {errors.format_value(passage[start : start + len(text)][:60])}" if start >= 0 else ""),
    )
    return text, start


def _part(found, key, kind, where):
    """What an object has under a key. Raises ConfigError unless it is there and of this kind."""
    errors.require(isinstance(found, dict), where, found, "a JSON object")
    examples.column(key, list(found), where, "key")
    noun = {list: "a list", str: "a text", int: "a whole number"}[kind]
    errors.require(type(found[key]) is kind, f"{where}.{key}", found[key], noun)
    return found[key]
