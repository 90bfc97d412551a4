"""From BERT to ModernBERT, one change a row: what is each change worth?

Papers     ModernBERT (Warner et al. 2024, arXiv:2412.13663), NeoBERT (Breton et al. 2025, arXiv:2502.19587) and their
           kin change a dozen things at once. None says what each is worth above a floor that is known exactly.
Rows       The first has BERT's block, optimizer, schedule and masking rate, but RoPE: with BERT's learned positions
           only a local window takes a row far from token frequencies in this budget, and a ladder from there compares
           little. Then nine changes (CHANGES), each on top of the row before it ("+ ...") and each alone against the
           first row ("... alone"), and BERT itself ("learned positions alone"). RMSNorm and QK-norm are NeoBERT's and
           later models', the rest ModernBERT's.
Fair       The same examples, steps, batch and masks of the evaluation (15%); parameters outside the embeddings agree
           within 3%, since a gated MLP is two thirds as wide. All rows have the same search of learning rate and
           warm-up, at micro size, with a seed that no table has, judged on rows that no table is judged on; all sizes
           have what it chose. Initialization, dropout, [MASK] alone and the output layer are the small recipe's in all
           rows (paper: BERT's, but [MASK] alone): the first row is BERT's block, not its recipe.
Not apart  RoPE takes the table of positions with it, which the embeddings count. Pre-norm brings a norm behind the last
           layer. Without biases the norms keep their scale alone, as RMSNorm has it anyway, and the output one bias for
           each word. QK-norm is a LayerNorm alone, and RMSNorm on top. StableAdamW clips each tensor's update; the
           clipping of the gradient's norm stays. At 30% a step makes twice the predictions.
Window     ModernBERT's local layers see 128 of 1,024 tokens, every third layer all. Rows here have 128 tokens, so that
           the window is 16, 8 on each side: verbs 9 to 16 words from their subject and names of earlier sentences lie
           outside. Of the two layers of micro and tiny the first is global and the second local. paper: 128 of 512. A
           local layer here masks the scores and computes all of them: it saves no time.
Rule       Written before the runs; the first row, and with it a size's rows, after laptop's. For each size, seeds are
           blocks and rows are treatments (randomized block design, mlm/report/compare.py): the spread over seeds is
           pooled over all rows. Each row is compared once: "+ ..." with the row before it, "... alone" with the first.
           The p-values (two-sided) have Holm's correction for all comparisons of a size: 18 in a whole table, 10 at
           laptop scale. A change helps or hurts at a size if its p is below 0.05; it does so at laptop scale if that
           holds at micro and tiny, in the same direction. All else is a difference with its interval, and no sentence.
           Under another budget the rule is the same, and its table one of its own.
Run        mlm sweep run experiments/modern_bert.py --scale=laptop --workers=2
           Equal seconds: --budget=seconds. Every point, of either size, gets the seconds of the first row at micro
           size.
           Your own text: --config.data.path=... --config.tokenizer.vocab_size=2048 --config.workdir=runs/...; after it
           mlm evaluate runs/.../*/ --blimp=FOLDER, and the table has the accuracy on BLiMP.
Search     mlm sweep search experiments/modern_bert.py --scale=text --trials=4 --workers=2
           --out=experiments/searches/modern_bert-text.json: four trials a row of a quarter of the length, the best of
           full length. The language's: --scale=trials --trials=4 --rungs=1 --workers=2
           --out=experiments/searches/modern_bert-trials.json, each of full length, since a shorter one may end on the
           plateau.
Scales     quick: the first row and the last, one seed, micro. text: every row, micro on WikiText-2, three seeds, with
           what a search of its own chose. trials: laptop's rows, one seed, micro, for the language's search. laptop:
           the changes added up and BERT itself, micro and tiny, three seeds, on the language. paper: every row at base
           size and four learning rates, one seed, English Wikipedia.
Cost       quick: less than 2 minutes on 2 CPU cores. text: 57 points, 100 minutes, and 76 trials, 86 minutes, measured
           beside other work. trials: 44 points, laptop: 66 points, about 40 minutes and two hours with --workers=2.
           paper: 76 points of some 6 hours of an H200 at 40% of its peak: an estimate from 6 FLOPs per parameter and
           token.
Columns    The excess loss, what it is made of (kind of word, number, word) and the plateau as in architectures.py; the
           difference to the row compared, and its p. On text the held-out loss in their place.
Published  NeoBERT's figure 1 (a ladder on GLUE, one seed) and table 8 of Polish ModernBERT (30% masked for 15%, KLEJ)
           stand beside our effects.
Figures    experiments/results/modern_bert.md
"""

from collections.abc import Mapping, Sequence

