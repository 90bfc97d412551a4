"""What changes when only the objective changes: masked, causal, hybrid, diffusion, replaced token detection?

Paper      "Should We Still Pretrain Encoders with MLM?" (Gisserot-Boukhlef et al. 2025, arXiv:2507.00994): masked
           models fine-tune better, causal ones learn from less data; causal steps followed by masked ones are best at
           equal compute (of 0, 25, 50, 75 and 100% causal). GPT-BERT (Charpentier & Samuel 2024, arXiv:2410.24159):
           with a sixteenth of the examples causal, and every token predicted from the previous state, one model does
           both. Diffusion language models (MDLM, arXiv:2406.07524; LLaDA, arXiv:2502.09992) come close to causal ones
           in their bound on a text's probability. ELECTRA (Clark et al. 2020, arXiv:2003.10555): detecting replaced
           tokens learns from all tokens and fine-tunes better than masking at equal compute.
Method     One architecture, the same examples and steps, and at scale laptop the same search of learning rate and
           warm-up for each objective, on rows that no table reads. Replaced token detection has what masked 30%, its
           generator's objective, chose: its own loss is that of another task whenever its generator learns otherwise,
           so that trials do not compare by it. Losses of different objectives do not compare, so each is measured by
           its excess over its own floor, and a column names what each was evaluated on. Causal and diffusion models
           predict whole documents, and share the column "loss of a document above the floor", in nats per document. All
           models can be compared by the task's score after fine-tuning, which stands beside its optimum, and those that
           fill in masks by the verbs that agree and the names that recur, each masked alone.
Rule       Written before the runs that have a search. Two claims are planned: causal steps first (25%), and a few
           causal examples, lower the masked loss of a model that predicts each masked token from the state before it
           ("masked next token"). Each is a one-sided paired test over seeds (Student), with Holm's correction for the
           two in what is said of them; it is seen if p is below 0.05. That an objective's masked loss is the lowest has
           Holm's correction for all pairs. Scores after fine-tuning are told apart if their intervals do not meet.
Run        mlm sweep run experiments/objectives.py --scale=laptop --workers=2
           (equal training FLOPs instead of equal tokens: --budget=flops, with a --config.workdir of its own)
Search     mlm sweep search experiments/objectives.py --scale=laptop --trials=4 --rungs=1 --workers=2
           --out=experiments/searches/objectives-laptop.json; scale laptop has what it chose, and before it the values
           of recipes.TUNED_FIELDS for all.
Scales     quick: one objective of each kind, for a first look. laptop: all, three seeds. families: every objective with
           a floor, two stacks among them, with a window, a GRU and a Transformer, and denoising encoder-decoders with
           as many layers on each side; three seeds, half the examples, no task: the table of excess losses. sharing:
           what ELECTRA's generator reads, its own embeddings (DeBERTaV3's NES), the discriminator's (ES), or those with
           gradients kept apart (GDES); text's recipe and three seeds, half the examples. Each has a generator, and so a
           loss, of its own: half an epoch of SST-2 compares them. The generator is ELECTRA's, a quarter as wide;
           DeBERTaV3's is as wide and half as deep. paper: base size, English Wikipedia, the recipe of Wettig et al.
           2022 for all, since the papers' recipes differ.
Not run    text, paper.
Cost       quick: a minute per point on 2 CPU cores. laptop: 33 points, 29 minutes with --workers=2; its search: 40
           trials, 33 minutes. families: 60 points, an hour and a half, a third of it for the recurrent encoder-decoder:
           estimated from the other 45 points, 49 minutes with other work beside. paper: 11 points of some 5 hours of an
           H200 at 40% of its peak: an estimate from 6 FLOPs per parameter and token. text: 22 points of micro on
           WikiText-2, 32,000 examples, two seeds, with what laptop's search chose, then half an epoch of SST-2: 22
           minutes, estimated. sharing: 9 points, 24 minutes, measured beside other work.
Published  Gisserot-Boukhlef et al. (610M), Ettin's crossed objectives, ELECTRA's table 5 and its and DeBERTaV3's shared
           embeddings, all second hand: from notes on the papers, unchecked in them; MDLM's perplexities and GLUE. All
           stand beside our effects. Where two of our objectives have different losses, the task's score alone compares.
Figures    experiments/results/objectives.md
"""

