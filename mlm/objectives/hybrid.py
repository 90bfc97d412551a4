"""Causal and masked rows in one batch, or one after the other in one run: every token is told by the state before it.

GPT-BERT (Charpentier & Samuel 2024, arXiv 2410.24159): a masked token is predicted where a next token is, one place to
its left ("masked next token prediction"), so that both kinds of row train the same output. Causal rows alone for the
first steps are "causal then masked" (Gisserot-Boukhlef et al. 2025, arXiv 2507.00994).
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score
from mlm.objectives import causal, masking, mlm, tokens, units

SCORES = (*mlm.SCORES,
          Score("causal_loss", "held-out causal loss", ("causal_nats", "causal_weight"), unit="nats per token",
                better=-1, chart=True),
          Score("causal_accuracy", "held-out causal accuracy", ("causal_correct", "causal_weight"), better=1,
                share=True))
TRAINING = (*mlm.TRAINING,
            Score("causal_accuracy", "causal training accuracy", ("causal_correct", "causal_weight"), share=True),
            Score("realised_causal", "share of rows that are causal", ("causal_rows", "rows"), form=".4f", share=True))


def build(cfg: config.Config, about: types.DatasetInfo) -> types.Objective:
    """The objective on these rows. In evaluation every row is asked twice: masked as by mlm, and from its left.

    In training all places of all rows go through the output layer, since any row may be causal.
    """
    masked_forward, left = mlm.build_forward(cfg, about), causal.build(cfg, about)
    cdf_V = masking.cumulative(np.frombuffer(about.unigram, np.int64), cfg.mask.random_token_from == "uniform")
    slots, unit = masking.slots(cfg.mask.max_rate, about.length), units.of(cfg, about)

    def judged(params, model, batch, key_B, knobs):
        one, _ = masked_forward(params, telling(model), batch, key_B, knobs, train=False)
        all_left = functools.partial(model.encode, left_B=jnp.ones(len(batch.index_B), bool))
        other = left.loss(params, model._replace(directions=("left",), encode=all_left), batch, key_B, knobs,
                          train=False)
        return types.LossSums(one.loss_B | other.loss_B, one.weight_B | other.weight_B,
                            one.sums_B | {"causal_correct": other.sums_B["correct"], "rows": _real(batch),
                                          "causal_rows": _real(batch)})

    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        if not train:
            return judged(params, model, batch, key_B, knobs)
        text = batch.text
        left_B = causal_rows(batch.index_B, knobs.objective["causal"], knobs.objective["owed"])
        static_key_B = masking.static_keys(knobs, batch) if batch.row_B is not None else None
        masked, dropout_key_B = masking.draw(key_B, text.ids_BxL, knobs, slots=slots, cdf_V=cdf_V,
                                             static_key_B=static_key_B, unknown=cfg.mask.mask_unk, unit=unit)
        shown_BxL = jnp.where(left_B[:, None], text.ids_BxL, masked.ids_BxL)
        h_BxLxD, = model.encode(params["model"], text._replace(ids_BxL=shown_BxL), batch.source, key_B=dropout_key_B,
                                left_B=left_B)
        nats_BxL, right_BxL = tokens.predict_fast(params["model"], model, before(text, h_BxLxD), text.ids_BxL)
        weight_BxL = {"causal": causal.asked(text, key_B, knobs) & left_B[:, None],
                      "mlm": masking.predicted_places(masked) * ~left_B[:, None]}
        nats_B, right_B, weight_B = ({term: (of_BxL * weight).sum(-1, dtype=jnp.float32)
                                      for term, weight in weight_BxL.items()} for of_BxL in (nats_BxL, right_BxL, 1))
        real_B = _real(batch)
        sums = {"correct": right_B["mlm"], "causal_correct": right_B["causal"],
                "eligible": masked.eligible_B * ~left_B, "corrupted": masked.corrupted_B * ~left_B,
                "causal_rows": left_B * real_B, "rows": real_B, "tokens": (text.segments_BxL > 0).sum(-1)}
        return types.LossSums(nats_B, weight_B, {name: sum_B.astype(jnp.float32) for name, sum_B in sums.items()})

    return mlm.build(cfg, about)._replace(
        loss=loss, scores=SCORES, training=TRAINING, factors=factors,
        now=functools.partial(now, steps=cfg.train.steps, rows=cfg.train.batch_size))


def _real(batch: types.Batch):
    """real_B: 1.0 for rows that hold something."""
    return (batch.text.segments_BxL > 0).any(-1).astype(jnp.float32)


def causal_rows(index_B, share, owed=0.0):
    """left_B: of a batch's slots a share, as evenly as can be: of the first n slots floor(share * n + owed)."""
    return causal_before(index_B + 1, share, owed) > causal_before(index_B, share, owed)


