"""The tasks that have a name: what their files are, and where they come from."""

from collections.abc import Mapping
from typing import NamedTuple


class TaskSpec(NamedTuple):
    """A row of TASKS."""

    objective: str
    labelled: Mapping[str, str]  # fields of config.data.labelled
    source: str
    note: str = ""  # what a reader of its scores must know
    title: str = ""  # what tables call it, where that is not its name


GLUE_SOURCE = "GLUE (Wang et al. 2018, arXiv:1804.07461)"
SQUAD_FIELDS = {"format": "squad", "scores": "f1,exact"}
EWT_FIELDS = {
    "format": "conllu",
    "train": "en_ewt-ud-train.conllu",
    "dev": "en_ewt-ud-dev.conllu",
    "test": "en_ewt-ud-test.conllu",
    "text_column": "form",
}
EWT_SOURCE = "Silveira et al. 2014; Universal Dependencies"
TASKS = {
    "sst2": TaskSpec(
        "classification",
        {
            "format": "tsv",
            "train": "train.tsv",
            "dev": "dev.tsv",
            "text_column": "sentence",
            "label_column": "label",
            "scores": "accuracy",
        },
        f"Socher et al. 2013; {GLUE_SOURCE}",
        title="SST-2",
    ),
    "cola": TaskSpec(
        "classification",
        {
            "format": "tsv",
            "train": "train.tsv",
            "dev": "dev.tsv",
            "text_column": "3",
            "label_column": "1",
            "scores": "matthews,accuracy",
        },
        f"Warstadt et al. 2019; {GLUE_SOURCE}",
        title="CoLA",
    ),
    "rte": TaskSpec(
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
        f"Dagan et al. 2005 and later; {GLUE_SOURCE}",
        title="RTE",
    ),
    "mnli": TaskSpec(
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
        f"Williams et al. 2018; {GLUE_SOURCE}",
        "dev is the matched one",
        title="MNLI",
    ),
    "qnli": TaskSpec(
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
        f"Rajpurkar et al. 2016; {GLUE_SOURCE}",
        title="QNLI",
    ),
    "qqp": TaskSpec(
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
        f"Iyer et al. 2017; {GLUE_SOURCE}",
        title="QQP",
    ),
    "mrpc": TaskSpec(
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
    "stsb": TaskSpec(
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
        f"Cer et al. 2017; {GLUE_SOURCE}",
        title="STS-B",
    ),
    "swag": TaskSpec(
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
    "conll2003": TaskSpec(
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
    "wnut17": TaskSpec(
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
    "ud_ewt": TaskSpec(
        "tagging",
        EWT_FIELDS | {"label_column": "upos", "scores": "accuracy"},
        EWT_SOURCE,
        "parts of speech, words as the treebank cuts them",
        title="UD-EWT",
    ),
    "ud_pos": TaskSpec(
        "edge_probing",
        EWT_FIELDS | {"label_column": "upos", "scores": "f1,accuracy"},
        EWT_SOURCE,
        "parts of speech, probed for a word at a time (Tenney et al. 2019)",
        title="UD-EWT, part of speech",
    ),
    "ud_dep": TaskSpec(
        "edge_probing",
        EWT_FIELDS | {"label_column": "deprel", "head_column": "head", "scores": "f1,accuracy"},
        EWT_SOURCE,
        "relations of words to their heads, roots left out (Tenney et al. 2019)",
        title="UD-EWT, dependency label",
    ),
    "squad": TaskSpec(
        "extractive_qa",
        SQUAD_FIELDS | {"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
        "Rajpurkar et al. 2016, arXiv:1606.05250",
        title="SQuAD 1.1",
    ),
    "squad2": TaskSpec(
        "extractive_qa",
        SQUAD_FIELDS | {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
        "Rajpurkar et al. 2018, arXiv:1806.03822",
        "questions may have no answer",
        title="SQuAD 2.0",
    ),
}
