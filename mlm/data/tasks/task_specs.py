"""The tasks that have a name: what their files are, and where they come from."""

from collections.abc import Mapping
from typing import NamedTuple


class TaskSpec(NamedTuple):
    """A row of TASKS."""

    title: str  # what tables call it
    objective: str
    labelled: Mapping[str, str]  # fields of config.data.labelled
    source: str
    note: str = ""  # what a reader of its scores must know


GLUE = "GLUE (Wang et al. 2018, arXiv:1804.07461)"
EWT = "Silveira et al. 2014; Universal Dependencies"
TSV_FILES = {"format": "tsv", "train": "train.tsv", "dev": "dev.tsv"}
CONLL_FILES = {"format": "conll", "text_column": "0", "scores": "f1"}
EWT_FILES = {"format": "conllu", "text_column": "form"} | {
    split: f"en_ewt-ud-{split}.conllu" for split in ("train", "dev", "test")
}
SENTENCE_PAIR = {"text_column": "sentence1", "text_pair_column": "sentence2"}
ACCURACY = {"label_column": "label", "scores": "accuracy"}
ENTAILMENT = ACCURACY | {"id_column": "index", "labels": "entailment,not_entailment"}
SQUAD = {"format": "squad", "scores": "f1,exact"}
TASKS = {
    "sst2": TaskSpec(
        "SST-2", "classification", TSV_FILES | ACCURACY | {"text_column": "sentence"}, f"Socher et al. 2013; {GLUE}"
    ),
    "cola": TaskSpec(
        "CoLA",
        "classification",
        TSV_FILES | {"text_column": "3", "label_column": "1", "scores": "matthews,accuracy"},
        f"Warstadt et al. 2019; {GLUE}",
    ),
    "rte": TaskSpec(
        "RTE", "classification", TSV_FILES | SENTENCE_PAIR | ENTAILMENT, f"Dagan et al. 2005 and later; {GLUE}"
    ),
    "mnli": TaskSpec(
        "MNLI",
        "classification",
        TSV_FILES
        | SENTENCE_PAIR
        | {"dev": "dev_matched.tsv", "label_column": "gold_label", "id_column": "pairID", "scores": "accuracy"}
        | {"labels": "entailment,neutral,contradiction"},
        f"Williams et al. 2018; {GLUE}",
        "dev is the matched one",
    ),
    "qnli": TaskSpec(
        "QNLI",
        "classification",
        TSV_FILES | ENTAILMENT | {"text_column": "question", "text_pair_column": "sentence"},
        f"Rajpurkar et al. 2016; {GLUE}",
    ),
    "qqp": TaskSpec(
        "QQP",
        "classification",
        TSV_FILES
        | {"text_column": "question1", "text_pair_column": "question2", "id_column": "id"}
        | {"label_column": "is_duplicate", "scores": "accuracy,f1"},
        f"Iyer et al. 2017; {GLUE}",
    ),
    "mrpc": TaskSpec(
        "MRPC",
        "classification",
        {"format": "tsv", "train": "msr-para-train.tsv", "dev": "msr-para-val.tsv", "test": "msr-para-test.tsv"}
        | {"text_column": "#1 String", "text_pair_column": "#2 String", "label_column": "Quality"}
        | {"scores": "accuracy,f1"},
        "Dolan and Brockett 2005",
        "not GLUE's own split: its dev set is other rows of the published training set",
    ),
    "stsb": TaskSpec(
        "STS-B",
        "regression",
        {"format": "tsv", "train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test.csv"}
        | {"text_column": "5", "text_pair_column": "6", "label_column": "4", "scores": "spearman,pearson"},
        f"Cer et al. 2017; {GLUE}",
    ),
    "swag": TaskSpec(
        "SWAG",
        "multiple_choice",
        ACCURACY
        | {"format": "csv", "train": "train.csv", "dev": "val.csv", "text_column": "sent1", "text_pair_column": "sent2"}
        | {"choice_columns": "ending0,ending1,ending2,ending3"},
        "Zellers et al. 2018, arXiv:1808.05326",
        "dev is the published validation split",
    ),
    "conll2003": TaskSpec(
        "CoNLL-2003",
        "tagging",
        CONLL_FILES
        | {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb", "label_column": "3", "scheme": "iob1"},
        "Tjong Kim Sang and De Meulder 2003",
    ),
    "wnut17": TaskSpec(
        "WNUT-17",
        "tagging",
        CONLL_FILES
        | {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv", "label_column": "1", "scheme": "bio"},
        "Derczynski et al. 2017",
    ),
    "ud_ewt": TaskSpec(
        "UD-EWT",
        "tagging",
        EWT_FILES | {"label_column": "upos", "scores": "accuracy"},
        EWT,
        "parts of speech, words as the treebank cuts them",
    ),
    "ud_pos": TaskSpec(
        "UD-EWT, part of speech",
        "edge_probing",
        EWT_FILES | {"label_column": "upos", "scores": "f1,accuracy"},
        EWT,
        "parts of speech, probed for a word at a time (Tenney et al. 2019)",
    ),
    "ud_dep": TaskSpec(
        "UD-EWT, dependency label",
        "edge_probing",
        EWT_FILES | {"label_column": "deprel", "head_column": "head", "scores": "f1,accuracy"},
        EWT,
        "relations of words to their heads, roots left out (Tenney et al. 2019)",
    ),
    "squad": TaskSpec(
        "SQuAD 1.1",
        "extractive_qa",
        SQUAD | {"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
        "Rajpurkar et al. 2016, arXiv:1606.05250",
    ),
    "squad2": TaskSpec(
        "SQuAD 2.0",
        "extractive_qa",
        SQUAD | {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
        "Rajpurkar et al. 2018, arXiv:1806.03822",
        "questions may have no answer",
    ),
}
