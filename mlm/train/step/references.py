"""What is known of the held-out rows without the model: on the built-in language, the least loss that there can be.

Letters in array names: N rows, L places.
"""
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.data.language import bound, floor, grammar, parts, tasks
from mlm.data.rows import loader, pack, store
from mlm.train.step import ngrams, optimum, parallel, program, update

FORMAT = 3  # of what is kept: a change of how floors or their parts are computed must change this number
WINDOW = 5  # neighbours on each side that is seen: what models/sizes.py gives the window models


class References(NamedTuple):
    """Scores that stand beside the objective's own, and the columns that they are of."""

    scores: tuple[Score, ...] = ()
    add: Callable = dict       # (columns of the model) -> those and the references'


class Kind(NamedTuple):
    """What is known of a loss: functions of the language, words_NxL, asked_NxL, and the most words of a document."""

    floor: Callable                 # the least that it can be, a Floor
    others: Mapping[str, Callable] = MappingProxyType({})   # further Floors by name: those of models that see less
    parts: Callable | None = None   # what the floor's nats are made of, nats_N by name; None: nothing that is known
    document: Callable | None = None    # nats_N by name: "document", -log P of each row's whole document where the loss
                                    # tells it, and "bound", what of it the loss has to tell where that is not all
    times: int = 1                  # how often the loss tells a document


def _masked(language, words_NxL, asked_NxL, most):
    return floor.bayes_loss(language.hmm, words_NxL, asked_NxL)


def _masked_near(language, words_NxL, asked_NxL, most):
    return floor.window_loss(language.hmm, words_NxL, asked_NxL, WINDOW)


def _left(language, words_NxL, asked_NxL, most):
    return floor.left_loss(language.hmm, words_NxL, most)


def _left_near(language, words_NxL, asked_NxL, most):
    return floor.left_window_loss(language.hmm, words_NxL, most, WINDOW)


def _sides(language, words_NxL, asked_NxL, most):
    return floor.both(_left(language, words_NxL, asked_NxL, most), floor.right_loss(language.hmm, words_NxL, most))


def _sides_near(language, words_NxL, asked_NxL, most):
    return floor.both(_left_near(language, words_NxL, asked_NxL, most),
                      floor.right_window_loss(language.hmm, words_NxL, most, WINDOW))


def _weighted(of):
    return lambda language, words_NxL, asked_NxL, most: bound.weighted(of(language, words_NxL, asked_NxL, most),
                                                                       words_NxL)


def _document(language, words_NxL, asked_NxL, most):
    return {"document": _left(language, words_NxL, asked_NxL, most).nats_N}


def _bound(language, words_NxL, asked_NxL, most):
    log_P, whole = bound.log_length(language.hmm, most), _document(language, words_NxL, asked_NxL, most)
    return whole | {"bound": whole["document"] + log_P[(words_NxL >= 0).sum(1)]}


FLOORS = {  # by what the objective lets a model see of an asked word's row
    "rest": Kind(_masked, {"window_floor": _masked_near},
                 lambda language, words_NxL, asked_NxL, most: parts.bayes_parts(language, words_NxL, asked_NxL)),
    "left": Kind(_left, {"window_floor": _left_near},
                 lambda language, words_NxL, asked_NxL, most: parts.left_parts(language, words_NxL, most), _document),
    "sides": Kind(_sides, {"window_floor": _sides_near},
                  lambda language, words_NxL, asked_NxL, most: parts.side_parts(language, words_NxL, most), _document,
                  times=2),
    "filled": Kind(lambda language, words_NxL, asked_NxL, most: floor.filled_loss(language.hmm, words_NxL, asked_NxL)),
    "bound": Kind(_weighted(_masked), {"window_floor": _weighted(_masked_near)}, document=_bound),
}
TITLES = {"floor": "exact optimum", "window_floor": "window floor"}


def kinds(cfg: config.Config, objective: types.Objective) -> dict[Score, Kind]:
    """The losses among an objective's scores of which a floor is known, with what is known of them."""
    if cfg.data.corpus != "language":
        return {}
    known, scores = objectives.losses(cfg), {score.name: score for score in objective.scores}
    return {scores[name]: FLOORS[seen] for name, seen in known.items() if seen in FLOORS and name in scores}


def measure(cfg: config.Config, made: program.Program, packed: pack.Packed) -> References:
    """What is `exact`, and the n-gram models of config.eval.ngrams. None on processes that write no results."""
    if not parallel.writes():
        return References()
    found, loss = exact(cfg, made, packed), made.objective.scores[0]
    if known := ngrams.columns(cfg, packed):
        return References((*found.scores, *ngrams.scores(cfg, loss)),
                          lambda columns: found.add(ngrams.add(columns, known, loss)))
    return found