from mlm.experiment import searches
from mlm.experiment.grid import chain_points, cross_points, make_axis, name_points
from mlm.experiment.recipes import LARGE, PAPER_TASKS, SMALL, read_text, set_training_length
from mlm.experiment.search_space import Choice, LogUniform
from mlm.report import compare, excess_loss, run_columns, series
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column

BERT = {
    "model.norm_placement": "post",
    "model.positions": "rotary",
    "model.activation": "gelu",
    "model.bias": "all",
    "model.norm": "layernorm",
    "model.local_window": 0,
    "model.qk_norm": False,
    "optim.optimizer": "adamw",
    "optim.schedule": "linear",
    "mask.rate": 0.15,
}
CHANGES = {
    "pre-norm": {"model.norm_placement": "pre"},
    "GeGLU": {"model.activation": "geglu"},
    "no biases": {"model.bias": "output"},
    "RMSNorm": {"model.norm": "rmsnorm"},
    "local": {"model.local_window": 16},
    "QK-norm": {"model.qk_norm": True},
    "StableAdamW": {"optim.optimizer": "stable_adamw"},
    "1-sqrt decay": {"optim.schedule": "wsd", "optim.decay_shape": "one_minus_sqrt"},
    "30% masked": {"mask.rate": 0.3},
}
LAST = [*CHANGES][-1]
FIRST_ROW = "BERT with RoPE"
LEARNED = {"learned positions": {"model.positions": "learned"}}  # back to BERT, so alone
ALONE = " alone"
PAPER_TABLES = (
    PaperTable(
        "Breton et al. 2025 (NeoBERT), figure 1, a ladder, one seed",
        ("GLUE",),
        {
            "BERT": (79.2,),
            "RoPE, SwiGLU, RMSNorm": (81.1,),
            "and RefinedWeb": (84.0,),
            "and AdamW, cosine": (83.5,),
            "and 20% masked, all [MASK]": (82.9,),
            "and 250M parameters": (85.3,),
            "and 28 x 768": (86.0,),
        },
        {"BERT": "learned_positions_alone", "RoPE, SwiGLU, RMSNorm": "with_rmsnorm"},
    ),
    PaperTable(
        "Polish ModernBERT, table 8",
        ("KLEJ",),
        {"15% masked": (84.16,), "30% masked": (83.88,)},
        {"15% masked": "bert_with_rope", "30% masked": "30_masked_alone"},
    ),
)

SEARCHES = searches.read_searches(__file__)
CENTRE = 4e-3  # the small recipe's, of rows that no search chose for
TRIAL_SEED = 3  # of no table, so that nothing is chosen by the runs that are compared
NUM_EXAMPLES, EVAL_INTERVAL = 32_000, 1_600  # taken in by a run, and between two evaluations


def build_rows() -> dict[str, dict]:
    """The fields of each row, by its title in the table."""
    rows, fields = {FIRST_ROW: BERT}, BERT
    for change, changed in CHANGES.items():
        fields = fields | changed
        rows[f"+ {change}"] = fields
    alone = list((CHANGES | LEARNED).items())[1:]  # on top of nothing the first change is alone already
    return rows | {f"{change}{ALONE}": BERT | changed for change, changed in alone}


ROWS = build_rows()
LANGUAGE_ROWS = tuple(row for row in ROWS if not row.endswith(ALONE) or row.startswith(tuple(LEARNED)))
SHARED_FIELDS = SMALL | {
    "model.attention_dropout": SMALL["model.dropout"],
    "model.max_positions": 128,
    "data.language.train_documents": NUM_EXAMPLES,  # every row once
}
SMALL_FIELDS = SHARED_FIELDS | set_training_length(NUM_EXAMPLES, EVAL_INTERVAL, {"train.batch_size": 16})
SCALES = {
    "quick": {
        "rows": (FIRST_ROW, f"+ {LAST}"),
        "sizes": ("micro",),
        "seeds": (0,),
        "fields": SMALL_FIELDS
        | set_training_length(8_000, EVAL_INTERVAL, {"train.batch_size": 16})
        | {"data.language.train_documents": 8_000, "data.language.validation_documents": 200},
    },
    "trials": {"rows": LANGUAGE_ROWS, "sizes": ("micro",), "seeds": (TRIAL_SEED,), "fields": SMALL_FIELDS},
    "laptop": {
        "rows": LANGUAGE_ROWS,
        "sizes": ("micro", "tiny"),
        "seeds": (0, 1, 2),
        "search": "trials",
        "fields": SMALL_FIELDS,
    },
    "text": {
        "rows": tuple(ROWS),
        "sizes": ("micro",),
        "seeds": (0, 1, 2),
        "search": "text",
        "fields": read_text(SMALL_FIELDS) | set_training_length(NUM_EXAMPLES, 6_400, {"train.batch_size": 16}),
    },
    "paper": {
        "rows": tuple(ROWS),
        "sizes": ("base",),
        "seeds": (0,),
        "rates": (1e-4, 2e-4, 4e-4, 8e-4),
        "window": 128,
        "fields": LARGE
        | PAPER_TASKS
        | {
            "mask.mask_token_prob": 1.0,
            "mask.random_token_prob": 0.0,
            "pack.seq_len": 512,
            "train.batch_size": 256,
            "train.steps": 100_000,
            "train.checkpoint_every": 5000,
        },
    },
}

