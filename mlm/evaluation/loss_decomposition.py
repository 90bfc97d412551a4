"""What the gap is made of: a model's excess over the floor in the kind of word, its number, and the word among these.

Letters in array names: V vocabulary, P parts; others as in types.py.
"""
import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.estimates import ratio
from mlm.base.special import MASK, NUM_SPECIAL
from mlm.data.language import grammar, word_classes
from mlm.data.rows import loader
from mlm.evaluation.evaluations import EvaluationCase
from mlm.train.run.trained_run import Trained
from mlm.train.step import floors, parallel, references, update
from mlm.train.step.program import frozen


def can(cfg: config.Config) -> str:
    if cfg.data.corpus != "language":
        return f"config.data.corpus is {cfg.data.corpus}, not the built-in language"
    known = floors.FLOORS.get(objectives.losses(cfg)["loss"])
    return "" if known else f"config.objective is {cfg.objective}, of which no floor is known"


def asked(cfg: config.Config) -> dict:
    return {"rate": cfg.eval.mask_rate, "seed": cfg.eval.mask_seed, "max_rows": cfg.eval.max_examples,
            "format": references.FORMAT}


def ask(run: Trained, part: EvaluationCase, told) -> dict:
    """"predictions" and, for each of `parts.PARTS`, nats per prediction: the model's "loss", the "floor" and "excess".

    Each is exact: the model's probabilities are added up over the entries of a kind, and of a kind and number, and so
    are the exact posterior's. The three excesses add up to the evaluation's gap. Its questions are the evaluation's,
    asked once more; "excess_se" is the error of the paired difference over rows. {} on processes that write no results.
    """
    cfg, packed = run.cfg, run.packed()
    groups = (of_V.tobytes() for of_V in word_classes.groups(grammar.build(cfg.data.language), packed.tokenizer.pieces))
    model = objectives.telling(cfg, run.program.model)
    answer = run.program.run.per_row(by_part, model, run.program.objective, objectives.losses(cfg)["loss"], *groups)
    batches = loader.eval_batches(packed.validation, batch_size=cfg.eval.batch_size, max_rows=cfg.eval.max_examples,
                                  **parallel.process_slice())
    found = [answer(run.state, run.program.run.put_batch(batch), frozen(cfg)) for batch in batches]
    count = loader.judged_rows(packed.validation, cfg.eval.max_examples)
    columns = {name: np.concatenate([one[name] for one in found])[:count].astype(np.float64) for name in found[0]}
    told()
    if not parallel.is_primary():
        return {}
    best, weight_N = references.split(cfg, run.program, packed), columns["weight"]

    def said(name):
        excess, error = ratio(columns[name] - best[name], weight_N)
        return {"loss": ratio(columns[name], weight_N)[0], "floor": ratio(best[name], weight_N)[0],
                "excess": excess, "excess_se": error}

    return {"predictions": int(weight_N.sum()), **{name: said(name) for name in word_classes.PARTS}}


def by_part(model: types.Model, objective: types.Objective, seen: str, kinds: bytes, classes: bytes, params,
            batch: types.Batch, knobs: types.TracedHparams) -> dict:
    """Sums over each row of the nats of each part, and how many tokens were asked for ("weight").

    seen: of an asked token's row, as floors.FLOORS has it; kinds, classes: `parts.groups`.
    """
    text = batch.text
    ids_BxL, asked_BxL = text.ids_BxL, objective.asked(text, update.eval_keys(knobs, batch.index_B), knobs)
    hidden = text._replace(ids_BxL=jnp.where(asked_BxL, MASK, ids_BxL))
    in_place = seen in ("rest", "bound")    # else it stands behind the state that tells it, or before it
    shown = hidden if in_place else text
    source = hidden if seen == "filled" else batch.source

    def of_way(way, h_BxLxD):
        moved = 0 if in_place else {"left": 1, "right": -1}[way]
        here_BxL = jnp.roll(asked_BxL, -1, axis=1) if moved == -1 else asked_BxL  # a token's neighbour on that side
        log_prob_BxLxV = jax.nn.log_softmax(model.logits(params["model"], jnp.roll(h_BxLxD, moved, axis=1)))

        def of_group(group):  # log P(the group of the token)
            group_V = jnp.asarray(np.frombuffer(group, np.int32))
            same_BxLxV = group_V == group_V[ids_BxL][..., None]
            return jax.nn.logsumexp(jnp.where(same_BxLxV, log_prob_BxLxV, -jnp.inf), axis=-1)

        kind_BxL, class_BxL = of_group(kinds), of_group(classes)
        word_BxL = jnp.take_along_axis(log_prob_BxLxV, ids_BxL[..., None], axis=-1)[..., 0]
        nats_PxBxL = -kind_BxL, kind_BxL - class_BxL, class_BxL - word_BxL, jnp.ones_like(word_BxL)
        return jnp.where(here_BxL, jnp.stack(nats_PxBxL), 0).sum(-1)

    states = model.encode(params["model"], shown, source)
    sums_PxB = sum(of_way(way, h_BxLxD) for way, h_BxLxD in zip(model.directions, states, strict=True))
    if seen == "bound":     # of a row's n words k are asked for, which weigh n / k
        n_B = (ids_BxL >= NUM_SPECIAL).sum(-1).astype(jnp.float32)
        sums_PxB = jnp.append(sums_PxB[:-1] * (n_B / jnp.maximum(sums_PxB[-1], 1)), n_B[None], axis=0)
    return dict(zip((*word_classes.PARTS, "weight"), sums_PxB, strict=True))
