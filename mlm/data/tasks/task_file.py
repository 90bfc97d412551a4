"""A task as one TOML file: its files, columns, labels and scores, and how it is written as a prompt."""

import dataclasses
import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import conditional_fields, config, errors, fields, text_files
from mlm.data.tasks import examples, splits, tasks

SUFFIX = ".toml"
LABELLED = {field.name: field.default for field in dataclasses.fields(config.Labelled)}
KEYS = ("name", "objective", "path", *LABELLED, "prompt")
PROMPT_KEYS = ("pattern", "verbalizers")
# What errors call fields -> what the file calls them.
FIELD_NAMES = {
    "config.data.labelled.": "",
    "config.data.task_path": "path",
    ", since config.data.task is own": "",
    "config.objective": "objective",
}


class TaskFile(NamedTuple):
    """What a task file holds."""

    name: str
    fields: dict[str, Any]  # of the config, by dotted name
    pattern: str  # of the prompt; empty: none
    verbalizers: dict[str, str]  # a word for each label; {}: none


def read_task_file(flag: str, path: str, required: Collection[str] = ("train", "dev")) -> TaskFile:
    """Reads a task file, and checks that it describes a task whose files exist.

    Its keys are the fields of config.data.labelled; "name" of the task (else that of the file); "objective" (else the
    one that follows from the format); "path", the folder of the task's files as seen from the task file (else its own
    folder) or, for tfds, the data set's name; and a table "prompt" with "pattern" and a table "verbalizers".

    flag: the setting that names the file, for errors. required: the splits that the task must have. Raises ConfigError,
    which names the file, the key and the nearest right key.
    """
    folder = Path(os.path.expanduser(path)).parent
    found = parse_task(read_toml(flag, path), path, folder, Path(path).stem, required)
    if found.fields.get("data.labelled.format") != "tfds":
        with errors.name_place(path, FIELD_NAMES):
            splits.find_files(tasks.resolve_task(found.fields).data)
    return found


def parse_task(
    content: Mapping[str, Any], path: str, folder: Path, name: str, required: Collection[str] = ("train", "dev")
) -> TaskFile:
    """As `read_task_file`, of the content of a task file; opens no file of the task.

    path: of the file, for errors. folder: which the key "path" is seen from. name: where the content has none.
    """
    examples.require_keys(content, KEYS, path)
    prompt = read_table(content, "prompt", path)
    examples.require_keys(prompt, PROMPT_KEYS, f"{path}: prompt")
    name = content.get("name", name)
    examples.require_name(name, f"{path}: name")
    given = [key for key in LABELLED if key in content]
    settings: dict[str, Any] = {f"data.labelled.{key}": _parse_field(content[key], key, path) for key in given}
    if "objective" in content:
        settings["objective"] = _parse_text(content["objective"], "objective", path)
        errors.require_one_of(f"{path}: objective", settings["objective"], tasks.LABELLED_OBJECTIVES)
    task_path = _parse_text(content.get("path", ""), "path", path)
    if settings.get("data.labelled.format") != "tfds":
        task_path = os.path.normpath(folder / os.path.expanduser(task_path))
    verbalizers = read_table(prompt, "verbalizers", f"{path}: prompt")
    words = {
        examples.normalize_label(label): _parse_text(word, f"verbalizers.{label}", path)
        for label, word in verbalizers.items()
    }
    settings = {"data.task": tasks.CUSTOM_TASK, "data.task_path": task_path, **settings}
    task_file = TaskFile(name, settings, _parse_text(prompt.get("pattern", ""), "pattern", path), words)
    with errors.name_place(path, FIELD_NAMES):
        _check(task_file, required)
    return task_file


def _check(task_file, required):
    cfg = tasks.resolve_task(task_file.fields)
    fields.check_values(cfg)
    tasks.check_labelled(cfg, required)
    unread = conditional_fields.find_unread_fields(conditional_fields.DECLARED, fields.flatten(cfg))
    for name, value in task_file.fields.items():
        if name in unread and value:
            raise errors.ConfigError(f"config.{name} = {value!r}: nothing reads it, since {unread[name]}; leave it out")


def read_toml(flag: str, path: str, noun: str = "a task file") -> dict[str, Any]:
    """The content of a TOML file; flag: the setting that names it, for errors. Raises ConfigError for what is none."""
    file = Path(os.path.expanduser(path))
    hint = errors.format_hint(file.name, [other.name for other in file.parent.glob(f"*{SUFFIX}")])
    errors.require(file.is_file(), flag, path, f"{noun} (TOML){hint}")
    try:
        return tomllib.loads(text_files.decode_utf8(file.read_bytes().removeprefix(text_files.BOM), path))
    except OSError as error:
        raise errors.ConfigError(f"{path}: expected a file that can be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if file.suffix != SUFFIX:
            raise errors.ConfigError(
                f"{flag} = {path!r}: expected a task file: a text such as {file.stem}{SUFFIX} that describes the data "
                f'(format = "csv", train = "{file.name}", dev = "...", text_column = "...", label_column = "...")'
            ) from None
        raise errors.ConfigError(f"{path}: expected TOML: {errors.first_line(error)}") from None


def read_table(content: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """A table of a file's content; {} where there is none. Raises ConfigError for another value."""
    table = content.get(key, {})
    errors.require(isinstance(table, dict), f"{where}: {key}", table, "a table")
    return table


def _parse_field(value, key, path) -> str | int:
    """The value of a field of config.data.labelled: a list becomes a text with commas, a number a text."""
    where = f"{path}: {key}"
    if isinstance(LABELLED[key], int):
        errors.require(type(value) is int, where, value, "a whole number")
        return value
    parts = value if isinstance(value, list) and value else [value]
    for part in parts:
        is_part = type(part) in (str, int) and (len(parts) == 1 or "," not in str(part))
        errors.require(is_part, where, part, "a text or a number, or a list of those, none with a comma")
    return ",".join(map(str, parts))


def _parse_text(value, key, path) -> str:
    errors.require(isinstance(value, str), f"{path}: {key}", value, "a text")
    return value
