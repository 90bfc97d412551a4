"""What is known of the held-out rows without the model: on the built-in language, the least loss that there can be.

Letters in array names: N rows, L places.
"""
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from mlm import objectives
from mlm.base import config
from mlm.base.estimates import Score
from mlm.data.language import floor, grammar, tasks, translation
from mlm.data.rows import loader, pack, store
from mlm.data.text import aligned
from mlm.train.step import floors, ngrams, optimum, parallel, program, update, words

FORMAT = 3  # of what is kept: a change of how floors or their parts are computed must change this number
TITLES = {"floor": "exact optimum", "window_floor": "window floor"}


class References(NamedTuple):
    """Scores that stand beside the objective's own, and the columns that they are of."""

    scores: tuple[Score, ...] = ()
    add: Callable = dict       # (columns of the model) -> those and the references'


def measure(cfg: config.Config, made: program.Program, packed: pack.Packed) -> References:
    """What is `exact`, the n-gram models of config.eval.ngram_order, and nats by the word where words have several pieces.

    None on processes that write no results.
    """
    if not parallel.is_primary():
        return References()
    found, loss, counted = exact(cfg, made, packed), made.objective.scores[0], {}
    known, scores = ngrams.columns(cfg, packed), (*found.scores, *ngrams.scores(cfg, loss))
    if words.several(cfg, packed.tokenizer):
        counted = words.columns(packed, asked(cfg, made, packed))
        scores += words.scores(loss, {"unigram_nats": "unigram"} | ngrams.names(cfg))

    def add(columns):
        return found.add(ngrams.add(columns, known, loss) if known else columns) | counted

    return References(scores, add)


def exact(cfg: config.Config, made: program.Program, packed: pack.Packed) -> References:
    """The floors of the evaluation's own questions, for a corpus whose floor is known, and the best possible score of
    a task whose is; none for any other.

    Floors take some seconds for each thousand rows and are kept under config.data.cache by what was asked, as they are
    the same for every model.
    """
    if cfg.data.corpus == "task" and cfg.data.task in tasks.TASKS:
        known = optimum.columns(cfg, packed)
        return References(optimum.scores(made.objective), lambda found: optimum.add(found, known, made.objective))
    if aligned.drawn(cfg.data):
        return beside(made.objective.scores[0], {"floor": _translated(cfg, packed)})
    known = floors.known(cfg, made.objective)
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
        names = "floor", *kind.others
        found.append(beside(loss, {name: floor.Floor(**np.load(folder / f"{loss.name}-{name}.npz")) for name in names}))
        if kind.document:
            found.append(documents(loss, kind.times, **np.load(folder / f"{loss.name}-document.npz")))
    return joined(found)


def _translated(cfg, packed):
    """The floor of drawn translations: some seconds for a thousand rows."""
    count = loader.judged_rows(packed.validation, cfg.eval.max_examples)
    columns = (np.asarray(packed.validation[name][:count]) for name in (
        "ids", "segments", "source_ids", "source_segments"))
    return translation.loss(cfg.data.language, translation.read(packed.tokenizer.pieces, *columns))


def joined(several: Sequence[References]) -> References:
    """Of several losses or things known of one: their scores, and columns that each adds to those before it."""
    return References(tuple(score for one in several for score in one.scores),
                      lambda columns: functools.reduce(lambda found, one: one.add(found), several, columns))


def split(cfg: config.Config, made: program.Program, packed: pack.Packed) -> dict[str, np.ndarray]:
    """What the floor of `measure` is made of: nats_N by the names of `parts.PARTS`. For the built-in language alone."""
    first = next(iter(floors.known(cfg, made.objective).values()))

    def save(folder, compute):
        np.savez(folder / "parts.npz", **compute(first.parts))

    with np.load(_made(cfg, made, packed, "parts", save) / "parts.npz") as file:
        return dict(file)


def _made(cfg, made, packed, noun, save):
    """The folder in the cache of what save(folder, compute) computes; compute: of `Kind` -> its value."""
    asked_NxL = asked(cfg, made, packed)

    def make(folder):
        language, ids_NxL = grammar.build(cfg.data.language), packed.validation["ids"][:cfg.eval.max_examples or None]
        words_NxL = grammar.words(language, packed.tokenizer.pieces, np.asarray(ids_NxL, np.int32))
        rows = floors.Rows(language, words_NxL, asked_NxL, cfg.data.language.max_words)
        save(folder, lambda of: of(rows))
        return {}

    inputs = {"format": FORMAT, "rows": packed.manifest["inputs"], "losses": objectives.losses(cfg),
              "window": floors.WINDOW,
              "asked": hashlib.sha256(np.packbits(asked_NxL, axis=1).tobytes()).hexdigest()}
    return store.made(cfg.data.cache, noun, inputs, make)[0]


def asked(cfg: config.Config, made: program.Program, packed: pack.Packed) -> np.ndarray:
    """asked_NxL: the tokens that evaluation asks for, by the objective that asks."""
    count = loader.judged_rows(packed.validation, cfg.eval.max_examples)
    batch = loader.read(packed.validation, np.arange(count), np.arange(count, dtype=np.int32))
    return np.asarray(_asked(made.objective.asked, batch.text, batch.index_B, program.frozen(cfg)))


@functools.partial(jax.jit, static_argnums=0)
def _asked(of_objective, text, index_B, knobs):
    return of_objective(text, update.eval_keys(knobs, index_B), knobs)


def beside(loss: Score, known: Mapping[str, floor.Floor]) -> References:
    """The floors beside a model's loss, and its gap to the first of them: all in the loss's unit.

    Names begin as the loss's does: "gap" of "loss", "causal_gap" of "causal_loss". The gap's standard error is that of
    the paired difference, which is far below the loss's own: hard rows are hard for the floor too. Adding columns
    raises ValueError where the model was not asked for the words that the floor is of.
    """
    nats, weight = loss.columns
    own = loss.name.removesuffix("loss")
    scores = [Score(f"{own}gap", f"{loss.title} above the floor", (f"{own}excess_nats", weight), unit=loss.unit,
                    better=-1, chart=True)]
    for name in known:
        scores += [Score(f"{own}{name}", f"{TITLES[name]}'s loss", (f"{own}{name}_nats", weight), unit=loss.unit,
                         reference=TITLES[name], beside=loss.name),
                   Score(f"{own}{name}_accuracy", f"{TITLES[name]}'s accuracy", (f"{own}{name}_correct", weight),
                         share=True, reference=TITLES[name], beside=f"{own}accuracy")]

    def add(columns):
        columns = dict(columns)
        for name, found in known.items():
            if not np.array_equal(columns[weight], found.count_N):
                raise ValueError("the floor was computed under other masks than the evaluation's")
            columns |= {f"{own}{name}_nats": found.nats_N, f"{own}{name}_correct": found.right_N}
        return columns | {f"{own}excess_nats": columns[nats] - known["floor"].nats_N}

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
        scores.append(Score("bound", "exact bound over all masks", ("bound_nats", loss.columns[-1]),
                            unit=f"{loss.unit}, over all masks", reference="exact bound", beside=loss.name))

    def add(columns):
        excess_N = columns[excess] / times
        known = {} if bound is None else {"bound_nats": bound}
        return columns | known | {"documents": np.ones(len(document)), "document_excess": excess_N,
                                  "document_floor_nats": document, "document_nats": document + excess_N}

    return References(tuple(scores), add)
