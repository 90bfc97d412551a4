"""What should replace a token that is to be predicted: [MASK], the token itself, or a random one?

Paper      Devlin et al. 2019 (BERT, arXiv:1810.04805, table 8): 80/10/10 is a good choice, yet fine-tuning hardly
           changes as long as there is some [MASK].
Run        mlm sweep run experiments/masking_mix.py --scale=laptop --workers=2
Cost       quick: seconds per point. laptop: 18 points, about 25 minutes on 2 CPU cores with --workers=2, estimated from
           the time of 64 examples (0.2 s on one core). paper: 6 points of the base model, each about 54 hours of an
           H200 at 40% of its peak: 320 hours, an estimate from 6 FLOPs per parameter and token. text: 18 points of
           micro on WikiText-2, 16,000 examples, three seeds, then half an epoch of SST-2: 20 minutes, measured
           beside other work.
Published  development sets:            MNLI  NER   NER from features
           80% [MASK] 10% same 10% random  84.2  95.4  94.9
           100  0   0                      84.3  94.9  94.0
            80  0  20                      84.1  95.2  94.6
            80 20   0                      84.4  95.2  94.7
             0 20  80                      83.7  94.8  94.6
             0  0 100                      83.6  94.9  94.6
           MNLI and NER (CoNLL-2003) stand beside our scores at scale paper (--config.downstream.path=...); NER from
           features is the question of features.py. quick, laptop: fine-tuned on the topic of a passage of the built-in
           language (laptop: half a minute for each of 3 seeds). The table also has the held-out loss under [MASK]
           alone. The last two mixes never saw [MASK] in training, which alone makes their loss worse.
Figures    experiments/results/masking_mix.md
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, make_seeds, name_points
from mlm.experiment.recipes import BERT, BERT_GRID, PAPER_TASKS, TRANSFORMERS
from mlm.report import summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column, build_paper_cells, build_paper_columns

MIXES = [
    {
        "name": f"mask{mask}-same{same}-random{random}",
        "mask.mask_token_prob": mask / 100,
        "mask.random_token_prob": random / 100,
    }
    for mask, same, random in ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))
]

TASKS = {"mnli": "MNLI", "conll2003": "NER"}
PAPER = {  # [MASK] / same / random: scores of TASKS, of the base model
    "80 / 10 / 10": (84.2, 95.4),
    "100 / 0 / 0": (84.3, 94.9),
    "80 / 0 / 20": (84.1, 95.2),
    "80 / 20 / 0": (84.4, 95.2),
    "0 / 20 / 80": (83.7, 94.8),
    "0 / 0 / 100": (83.6, 94.9),
}
FEATURES = (94.9, 94.0, 94.6, 94.7, 94.6, 94.6)  # NER from features, of the same mixes
PAPER_TABLES = (
    PaperTable(
        "Devlin et al. 2019 (BERT), table 8, base",
        (*TASKS.values(), "NER from features"),
        {mix: (*scores, features) for (mix, scores), features in zip(PAPER.items(), FEATURES, strict=True)},
        {mix: point["name"] for mix, point in zip(PAPER, MIXES, strict=True)},
    ),
)

SCALES = {
    "quick": {"fields": TRANSFORMERS["quick"], "seeds": 1},
    "laptop": {"fields": TRANSFORMERS["laptop"], "seeds": 3},
    "text": {"fields": TRANSFORMERS["text"], "seeds": 3},
    "paper": {
        "fields": BERT | PAPER_TASKS | BERT_GRID | {"model.size": "base", "downstream.tasks": ",".join(TASKS)},
        "seeds": 1,
    },
}

COLUMNS = (Column("mix", "[MASK] / same / random"),)
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    points = cross_points(MIXES, make_seeds(plan["seeds"]))
    return name_points(points, plan["fields"])


def describe_row(seeds: Sequence[dict]) -> dict:
    mask, random = (100 * seeds[0]["config"][f"mask.{name}_token_prob"] for name in ("mask", "random"))
    mix = f"{mask:.0f} / {100 - mask - random:.0f} / {random:.0f}"
    paper = build_paper_cells(TASKS, PAPER[mix]) if seeds[0]["config"]["model.size"] == "base" else {}
    return {"mix": mix, **paper}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """BERT's mix is better than [MASK] alone, and than random tokens alone."""
    return [("mask80-same10-random10", other) for other in ("mask100-same0-random0", "mask0-same0-random100")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each mix."""
    return summary.build_table(results, COLUMNS, describe_row, build_paper_columns(TASKS))
