"""Columns of what trained runs were asked since: a column for the same texts or tasks alone, a number for all seeds or
none."""
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base.estimates import PERCENT, REAL, SHARE, Estimate, Score, estimate
from mlm.report import series
from mlm.report.table import Column

METRIC = "pll_word_l2r"
PROBES = (Column("near", "agreement, 1-3 words", ".3f"), Column("far", "agreement, 9-16 words", ".3f"),
          Column("recall", "name recall", ".3f"))
# For what a fine-tuning sets; else as it is set.
WORDS = {"finetune.trainable_layers=0": "head alone", "finetune.trainable_layers=1": "last layer",
         "from_scratch": "nothing pretrained"}


class Text(NamedTuple):
    """What a run can be asked: the column of the table, what it is called there, the SHA-256 of all that was asked, and
    how its numbers are written and bounded."""

    column: str
    title: str
    sha256: str
    form: str = ".1f"
    within: tuple[float, float] = PERCENT


class Answer(NamedTuple):
    """What a run answered: the value, its standard error over what was asked, and how much that was; what of it came to
    nothing; the values that it is the mean of; and what is known without a model, by whose it is."""

    value: float
    error: float | None
    about: str
    failed: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    references: tuple[tuple[str, float], ...] = ()


def answers(result: dict) -> Iterator[tuple[Text, Answer]]:
    """What a run was asked of sentences, and of each suite of minimal pairs, by PLL-word-l2r; what it gave once
    fine-tuned; how alike states and sentences are; and tasks put as a cloze."""
    held = result["answers"].get("sentences", {}).get("all")
    if held:
        values = held[METRIC]
        yield (Text("pseudo_perplexity", "pseudo-perplexity per word", held["sha256"], ".2f", REAL),
               Answer(values["word_perplexity"], values["word_perplexity_se"] if held["sentences"] > 1 else None,
                      f"{held['sentences']:,} sentences"))
    for suite in result["summary"].get("pairs", {}).values():
        overall = suite["overall"]
        yield (Text(f"pairs_{suite['suite']}", f"{suite['suite']}: pairs right (%)", suite["sha256"]),
               Answer(100 * overall[f"{METRIC}_accuracy"], None,
                      f"{overall['pairs']:,} pairs in {overall['paradigms']:,} paradigms"))
    for task in result["summary"].get("tasks", {}).values():
        yield tuned(result, task)
    yield from embeddings(result)
    yield from prompts(result)


def tuned(result: dict, task: dict) -> tuple[Text, Answer]:
    """The score of a task (mlm/evaluation/finetuned_tasks.py) on dev: the mean over fine-tuning seeds; of one, its error over
    rows."""
    score, variant, seeds = Score(**task["score"]), task["variant"].split(), task["seeds"]
    unit, form, within = (100, ".1f", PERCENT) if score.share else (1, score.form, REAL)
    name = "_".join((f"task_{task['task']}", *variant))
    title = (", ".join((task["title"], *(WORDS.get(word, word) for word in variant)))
             + f": {score.title.removeprefix('held-out ')}" + (" (%)" if score.share else ""))
    trials = (f"the best of {task['trials']} trials (learning rate x epochs x batch size)" if task["trials"] > 1
              else "one trial")
    about = f"dev, {'mean of ' if len(seeds) > 1 else ''}{many(len(seeds), 'fine-tuning seed')}, {trials}"
    run = Path(result["config"]["workdir"]).name
    return (Text(name, title, task["sha256"], form, within),
            Answer(unit * sum(task["values"]) / len(seeds), unit * task["error"] if "error" in task else None,
                   f"{about}; {task['note']}" if task["note"] else about,
                   tuple(f"{run} s{seed}" for seed in task["failed"]), tuple(unit * value for value in task["values"]),
                   tuple((name, unit * value) for name, value in task["references"].items())))


def apart(result: dict, names: Mapping[str, str]) -> Iterator[dict]:
    """For each of its config.downstream.variants a run with what it was fine-tuned for in that one, as if it were the
    recipe; its "variant" says which: by the name of its last word among `names`, where it alone ends so, or as it is.
    """
    folder, _, run = result["config"]["workdir"].rpartition("/")
    variants = [variant.split() or [""] for variant in result["config"]["downstream.variants"].split(",")]
    for words in variants:
        alone = [other[-1] for other in variants].count(words[-1]) == 1
        called = names.get(words[-1], " ".join(words)) if alone else " ".join(words)
        tasks = {name: task | {"variant": ""} for name, task in result["summary"].get("tasks", {}).items()
                 if task["variant"] == " ".join(words)}
        yield result | {"variant": called, "summary": result["summary"] | {"tasks": tasks},
                        "config": result["config"] | {"workdir": f"{folder}/{called} {run}"}}


