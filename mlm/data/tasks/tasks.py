"""How the labelled rows of a task are read: one reader a format, none a data set."""

import functools
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import config, errors, fields, text_files
from mlm.base.conditional_fields import FieldCondition, list_below
from mlm.base.fields import DerivedField, fill_derived_fields
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES, LabelKind, has_classes, has_kind
from mlm.data.language import tasks as language
from mlm.data.tasks import examples
from mlm.data.tasks.readers import CONLLU_COLUMNS


class TaskSpec(NamedTuple):
    """A task that has a name: a row of task_specs.toml."""

    title: str  # what tables call it
    objective: str
    labelled: Mapping[str, str]  # fields of config.data.labelled
    source: str
    note: str = ""  # what a reader of its scores must know
    seq_len: int = 0  # tokens that most of its examples fit in; 0: as many as the model was trained with
    prompt: Mapping[str, Any] = {}


_ROWS = tomllib.loads(Path(__file__).with_name("task_specs.toml").read_text(encoding="utf-8"))
TASKS = {name: TaskSpec(**row) for name, row in _ROWS.items()}
CUSTOM_TASK = "own"  # the task that is no row of TASKS: config.data.labelled says all
MAX_QUESTION_TOKENS = 64  # tokens of a question, at most
LANGUAGE_TASKS = tuple(language.TASKS)  # those of the built-in language, whose best possible scores are known
LABELLED_FIELDS = tuple(name for name in list_below("data.labelled") if name != "data.labelled.scores")
FIELD_CONDITIONS = (
    FieldCondition(("data.task_path", "data.tfds_dir", *LABELLED_FIELDS), "data.task", excluded_values=LANGUAGE_TASKS),
    FieldCondition(list_below("data.language"), "data.task", ("", *LANGUAGE_TASKS)),
)


def _derive_objective(cfg):
    if task := language.TASKS.get(cfg.data.task) or TASKS.get(cfg.data.task):
        return task.objective
    form = cfg.data.labelled.format
    fitting = (name for name, objective in LABELLED_OBJECTIVES.items() if form in objective.formats)
    return next(fitting, "classification")


def _derive_scores(cfg):
    if (row := LABELLED_OBJECTIVES.get(cfg.objective)) is None:
        return ""
    by_language = row.language_scores if cfg.data.task in LANGUAGE_TASKS else ""
    by_scheme = row.scheme_scores if cfg.data.labelled.scheme else ""
    return by_language or by_scheme or row.scores


