"""Probes of the built-in language: agreeing verbs and recurring names, each masked alone, by what lies in between.

Letters in array names: I items of a probe, W words of the language, V vocabulary; others as in types.py.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.special import MASK
from mlm.data.language import grammar, probes
from mlm.evaluation import sentence_scores
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.training.run.trained_run import TrainedRun

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
    split = {name: np.array(column[items.example_I]) for name, column in packed.validation.items()}
    split["ids"][np.arange(len(weight_I)), items.position_I] = MASK
    model = objectives.shift_states(cfg, run.program.model)
    log_prob_IxV = run.map_examples(compute_masked_log_probs, split=split, model=model)
    correct_I = probes.is_correct(items, log_prob_IxV[:, entry_W])
    optimum_I = probes.score_optimum(language, words_NxL, items)

    def summarize(selected_I):
        selected_weight_I = weight_I * selected_I
        accuracy, error = probes.compute_accuracy(items, correct_I, selected_weight_I)
        return {
            "items": int(selected_I.sum()),
            "accuracy": accuracy,
            "accuracy_se": error,
            "optimum": probes.compute_accuracy(items, optimum_I, selected_weight_I)[0],
        }

    return summarize(weight_I > 0) | {
        name: summarize_bins(getattr(items, f"{name}_I"), bins, summarize) for name, bins in BINS[case.name].items()
    }


def summarize_bins(value, bins: Sequence[tuple], summarize: Callable[[np.ndarray], dict]) -> list[dict]:
    """The summary of the items of each bin that holds some; summarize: (which items) -> their summary."""
    selections = [(low, high, probes.is_within(value, low, high)) for low, high in bins]
    return [{"low": low, "high": high, **summarize(selected)} for low, high, selected in selections if selected.any()]


def compute_masked_log_probs(model: types.Model, params, batch: types.Batch, hparams: types.TracedHparams):
    """log_prob_BxV of each example's only masked token."""
    h_BxLxD = model.encode(params["model"], batch.text)[0]
    position_B = (batch.text.ids_BxL == MASK).argmax(-1)
    h_BxD = jnp.take_along_axis(h_BxLxD, position_B[:, None, None], axis=1)[:, 0]
    return jax.nn.log_softmax(model.logits(params["model"], h_BxD))
