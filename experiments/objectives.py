"""What changes when only the objective changes: masked, causal, the two together, diffusion, replaced?

Claim      "Should We Still Pretrain Encoders with MLM?" (Gisserot-Boukhlef et al. 2025, arXiv:2507.00994): masked
           models fine-tune better, causal ones learn from less; causal steps and then masked ones are best at equal
           compute (of 0, 25, 50, 75 and 100% causal). GPT-BERT (Charpentier & Samuel 2024, arXiv:2410.24159): with a
           sixteenth of the rows causal, all told by the state before, one model does both. Diffusion language models
           (MDLM, arXiv:2406.07524; LLaDA, arXiv:2502.09992) come close to causal ones in the bound on a text's
           probability. ELECTRA (Clark et al. 2020, arXiv:2003.10555): to tell which tokens were replaced learns from
           all of them, and fine-tunes better than masking at equal compute.
How        One architecture, the same rows, steps and learning rate. Each is judged by its own loss above its own exact
           floor: losses of other questions do not compare, so that the table says on what each was judged. Causal and
           diffusion models tell whole documents, and stand beside each other in nats per document ("loss of a document
           above the floor"). What all can be asked: the task's score once fine-tuned, with its optimum. What those that
           fill in can: verbs that agree and names that recur, each masked alone.
Command    python -m mlm.launch.sweep run experiments/objectives.py --scale=laptop --workers=2
           (equal training FLOPs instead of equal tokens: --budget=flops, with a --config.workdir of its own)
Scales     quick: one of each kind, for a first look. laptop: all, three seeds. families: every objective with a floor
           (also both sides apart) with a window, a GRU and a Transformer, and encoder-decoders that denoise, with as
           many layers on each side; three seeds, half the rows, no task: the table of gaps. paper: base size, English
           Wikipedia, the recipe of Wettig et al. 2022 for all, since the papers' differ from each other.
Hours      quick: a minute a point on 2 CPU cores. laptop: 33 points, 42 minutes with --workers=2. families: 60 points,
           an hour and a half, a third of it the recurrent encoder-decoder's: reckoned from the 45 of the others, 49
           minutes with other work beside. paper: 11 points of some 5 hours of an H200 at 40% of its peak: an estimate
           from 6 FLOPs a parameter and token.
"""
from collections.abc import Sequence

from mlm.experiment.grid import axis, chain, named, product, without
from mlm.experiment.recipes import BEST, OWN, PAPER_TASKS, QUICK, QUICK_TASKS, SMALL, WETTIG, of_rows
from mlm.report import evaluation_columns, series, summary
from mlm.report.table import Column

ROWS, EVERY = 32_000, 6_400  # taken in by a run, and between two evaluations


def masked(rate: float) -> dict:
    return {"name": f"masked{100 * rate:g}", "objective": "mlm", "mask.rate": rate}


def hybrid(name: str, causal: float = 0.0, first: float = 0.0) -> dict:
    return {"name": name, "objective": "hybrid", "mask.rate": 0.3, "hybrid.causal_fraction": causal,
            "hybrid.causal_first_fraction": first}


OBJECTIVES = {point["name"]: point for point in (
    masked(0.15), masked(0.3), masked(0.4), {"name": "causal", "objective": "causal"},
    hybrid("next30"), hybrid("causal25", first=0.25), hybrid("causal50", first=0.5), hybrid("causal75", first=0.75),
    hybrid("hybrid", causal=0.0625), {"name": "diffusion", "objective": "diffusion"},
    {"name": "replaced", "objective": "replaced", "mask.rate": 0.3},
    {"name": "apart", "objective": "causal", "model.context": "apart"},
    {"name": "denoise", "objective": "denoise", "mask.rate": 0.3})}
LABELS = {"mlm": "masked, {rate:.0%}", "causal": "causal", "diffusion": "diffusion", "denoise": "denoised, {rate:.0%}",
          "replaced": "replaced by a generator, {rate:.0%}", "hybrid": "masked, {rate:.0%}, told by the state before"}
