"""Which layers of a frozen model should a tagger read: the last one, another, or several at once?

Paper      Devlin et al. 2019 (arXiv:1810.04805, table 7): with BERT base frozen under two layers of BiLSTM, the
           concatenation of the last four layers is nearly as good as fine-tuning the whole model; the embeddings are
           far behind.
Run        mlm sweep run experiments/features.py --scale=laptop --workers=2
           (your own text: --config.data.path=... --config.tokenizer.vocab_size=2048, and for entities
           --config.downstream.tasks=wnut17 --config.downstream.path=...)
Data       quick, laptop: the built-in language and its tagging task, each word's class and number, whose Bayes-optimal
           accuracy is known. paper: English Wikipedia, and the entities of CoNLL-2003, a folder of its files below
           downstream.path.
Method     Models of four layers, so that there are four to read. Each feature has the same learning rates to choose
           from, on the dev split; so has the model that is fine-tuned as a whole, under a linear head.
Cost       quick: a minute per point. laptop: 6 points, half an hour each on 2 CPU cores: an estimate from 20 ms per
           step. paper: one point of the base model, for an accelerator; not estimated. text: 4 points of micro with
           four layers on WikiText-2, 16,000 examples, two seeds, and the parts of speech of UD-EWT: 20 minutes,
           estimated.
Published  dev F1: fine-tuned 96.4; embeddings 91.0; second-to-last 95.6; last 94.9; weighted sum of the last four 95.9;
           their concatenation 96.1; weighted sum of all twelve 95.5.
Figures    none yet
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, make_seeds, name_points
from mlm.experiment.recipes import BERT, LAPTOP, QUICK, TEXT, make_member
from mlm.report import evaluation_scores, run_columns, summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column, build_paper_cells, build_paper_columns

MEMBERS = ("lstm", "transformer")
VARIANTS = {
    "": "none: all is trained",
    "finetune.layer_features=0": "embeddings",
    "finetune.layer_features=second_to_last": "second-to-last layer",
    "finetune.layer_features=last": "last layer",
    "finetune.layer_features=sum4": "weighted sum of last four",
    "finetune.layer_features=concat4": "last four side by side",
    "finetune.layer_features=mix": "weighted sum of all layers",
}
PAPER_TITLES = {"conll2003": "CoNLL-2003, F1"}
PAPER = dict(zip(VARIANTS.values(), (96.4, 91.0, 95.6, 94.9, 95.9, 96.1, 95.5), strict=True))  # of BERT base
PAPER_TABLES = (
    PaperTable(
        "Devlin et al. 2019 (BERT), table 7, base; dev",
        tuple(PAPER_TITLES.values()),
        {features: (score,) for features, score in PAPER.items()},
    ),
)
# A BiLSTM as wide as a small model is, not as BERT's.
SMALL_BILSTM = {"width": 64, "learning_rates": (1e-3, 4e-3)}
BASE_FIELDS = {"model.num_layers": 4, "downstream.tasks": "tag"}

SCALES = {
    "quick": {
        "fields": QUICK | BASE_FIELDS | {"downstream.epochs": (1.0,)},
        "bilstm": SMALL_BILSTM | {"learning_rates": (4e-3,)},
        "members": ("transformer",),
        "seeds": 1,
    },
    "laptop": {"fields": LAPTOP | BASE_FIELDS, "bilstm": SMALL_BILSTM, "members": MEMBERS, "seeds": 3},
    "text": {
        "fields": TEXT
        | BASE_FIELDS
        | {"downstream.tasks": "ud_ewt", "downstream.path": "texts", "downstream.epochs": (1.0,)},
        "bilstm": SMALL_BILSTM | {"learning_rates": (4e-3,)},
        "members": MEMBERS,
        "seeds": 2,
    },
    "paper": {
        "fields": BERT
        | {"model.size": "base", "downstream.tasks": "conll2003", "downstream.path": "tasks", "downstream.seeds": 5},
        "bilstm": {"width": 768, "learning_rates": (3e-5, 5e-5, 1e-3)},
        "members": ("transformer",),
        "seeds": 1,
    },
}

COLUMNS = (*run_columns.select_columns("model", "size"), Column("features", "features"))
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets: a pretraining, and every way of reading it."""
    plan = SCALES[scale]
    members = [make_member(member, scale) for member in plan["members"]]
    points = cross_points(members, make_seeds(plan["seeds"]))
    head = f"finetune.trainable_layers=0 finetune.head=bilstm finetune.head_dim={plan['bilstm']['width']}"
    grid = {
        "downstream.variants": ",".join(f"{head} {variant}" if variant else "" for variant in VARIANTS),
        "downstream.learning_rates": plan["bilstm"]["learning_rates"],
    }
    return name_points(points, plan["fields"] | grid)


def describe_row(seeds: Sequence[dict]) -> dict:
    config, features = seeds[0]["config"], seeds[0]["variant"]
    return {
        "features": features,
        **(
            build_paper_cells(PAPER_TITLES, [PAPER[features]])
            if config["model.size"] == "base" and features in PAPER
            else {}
        ),
    }


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each model and what of it is read."""
    return summary.build_table(
        [part for result in results for part in evaluation_scores.split_variants(result, VARIANTS)],
        COLUMNS,
        describe_row,
        build_paper_columns(PAPER_TITLES),
    )
