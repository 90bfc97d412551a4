"""What a run's model is asked once, at its end: its loss at further masking rates, and the probes of the language.

Letters in array names: I items of a probe, W words of the language, V vocabulary; others as in types.py.
"""
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, fields, types
from mlm.base.special import MASK
from mlm.data.language import grammar, probes
from mlm.data.rows import loader, pack
from mlm.train.step import evaluation, program, references, update

ITEMS = 200  # of each distance, at most


def examine(cfg: config.Config, made: program.Program, held_out: pack.Rows, state) -> dict:
    """"rates": the evaluation at each of config.eval.rates; on the built-in language also "probes"."""
    found = {}
    if cfg.eval.rates:
        found["rates"] = by_rate(cfg, made, held_out, state)
    if cfg.data.corpus == "language":
        found["probes"] = on_language(cfg, made, held_out, state)
    return found


def by_rate(cfg, made, held_out, state) -> list[dict]:
    """The evaluation at each rate, on the same rows: one compiled step, made for the highest."""
    eval_step = made.run.per_row(update.eval_step, made.model, made.objective(max(cfg.eval.rates)))
    found = []
    for rate in cfg.eval.rates:
        at = fields.override(cfg, {"eval.rate": rate})
        knobs = program.frozen_knobs(at)
        batches = loader.eval_batches(held_out, batch_size=cfg.eval.batch_size, max_rows=cfg.eval.max_rows,
                                      process=jax.process_index(), processes=jax.process_count())
        lost = evaluation.collect(eval_step, state, batches, made.run.put_batch, knobs)
        found.append({"rate": rate, **evaluation.summarise(lost, knobs, references.measure(at, held_out))})
    return found


def on_language(cfg, made, held_out, state) -> dict:
    """Accuracy on agreeing verbs and recurring names by what lies between, beside the optimum's on the same items.

    Agreement is left out where the language's words are out of order: its sentences have no one reading then.
    """
    language = grammar.build(cfg.data.language)
    ids_NxL = np.asarray(held_out.ids_NxL[:cfg.eval.max_rows or None], np.int32)
    words_NxL = grammar.words(language, held_out.tokenizer.pieces, ids_NxL)
    entry_W = np.array([held_out.tokenizer.pieces.index(word) for word in language.words])
    answer = made.run.per_row(cloze, made.model)

    def judge(items, bins, **groups):
        items, weight_I = probes.sample(items, bins, ITEMS, cfg.eval.seed)
        if not len(weight_I):
            return None
        log_prob_IxW = np.concatenate([answer(state, made.run.put_batch(batch), program.frozen_knobs(cfg))
                                       for batch in masked_alone(cfg, held_out, items)])[:len(weight_I), entry_W]
        right_I, best_I = probes.correct(items, log_prob_IxW), probes.optimum(language, words_NxL, items)

        def said(weight_I):
            share, error = probes.accuracy(items, right_I, weight_I)
            return {"items": int((weight_I > 0).sum()), "accuracy": share, "accuracy_se": error,
                    "optimum": probes.accuracy(items, best_I, weight_I)[0]}

        def by(group_bins, value_I):
            among = [(low, high, weight_I * probes.within(value_I, low, high)) for low, high in group_bins]
            return [{"low": low, "high": high, **said(w_I)} for low, high, w_I in among if w_I.any()]

        return said(weight_I) | {name: by(group_bins, getattr(items, f"{name}_I"))
                                 for name, group_bins in ({"distance": bins} | groups).items()}

    asked = {"recall": judge(probes.recall(language, words_NxL), probes.SENTENCES)}
    if cfg.data.language.order == 1:
        asked["agreement"] = judge(probes.agreement(language, words_NxL), probes.DISTANCES,
                                   attractors=probes.ATTRACTORS)
    return {name: found for name, found in asked.items() if found}


def cloze(model: types.Model, params, batch: types.Batch, knobs: types.Knobs):
    """log_prob_BxV of the one token of each row that is masked."""
    h_BxLxD = model.encode(params["model"], batch)
    place_B = (batch.ids_BxL == MASK).argmax(-1)
    h_BxD = jnp.take_along_axis(h_BxLxD, place_B[:, None, None], axis=1)[:, 0]
    return jax.nn.log_softmax(model.logits(params["model"], h_BxD))


def masked_alone(cfg: config.Config, held_out: pack.Rows, items) -> Iterator[types.Batch]:
    """This process's share of batches that hold the row of each item with its word masked; the last is filled up."""
    size, processes = cfg.eval.batch_size, jax.process_count()
    share = size // processes
    for first in range(jax.process_index() * share, -(-len(items.row_I) // size) * size, size):
        mine_B = np.minimum(np.arange(first, first + share), len(items.row_I) - 1)
        batch = loader.read(held_out, items.row_I[mine_B], np.arange(first, first + share, dtype=np.int32))
        batch.ids_BxL[np.arange(share), items.column_I[mine_B]] = MASK
        yield batch
