"""Probes of the built-in language: agreeing verbs and recurring names, each masked alone, by what lies in between.

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
from mlm.evaluation import sentence_scores
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel
from mlm.training.step.program import make_eval_hparams

MAX_ITEMS = 200  # of each distance
BINS = {
    "recall": {"distance": probes.SENTENCE_BINS},
    "agreement": {"distance": probes.DISTANCE_BINS, "attractors": probes.ATTRACTOR_BINS},
}


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    if cfg.data.corpus != "language":
        return f"config.data.corpus is {cfg.data.corpus}, not the built-in language"
    return sentence_scores.get_unsupported_reason(cfg)


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """A case for each probe of the language."""
    if get_unsupported_reason(cfg):
        return []
    inputs = {"items": MAX_ITEMS, "seed": cfg.eval.mask_seed, "max_examples": cfg.eval.max_examples}
    names = ["recall", "agreement"] if grammar.has_one_reading(cfg.data.language) else ["recall"]
    return [EvaluationCase("grammar_probes", name, inputs) for name in names]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Accuracy beside the Bayes-optimal accuracy ("optimum") of the same items; overall and by BINS.

    {} for held-out examples that hold no item.
    """
    cfg, packed, language = run.cfg, run.load_data(), grammar.build_grammar(run.cfg.data.language)
    ids_NxL = np.asarray(packed.validation["ids"][: cfg.eval.max_examples or None], np.int32)
    words_NxL = grammar.convert_ids_to_words(language, packed.tokenizer.pieces, ids_NxL)
    find_items = {"recall": probes.find_recall_items, "agreement": probes.find_agreement_items}[case.name]
    all_items = find_items(language, words_NxL)
    items, weight_I = probes.sample_items(all_items, BINS[case.name]["distance"], MAX_ITEMS, cfg.eval.mask_seed)
    if not len(weight_I):
        return {}
    entry = {piece: i for i, piece in enumerate(packed.tokenizer.pieces)}
    entry_W = np.array([entry[word] for word in language.words])
    partitioner = run.program.partitioner
    score_batch = partitioner.jit_per_example(compute_masked_log_probs, objectives.shift_states(cfg, run.program.model))
    batches = map(partitioner.put_batch, iterate_masked_batches(cfg, packed.validation, items))
    log_probs = [score_batch(run.state, batch, make_eval_hparams(cfg)) for batch in batches]
    log_prob_IxV = np.concatenate(log_probs)[: len(weight_I)]
    correct_I = probes.is_correct(items, log_prob_IxV[:, entry_W])
    optimum_I = probes.score_optimum(language, words_NxL, items)

    def summarize(weight_I):
        accuracy, error = probes.compute_accuracy(items, correct_I, weight_I)
        return {
            "items": int((weight_I > 0).sum()),
            "accuracy": accuracy,
            "accuracy_se": error,
            "optimum": probes.compute_accuracy(items, optimum_I, weight_I)[0],
        }

    def summarize_bins(name, bins):
        value_I = getattr(items, f"{name}_I")
        weights = [(low, high, weight_I * probes.is_within(value_I, low, high)) for low, high in bins]
        return [
            {"low": low, "high": high, **summarize(bin_weight_I)}
            for low, high, bin_weight_I in weights
            if bin_weight_I.any()
        ]

    return summarize(weight_I) | {name: summarize_bins(name, bins) for name, bins in BINS[case.name].items()}


def compute_masked_log_probs(model: types.Model, params, batch: types.Batch, hparams: types.TracedHparams):
    """log_prob_BxV of each example's only masked token."""
    h_BxLxD = model.encode(params["model"], batch.text)[0]
    position_B = (batch.text.ids_BxL == MASK).argmax(-1)
    h_BxD = jnp.take_along_axis(h_BxLxD, position_B[:, None, None], axis=1)[:, 0]
    return jax.nn.log_softmax(model.logits(params["model"], h_BxD))


def iterate_masked_batches(cfg: config.Config, split: loader.Columns, items) -> Iterator[types.Batch]:
    """This process's batches of the items' examples, each with the item's word masked; the last one is padded."""
    size, local_slice = cfg.eval.batch_size, parallel.process_slice(cfg.eval.batch_size)
    for first in range(0, len(items.example_I), size):
        slot_B = np.arange(first, first + size, dtype=np.int32)[local_slice]
        item_B = np.minimum(slot_B, len(items.example_I) - 1)
        batch = loader.read_batch(split, items.example_I[item_B], slot_B)
        batch.text.ids_BxL[np.arange(len(item_B)), items.position_I[item_B]] = MASK
        yield batch