from collections.abc import Sequence

from mlm.experiment import searches
from mlm.experiment.grid import chain_points, cross_points, drop_fields, make_seeds, name_points
from mlm.experiment.recipes import (
    ARCHITECTURE_FIELDS,
    FAMILY_FIELDS,
    PAPER_TASKS,
    QUICK_TASKS,
    SMALL,
    TEXT_TASKS,
    TRANSFORMERS,
    TUNED_FIELDS,
    WETTIG,
    read_text,
    set_training_length,
)
from mlm.experiment.search_space import Choice, LogUniform, apply_values
from mlm.report import excess_loss, run_columns, series, summary
from mlm.report.paper_tables import PaperTable
from mlm.report.table import Column

NUM_EXAMPLES, EVAL_INTERVAL = 32_000, 6_400  # taken in by a run, and between two evaluations
REPLACED, SHARING = "replaced_token_detection", "replaced_token_detection.embeddings"  # an objective, its field
REPLACED_FIELDS = {"objective": REPLACED, "mask.rate": 0.3}


def make_masked(rate: float) -> dict:
    return {"name": f"masked{100 * rate:g}", "objective": "mlm", "mask.rate": rate}


def make_hybrid(name: str, causal_fraction: float = 0.0, causal_first_fraction: float = 0.0) -> dict:
    return {
        "name": name,
        "objective": "hybrid",
        "mask.rate": 0.3,
        "hybrid.causal_fraction": causal_fraction,
        "hybrid.causal_first_fraction": causal_first_fraction,
    }