RULE = (
    "p: seeds as blocks, their spread pooled over the rows; two-sided, with Holm's correction for all comparisons of a "
    'size. "+ ..." is compared with the row before it, "... alone" with the first row.'
)
COLUMNS = (
    Column("change", "change"),
    *run_columns.select_columns("size", "learning_rate", "non_embedding", "steps", "tokens", "tokens_per_second"),
    Column("difference", "loss minus that of the row compared (nats)", "+.3f"),
    Column("p", "p (Holm)", ".2g", note=RULE),
)
RESULT_TABLES = ("papers",)


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets."""
    plan = SCALES[scale]
    seeds = make_axis("seed", *plan["seeds"], name="seed{}")
    groups = []
    for size in plan["sizes"]:
        for row in plan["rows"]:
            fields = ROWS[row]
            if fields["model.local_window"] and "window" in plan:
                fields = fields | {"model.local_window": plan["window"]}
            rates = plan.get("rates", (CENTRE,))
            names = "lr{:g}" if len(rates) > 1 else ""
            points = cross_points(
                [{"name": f"{make_name(row)}-{size}", "model.size": size} | plan["fields"] | fields],
                make_axis("optim.learning_rate", *rates, name=names),
                seeds,
            )
            chosen = searches.find_chosen(SEARCHES, plan.get("search", ""), f"{make_name(row)}-micro")
            groups.append([point | chosen for point in points])
    return name_points(chain_points(*groups))


def search_space(point: dict) -> dict:
    """What mlm sweep search tries for a row."""
    rates = LogUniform(1e-3, 3e-2) if "data.path" in point else LogUniform(1e-3, 1e-2)
    return {"optim.learning_rate": rates, "optim.warmup_fraction": Choice((0.06, 0.2))}


def make_name(row: str) -> str:
    """The title of a row as part of a folder's name."""
    return row.lower().replace("+ ", "with_").replace("%", "").replace("-", "_").replace(" ", "_")


def facet(result: Mapping) -> str:
    """The small multiple of a run's line: its size, and whether its change is alone or added to those before it."""
    size, row = result["config"]["model.size"], find_row(result["config"])
    return f"{size}, {'a change alone' if row.endswith(ALONE) else 'changes added up'}"


def find_row(config: Mapping) -> str:
    """The title of a run's row, from the changes that its config has; the window of a local layer may be any."""
    changes = [
        change
        for change, changed in (CHANGES | LEARNED).items()
        if all(
            bool(config[name]) if name == "model.local_window" else config[name] == changed[name] for name in changed
        )
    ]
    if not changes:
        return FIRST_ROW
    return f"{changes[0]}{ALONE}" if len(changes) == 1 and changes != [*CHANGES][:1] else f"+ {changes[-1]}"


def find_compared(row: str) -> str:
    """The title of the row that a row is compared with; empty for the first."""
    titles = [*ROWS]
    return "" if row == FIRST_ROW else FIRST_ROW if row.endswith(ALONE) else titles[titles.index(row) - 1]


def compute_tests(results: Sequence[dict]) -> dict[tuple[str, str], compare.BlockTest]:
    """The test of each row, by size and title."""
    tests = {}
    primary = series.select_primary_score(results).name
    values: dict[str, dict[str, dict[int, float]]] = {}
    for result in results:
        config = result["config"]
        by_seed = values.setdefault(config["model.size"], {}).setdefault(find_row(config), {})
        by_seed[config["seed"]] = result["evaluation"][primary]
    for size, by_row in values.items():
        pairs = [(row, find_compared(row)) for row in by_row]
        corrected = compare.correct_p(compare.compare_rows(by_row, pairs))
        tests |= {(size, row): test for (row, _), test in corrected.items()}
    return tests


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each change and size, compared by the rule, with what its excess loss is made of."""
    tests = compute_tests(results)

    def describe_row(seeds):
        row = find_row(seeds[0]["config"])
        test = tests.get((seeds[0]["config"]["model.size"], row))
        return {"change": row, **({} if test is None else test._asdict())}

    return excess_loss.build_table(results, COLUMNS, describe_row)
