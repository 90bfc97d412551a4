"""What data, commands and exports must know of each objective of labelled examples; they ask for none by name."""

import enum
from typing import NamedTuple

TABLE_FORMATS = ("tsv", "csv", "jsonl", "parquet", "arrow", "tfds")
SENTENCE_FORMATS = ("conll", "conllu")


class LabelKind(enum.StrEnum):
    """What a label is."""

    CLASS = "class"  # one of several names
    CHOICE = "choice"  # the number of one of several texts
    NUMBER = "number"
    ANSWERS = "answers"  # (text, start) of each
    NONE = "none"  # texts of an example belong together; nothing is predicted of them


class LabelledObjective(NamedTuple):
    """An entry of LABELLED_OBJECTIVES."""

    formats: tuple[str, ...]  # of the files of examples
    scores: str  # config.data.labelled.scores of a task that is no row of TASKS
    label: LabelKind = LabelKind.CLASS
    word_column: str = ""  # the column with a label for each word; "": an example has one label
    labels_spans: bool = False  # a label is of spans of words, not of each word
    scheme_scores: str = ""  # as `scores`, where config.data.labelled.scheme says that tags mark entities
    language_scores: str = ""  # as `scores`, on a task of the built-in language, whose optimum is that of the first
    hub_class: str = ""  # the end of the name of transformers' class; "": it has none
    problem_type: str = ""  # of config.json, where objectives share a class of transformers

    @property
    def classifies_texts(self) -> bool:
        """Whether each text, or pair of texts, has one of several names."""
        return self.label is LabelKind.CLASS and not self.word_column

    @property
    def tags_words(self) -> bool:
        """Whether each word has a label of its own."""
        return bool(self.word_column) and not self.labels_spans


LABELLED_OBJECTIVES = {
    "classification": LabelledObjective(
        TABLE_FORMATS, "accuracy", hub_class="ForSequenceClassification", problem_type="single_label_classification"
    ),
    "regression": LabelledObjective(
        TABLE_FORMATS,
        "spearman,pearson",
        LabelKind.NUMBER,
        hub_class="ForSequenceClassification",
        problem_type="regression",
    ),
    "multiple_choice": LabelledObjective(TABLE_FORMATS, "accuracy", LabelKind.CHOICE, hub_class="ForMultipleChoice"),
    "tagging": LabelledObjective(
        SENTENCE_FORMATS, "accuracy", word_column="tag", scheme_scores="f1,accuracy", hub_class="ForTokenClassification"
    ),
    "extractive_qa": LabelledObjective(
        ("squad",), "f1,exact", LabelKind.ANSWERS, language_scores="exact,f1", hub_class="ForQuestionAnswering"
    ),
    "contrastive": LabelledObjective(TABLE_FORMATS, "accuracy", LabelKind.NONE),
    "edge_probing": LabelledObjective(SENTENCE_FORMATS, "f1,accuracy", word_column="edge", labels_spans=True),
}


def has_kind(objective: str, *kinds: LabelKind) -> bool:
    """Whether an objective is one of labelled examples, whose labels are of one of these kinds."""
    return objective in LABELLED_OBJECTIVES and LABELLED_OBJECTIVES[objective].label in kinds


def has_classes(objective: str) -> bool:
    """Whether a label is one of several names or texts."""
    return has_kind(objective, LabelKind.CLASS, LabelKind.CHOICE)