ALL = {"mask.max_rate": 0.4}  # one compiled program serves all rates
FAMILIES = {"window": {"model.family": "feedforward", "model.cell": "window"},
            "gru": {"model.family": "rnn", "model.cell": "gru"}, "transformer": {"model.family": "transformer"}}
SOURCED = {name: {"name": f"2x-{name}", "model.family": "encoder_decoder", "model.cell": name}
           for name in ("gru", "transformer")}  # for `denoise`
BESIDE = ("apart", "denoise")  # of scale families alone
MAIN = tuple(name for name in OBJECTIVES if name not in BESIDE)
SHORT = SMALL | ALL | {"model.size": "micro", "data.language.train_documents": ROWS}  # every row once


def chosen(members: dict[str, dict], rows: int) -> list[dict]:
    """Members as recipes.BEST has them, for so many rows."""
    return [{"name": name} | OWN[name] | of_rows(rows, EVERY, BEST[name]) | own for name, own in members.items()]


SCALES = {
    "quick": {"objectives": ("masked30", "causal", "hybrid", "diffusion", "replaced"), "seeds": 1,
              "members": [{"name": "transformer"}],
              "fields": QUICK | OWN["transformer"] | ALL | QUICK_TASKS},
    "laptop": {"objectives": MAIN, "seeds": 3, "members": chosen({"transformer": FAMILIES["transformer"]}, ROWS),
               "fields": SHORT | QUICK_TASKS},
    "families": {"objectives": ("masked30", "causal", "causal50", "hybrid", "diffusion", *BESIDE), "seeds": 3,
                 "members": chosen(FAMILIES, ROWS // 2) + chosen(SOURCED, ROWS // 2), "fields": SHORT},
    "paper": {"objectives": MAIN, "seeds": 1, "members": [{"name": "base", "model.size": "base"}],
              "fields": WETTIG | ALL | PAPER_TASKS},
}
COLUMNS = (Column("objective", "objective"), Column("model", "model"), Column("size", "size"))


def sweep(scale: str) -> dict[str, dict]:
    """Points by name, each the fields it sets; what an objective does not read of the scale's is left out."""
    plan = SCALES[scale]
    seeds = axis("seed", *range(plan["seeds"]), name="seed{}")

    def points(objective, member):
        fields = plan["fields"] | member if "mask.rate" in objective else without(plan["fields"] | member, "mask")
        return product([{key: value for key, value in fields.items() if key != "name"} | objective
                        | {"name": f"{objective['name']}-{member['name']}"}], seeds)

    return named(chain(*(points(OBJECTIVES[name], member) for member in plan["members"] for name in plan["objectives"]
                         if (name == "denoise") == (member.get("model.family") == "encoder_decoder"))))


def label(config: dict) -> str:
    """What a run was trained to tell."""
    said = LABELS[config["objective"]].format(rate=config.get("mask.rate", 0.0))
    said += ", both sides apart" if config["model.context"] == "apart" else ""
    if config["objective"] == "hybrid":
        first, share = config["hybrid.causal_first_fraction"], config["hybrid.causal_fraction"]
        said += f"; {share:.3g} of the rows causal" if share else ""
        said += f"; causal for the first {first:.0%} of the steps" if first else ""
    return said


def about(seeds: Sequence[dict]) -> dict:
    config = seeds[0]["config"]
    model = config["model.cell"] or config["model.family"]
    model += " encoder-decoder" if config["model.family"] == "encoder_decoder" else ""
    return {"objective": label(config), "model": model,
            "size": config["model.size"], **evaluation_columns.probes(seeds, "accuracy")}


def claims(names: Sequence[str]) -> list[tuple[str, str]]:
    """Of the losses that ask for the same tokens: causal steps first are better than none, and a few causal rows."""
    return [(better, "next30-transformer") for better in ("causal25-transformer", "hybrid-transformer")]


def table(results: Sequence[dict]) -> tuple[list[dict], Sequence[Column]]:
    """A row for each objective and model; the optimum of the probes is theirs."""
    rows, columns = summary.table(results, COLUMNS, about, evaluation_columns.PROBES)
    best = evaluation_columns.probes([result for result in results if series.probes(result)], "optimum")
    return [row | best if row["objective"] == "exact optimum" else row for row in rows], columns
