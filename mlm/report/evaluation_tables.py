"""Tables of one run from its evaluations.json: embeddings, prompts and translation."""

from collections.abc import Mapping, Sequence

from mlm.base.estimates import Estimate, ItemInterval, SeedRange, wilson_interval
from mlm.report.table import Column

GEOMETRY_COLUMNS = (
    Column("anisotropy", "cosine of two words' states", ".3f"),
    Column("self_similarity", "cosine of one word in two examples", ".3f"),
    Column("self_similarity_adjusted", "minus that of two words", ".3f"),
    Column("explained", "variance explained by a static vector", ".3f"),
    Column("explained_random", "of random states", ".3f"),
    Column("explained_adjusted", "minus that of random states", ".3f"),
)


def name_layers(values: Sequence[dict]) -> dict[str, dict]:
    """The values of each layer, by its name."""
    return {f"layer {number}" if number else "embeddings": entry for number, entry in enumerate(values)}


def build_geometry_table(run: Mapping) -> tuple[list[dict], Sequence[Column]]:
    """How much the states of held-out words depend on their context: a row per layer."""
    rows = [
        {"layer": layer} | {column.name: normal_interval(values, column.name) for column in GEOMETRY_COLUMNS}
        for evaluation in run["evaluations"].get("anisotropy", {}).values()
        for layer, values in name_layers(evaluation["layers"]).items()
    ]
    return rows, (Column("layer", "layer"), *GEOMETRY_COLUMNS)


def build_similarity_table(run: Mapping) -> tuple[list[dict], Sequence[Column]]:
    """How well embeddings predict sentence similarity: a row per split and embedding."""
    rows = []
    for split, evaluation in run["evaluations"].get("sts", {}).items():
        embeddings = {"static": evaluation["static"]}
        for layer, by_pooling in name_layers(evaluation["layers"]).items():
            embeddings |= {f"{pooling}, {layer}": values for pooling, values in by_pooling.items()}
        rows += [
            {"split": split, "pairs": evaluation["pairs"], "embedding": name}
            | {
                score: f"undefined: {values['undefined']}" if "undefined" in values else normal_interval(values, score)
                for score in ("spearman", "pearson")
            }
            for name, values in embeddings.items()
        ]
    return rows, (
        Column("split", "similarity"),
        Column("pairs", "pairs", ",d"),
        Column("embedding", "embedding"),
        Column("spearman", "Spearman", ".3f"),
        Column("pearson", "Pearson", ".3f"),
    )


def build_prompt_table(run: Mapping) -> tuple[list[dict], Sequence[Column]]:
    """Accuracy with prompts: a row per task, pattern and verbalizers."""
    few_shot, rows = run["summary"].get("few_shot", {}), []
    for key, evaluation in run["evaluations"].get("zero_shot", {}).items():
        accuracy = evaluation["accuracy"]
        row = {name: evaluation[name] for name in ("task", "pattern", "examples", "truncated", "majority")}
        row |= {
            "words": " / ".join(evaluation["verbalizers"].values()),
            "zero_shot": ItemInterval(accuracy, *wilson_interval(accuracy, evaluation["examples"])),
        }
        if key in few_shot:
            row["few_shot"] = estimate_over_samples(few_shot[key])
        rows.append(row)
    columns = (
        Column("task", "prompt"),
        Column("pattern", "pattern"),
        Column("words", "words"),
        Column("examples", "examples", ",d"),
        Column("truncated", "truncated", ",d"),
        Column("majority", "majority", ".3f"),
        Column("zero_shot", "zero-shot accuracy", ".3f"),
        Column("few_shot", "few-shot accuracy", ".3f"),
    )
    return rows, [column for column in columns if any(column.name in row for row in rows)]


def build_translation_table(run: Mapping) -> tuple[list[dict], Sequence[Column]]:
    """The quality of translations: a row per search."""
    rows = [
        {**evaluation, "bleu": ItemInterval(evaluation["bleu"], evaluation["bleu_low"], evaluation["bleu_high"])}
        for evaluation in run["evaluations"].get("translation", {}).values()
    ]
    return rows, (
        Column("pairs_name", "translated"),
        Column("pairs", "pairs", ",d"),
        Column("num_beams", "beams", "d"),
        Column("length_penalty", "length penalty"),
        Column("bleu", "BLEU", ".1f"),
        Column("chrf", "chrF", ".1f"),
        Column("brevity", "length ratio", ".3f"),
        Column("signature", "sacrebleu"),
    )


def estimate_over_samples(evaluation: Mapping) -> Estimate:
    """The mean accuracy over several samples of training examples."""
    estimate_class = Estimate if evaluation["samples"] != 2 else SeedRange
    return estimate_class(*(evaluation[f"accuracy{suffix}"] for suffix in ("", "_low", "_high")))


def normal_interval(values: Mapping, name: str) -> ItemInterval:
    """A value with its 95% interval from the standard error."""
    half_width = 1.96 * values[f"{name}_se"]
    return ItemInterval(values[name], values[name] - half_width, values[name] + half_width)


TABLES = (build_geometry_table, build_similarity_table, build_prompt_table, build_translation_table)
