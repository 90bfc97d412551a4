"""The tasks that are known by name, and how the files of any are read: one reader a format, none a data set."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from mlm.base import config, errors
from mlm.base.conditional_fields import FieldCondition
from mlm.data.language import tasks as language
from mlm.data.tasks import conllu, examples

CUSTOM_TASK = "own"  # the task that is no row of TASKS: config.data.labelled says all
TABLE_FORMATS = ("tsv", "csv", "jsonl", "tfds")
FORMATS = {
    "classification": TABLE_FORMATS,
    "regression": TABLE_FORMATS,
    "multiple_choice": TABLE_FORMATS,  # by objective
    "tagging": ("conll", "conllu"),
    "extractive_qa": ("squad",),
    "edge_probing": ("conll", "conllu"),
}
DEFAULT_SCORES = {
    "classification": "accuracy",
    "regression": "spearman,pearson",
    "multiple_choice": "accuracy",
    "tagging": "accuracy",
    "extractive_qa": "f1,exact",
    "edge_probing": "f1,accuracy",
}  # of OWN
QUESTION = 64  # tokens of a question, at most
DRAWN = tuple(language.TASKS)  # those of the built-in language, whose best possible scores are known
LABELS = ("classification", "multiple_choice", "tagging", "edge_probing")  # objectives of labels that are names
FIELDS = tuple(f"data.labelled.{field.name}" for field in dataclasses.fields(config.Labelled) if field.name != "scores")
READ = (
    FieldCondition(("data.task", "data.task_path", "data.labelled", "train.group_by_length"), "data.corpus", ("task",)),
    FieldCondition(("data.task_path", "data.tfds_dir", *FIELDS), "data.task", excluded_values=DRAWN),
    FieldCondition(("data.tfds_dir",), "data.labelled.format", ("tfds", "")),
    FieldCondition(("data.language",), "data.task", ("", *DRAWN)),
    FieldCondition(
        ("data.labelled.text_column", "data.labelled.label_column"), "data.labelled.format", excluded_values=("squad",)
    ),
    FieldCondition(
        ("data.labelled.text_pair_column", "data.labelled.id_column"), "data.labelled.format", TABLE_FORMATS
    ),
    FieldCondition(("data.labelled.choice_columns",), "objective", ("multiple_choice",)),
    FieldCondition(("data.labelled.quoting",), "data.labelled.format", ("tsv", "csv")),
    FieldCondition(("data.labelled.scheme",), "data.labelled.format", ("conll", "conllu")),
    FieldCondition(("data.labelled.scheme",), "objective", ("tagging",)),
    FieldCondition(("data.labelled.head_column",), "data.labelled.format", ("conllu",)),
    FieldCondition(("data.labelled.head_column",), "objective", ("edge_probing",)),
    FieldCondition(("data.labelled.stride",), "data.labelled.format", ("squad",)),
    FieldCondition(("data.labelled.labels",), "objective", LABELS),
)


class Task(NamedTuple):
    """A row of TASKS."""

    objective: str
    labelled: Mapping[str, str]  # fields of config.data.labelled
    source: str
    note: str = ""  # what a reader of its scores must know
    title: str = ""  # what tables call it, where that is not its name


GLUE = "GLUE (Wang et al. 2018, arXiv:1804.07461)"
SQUAD = {"format": "squad", "scores": "f1,exact"}
EWT = {
    "format": "conllu",
    "train": "en_ewt-ud-train.conllu",
    "dev": "en_ewt-ud-dev.conllu",
    "test": "en_ewt-ud-test.conllu",
    "text_column": "form",
}
EWT_SOURCE = "Silveira et al. 2014; Universal Dependencies"
TASKS = {
    "sst2": Task(
        "classification",
        {
            "format": "tsv",
            "train": "train.tsv",
            "dev": "dev.tsv",
            "text_column": "sentence",
            "label_column": "label",
            "scores": "accuracy",
        },
        f"Socher et al. 2013; {GLUE}",
        title="SST-2",
    ),
    "cola": Task(
        "classification",
        {
            "format": "tsv",
            "train": "train.tsv",
            "dev": "dev.tsv",
            "text_column": "3",
            "label_column": "1",
            "scores": "matthews,accuracy",
        },
        f"Warstadt et al. 2019; {GLUE}",
        title="CoLA",
    ),
    "rte": Task(
        "classification",
        {
            "format": "tsv",
            "train": "train.tsv",
            "dev": "dev.tsv",
            "text_column": "sentence1",
            "text_pair_column": "sentence2",
            "label_column": "label",
            "id_column": "index",
            "labels": "entailment,not_entailment",
            "scores": "accuracy",
        },
        f"Dagan et al. 2005 and later; {GLUE}",
        title="RTE",
    ),
    "mnli": Task(
        "classification",
        {
            "format": "tsv",
            "train": "train.tsv",
            "dev": "dev_matched.tsv",
            "text_column": "sentence1",
            "text_pair_column": "sentence2",
            "label_column": "gold_label",
            "id_column": "pairID",
            "labels": "entailment,neutral,contradiction",
            "scores": "accuracy",
        },
        f"Williams et al. 2018; {GLUE}",
        "dev is the matched one",
        title="MNLI",
    ),
    "qnli": Task(
        "classification",
        {
            "format": "tsv",
            "train": "train.tsv",
            "dev": "dev.tsv",
            "text_column": "question",
            "text_pair_column": "sentence",
            "label_column": "label",
            "id_column": "index",
            "labels": "entailment,not_entailment",
            "scores": "accuracy",
        },
        f"Rajpurkar et al. 2016; {GLUE}",
        title="QNLI",
    ),
    "qqp": Task(
        "classification",
        {
            "format": "tsv",
            "train": "train.tsv",
            "dev": "dev.tsv",
            "text_column": "question1",
            "text_pair_column": "question2",
            "label_column": "is_duplicate",
            "id_column": "id",
            "scores": "accuracy,f1",
        },
        f"Iyer et al. 2017; {GLUE}",
        title="QQP",
    ),
    "mrpc": Task(
        "classification",
        {
            "format": "tsv",
            "train": "msr-para-train.tsv",
            "dev": "msr-para-val.tsv",
            "test": "msr-para-test.tsv",
            "text_column": "#1 String",
            "text_pair_column": "#2 String",
            "label_column": "Quality",
            "scores": "accuracy,f1",
        },
        "Dolan and Brockett 2005",
        "not GLUE's own split: its dev set is other rows of the published training set",
        title="MRPC",
    ),
    "stsb": Task(
        "regression",
        {
            "format": "tsv",
            "train": "sts-train.csv",
            "dev": "sts-dev.csv",
            "test": "sts-test.csv",
            "text_column": "5",
            "text_pair_column": "6",
            "label_column": "4",
            "scores": "spearman,pearson",
        },
        f"Cer et al. 2017; {GLUE}",
        title="STS-B",
    ),
    "swag": Task(
        "multiple_choice",
        {
            "format": "csv",
            "train": "train.csv",
            "dev": "val.csv",
            "text_column": "sent1",
            "text_pair_column": "sent2",
            "choice_columns": "ending0,ending1,ending2,ending3",
            "label_column": "label",
            "scores": "accuracy",
        },
        "Zellers et al. 2018, arXiv:1808.05326",
        "dev is the published validation split",
        title="SWAG",
    ),
    "conll2003": Task(
        "tagging",
        {
            "format": "conll",
            "train": "eng.train",
            "dev": "eng.testa",
            "test": "eng.testb",
            "text_column": "0",
            "label_column": "3",
            "scheme": "iob1",
            "scores": "f1",
        },
        "Tjong Kim Sang and De Meulder 2003",
        title="CoNLL-2003",
    ),
    "wnut17": Task(
        "tagging",
        {
            "format": "conll",
            "train": "train.tsv",
            "dev": "dev.tsv",
            "test": "test.tsv",
            "text_column": "0",
            "label_column": "1",
            "scheme": "bio",
            "scores": "f1",
        },
        "Derczynski et al. 2017",
        title="WNUT-17",
    ),
    "ud_ewt": Task(
        "tagging",
        EWT | {"label_column": "upos", "scores": "accuracy"},
        EWT_SOURCE,
        "parts of speech, words as the treebank cuts them",
        title="UD-EWT",
    ),
    "ud_pos": Task(
        "edge_probing",
        EWT | {"label_column": "upos", "scores": "f1,accuracy"},
        EWT_SOURCE,
        "parts of speech, probed for a word at a time (Tenney et al. 2019)",
        title="UD-EWT, part of speech",
    ),
    "ud_dep": Task(
        "edge_probing",
        EWT | {"label_column": "deprel", "head_column": "head", "scores": "f1,accuracy"},
        EWT_SOURCE,
        "relations of words to their heads, roots left out (Tenney et al. 2019)",
        title="UD-EWT, dependency label",
    ),
    "squad": Task(
        "extractive_qa",
        SQUAD | {"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
        "Rajpurkar et al. 2016, arXiv:1606.05250",
        title="SQuAD 1.1",
    ),
    "squad2": Task(
        "extractive_qa",
        SQUAD | {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
        "Rajpurkar et al. 2018, arXiv:1806.03822",
        "questions may have no answer",
        title="SQuAD 2.0",
    ),
}


def objective(name: str) -> str:
    """The objective of a task that is known by name."""
    return (language.TASKS.get(name) or TASKS[name]).objective


def resolve(cfg: config.Config) -> config.Config:
    """With what the task's row of TASKS says where nothing is said, and the objective that it asks for."""
    said, objective = cfg.data.labelled, cfg.objective
    row = TASKS.get(cfg.data.task)
    if cfg.data.task in DRAWN:
        wanted = language.TASKS[cfg.data.task].objective
    elif row:
        said = _filled(said, row.labelled)
        wanted = row.objective
    else:
        fitting = (name for name, formats in FORMATS.items() if said.format in formats)
        wanted = next(fitting, "classification")
    if objective == config.Config.objective:
        objective = wanted
    quoting = {"tsv": "off", "csv": "on"}.get(said.format, "")
    scores = "f1,accuracy" if objective == "tagging" and said.scheme else DEFAULT_SCORES.get(objective, "")
    if cfg.data.task in DRAWN and objective == "extractive_qa":
        scores = "exact,f1"  # the optimum is that of the exact match
    said = _filled(said, {"quoting": quoting, "scores": scores})
    return dataclasses.replace(cfg, objective=objective, data=dataclasses.replace(cfg.data, labelled=said))