OBJECTIVES = {
    point["name"]: point
    for point in (
        make_masked(0.15),
        make_masked(0.3),
        make_masked(0.4),
        {"name": "causal", "objective": "causal"},
        make_hybrid("next30"),
        make_hybrid("causal25", causal_first_fraction=0.25),
        make_hybrid("causal50", causal_first_fraction=0.5),
        make_hybrid("causal75", causal_first_fraction=0.75),
        make_hybrid("hybrid", causal_fraction=0.0625),
        {"name": "diffusion", "objective": "diffusion"},
        REPLACED_FIELDS | {"name": REPLACED},
        REPLACED_FIELDS | {"name": "shared_embeddings", SHARING: "shared"},
        REPLACED_FIELDS | {"name": "disentangled_embeddings", SHARING: "disentangled"},
        {"name": "apart", "objective": "causal", "model.directionality": "two_stack"},
        {"name": "denoising", "objective": "denoising", "mask.rate": 0.3},
    )
}
LABELS = {
    "mlm": "masked, {rate:.0%}",
    "causal": "causal",
    "diffusion": "diffusion",
    "denoising": "denoising, {rate:.0%}",
    "replaced_token_detection": "replaced token detection, {rate:.0%}",
    "hybrid": "masked next token, {rate:.0%}",
}
GISSEROT = "Gisserot-Boukhlef et al. 2025, 610M; second hand"
GISSEROT_SCORES = ("sequences", "tokens", "questions", "retrieval")
GISSEROT_MASKED = (87.00, 92.21, 62.77, 79.55)
PAPER_TABLES = (
    PaperTable(
        GISSEROT,
        GISSEROT_SCORES,
        {"masked": GISSEROT_MASKED, "causal": (83.58, 92.69, 42.09, 76.20)},
        {"masked": "masked30", "causal": "causal"},
    ),
    PaperTable(
        GISSEROT,
        GISSEROT_SCORES,
        {"masked alone": GISSEROT_MASKED, "causal for 10k of 42k steps, then masked": (87.85, 93.07, 67.77, 79.88)},
        {"masked alone": "next30", "causal for 10k of 42k steps, then masked": "causal25"},
    ),
    PaperTable(
        "Ettin (arXiv:2507.11412), 150M; second hand",
        ("retrieval", "MNLI", "generation"),
        {
            "encoder": (39.97, 89.2, 42.9),
            "decoder": (37.71, 85.6, 46.2),
            "encoder from the decoder": (39.49, 85.8, 43.7),
            "decoder from the encoder": (37.55, 86.8, 43.6),
        },
        {"encoder": "masked30", "decoder": "causal"},
    ),
    PaperTable(
        "Clark et al. 2020 (ELECTRA), table 5; second hand",
        ("GLUE",),
        {
            "BERT": (82.2,),
            "replaced token detection, a loss of 15% of tokens": (82.4,),
            "masked, a loss of all tokens": (84.3,),
            "replaced token detection": (85.0,),
        },
        {"BERT": "masked30", "replaced token detection": REPLACED},
    ),
    PaperTable(
        "Clark et al. 2020 (ELECTRA), what the generator shares; second hand",
        ("GLUE",),
        {"no embeddings": (83.6,), "token embeddings": (84.3,), "all embeddings": (84.4,)},
        {"no embeddings": REPLACED, "all embeddings": "shared_embeddings"},
    ),
    PaperTable(
        "He et al. 2023 (DeBERTaV3), shared embeddings; second hand",
        ("MNLI",),
        {
            "no shared embeddings (NES)": (88.3,),
            "shared embeddings (ES)": (88.8,),
            "gradient-disentangled embeddings (GDES)": (89.3,),
        },
        {
            "no shared embeddings (NES)": REPLACED,
            "shared embeddings (ES)": "shared_embeddings",
            "gradient-disentangled embeddings (GDES)": "disentangled_embeddings",
        },
    ),
    PaperTable(
        "MDLM (arXiv:2406.07524), LM1B",
        ("perplexity",),
        {"causal": (22.32,), "diffusion": (27.04,)},
        {"causal": "causal", "diffusion": "diffusion"},
    ),
    PaperTable(
        "MDLM (arXiv:2406.07524), BERT continued", ("GLUE",), {"masked": (81.62,), "diffusion after it": (82.06,)}
    ),
)
SHARED_FIELDS = {"mask.max_rate": 0.4}  # one compiled program serves all rates
FAMILIES = {name: FAMILY_FIELDS[name] for name in ("window", "gru", "transformer")}
ENCODER_DECODERS = {
    name: {"name": f"2x-{name}", "model.family": "encoder_decoder", "model.cell": name}
    for name in ("gru", "transformer")
}  # for `denoising`
FAMILIES_ONLY = ("apart", "denoising")  # of scale families alone
SHARING_ONLY = ("shared_embeddings", "disentangled_embeddings")  # of scale sharing alone
GENERATOR_ROW = "masked30-transformer"
MAIN_OBJECTIVES = tuple(name for name in OBJECTIVES if name not in FAMILIES_ONLY + SHARING_ONLY)
BASE_FIELDS = (
    SMALL | SHARED_FIELDS | {"model.size": "micro", "data.language.train_documents": NUM_EXAMPLES}
)  # every row once


def select_tuned(models: dict[str, dict], num_examples: int) -> list[dict]:
    """Members as recipes.TUNED_FIELDS has them, for so many rows."""
    return [
        {"name": name}
        | ARCHITECTURE_FIELDS[name]
        | set_training_length(num_examples, EVAL_INTERVAL, TUNED_FIELDS[name])
        | fields
        for name, fields in models.items()
    ]


