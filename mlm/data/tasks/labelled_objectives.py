"""What data and commands must know of each objective of labelled examples."""

from typing import NamedTuple

TABLE_FORMATS = ("tsv", "csv", "jsonl", "tfds")
SENTENCE_FORMATS = ("conll", "conllu")


class LabelledObjective(NamedTuple):
    """An entry of LABELLED_OBJECTIVES."""

    formats: tuple[str, ...]  # of the files of examples
    scores: str  # config.data.labelled.scores of a task that is no row of TASKS
    has_classes: bool = True  # whether a label is one of several names
    word_column: str = ""  # the column with a label for each word; "": an example has one label


LABELLED_OBJECTIVES = {
    "classification": LabelledObjective(TABLE_FORMATS, "accuracy"),
    "regression": LabelledObjective(TABLE_FORMATS, "spearman,pearson", has_classes=False),
    "multiple_choice": LabelledObjective(TABLE_FORMATS, "accuracy"),
    "tagging": LabelledObjective(SENTENCE_FORMATS, "accuracy", word_column="tag"),
    "extractive_qa": LabelledObjective(("squad",), "f1,exact", has_classes=False),
    "edge_probing": LabelledObjective(SENTENCE_FORMATS, "f1,accuracy", word_column="edge"),
}
