"""What is known of the held-out rows without the model: on the built-in language, the least loss that there can be.

Letters in array names: N rows, L places.
"""
import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.data.language import floor, grammar, parts, tasks
from mlm.data.rows import loader, pack, store
from mlm.train.step import optimum, parallel, program, update

FORMAT = 2  # of what is kept: a change of how floors or their parts are computed must change this number
WINDOW = 5  # neighbours on each side that is seen: what models/sizes.py gives the window models


class References(NamedTuple):
    """Scores that stand beside the objective's own, and the columns that they are of."""

    scores: tuple[Score, ...] = ()
    add: Callable = dict       # (columns of the model) -> those and the references'


class Kind(NamedTuple):
    """What a floor is of: the language, words_NxL, asked_NxL, and the most words that a document has."""

    floor: Callable
    others: Mapping[str, Callable]  # further floors by name: those of models that see less
    parts: Callable                 # what the floor's nats are made of, nats_N by name


FLOORS = {  # by what the objective lets a model see of an asked word's row
    "rest": Kind(
        lambda language, words_NxL, asked_NxL, most: floor.bayes_loss(language.hmm, words_NxL, asked_NxL), {
            "window_floor": lambda language, words_NxL, asked_NxL, most: floor.window_loss(
                language.hmm, words_NxL, asked_NxL, WINDOW)},
        lambda language, words_NxL, asked_NxL, most: parts.bayes_parts(language, words_NxL, asked_NxL)),
    "left": Kind(
        lambda language, words_NxL, asked_NxL, most: floor.left_loss(language.hmm, words_NxL, most), {
            "window_floor": lambda language, words_NxL, asked_NxL, most: floor.left_window_loss(
                language.hmm, words_NxL, most, WINDOW)},
        lambda language, words_NxL, asked_NxL, most: parts.left_parts(language, words_NxL, most)),
}
TITLES = {"floor": "exact optimum", "window_floor": "window floor"}


def measure(cfg: config.Config, made: program.Program, packed: pack.Packed) -> References:
    """The floors of the evaluation's own questions, for a corpus whose floor is known, and the best possible score of
    a task whose is; none for any other.

    Floors take some seconds for each thousand rows and are kept under config.data.cache by what was asked, as they are
    the same for every model. None on processes that write no results.
    """
    if not parallel.writes():
        return References()
    if cfg.data.corpus == "task" and cfg.data.task in tasks.TASKS:
        known = optimum.columns(cfg, packed)
        return References(optimum.scores(made.objective), lambda found: optimum.add(found, known, made.objective))
    if cfg.data.corpus != "language" or objectives.seen(cfg) not in FLOORS:
        return References()
    kind = FLOORS[objectives.seen(cfg)]

    def save(folder, compute):
        for name, one in {"floor": kind.floor, **kind.others}.items():
            np.savez(folder / f"{name}.npz", **compute(one)._asdict())

    folder = _made(cfg, made, packed, "floor", save)
    floors = {name: floor.Floor(**np.load(folder / f"{name}.npz")) for name in ("floor", *kind.others)}
    return beside(made.objective.scores[0], floors)


def split(cfg: config.Config, made: program.Program, packed: pack.Packed) -> dict[str, np.ndarray]:
    """What the floor of `measure` is made of: nats_N by the names of `parts.PARTS`. For the built-in language alone."""
    def save(folder, compute):
        np.savez(folder / "parts.npz", **compute(FLOORS[objectives.seen(cfg)].parts))

    with np.load(_made(cfg, made, packed, "parts", save) / "parts.npz") as file:
        return dict(file)


def _made(cfg, made, packed, noun, save):
    """The folder in the cache of what save(folder, compute) computes; compute: a function of `Kind` -> its value."""
    asked_NxL = asked(cfg, made, packed)

    def make(folder):
        language, ids_NxL = grammar.build(cfg.data.language), packed.validation["ids"][:cfg.eval.max_rows or None]
        words_NxL = grammar.words(language, packed.tokenizer.pieces, np.asarray(ids_NxL, np.int32))
        save(folder, lambda of: of(language, words_NxL, asked_NxL, cfg.data.language.words))
        return {}

    inputs = {"format": FORMAT, "rows": packed.manifest["inputs"], "seen": objectives.seen(cfg), "window": WINDOW,
              "asked": hashlib.sha256(np.packbits(asked_NxL, axis=1).tobytes()).hexdigest()}
    return store.made(cfg.data.cache, noun, inputs, make)[0]


def asked(cfg: config.Config, made: program.Program, packed: pack.Packed) -> np.ndarray:
    """asked_NxL: the tokens that evaluation asks for, by the objective that asks."""
    count = loader.judged_rows(packed.validation, cfg.eval.max_rows)
    batch = loader.read(packed.validation, np.arange(count), np.arange(count, dtype=np.int32))
    knobs, text = program.frozen(cfg), types.Text(*map(jnp.asarray, batch.text))
    return np.asarray(made.objective.asked(text, update.eval_keys(knobs, batch.index_B), knobs))


def beside(loss: Score, floors: Mapping[str, floor.Floor]) -> References:
    """The floors beside a model's loss, and its gap to the first of them: all in the loss's unit.

    The gap's standard error is that of the paired difference, which is far below the loss's own: hard rows are hard for
    the floor too. Adding columns raises ValueError where the model was not asked for the words that the floor is of.
    """
    nats, weight = loss.columns
    scores = [Score("gap", f"{loss.title} above the floor", ("excess_nats", weight), unit=loss.unit, better=-1,
                    chart=True)]
    for name in floors:
        scores += [Score(name, f"{TITLES[name]}'s loss", (f"{name}_nats", weight), unit=loss.unit,
                         reference=TITLES[name], beside="loss"),
                   Score(f"{name}_accuracy", f"{TITLES[name]}'s accuracy", (f"{name}_correct", weight), share=True,
                         reference=TITLES[name], beside="accuracy")]

    def add(columns):
        columns = dict(columns)
        for name, found in floors.items():
            if not np.array_equal(columns[weight], found.count_N):
                raise ValueError("the floor was computed under other masks than the evaluation's")
            columns |= {f"{name}_nats": found.nats_N, f"{name}_correct": found.right_N}
        return columns | {"excess_nats": columns[nats] - floors["floor"].nats_N}

    return References(tuple(scores), add)