def many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def embeddings(result: dict) -> Iterator[tuple[Text, Answer]]:
    """How alike states of held-out text are, and how well embeddings tell how alike sentences are, at the last layer.
    """
    if held := result["answers"].get("embeddings", {}).get("held-out"):
        last, about = held["layers"][-1], f"{held['words']:,} words in {held['rows']:,} held-out rows"
        for name, title in GEOMETRY.items():
            yield Text(name, title, held["sha256"], ".3f", REAL), Answer(last[name], last[f"{name}_se"], about)
    for split, found in result["answers"].get("sts", {}).items():
        for read, values in {"static": found["static"], **found["layers"][-1]}.items():
            yield (Text(f"{split.replace('/', '_')}_{read}", f"{split}: Spearman of {READS[read]}", found["sha256"],
                        ".3f", (-1.0, 1.0)),
                   Answer(values["spearman"], values["spearman_se"], f"{found['pairs']:,} pairs of sentences"))


GEOMETRY = {"anisotropy": "cosine of two words' states",
            "self_similarity_adjusted": "more of one word in two rows",
            "explained_adjusted": "share of one static vector, above random"}
READS = {"static": "static vectors", "cls": "[CLS]", "mean": "mean states"}


def prompts(result: dict) -> Iterator[tuple[Text, Answer]]:
    """The accuracy of each task that was put as a cloze, of few-shot the mean over all draws of examples."""
    for found in result["answers"].get("zero_shot", {}).values():
        about = f"{found['examples']:,} examples of dev, {found['majority']:.1%} of the majority class"
        yield (Text(f"zero_shot_{found['task']}", f"{found['task']}: zero-shot (%)", found["sha256"]),
               Answer(100 * found["accuracy"], 100 * found["accuracy_se"], about))
    for found in result["summary"].get("few_shot", {}).values():
        yield (Text(f"few_shot_{found['task']}", f"{found['task']}: few-shot (%)", found["sha256"]),
               Answer(100 * found["accuracy"], None, f"the mean of {found['draws']} draws of examples"))


def columns(results: Sequence[dict]) -> dict[Text, Column]:
    """A column for each text that some run was asked; the digits of its SHA-256 tell apart those of one title."""
    found: dict[Text, list[Answer]] = {}
    for result in results:
        for text, answer in answers(result):
            found.setdefault(text, []).append(answer)
    names = [text.column for text in found]
    made = {}
    for text, every in found.items():
        same, digits = names.count(text.column) > 1, text.sha256[:4]
        title = f"{text.title}, {digits}" if same else text.title
        made[text] = Column(f"{text.column}_{digits}" if same else text.column, title, text.form,
                            f"{title}: {every[-1].about}{failures(every)}.")
    return made


def failures(every: Sequence[Answer]) -> str:
    """Which fine-tunings came to nothing, of how many."""
    failed = [name for answer in every for name in answer.failed]
    total = sum(len(answer.values) for answer in every)
    return (f"; failed (no better than the majority class, or 0, or not finite), {len(failed)} of {total}: "
            f"{', '.join(failed)}" if failed else "")


def cells(seeds: Sequence[dict], columns: dict[Text, Column]) -> dict:
    """A group's cells: the mean over its runs where all were asked the same, and how many were where not all were. Of
    one run that was fine-tuned several times the interval is over those.
    """
    row, every = {}, [dict(answers(result)) for result in seeds]
    for text, column in columns.items():
        found = [of_run[text] for of_run in every if text in of_run]
        if len(found) == len(seeds):
            row[column.name] = estimate((found[0].values if len(found) == 1 and found[0].values else
                                         (answer.value for answer in found)), text.within)
            if len(found) == 1 and found[0].error is not None:
                row[f"{column.name}_se"] = found[0].error
        elif found:
            row[column.name] = f"{len(found)} of {len(seeds)} seeds judged"
    return row


def references(results: Sequence[dict], columns: dict[Text, Column]) -> dict[str, dict]:
    """The cells of what is known without a model, by whose it is: the majority class, and the best there is."""
    rows: dict[str, dict] = {}
    for result in results:
        for text, answer in answers(result):
            for name, value in answer.references:
                rows.setdefault(name, {})[columns[text].name] = value
    return rows


def papers(titles: Mapping[str, str]) -> tuple[Column, ...]:
    """A column of a paper's scores for each task, by its name and its title there; `paper` fills them."""
    return tuple(Column(f"task_{task}_paper", f"paper's {title}", ".1f") for task, title in titles.items())


def paper(titles: Mapping[str, str], values: Sequence[float]) -> dict[str, float]:
    """A row's cells in those columns."""
    return {f"task_{task}_paper": value for task, value in zip(titles, values, strict=True)}


def probes(results: Sequence[dict], which: str) -> dict[str, Estimate]:
    """The share of items that all models, or the optimum, get right: verbs near and far, and names."""
    each = [series.probes(result) for result in results]
    found = {"recall": [asked["recall"] for asked in each if which in asked.get("recall", {})]}
    for name, low in (("near", 1), ("far", 9)):
        found[name] = [one for asked in each for one in asked.get("agreement", {}).get("distance", [])
                       if one["low"] == low]
    return {name: estimate((one[which] for one in there), SHARE) for name, there in found.items()
            if there and len(there) == len(results)}
