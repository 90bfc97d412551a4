"""Splits a model's excess loss into three parts: the kind of word, its number, and the word among these.

Letters in array names: V vocabulary, P parts; others as in types.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.estimates import compute_ratio
from mlm.base.special import MASK, NUM_SPECIAL
from mlm.data.language import grammar
from mlm.data.language.floor import PARTS, compute_vocab_groups
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel, update
from mlm.training.validation import floors, references


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    if cfg.data.corpus != "language":
        return f"config.data.corpus is {cfg.data.corpus}, not the built-in language"
    if floors.FLOORS.get(objectives.get_loss_visibilities(cfg)["loss"]):
        return ""
    return f"config.objective is {cfg.objective}, whose floor is not known"


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The case "parts", where the floor is known."""
    if get_unsupported_reason(cfg):
        return []
    inputs = {
        "rate": cfg.eval.mask_rate,
        "seed": cfg.eval.mask_seed,
        "max_examples": cfg.eval.max_examples,
        "format": references.FORMAT,
    }
    return [EvaluationCase("loss_decomposition", "parts", inputs)]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Measures "predictions" and, for each of floor.PARTS, "loss", "floor" and "excess" in nats per prediction.

    The split is exact: it sums the model's probabilities over the vocabulary entries of a kind, and of a kind and
    number, and does the same with the exact posterior's. The three excesses add up to the excess loss of the run's own
    evaluation, whose predictions these are. "excess_se" is the standard error of the paired difference over examples.
    {} on processes that write no results.
    """
    cfg, packed = run.cfg, run.load_data()
    vocab_groups = compute_vocab_groups(grammar.build_grammar(cfg.data.language), packed.tokenizer.pieces)
    columns = run.map_examples(
        compute_part_sums,
        run.program.objective,
        objectives.get_loss_visibilities(cfg)["loss"],
        int(references.compute_eval_mask(cfg, run.program, packed).sum(1).max()),
        *(group_V.tobytes() for group_V in vocab_groups),
        max_examples=cfg.eval.max_examples,
        model=objectives.shift_states(cfg, run.program.model),
    )
    columns = {name: column_N.astype(np.float64) for name, column_N in columns.items()}
    if not parallel.is_primary():
        return {}
    floor, weight_N = references.decompose_floor(cfg, run.program, packed), columns["weight"]

    def summarize(name):
        excess, error = compute_ratio(columns[name] - floor[name], weight_N)
        return {
            "loss": compute_ratio(columns[name], weight_N)[0],
            "floor": compute_ratio(floor[name], weight_N)[0],
            "excess": excess,
            "excess_se": error,
        }

    return {"predictions": int(weight_N.sum()), **{name: summarize(name) for name in PARTS}}


def compute_part_sums(
    model: types.Model,
    objective: types.Objective,
    visibility: types.Visibility,
    max_predictions: int,
    kinds: bytes,
    classes: bytes,
    params,
    batch: types.Batch,
    hparams: types.TracedHparams,
) -> dict:
    """Sums the nats of each part over each example; "weight" has the number of predictions.

    visibility: what a prediction sees of its example, a key of floors.FLOORS. max_predictions: of an example. kinds,
    classes: `floor.compute_vocab_groups`.
    """
    tokens = batch.text
    ids_BxL = tokens.ids_BxL
    eval_mask_BxL = objective.eval_mask(tokens, update.make_eval_keys(hparams, batch.index_B), hparams)
    masked_tokens = tokens._replace(ids_BxL=jnp.where(eval_mask_BxL, MASK, ids_BxL))
    # A state predicts its own token, or else the token after or before it.
    predicts_own_token = visibility in (types.Visibility.UNMASKED, types.Visibility.BOUND)
    input_tokens = masked_tokens if predicts_own_token else tokens
    source = masked_tokens if visibility == types.Visibility.UNMASKED_OR_LEFT else batch.source

    def sum_direction(direction, h_BxLxD):
        shift = 0 if predicts_own_token else {"left": 1, "right": -1}[direction]
        # The token beside a predicted one, on that side.
        predicted_BxL = jnp.roll(eval_mask_BxL, -1, axis=1) if shift == -1 else eval_mask_BxL
        predicted_BxK, place_BxK = jax.lax.top_k(predicted_BxL.astype(jnp.float32), max_predictions)
        ids_BxK = jnp.take_along_axis(ids_BxL, place_BxK, axis=1)
        h_BxKxD = jnp.take_along_axis(jnp.roll(h_BxLxD, shift, axis=1), place_BxK[..., None], axis=1)
        log_prob_BxKxV = jax.nn.log_softmax(model.logits(params["model"], h_BxKxD))

        def compute_group_log_prob(group):
            """log P of the group that the token belongs to."""
            group_V = jnp.asarray(np.frombuffer(group, np.int32))
            same_BxKxV = group_V == group_V[ids_BxK][..., None]
            return jax.nn.logsumexp(jnp.where(same_BxKxV, log_prob_BxKxV, -jnp.inf), axis=-1)

        kind_BxK, class_BxK = compute_group_log_prob(kinds), compute_group_log_prob(classes)
        word_BxK = jnp.take_along_axis(log_prob_BxKxV, ids_BxK[..., None], axis=-1)[..., 0]
        nats_PxBxK = -kind_BxK, kind_BxK - class_BxK, class_BxK - word_BxK, jnp.ones_like(word_BxK)
        return jnp.where(predicted_BxK > 0, jnp.stack(nats_PxBxK), 0).sum(-1)

    states = model.encode(params["model"], input_tokens, source)
    sums_PxB = functools.reduce(jnp.add, map(sum_direction, model.directions, states))
    if visibility == types.Visibility.BOUND:  # an example's k predicted words, of its n words, weigh n / k each
        n_B = (ids_BxL >= NUM_SPECIAL).sum(-1).astype(jnp.float32)
        sums_PxB = jnp.append(sums_PxB[:-1] * (n_B / jnp.maximum(sums_PxB[-1], 1)), n_B[None], axis=0)
    return dict(zip((*PARTS, "weight"), sums_PxB, strict=True))
