"""n-gram models beside the loss of runs that predict each token from those before it."""
from collections.abc import Mapping

import numpy as np

from mlm.base import config, errors
from mlm.base.conditional_fields import FieldCondition
from mlm.base.estimates import Score
from mlm.data.rows import loader, ngram, pack, store

FORMAT = 1  # of what is kept: a change of how it is computed must change this number
READ = (FieldCondition(("eval.ngram_order", "eval.context_range"), "model.context", ("left",)),)
ASKED = "ngram_asked"


def check(cfg: config.Config) -> None:
    """Raises ConfigError for an order that is none."""
    order = cfg.eval.ngram_order
    errors.require(order == 0 or 2 <= order <= 9, "config.eval.ngram_order", order, "0, or an order from 2 to 9")


def orders(cfg: config.Config) -> range:
    return range(2, cfg.eval.ngram_order + 1)


def columns(cfg: config.Config, packed: pack.Packed) -> dict[str, np.ndarray]:
    """What the n-gram models give each held-out row: nats of each order, and the number of tokens that they tell.

    Kept under config.data.cache, as it is the same for every model; {} where config.eval.ngram_order asks for none.
    """
    count = loader.judged_rows(packed.validation, cfg.eval.max_examples)

    def make(folder):
        found, kept = ngram.count(packed.train, packed.about.vocab_size, cfg.eval.ngram_order), {}
        for order in orders(cfg):
            kept[_nats(order)], kept[ASKED] = ngram.nats(ngram.smoothed(found, order), packed.validation, count)
        np.savez(folder / "nats.npz", **kept)
        return {}

    if not orders(cfg):
        return {}
    inputs = {"format": FORMAT, "rows": packed.manifest["inputs"], "order": cfg.eval.ngram_order, "judged": count}
    with np.load(store.made(cfg.data.cache, "ngrams", inputs, make)[0] / "nats.npz") as file:
        return dict(file)


def names(cfg: config.Config) -> dict[str, str]:
    """What each order is called, by its column."""
    return {_nats(order): f"Kneser-Ney, order {order}" for order in orders(cfg)}


def scores(cfg: config.Config, loss: Score) -> tuple[Score, ...]:
    """Loss and perplexity of each order, beside a model's."""
    return tuple(
        Score(f"ngram{order}_{name}", f"{order}-gram {name}", (_nats(order), loss.columns[-1]), of, unit, form,
              reference=names(cfg)[_nats(order)], beside=name)
        for order in orders(cfg)
        for name, of, unit, form in (("loss", "mean", loss.unit, ".3f"), ("perplexity", "exp_mean", "", ".2f")))


def add(found: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray], loss: Score) -> dict[str, np.ndarray]:
    """The columns of a model and of the n-gram models. Raises ValueError where they were not asked the same."""
    if not np.array_equal(found[loss.columns[-1]], known[ASKED]):
        raise ValueError("the n-gram models tell other tokens than the evaluation asks for")
    return {**found, **{name: nats_N for name, nats_N in known.items() if name != ASKED}}


def _nats(order):
    return f"ngram{order}_nats"
