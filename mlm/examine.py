"""What a run's model is asked once, at its end: its loss at further masking rates, and the probes of the language.

Letters in array names: I items of a probe, W words of the language, V vocabulary; others as in types.py.
"""
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from mlm import config, evaluate, gap, probe, program, step, types
from mlm.data import language, loader, pack
from mlm.data.tokenizer import MASK

ITEMS = 200  # of each distance, at most


def examine(cfg: config.Config, made: program.Program, held_out: pack.Rows, state) -> dict:
    """"rates": the evaluation at each of config.eval.rates; on the built-in language also "probes"."""
    found = {}
    if cfg.eval.rates:
        found["rates"] = by_rate(cfg, made, held_out, state)
    if cfg.data.corpus == "language":
        found["probes"] = probes(cfg, made, held_out, state)
    return found


def by_rate(cfg, made, held_out, state) -> list[dict]:
    """The evaluation at each rate, on the same rows: one compiled step, made for the highest."""
    eval_step = made.run.per_row(step.eval_step, made.model, made.objective(max(cfg.eval.rates)))
    found = []
    for rate in cfg.eval.rates:
        at = config.override(cfg, {"eval.rate": rate})
        knobs = evaluate.frozen_knobs(at)
        batches = loader.eval_batches(held_out, batch_size=cfg.eval.batch_size, max_rows=cfg.eval.max_rows,
                                      process=jax.process_index(), processes=jax.process_count())
        lost = evaluate.collect(eval_step, state, batches, made.run.put_batch, knobs)
        found.append({"rate": rate, **evaluate.summarise(lost, knobs, gap.measure(at, held_out))})
    return found


def probes(cfg, made, held_out, state) -> dict:
    """Accuracy on agreeing verbs and recurring names by what lies between, beside the optimum's on the same items.

    Agreement is left out where the language's words are out of order: its sentences have no one reading then.
    """
    grammar = language.build(cfg.data.language)
    ids_NxL = np.asarray(held_out.ids_NxL[:cfg.eval.max_rows or None], np.int32)
    words_NxL = gap.words(grammar, held_out.tokenizer.pieces, ids_NxL)
    entry_W = np.array([held_out.tokenizer.pieces.index(word) for word in grammar.words])
    answer = made.run.per_row(cloze, made.model)

    def judge(items, bins, **groups):
        items, weight_I = probe.sample(items, bins, ITEMS, cfg.eval.seed)
        if not len(weight_I):
            return None
        log_prob_IxW = np.concatenate([answer(state, made.run.put_batch(batch), evaluate.frozen_knobs(cfg))
                                       for batch in masked_alone(cfg, held_out, items)])[:len(weight_I), entry_W]
        right_I, best_I = probe.correct(items, log_prob_IxW), probe.optimum(grammar, words_NxL, items)

        def said(weight_I):
            share, error = probe.accuracy(items, right_I, weight_I)
            return {"items": int((weight_I > 0).sum()), "accuracy": share, "accuracy_se": error,
                    "optimum": probe.accuracy(items, best_I, weight_I)[0]}

        def by(group_bins, value_I):
            among = [(low, high, weight_I * probe.within(value_I, low, high)) for low, high in group_bins]
            return [{"low": low, "high": high, **said(w_I)} for low, high, w_I in among if w_I.any()]

        return said(weight_I) | {name: by(group_bins, getattr(items, f"{name}_I"))
                                 for name, group_bins in ({"distance": bins} | groups).items()}

    asked = {"recall": judge(probe.recall(grammar, words_NxL), probe.SENTENCES)}
    if cfg.data.language.order == 1:
        asked["agreement"] = judge(probe.agreement(grammar, words_NxL), probe.DISTANCES, attractors=probe.ATTRACTORS)
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