def exact(cfg: config.Config, made: program.Program, packed: pack.Packed) -> References:
    """The floors of the evaluation's own questions, for a corpus whose floor is known, and the best possible score of
    a task whose is; none for any other.

    Floors take some seconds for each thousand rows and are kept under config.data.cache by what was asked, as they are
    the same for every model.
    """
    if cfg.data.corpus == "task" and cfg.data.task in tasks.TASKS:
        known = optimum.columns(cfg, packed)
        return References(optimum.scores(made.objective), lambda found: optimum.add(found, known, made.objective))
    known = kinds(cfg, made.objective)
    if not known:
        return References()

    def save(folder, compute):
        for loss, kind in known.items():
            for name, one in {"floor": kind.floor, **kind.others}.items():
                np.savez(folder / f"{loss.name}-{name}.npz", **compute(one)._asdict())
            if kind.document:
                np.savez(folder / f"{loss.name}-document.npz", **compute(kind.document))

    folder = _made(cfg, made, packed, "floor", save)
    found = []
    for loss, kind in known.items():
        floors = {name: floor.Floor(**np.load(folder / f"{loss.name}-{name}.npz")) for name in ("floor", *kind.others)}
        found.append(beside(loss, floors))
        if kind.document:
            found.append(documents(loss, kind.times, **np.load(folder / f"{loss.name}-document.npz")))
    return joined(found)


def joined(several: Sequence[References]) -> References:
    """Of several losses or things known of one: their scores, and columns that each adds to those before it."""
    return References(tuple(score for one in several for score in one.scores),
                      lambda columns: functools.reduce(lambda found, one: one.add(found), several, columns))


def split(cfg: config.Config, made: program.Program, packed: pack.Packed) -> dict[str, np.ndarray]:
    """What the floor of `measure` is made of: nats_N by the names of `parts.PARTS`. For the built-in language alone."""
    first = next(iter(kinds(cfg, made.objective).values()))

    def save(folder, compute):
        np.savez(folder / "parts.npz", **compute(first.parts))

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

    of = [loss.columns[0] for loss in kinds(cfg, made.objective)]
    inputs = {"format": FORMAT, "rows": packed.manifest["inputs"], "of": of, "sees": cfg.model.sees, "window": WINDOW,
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

    Names begin as the loss's does: "gap" of "loss", "causal_gap" of "causal_loss". The gap's standard error is that of
    the paired difference, which is far below the loss's own: hard rows are hard for the floor too. Adding columns
    raises ValueError where the model was not asked for the words that the floor is of.
    """
    nats, weight = loss.columns
    own = loss.name.removesuffix("loss")
    scores = [Score(f"{own}gap", f"{loss.title} above the floor", (f"{own}excess_nats", weight), unit=loss.unit,
                    better=-1, chart=True)]
    for name in floors:
        scores += [Score(f"{own}{name}", f"{TITLES[name]}'s loss", (f"{own}{name}_nats", weight), unit=loss.unit,
                         reference=TITLES[name], beside=loss.name),
                   Score(f"{own}{name}_accuracy", f"{TITLES[name]}'s accuracy", (f"{own}{name}_correct", weight),
                         share=True, reference=TITLES[name], beside=f"{own}accuracy")]

    def add(columns):
        columns = dict(columns)
        for name, found in floors.items():
            if not np.array_equal(columns[weight], found.count_N):
                raise ValueError("the floor was computed under other masks than the evaluation's")
            columns |= {f"{own}{name}_nats": found.nats_N, f"{own}{name}_correct": found.right_N}
        return columns | {f"{own}excess_nats": columns[nats] - floors["floor"].nats_N}

    return References(tuple(scores), add)


def documents(loss: Score, times: int, document: np.ndarray, bound: np.ndarray | None = None) -> References:
    """What whole documents cost, so that losses that tell them in other ways stand in one unit, nats per document.

    document: -log P of each, nats_N. A model's loss is that and its excess, which is paired with the floor, so that the
    chance of a bound's masks is left out. bound: the least that the loss can be expected to be over all masks, nats_N.
    """
    unit, excess = "nats per document", f"{loss.name.removesuffix('loss')}excess_nats"
    scores = [Score("document_loss", "held-out loss of a document", ("document_nats", "documents"), form=".2f",
                    unit=unit, better=-1),
              Score("document_gap", "loss of a document above the floor", ("document_excess", "documents"), form=".2f",
                    unit=unit, better=-1),
              Score("document_floor", f"{TITLES['floor']}'s loss of a document", ("document_floor_nats", "documents"),
                    form=".2f", unit=unit, reference=TITLES["floor"], beside="document_loss")]
    if bound is not None:
        scores.append(Score("bound", "exact bound over all masks", ("bound_nats", loss.columns[-1]), unit=loss.unit,
                            reference="exact bound", beside=loss.name))

    def add(columns):
        excess_N = columns[excess] / times
        known = {} if bound is None else {"bound_nats": bound}
        return columns | known | {"documents": np.ones(len(document)), "document_excess": excess_N,
                                  "document_floor_nats": document, "document_nats": document + excess_N}

    return References(tuple(scores), add)
