"""A model's gap: its loss less the least that any model could reach, on the very rows and masks of its evaluation.

Letters in array names: N rows, L places.
"""
import functools
from collections.abc import Callable

import jax
import numpy as np

from mlm.base import config, estimates
from mlm.base.special import MASK
from mlm.data.language import floor, grammar
from mlm.data.rows import pack, store
from mlm.objectives import masking
from mlm.train.step import program, update

FORMAT = 1  # of what is kept: a change of how floors are computed, or masks drawn, must change this number
WINDOW = 5  # neighbours on each side: what configs/sizes.py gives the window models


def measure(cfg: config.Config, held_out: pack.Rows) -> Callable[[np.ndarray, np.ndarray], dict] | None:
    """What `beside` needs but the model's own losses, for a corpus whose floor is known; None for any other.

    None on all processes but the first, which alone writes results. Floors take some seconds for each thousand rows and
    are kept under config.data.cache, as what they are of is the same for every model.
    """
    if cfg.data.corpus != "language" or jax.process_index() != 0:
        return None

    def make(folder):
        language = grammar.build(cfg.data.language)
        ids_NxL = np.asarray(held_out.ids_NxL[:cfg.eval.max_rows or None], np.int32)
        words_NxL, masked_NxL = grammar.words(language, held_out.tokenizer.pieces, ids_NxL), masked(cfg, ids_NxL)
        for name, found in (("best", floor.bayes_loss(language.hmm, words_NxL, masked_NxL)),
                            ("window", floor.window_loss(language.hmm, words_NxL, masked_NxL, WINDOW))):
            np.savez(folder / f"{name}.npz", **found._asdict())
        return {}

    inputs = {"format": FORMAT, "rows": held_out.manifest["inputs"], "rate": cfg.eval.rate, "seed": cfg.eval.seed,
              "max_rows": cfg.eval.max_rows, "window": WINDOW}
    folder, _ = store.made(cfg.data.cache, "floor", inputs, make)
    return functools.partial(beside, *(floor.Floor(**np.load(folder / f"{name}.npz")) for name in ("best", "window")))


def masked(cfg: config.Config, ids_NxL: np.ndarray) -> np.ndarray:
    """masked_NxL: the words that evaluation hides, by the code that hides them there."""
    knobs = program.frozen_knobs(cfg)
    key_N = update.eval_keys(knobs, np.arange(len(ids_NxL)))
    hidden, _ = masking.draw(key_N, ids_NxL, knobs, slots=masking.slots(cfg.eval.rate, ids_NxL.shape[1]),
                             cdf_V=np.ones(1))  # no random tokens are drawn
    return np.asarray(hidden.ids_BxL) == MASK


def beside(best: floor.Floor, window: floor.Floor, nats_N: np.ndarray, weight_N: np.ndarray) -> dict:
    """The floors of all models and of those that see WINDOW neighbours, and a model's gap, all in nats per masked word.

    nats_N: the model's loss summed over each row; weight_N: the words it predicted there. The gap's standard error is
    that of the paired difference, which is far below the loss's own: hard rows are hard for the floor too. Raises
    ValueError where the model was not asked for the words that the floor is of.
    """
    if not np.array_equal(weight_N, best.count_N):
        raise ValueError("the floor was computed under other masks than the evaluation's")
    gap, gap_se = estimates.ratio(nats_N - best.nats_N, weight_N)
    return {"floor": float(best.loss), "floor_se": float(best.loss_error), "floor_accuracy": float(best.accuracy),
            "gap": gap, "gap_se": gap_se, "window_floor": float(window.loss),
            "window_floor_accuracy": float(window.accuracy)}