SCALES = {
    "quick": {
        "objectives": ("masked30", "causal", "hybrid", "diffusion", "replaced_token_detection"),
        "seeds": 1,
        "members": [{"name": "transformer"}],
        "fields": TRANSFORMERS["quick"] | SHARED_FIELDS,
    },
    "laptop": {
        "objectives": MAIN_OBJECTIVES,
        "seeds": 3,
        "members": select_tuned({"transformer": FAMILIES["transformer"]}, NUM_EXAMPLES),
        "fields": BASE_FIELDS | QUICK_TASKS,
    },
    "families": {
        "objectives": ("masked30", "causal", "causal50", "hybrid", "diffusion", *FAMILIES_ONLY),
        "seeds": 3,
        "members": select_tuned(FAMILIES, NUM_EXAMPLES // 2) + select_tuned(ENCODER_DECODERS, NUM_EXAMPLES // 2),
        "fields": BASE_FIELDS,
    },
    "text": {
        "objectives": MAIN_OBJECTIVES,
        "seeds": 2,
        "members": select_tuned({"transformer": FAMILIES["transformer"]}, NUM_EXAMPLES),
        "search": "laptop",
        "fields": read_text(BASE_FIELDS) | TEXT_TASKS,
    },
    "sharing": {
        "objectives": (REPLACED, *SHARING_ONLY),
        "seeds": 3,
        "members": select_tuned({"transformer": FAMILIES["transformer"]}, NUM_EXAMPLES // 2),
        "search": "laptop",
        "fields": read_text(BASE_FIELDS) | TEXT_TASKS,
    },
    "paper": {
        "objectives": MAIN_OBJECTIVES,
        "seeds": 1,
        "members": [{"name": "base", "model.size": "base"}],
        "fields": WETTIG | SHARED_FIELDS | PAPER_TASKS,
    },
}
SEARCHES = searches.read_searches(__file__)
COLUMNS = (Column("objective", "objective"), *run_columns.select_columns("model", "size", "learning_rate"))
RESULT_TABLES = ("claims", "papers", "search-laptop")


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets; what an objective does not read of the scale's is left out."""
    plan = SCALES[scale]
    seeds = make_seeds(plan["seeds"])

    def points(objective, member):
        fields = plan["fields"] | member if "mask.rate" in objective else drop_fields(plan["fields"] | member, "mask")
        return cross_points(
            [
                {key: value for key, value in fields.items() if key != "name"}
                | objective
                | {"name": f"{objective['name']}-{member['name']}"}
            ],
            seeds,
        )

    found = chain_points(
        *(
            points(OBJECTIVES[name], member)
            for member in plan["members"]
            for name in plan["objectives"]
            if (name == "denoising") == (member.get("model.family") == "encoder_decoder")
        )
    )
    search = plan.get("search", scale)
    chosen = searches.find_chosen(SEARCHES, search, GENERATOR_ROW)
    return {
        name: apply_values(point, chosen) if point["objective"] == REPLACED else point
        for name, point in searches.apply_choices(name_points(found), SEARCHES, search).items()
    }


def search_space(point: dict) -> dict:
    """What mlm sweep search tries for a row; nothing for replaced token detection, whose trials do not compare."""
    if point["objective"] == REPLACED:
        return {}
    return {"optim.learning_rate": LogUniform(1e-3, 1.6e-2), "optim.warmup_fraction": Choice((0.06, 0.2))}


def format_objective(config: dict) -> str:
    """What a run was trained to predict."""
    label = LABELS[config["objective"]].format(rate=config.get("mask.rate", 0.0))
    label += ", two stacks" if config["model.directionality"] == "two_stack" else ""
    if config["objective"] == REPLACED and config[SHARING] != "separate":
        label += f", {config[SHARING]} embeddings"
    if config["objective"] == "hybrid":
        first, share = config["hybrid.causal_first_fraction"], config["hybrid.causal_fraction"]
        label += f"; {share:.2%} of examples causal" if share else ""
        label += f"; causal for the first {first:.0%} of steps" if first else ""
    return label


def facet(result: dict) -> str:
    """The small multiple of a run's line: GPT-BERT's masked next token, alone or with causal steps, and the others."""
    return "masked next token" if result["config"]["objective"] == "hybrid" else "other objectives"


def describe_row(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    model = run_columns.name_model(config)
    model += " encoder-decoder" if config["model.family"] == "encoder_decoder" else ""
    return {"objective": format_objective(config), "model": model, **excess_loss.probe_accuracies(seeds, "accuracy")}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Of the losses that ask for the same tokens: causal steps first are better than none, and a few causal rows."""
    return [(better, "next30-transformer") for better in ("causal25-transformer", "hybrid-transformer")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each objective and model; the optimum of the probes is theirs."""
    rows, columns = summary.build_table(results, COLUMNS, describe_row, excess_loss.PROBES)
    optimum = excess_loss.probe_accuracies([result for result in results if series.probe_results(result)], "optimum")
    return [row | optimum if row["objective"] == "Bayes optimum" else row for row in rows], columns
