"""Tables of what one run answered of embeddings, by cloze and in translation: each of (contents of judged.json)."""
from collections.abc import Mapping, Sequence

from mlm.base.estimates import Estimate, OverItems, Range, wilson
from mlm.report.table import Column

GEOMETRY = (Column("anisotropy", "cosine of two words' states", ".3f"),
            Column("self_similarity", "of one word in two rows", ".3f"),
            Column("self_similarity_adjusted", "more than of two words", ".3f"),
            Column("explained", "share of one static vector", ".3f"),
            Column("explained_random", "of random states", ".3f"),
            Column("explained_adjusted", "more than of random states", ".3f"))


def layers(values: Sequence[dict]) -> dict[str, dict]:
    """What was said of each layer, by its name."""
    return {f"layer {number}" if number else "embeddings": one for number, one in enumerate(values)}


def geometry(judged: Mapping) -> tuple[list[dict], Sequence[Column]]:
    """How far states of held-out text are their words' own: a row a layer."""
    rows = [{"layer": layer} | {column.name: within_error(values, column.name) for column in GEOMETRY}
            for answer in judged["answers"].get("embeddings", {}).values()
            for layer, values in layers(answer["layers"]).items()]
    return rows, (Column("layer", "layer"), *GEOMETRY)


def similarities(judged: Mapping) -> tuple[list[dict], Sequence[Column]]:
    """How well embeddings tell how alike sentences are: a row a split and embedding."""
    rows = []
    for split, answer in judged["answers"].get("sts", {}).items():
        found = {"static": answer["static"]}
        for layer, of_layer in layers(answer["layers"]).items():
            found |= {f"{read}, {layer}": values for read, values in of_layer.items()}
        rows += [{"split": split, "pairs": answer["pairs"], "embedding": name}
                 | {score: within_error(values, score) for score in ("spearman", "pearson")}
                 for name, values in found.items()]
    return rows, (Column("split", "similarity"), Column("pairs", "pairs", ",d"), Column("embedding", "embedding"),
                  Column("spearman", "Spearman", ".3f"), Column("pearson", "Pearson", ".3f"))


def prompts(judged: Mapping) -> tuple[list[dict], Sequence[Column]]:
    """What is right by cloze: a row a task, pattern and words."""
    few, rows = judged["summary"].get("few_shot", {}), []
    for key, answer in judged["answers"].get("zero_shot", {}).items():
        share = answer["accuracy"]
        row = {name: answer[name] for name in ("task", "pattern", "examples", "cut", "majority")}
        row |= {"words": " / ".join(answer["verbalisers"].values()),
                "zero_shot": OverItems(share, *wilson(share, answer["examples"]))}
        if key in few:
            row["few_shot"] = over_draws(few[key])
        rows.append(row)
    columns = (Column("task", "by cloze"), Column("pattern", "pattern"), Column("words", "words"),
               Column("examples", "examples", ",d"), Column("cut", "cut", ",d"), Column("majority", "majority", ".3f"),
               Column("zero_shot", "zero-shot accuracy", ".3f"), Column("few_shot", "few-shot accuracy", ".3f"))
    return rows, [column for column in columns if any(column.name in row for row in rows)]


def translations(judged: Mapping) -> tuple[list[dict], Sequence[Column]]:
    """How good translations are: a row a search."""
    rows = [{**answer, "bleu": OverItems(answer["bleu"], answer["bleu_low"], answer["bleu_high"])}
            for answer in judged["answers"].get("translation", {}).values()]
    return rows, (Column("of", "translated"), Column("pairs", "pairs", ",d"), Column("beam", "beam", "d"),
                  Column("normalise", "log P over"), Column("bleu", "BLEU", ".1f"), Column("chrf", "chrF", ".1f"),
                  Column("brevity", "length", ".3f"), Column("signature", "sacrebleu"))


def over_draws(found: Mapping) -> Estimate:
    """The accuracy of several draws of examples."""
    kind = Estimate if found["draws"] != 2 else Range
    return kind(*(found[f"accuracy{end}"] for end in ("", "_low", "_high")))


def within_error(values: Mapping, name: str) -> OverItems:
    """A value with the interval that its standard error gives."""
    half = 1.96 * values[f"{name}_se"]
    return OverItems(values[name], values[name] - half, values[name] + half)


TABLES = (geometry, similarities, prompts, translations)
