"""How much better does a masked language model get as it grows deeper and wider?

Paper      Devlin et al. 2019 (BERT, arXiv:1810.04805, table 6): with every step in size the held-out perplexity falls,
           and the fine-tuned scores rise even on small data sets.
Run        mlm sweep run experiments/model_size.py --scale=laptop --workers=2
Cost       quick: seconds per point. laptop: 18 points, about 40 minutes on 2 CPU cores with --workers=2, estimated from
           the time of 64 examples (0.2 s on one core for 2 layers of width 64). paper: 6 points, about 400 hours of an
           H200 at 40% of its peak: an estimate from 6 FLOPs per parameter and token. text: 18 points on WikiText-2,
           16,000 examples, three seeds, then half an epoch of SST-2: 27 minutes, estimated.
Published  layers width heads: perplexity; MNLI  MRPC  SST-2
                3   768    12        5.84  77.9  79.8  88.4
                6   768     3        5.24  80.6  82.2  90.7
                6   768    12        4.68  81.9  84.8  91.3
               12   768    12        3.99  84.4  86.7  92.9
               12  1024    16        3.54  85.7  86.9  93.3
               24  1024    16        3.23  86.6  87.8  93.7
           The perplexity stands beside ours at scale paper. It is of held-out masked tokens, too, but of the paper's
           corpus and under its 80/10/10, which leaves a tenth of them visible. The scores stand beside ours as well
           (--config.downstream.path=...; our MRPC is not split as in GLUE). laptop: six shapes that differ as the
           paper's do, fine-tuned (as at quick) on the topic of a passage of the built-in language: half a minute for
           each of 3 seeds.
Figures    none yet
"""

from collections.abc import Sequence

from mlm.experiment.grid import cross_points, make_seeds, name_points
from mlm.experiment.recipes import BERT, BERT_GRID, PAPER_TASKS, TRANSFORMERS
from mlm.report import summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column, build_paper_cells, build_paper_columns


def name_shape(shape: tuple[int, int, int]) -> str:
    """Layers, width and heads as part of a folder's name."""
    return "{}x{}-{}heads".format(*shape)


TASKS = {"mnli": "MNLI", "mrpc": "MRPC", "sst2": "SST-2"}
PAPER = {  # layers, width, heads: perplexity, accuracies of TASKS
    (3, 768, 12): (5.84, 77.9, 79.8, 88.4),
    (6, 768, 3): (5.24, 80.6, 82.2, 90.7),
    (6, 768, 12): (4.68, 81.9, 84.8, 91.3),
    (12, 768, 12): (3.99, 84.4, 86.7, 92.9),
    (12, 1024, 16): (3.54, 85.7, 86.9, 93.3),
    (24, 1024, 16): (3.23, 86.6, 87.8, 93.7),
}
SHAPES = ((1, 64, 4), (2, 64, 1), (2, 64, 4), (4, 64, 4), (4, 96, 6), (8, 96, 6))
PAPER_TABLES = (
    PaperTable(
        "Devlin et al. 2019 (BERT), table 6",
        ("perplexity", *TASKS.values()),
        {name_shape(shape): scores for shape, scores in PAPER.items()},
        {name_shape(shape): name_shape(ours) for shape, ours in zip(PAPER, SHAPES, strict=True)},
    ),
)

SCALES = {
    "quick": {"fields": TRANSFORMERS["quick"], "shapes": ((1, 64, 4), (2, 64, 4)), "seeds": 1},
    "laptop": {"fields": TRANSFORMERS["laptop"], "shapes": SHAPES, "seeds": 3},
    "text": {"fields": TRANSFORMERS["text"], "shapes": SHAPES, "seeds": 3},
    "paper": {
        "fields": BERT | PAPER_TASKS | BERT_GRID | {"downstream.tasks": ",".join(TASKS)},
        "shapes": tuple(PAPER),
        "seeds": 1,
    },
}

COLUMNS = (Column("model", "model"), Column("perplexity_paper", "paper's perplexity", ".2f"))
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    shapes = [
        {
            "name": name_shape((layers, width, heads)),
            "model.num_layers": layers,
            "model.width": width,
            "model.num_heads": heads,
            "model.mlp_dim": 4 * width,
        }
        for layers, width, heads in plan["shapes"]
    ]
    points = cross_points(shapes, make_seeds(plan["seeds"]))
    return name_points(points, plan["fields"])


def describe_row(seeds: Sequence[dict]) -> dict:
    shape = tuple(seeds[0]["config"][f"model.{name}"] for name in ("num_layers", "width", "num_heads"))
    row = {"model": "{} layers, width {}, heads {}".format(*shape)}
    if shape not in PAPER:
        return row
    perplexity, *scores = PAPER[shape]
    return row | {"perplexity_paper": perplexity} | build_paper_cells(TASKS, scores)


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each size is better than the one before it."""
    return list(zip(names[1:], names[:-1], strict=True))


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each shape, with the paper's perplexity where it had that shape."""
    return summary.build_table(results, COLUMNS, describe_row, build_paper_columns(TASKS))