def _derive_doc_stride(cfg):
    window = cfg.pack.seq_len - 3 - MAX_QUESTION_TOKENS  # tokens of a passage that fit beside the longest question
    return min(128, max(1, window // 2)) if cfg.data.labelled.format == "squad" else 0


def _is_task(cfg):
    return cfg.data.corpus == "task"


DERIVED_FIELDS = (
    *(
        DerivedField(
            f"data.labelled.{name}",
            ("data.task", "data.corpus"),
            lambda cfg, name=name: TASKS[cfg.data.task].labelled.get(name, ""),
            lambda cfg: _is_task(cfg) and cfg.data.task in TASKS,
        )
        for name in dict.fromkeys(name for row in TASKS.values() for name in row.labelled)
    ),
    DerivedField("objective", ("data.task", "data.labelled.format", "data.corpus"), _derive_objective, _is_task, True),
    DerivedField(
        "data.labelled.quoting",
        ("data.labelled.format", "data.corpus"),
        lambda cfg: {"tsv": "off", "csv": "on"}.get(cfg.data.labelled.format, ""),
        _is_task,
    ),
    DerivedField(
        "data.labelled.scores",
        ("objective", "data.task", "data.labelled.scheme", "data.corpus"),
        _derive_scores,
        _is_task,
    ),
    DerivedField(
        "data.labelled.doc_stride",
        ("data.labelled.format", "pack.seq_len", "data.corpus"),
        _derive_doc_stride,
        _is_task,
    ),
)


def resolve_task(settings: Mapping[str, Any]) -> config.Config:
    """The defaults with a task's fields (dotted name -> value) and those that follow from them."""
    return fill_derived_fields(DERIVED_FIELDS, fields.override(config.Config(), {"data.corpus": "task", **settings}))


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a task that its config does not describe. Opens no file."""
    data, labelled, name, seq_len = cfg.data, cfg.data.labelled, "data.labelled.doc_stride", cfg.pack.seq_len
    require = functools.partial(errors.require_field, cfg)
    errors.require_one_of("config.data.task", data.task, [*LANGUAGE_TASKS, *TASKS, CUSTOM_TASK])
    is_language = data.task in LANGUAGE_TASKS
    expected = "the folder of the task's files, or a data set's name where config.data.labelled.format is tfds"
    require("data.task_path", is_language or bool(data.task_path.strip()), expected)
    expected = "the folder of a tokenizer's file, such as RUN/tokenizer, since config.data.corpus is task"
    require("tokenizer.path", bool(cfg.tokenizer.path.strip()), expected)
    row = language.TASKS.get(data.task) or TASKS.get(data.task)
    objectives = [row.objective] if row else list(LABELLED_OBJECTIVES)
    if is_language and "tagging" in objectives:
        objectives.append("edge_probing")  # the tags of its words are labels of spans, too
    expected = f"{' or '.join(objectives)}, since config.data.task is {data.task}"
    require("objective", cfg.objective in objectives, expected)
    if is_language:
        return
    check_labelled(cfg)
    if labelled.doc_stride and labelled.format in ("conll", "conllu"):
        expected = f"1 <= value <= {seq_len - 2}, the tokens of a window, since config.pack.seq_len = {seq_len}"
        require(name, 1 <= labelled.doc_stride <= seq_len - 2, expected)
    if labelled.format == "squad":
        most, window = MAX_QUESTION_TOKENS, seq_len - 3 - MAX_QUESTION_TOKENS
        expected = f"at least {4 + most}: {most} tokens of a question, 3 separators, a passage"
        require("pack.seq_len", window > 0, expected)
        expected = f"1 <= value <= {window}, the tokens of a window beside a question of {most}"
        require(name, 1 <= labelled.doc_stride <= window, expected)


def check_labelled(cfg: config.Config, required: Collection[str] = ("train", "dev")) -> None:
    """Raises ConfigError for a config.data.labelled that describes no files of examples. Opens no file."""
    labelled, name = cfg.data.labelled, "data.labelled"
    require = functools.partial(errors.require_field, cfg)
    errors.require_one_of(f"config.{name}.format", labelled.format, LABELLED_OBJECTIVES[cfg.objective].formats)
    is_choice, has_label = has_kind(cfg.objective, LabelKind.CHOICE), not has_kind(cfg.objective, LabelKind.NONE)
    columns = ("text_column", *["label_column"] * has_label, *["choice_columns"] * is_choice)
    columns = () if labelled.format == "squad" else columns
    for field in (*required, "scores", *columns):
        is_set = bool(getattr(labelled, field).strip())
        require(f"{name}.{field}", is_set, "to be set, since config.data.task is own")
    choices = text_files.split_names(labelled.choice_columns) if is_choice else ()
    for field in ("text_column", "label_column") if labelled.format == "conll" else ():
        require(f"{name}.{field}", getattr(labelled, field).isdecimal(), "a column's number, from 0")
    if labelled.format == "conllu":
        for field in ("text_column", "label_column", *["head_column"] * bool(labelled.head_column)):
            errors.require_one_of(f"config.{name}.{field}", getattr(labelled, field), CONLLU_COLUMNS)
    if is_choice:
        are_columns = len(set(choices)) == len(choices) > 1 and all(choices)
        require(f"{name}.choice_columns", are_columns, "two or more different columns, separated by commas")
        fits = not labelled.labels or len(list_labels(labelled)) == len(choices)
        expected = f"{len(choices)} labels, one for each of config.{name}.choice_columns, in their order"
        require(f"{name}.labels", fits, expected)
    if not has_label:
        goes_together = bool(labelled.labels) == bool(labelled.label_column)
        expected = f"to be set where config.{name}.label_column is, and nowhere else"
        require(f"{name}.labels", goes_together, expected)
    elif labelled.labels and has_classes(cfg.objective):
        labels = list_labels(labelled)
        are_labels = len(set(labels)) == len(labels) > 1 and all(labels)
        require(f"{name}.labels", are_labels, "two or more different labels, separated by commas")


def takes_pairs(data: config.Data) -> bool:
    """Whether an example has two texts."""
    names_two = bool(data.labelled.text_pair_column or data.labelled.choice_columns)
    return names_two or data.labelled.format == "squad" or data.task in ("pair", "subject")


def count_sequences(cfg: config.Config) -> int:
    """The sequences of an example that do not see each other: endings to choose from, or texts to compare."""
    if has_kind(cfg.objective, LabelKind.NONE):
        return 2 + bool(cfg.data.labelled.negative_column)
    return max(1, len(text_files.split_names(cfg.data.labelled.choice_columns)))


def list_labels(labelled: config.Labelled) -> tuple[str, ...]:
    """The labels that a config gives, in their order; () where they are those of the train split.

    Those of endings to choose from are their numbers, where it gives no others.
    """
    if labelled.labels:
        return tuple(map(examples.normalize_label, labelled.labels.split(",")))
    return tuple(map(str, range(len(text_files.split_names(labelled.choice_columns)))))
