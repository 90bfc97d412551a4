"""Probes of the built-in language: agreeing verbs and recurring names, each masked alone, by what lies between.

Letters in array names: I items of a probe, W words of the language, V vocabulary; others as in types.py.
"""
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.special import MASK
from mlm.data.language import grammar, probes
from mlm.data.rows import loader
from mlm.evaluation.evaluations import EvaluationCase
from mlm.train.run.trained_run import Trained
from mlm.train.step import parallel
from mlm.train.step.program import frozen

ITEMS = 200  # of each distance, at most
BINS = {"recall": {"distance": probes.SENTENCES},
        "agreement": {"distance": probes.DISTANCES, "attractors": probes.ATTRACTORS}}


def can(cfg: config.Config) -> str:
    if cfg.data.corpus != "language":
        return f"config.data.corpus is {cfg.data.corpus}, not the built-in language"
    return "" if objectives.seen(cfg) == "rest" else f"config.objective is {cfg.objective}, which masks nothing"


def names(cfg: config.Config) -> list[str]:
    """The probes of a language. Out of order its sentences have no one reading, hence no agreement."""
    return ["recall", "agreement"] if cfg.data.language.word_order == 1 else ["recall"]


def asked(cfg: config.Config) -> dict:
    return {"items": ITEMS, "seed": cfg.eval.mask_seed, "max_rows": cfg.eval.max_examples}


def ask(run: Trained, part: EvaluationCase, told) -> dict:
    """Accuracy on the items, and by class of what lies between, beside the optimum's on the same items.

    {} where the held-out rows hold no item.
    """
    cfg, packed, language = run.cfg, run.packed(), grammar.build(run.cfg.data.language)
    ids_NxL = np.asarray(packed.validation["ids"][:cfg.eval.max_examples or None], np.int32)
    words_NxL = grammar.words(language, packed.tokenizer.pieces, ids_NxL)
    every = {"recall": probes.recall, "agreement": probes.agreement}[part.name](language, words_NxL)
    items, weight_I = probes.sample(every, BINS[part.name]["distance"], ITEMS, cfg.eval.mask_seed)
    if not len(weight_I):
        return {}
    entry_W = np.array([packed.tokenizer.pieces.index(word) for word in language.words])
    answer = run.program.run.per_row(alone, objectives.telling(cfg, run.program.model))
    log_prob_IxV = np.concatenate([answer(run.state, run.program.run.put_batch(batch), frozen(cfg))
                                   for batch in masked_alone(cfg, packed.validation, items)])[:len(weight_I)]
    right_I, best_I = probes.correct(items, log_prob_IxV[:, entry_W]), probes.optimum(language, words_NxL, items)
    told()

    def said(weight_I):
        share, error = probes.accuracy(items, right_I, weight_I)
        return {"items": int((weight_I > 0).sum()), "accuracy": share, "accuracy_se": error,
                "optimum": probes.accuracy(items, best_I, weight_I)[0]}

    def by_class(name, bins):
        value_I = getattr(items, f"{name}_I")
        among = [(low, high, weight_I * probes.within(value_I, low, high)) for low, high in bins]
        return [{"low": low, "high": high, **said(weight_I)} for low, high, weight_I in among if weight_I.any()]

    return said(weight_I) | {name: by_class(name, bins) for name, bins in BINS[part.name].items()}


def alone(model: types.Model, params, batch: types.Batch, knobs: types.TracedHparams):
    """log_prob_BxV of the one token of each row that is masked."""
    h_BxLxD = model.encode(params["model"], batch.text)[0]
    place_B = (batch.text.ids_BxL == MASK).argmax(-1)
    h_BxD = jnp.take_along_axis(h_BxLxD, place_B[:, None, None], axis=1)[:, 0]
    return jax.nn.log_softmax(model.logits(params["model"], h_BxD))


def masked_alone(cfg: config.Config, rows: loader.Rows, items) -> Iterator[types.Batch]:
    """This process's share of batches that hold the row of each item with its word masked; the last is filled up."""
    size, mine = cfg.eval.batch_size, parallel.is_local(cfg.eval.batch_size)
    for first in range(0, len(items.row_I), size):
        slots_B = np.arange(first, first + size, dtype=np.int32)[mine]
        of_B = np.minimum(slots_B, len(items.row_I) - 1)
        batch = loader.read(rows, items.row_I[of_B], slots_B)
        batch.text.ids_BxL[np.arange(len(of_B)), items.column_I[of_B]] = MASK
        yield batch