def _filled(said, row):
    return dataclasses.replace(said, **{name: getattr(said, name) or value for name, value in row.items()})


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a task that its config does not describe; opens no file."""
    data, said, name = cfg.data, cfg.data.labelled, "config.data.labelled"
    errors.require_one_of("config.data.task", data.task, [*DRAWN, *TASKS, CUSTOM_TASK])
    row = language.TASKS.get(data.task) or TASKS.get(data.task)
    errors.require(
        data.task in DRAWN or bool(data.task_path.strip()),
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
    fit = [row.objective] if row else list(FORMATS)
    if data.task in DRAWN and "tagging" in fit:
        fit.append("edge_probing")  # the tags of its words are labels of spans, too
    errors.require(
        cfg.objective in fit,
        "config.objective",
        cfg.objective,
        f"{' or '.join(fit)}, since config.data.task is {data.task}",
    )
    if data.task in DRAWN:
        return
    errors.require_one_of(f"{name}.format", said.format, FORMATS[cfg.objective])
    endings = examples.endings(said) if cfg.objective == "multiple_choice" else ()
    columns = (
        ()
        if said.format == "squad"
        else ("text_column", "label_column", *(("choice_columns",) if cfg.objective == "multiple_choice" else ()))
    )
    for field in ("train", "dev", "scores", *columns):
        errors.require(
            bool(getattr(said, field).strip()),
            f"{name}.{field}",
            getattr(said, field),
            "to be set, since config.data.task is own",
        )
    if said.format in ("tsv", "csv", "conll"):
        asked = (
            ("text_column", "label_column")
            if said.format == "conll"
            else ("text_column", "text_pair_column", "label_column", "id_column")
        )
        columns = [(field, value) for field in asked if (value := getattr(said, field))]
        by_number = said.format == "conll" or said.text_column.isdecimal()
        for field, value in (*columns, *(("choice_columns", one) for one in endings)):
            right = value.isdecimal() and value.isascii() and len(value) < 5
            errors.require(
                right if by_number else not right,
                f"{name}.{field}",
                value,
                "a column's number, from 0"
                if by_number
                else f"a column's name in the header, as config.data.labelled.text_column = {said.text_column!r} is",
            )
    if said.format == "conllu":
        for field in ("text_column", "label_column", *(("head_column",) if said.head_column else ())):
            errors.require_one_of(f"{name}.{field}", getattr(said, field), conllu.COLUMNS)
    if said.format in ("tsv", "csv"):
        errors.require_one_of(f"{name}.quoting", said.quoting, ("on", "off"))
    if cfg.objective == "tagging" and said.scheme:
        errors.require_one_of(f"{name}.scheme", said.scheme, ("bio", "iob1"))
    if cfg.objective == "multiple_choice":
        errors.require(
            len(set(endings)) == len(endings) > 1 and all(endings),
            f"{name}.choice_columns",
            said.choice_columns,
            "two or more different columns, separated by commas",
        )
        errors.require(
            not said.labels or len(labels(said)) == len(endings),
            f"{name}.labels",
            said.labels,
            f"{len(endings)} labels, one for each of {name}.choice_columns, in their order",
        )
    if said.labels and cfg.objective in LABELS:
        given = labels(said)
        errors.require(
            len(set(given)) == len(given) > 1 and all(given),
            f"{name}.labels",
            said.labels,
            "two or more different labels, separated by commas",
        )
    if said.format == "squad":
        errors.require_number(f"{name}.stride", said.stride, 1, cfg.pack.seq_len - 3 - QUESTION)


def pairs(data: config.Data) -> bool:
    """Whether an example is asked of two texts at once."""
    said = data.labelled
    return (
        bool(said.text_pair_column or said.choice_columns) or said.format == "squad" or data.task in ("pair", "subject")
    )


def labels(said: config.Labelled) -> tuple[str, ...]:
    """The labels that a config gives, in their order; () where they are those of the train split.

    Those of endings to choose from are their numbers, where it gives no others.
    """
    if said.labels:
        return tuple(one.strip() for one in said.labels.split(","))
    return tuple(map(str, range(len(examples.endings(said)))))
