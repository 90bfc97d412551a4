"""A search that is the same for every row of a sweep: as many trials, the same pruning, a split that no table reads.

Pruning is successive halving (Jamieson & Talwalkar 2016), and each rung trains anew, with a schedule of its own length
(docs/guides/sweep.md). To go on from a checkpoint costs less, but then trials would be compared before their decay:
a high rate looks worse there than it is at its end, where most of its gain is made, and whoever warms up longer looks
later than it will be. What a short run cannot show stays a bias of all pruning: recipes that are best for short runs
pass. The rungs are written beside the choice for that reason.

The table never reads what chose: trials of the built-in language have documents of another seed, in training too; those
of text are held out from the train split (data.search_fraction). Each trial has a seed of its own, of no table, so that
the trials of a row are independent draws, as the expected best of k trials supposes.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import conditional_fields, config, errors, fields
from mlm.data.text import parallel_text
from mlm.experiment import search_space
from mlm.experiment.grid import drop_fields
from mlm.experiment.searches import RowSearch, Trial
from mlm.launch.sweep import sweep_points, sweep_state
from mlm.report import series
from mlm.training.run import resolution

TRIAL_SEED = 2**20  # the seed of a row's first trial; a table's seeds count from 0
LANGUAGE_SEED = 2**31  # added to data.language.seed
SEARCH_FRACTION = 0.05  # of the train split
# What is measured beside the held-out loss takes time, and no trial is chosen by it.
UNUSED_FIELDS = (
    *("downstream", "train.eval_every", "train.milestones"),
    *("eval.mask_rates", "eval.beams", "eval.bleu_tokenizer", "eval.context_range"),
    *("eval.anisotropy", "eval.baseline", "eval.sts"),
)
DIVERGED = "DivergenceError"


class SearchRow(NamedTuple):
    """A row of the table: the fields of its first point, that point's resolved config, and what its trials vary."""

    point: dict[str, Any]
    cfg: config.Config
    space: search_space.Space


class SearchPlan(NamedTuple):
    """How every row is searched."""

    num_trials: int
    rungs: tuple[float, ...]  # shares of the row's training length, ascending; the last is 1
    seed: int


def build_rows(
    find_space: Callable[[dict], Any],
    sweep: Mapping[str, Mapping[str, Any]],
    configs: Sequence[config.Config],
    overrides: Mapping[str, Any],
) -> dict[str, SearchRow]:
    """The rows of a sweep by name. A row's space has those of its fields that the row reads; one without is left out.

    find_space: the experiment's search_space(point); configs: of the points, in their order. Raises ConfigError for a
    wrong space, a field of it that no row reads, and one that the command line sets.
    """
    rows: dict[str, SearchRow] = {}
    seen, unread = set[str](), dict[str, str]()
    for (name, point), cfg in zip(sweep.items(), configs, strict=True):
        row = re.sub(r"-seed\d+$", "", name)
        if row in seen:
            continue
        seen.add(row)
        space = find_space(dict(point))
        search_space.check_space(space, f"search_space(point {name})")
        if space:
            reasons = conditional_fields.find_unread_fields(resolution.FIELD_CONDITIONS, fields.flatten(cfg))
            unread |= {field: reasons[field] for field in space if field in reasons}
            rows[row] = SearchRow(dict(point), cfg, {name: space[name] for name in space if name not in reasons})
    errors.require(bool(rows), "search_space", "{}", "ranges by field of one row at least")
    searched = {field for row in rows.values() for field in row.space}
    for field, reason in unread.items():
        errors.require(field in searched, "search_space", field, f"fields that some row reads; {reason}")
    for field in searched & overrides.keys():
        raise errors.ConfigError(f"config.{field} = {overrides[field]!r}: the search varies it; leave it out")
    return rows


def find_search_split(cfg: config.Config) -> dict[str, Any]:
    """The fields with which trials are chosen on what no table reads. Raises ConfigError if there is no such split."""
    if cfg.data.corpus == "language" or parallel_text.is_generated(cfg.data):
        return {"data.language.seed": (cfg.data.language.seed + LANGUAGE_SEED) % 2**32}
    name = cfg.data.corpus
    expected = "a corpus with a part that no table reads, for a search: language, text, tfds or docstrings"
    errors.require(name in ("text", "tfds", "docstrings"), "config.data.corpus", name, expected)
    return {"data.search_fraction": SEARCH_FRACTION}