def causal_before(count, share, owed):
    """How many of so many slots are causal; a hair more, as float32 lies on either side of whole numbers."""
    return jnp.floor(count * share + owed + 1e-4)


@functools.lru_cache(maxsize=8)
def telling(model: types.Model) -> types.Model:
    """The model with the state at each place that tells the token there."""
    def hidden(params, text, source=None, **more):
        return tuple(before(text, h_BxLxD) for h_BxLxD in model.encode(params, text, source, **more))

    return model._replace(encode=hidden)


def before(text: types.Tokens, h_BxLxD):
    """The state before each token, which tells it; of a segment's first, before which it has none, its own."""
    return jnp.where((text.positions_BxL == 0)[..., None], h_BxLxD, jnp.roll(h_BxLxD, 1, axis=1))


def now(knobs: types.TracedHparams, done: jax.Array, *, steps: int, rows: int) -> types.TracedHparams:
    """The knobs of the moment: the masking rate's, and all rows causal for the first share of the steps.

    owed: what is left of a causal row from the batches before, so that their share holds in batches of any size; and
    the share that are causal in this one.
    """
    said = masking.scheduled(knobs, done).objective
    share = jnp.where(done < said["first"], 1.0, said["causal"])
    owed = jnp.round(done * steps) * (rows * share % 1) % 1
    here = (causal_before(rows, share, owed) - causal_before(0, share, owed)) / rows
    return knobs._replace(objective=said | {"causal": share, "owed": owed, "here": here})


def factors(knobs: types.TracedHparams) -> dict:
    """The terms weigh as their rows are many, however many tokens a row of either kind is asked for."""
    share = knobs.objective["here"]
    return {"mlm": 1 - share, "causal": share}


def knobs(cfg: config.Config) -> dict[str, np.generic]:
    """mlm's, config.hybrid's, and what `now` makes of them."""
    share = np.float32(cfg.hybrid.causal_fraction)
    return masking.knobs(cfg) | {"causal": share, "first": np.float32(cfg.hybrid.causal_first_fraction),
                                 "owed": np.float32(0), "here": share}


def predicted(cfg: config.Config) -> float:
    """All words of a causal row, and of the others those that are masked."""
    share = cfg.hybrid.causal_first_fraction + (1 - cfg.hybrid.causal_first_fraction) * cfg.hybrid.causal_fraction
    return share + (1 - share) * masking.predicted(cfg.mask)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for shares that are none, and for several masks of a row, which causal rows would not have."""
    masking.check(cfg)
    for field in ("causal_fraction", "causal_first_fraction"):
        errors.require_number(f"config.hybrid.{field}", getattr(cfg.hybrid, field), 0, 1)
    errors.require(cfg.mask.masks_per_example == 1, "config.mask.masks_per_example", cfg.mask.masks_per_example,
                  "1, since config.objective is hybrid")


GOAL = mlm.GOAL._replace(build=build, check=check, predicted=predicted, sees=("row",), knobs=knobs,
                         traced=(*masking.TRACED, "hybrid.causal_fraction", "hybrid.causal_first_fraction"),
                         reads=(*mlm.GOAL.reads, "hybrid"), losses={"causal_loss": "left"}, telling=telling)
