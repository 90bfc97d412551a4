"""How the labelled rows of a task are read: one reader a format, none a data set."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from mlm.base import config, errors, fields
from mlm.base.conditional_fields import FieldCondition
from mlm.base.derived_fields import DerivedField, fill_derived_fields
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES, LabelKind, has_classes, has_kind
from mlm.data.language import tasks as language
from mlm.data.tasks import conllu, examples
from mlm.data.tasks.task_specs import TASKS

CUSTOM_TASK = "own"  # the task that is no row of TASKS: config.data.labelled says all
MAX_QUESTION_TOKENS = 64  # tokens of a question, at most
LANGUAGE_TASKS = tuple(language.TASKS)  # those of the built-in language, whose best possible scores are known
LABELLED_FIELDS = tuple(
    f"data.labelled.{field.name}" for field in dataclasses.fields(config.Labelled) if field.name != "scores"
)
FIELD_CONDITIONS = (
    FieldCondition(("data.task_path", "data.tfds_dir", *LABELLED_FIELDS), "data.task", excluded_values=LANGUAGE_TASKS),
    FieldCondition(("data.language",), "data.task", ("", *LANGUAGE_TASKS)),
)


def get_objective(name: str) -> str:
    """The objective of a task that is known by name."""
    return (language.TASKS.get(name) or TASKS[name]).objective


def _derive_objective(cfg):
    if cfg.data.task in LANGUAGE_TASKS or cfg.data.task in TASKS:
        return get_objective(cfg.data.task)
    form = cfg.data.labelled.format
    fitting = (name for name, objective in LABELLED_OBJECTIVES.items() if form in objective.formats)
    return next(fitting, "classification")


def _derive_scores(cfg):
    row = LABELLED_OBJECTIVES.get(cfg.objective)
    if row is None:
        return ""
    special = (cfg.data.task in LANGUAGE_TASKS and row.language_scores) or (
        cfg.data.labelled.scheme and row.scheme_scores
    )
    return special or row.scores


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
    DerivedField(
        "objective",
        ("data.task", "data.labelled.format", "data.corpus"),
        _derive_objective,
        _is_task,
        default_is_choice=True,
    ),
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
    data, labelled, name = cfg.data, cfg.data.labelled, "config.data.labelled"
    errors.require_one_of("config.data.task", data.task, [*LANGUAGE_TASKS, *TASKS, CUSTOM_TASK])
    row = language.TASKS.get(data.task) or TASKS.get(data.task)
    errors.require(
        data.task in LANGUAGE_TASKS or bool(data.task_path.strip()),
        "config.data.task_path",
        data.task_path,
        "the folder of the task's files, or a data set's name where config.data.labelled.format is tfds",
    )
    errors.require(
        bool(cfg.tokenizer.path.strip()),
        "config.tokenizer.path",
        cfg.tokenizer.path,
        "the folder of a tokenizer's file, such as RUN/tokenizer, since config.data.corpus is task",
    )
    objectives = [row.objective] if row else list(LABELLED_OBJECTIVES)
    if data.task in LANGUAGE_TASKS and "tagging" in objectives:
        objectives.append("edge_probing")  # the tags of its words are labels of spans, too
    errors.require(
        cfg.objective in objectives,
        "config.objective",
        cfg.objective,
        f"{' or '.join(objectives)}, since config.data.task is {data.task}",
    )
    if data.task in LANGUAGE_TASKS:
        return
    check_labelled(cfg)
    if labelled.doc_stride and labelled.format in ("conll", "conllu"):
        errors.require(
            1 <= labelled.doc_stride <= cfg.pack.seq_len - 2,
            f"{name}.doc_stride",
            labelled.doc_stride,
            f"1 <= value <= {cfg.pack.seq_len - 2}, the tokens of a window, since config.pack.seq_len = "
            f"{cfg.pack.seq_len}",
        )
    if labelled.format == "squad":
        window = cfg.pack.seq_len - 3 - MAX_QUESTION_TOKENS
        errors.require(
            window > 0,
            "config.pack.seq_len",
            cfg.pack.seq_len,
            f"at least {4 + MAX_QUESTION_TOKENS}: {MAX_QUESTION_TOKENS} tokens of a question, 3 separators, a passage",
        )
        errors.require(
            1 <= labelled.doc_stride <= window,
            f"{name}.doc_stride",
            labelled.doc_stride,
            f"1 <= value <= {window}, so that no token of a passage is between two windows: config.pack.seq_len = "
            f"{cfg.pack.seq_len} leaves a window {window} tokens beside a question of {MAX_QUESTION_TOKENS}",
        )


def check_labelled(cfg: config.Config, required: Collection[str] = ("train", "dev")) -> None:
    """Raises ConfigError for a config.data.labelled that describes no files of examples. Opens no file.

    required: the splits that it must name.
    """
    labelled, name = cfg.data.labelled, "config.data.labelled"
    errors.require_one_of(f"{name}.format", labelled.format, LABELLED_OBJECTIVES[cfg.objective].formats)
    has_choices = has_kind(cfg.objective, LabelKind.CHOICE)
    choice_columns = examples.list_choice_columns(labelled) if has_choices else ()
    columns = () if labelled.format == "squad" else ("text_column", "label_column", *has_choices * ("choice_columns",))
    for field in (*required, "scores", *columns):
        errors.require(
            bool(getattr(labelled, field).strip()),
            f"{name}.{field}",
            getattr(labelled, field),
            "to be set, since config.data.task is own",
        )
    if labelled.format in ("tsv", "csv", "conll"):
        column_fields = (
            ("text_column", "label_column")
            if labelled.format == "conll"
            else ("text_column", "text_pair_column", "label_column", "id_column")
        )
        columns = [(field, value) for field in column_fields if (value := getattr(labelled, field))]
        by_number = labelled.format == "conll" or labelled.text_column.isdecimal()
        for field, value in (*columns, *(("choice_columns", one) for one in choice_columns)):
            is_number = value.isdecimal() and value.isascii() and len(value) < 5
            errors.require(
                is_number if by_number else not is_number,
                f"{name}.{field}",
                value,
                "a column's number, from 0"
                if by_number
                else f"a column's name in the header, as {name}.text_column = {labelled.text_column!r} is",
            )
    if labelled.format == "conllu":
        for field in ("text_column", "label_column", *(("head_column",) if labelled.head_column else ())):
            errors.require_one_of(f"{name}.{field}", getattr(labelled, field), conllu.COLUMNS)
    if has_choices:
        errors.require(
            len(set(choice_columns)) == len(choice_columns) > 1 and all(choice_columns),
            f"{name}.choice_columns",
            labelled.choice_columns,
            "two or more different columns, separated by commas",
        )
        errors.require(
            not labelled.labels or len(list_labels(labelled)) == len(choice_columns),
            f"{name}.labels",
            labelled.labels,
            f"{len(choice_columns)} labels, one for each of {name}.choice_columns, in their order",
        )
    if labelled.labels and has_classes(cfg.objective):
        labels = list_labels(labelled)
        errors.require(
            len(set(labels)) == len(labels) > 1 and all(labels),
            f"{name}.labels",
            labelled.labels,
            "two or more different labels, separated by commas",
        )


def takes_pairs(data: config.Data) -> bool:
    """Whether an example has two texts."""
    labelled = data.labelled
    return (
        bool(labelled.text_pair_column or labelled.choice_columns)
        or labelled.format == "squad"
        or data.task in ("pair", "subject")
    )


def list_labels(labelled: config.Labelled) -> tuple[str, ...]:
    """The labels that a config gives, in their order; () where they are those of the train split.

    Those of endings to choose from are their numbers, where it gives no others.
    """
    if labelled.labels:
        return tuple(map(examples.normalize_label, labelled.labels.split(",")))
    return tuple(map(str, range(len(examples.list_choice_columns(labelled)))))