def build_trials(
    rows: Mapping[str, SearchRow], plan: SearchPlan, root: Path, base: config.Config, overrides: Mapping[str, Any]
) -> tuple[dict[str, list[dict]], Callable[[str, int, int], config.Config]]:
    """The values of each row's trials, and a function (row, trial, rung) -> the resolved config of a point."""
    kept = drop_fields(dict(overrides), "workdir", *UNUSED_FIELDS)
    values = search_space.draw_trials({name: row.space for name, row in rows.items()}, plan.num_trials, plan.seed)

    def make_point(name: str, number: int, rung: int) -> config.Config:
        row, own, share = rows[name], values[name][number], plan.rungs[rung]
        batch_size = own.get(search_space.BATCH, row.cfg.train.batch_size)
        num_examples = row.cfg.train.steps * row.cfg.train.batch_size * share  # in any batch
        trial_fields = {"train.steps": max(1, round(num_examples / batch_size)), "seed": TRIAL_SEED + number}
        point = drop_fields(row.point, *UNUSED_FIELDS) | own
        changes = kept | trial_fields | find_search_split(row.cfg)
        cfg = sweep_points.resolve_points(base, {"trial": point}, changes)["trial"]
        folder = f"{name}-trial{number}-rung{share:g}-{fields.fingerprint(cfg)[:6]}"
        return fields.override(cfg, {"workdir": str(root / folder)})

    return values, make_point


def read_score(cfg: config.Config) -> tuple[str, int, float | None]:
    """A trial's score: name, direction (+1, -1), value or None if it diverged. Raises ConfigError if not done."""
    if sweep_state.read_failure(cfg)[0].startswith(DIVERGED):
        return "", 0, None
    result, damage = sweep_state.read_point(cfg)
    if result is None:
        raise errors.ConfigError(damage or f"{cfg.workdir}: this trial is not done; the same command continues")
    score = series.select_primary_score([result])
    value = float(result["evaluation"][score.name])
    return score.name, score.better, value if math.isfinite(value) else None


def run_search(
    rows: Sequence[str],
    plan: SearchPlan,
    make_point: Callable[[str, int, int], config.Config],
    train: Callable[[list[config.Config]], None],
) -> tuple[dict[str, list[list[float | None]]], str, int]:
    """Trains the trials of all rows, rung by rung; make_point: (row, trial, rung) -> config.

    Returns the scores of each row's trials by rung, the score's name (those of all rows, if they differ), and whether
    higher is better (+1, -1). Raises ConfigError if it is better for one row and worse for another.
    """
    scores: dict[str, list[list[float | None]]] = {row: [[] for _ in range(plan.num_trials)] for row in rows}
    alive = {row: list(range(plan.num_trials)) for row in rows}
    names: dict[str, int] = {}  # whether higher is better, by name
    better = -1
    for rung, length in enumerate(plan.rungs):
        if rung:
            share = plan.rungs[0] / length  # of the trials, who spend as much as all did in the first rung
            count = max(1, int(plan.num_trials * share + 1e-9))
            alive = {row: select_best(scores[row], trials, better, count) for row, trials in alive.items()}
        points = {(row, number): make_point(row, number, rung) for row in rows for number in alive[row]}
        diverged = [sweep_state.read_failure(cfg)[0].startswith(DIVERGED) for cfg in points.values()]
        train([cfg for cfg, is_lost in zip(points.values(), diverged, strict=True) if not is_lost])
        for (row, number), cfg in points.items():
            found, direction, value = read_score(cfg)
            names |= {found: direction} if found else {}
            scores[row][number].append(value)
        errors.require(len({*names.values()}) < 2, "search", ", ".join(names), "scores of which a lower one is better")
        better = next(iter(names.values()), better)
    return scores, " or ".join(names), better


def select_best(scores: Sequence[Sequence[float | None]], trials: Sequence[int], better: int, count: int) -> list[int]:
    """The `count` best of the trials by their last score, in their order; those that diverged are never among them."""
    sound = [number for number in trials if scores[number][-1] is not None]
    ranked = sorted(sound, key=lambda number: -better * (scores[number][-1] or 0.0))
    return sorted(ranked[:count])


def choose(
    rows: Mapping[str, SearchRow],
    values: Mapping[str, Sequence[dict]],
    scores: Mapping[str, Sequence[list]],
    better: int,
) -> dict[str, RowSearch]:
    """The search of each row, with the values of its best trial. Raises ConfigError where every trial diverged."""
    searches = {}
    for name, row in rows.items():
        num_rungs = max(map(len, scores[name]))
        finalists = [number for number, own in enumerate(scores[name]) if len(own) == num_rungs]
        best = select_best(scores[name], finalists, better, 1)
        errors.require(bool(best), f"row {name}", f"{len(values[name])} trials", "one that does not diverge")
        trials = [Trial(dict(own), list(by_rung)) for own, by_rung in zip(values[name], scores[name], strict=True)]
        searches[name] = RowSearch(
            dict(values[name][best[0]]), trials, {field: str(values) for field, values in row.space.items()}
        )
    return searches
