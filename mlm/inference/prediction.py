"""What a fine-tuned model says of texts: a class or a number of each, or a tag of each word."""
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from mlm.base import errors, types
from mlm.data.rows.preprocessors import MAKERS
from mlm.data.tasks.examples import Example
from mlm.inference import masked_queries

KINDS = ("classify", "regress", "tag")


class Prediction(NamedTuple):
    """What a fine-tuned model says of a text, or of a word."""

    label: str | float        # a class, or a number
    probability: float | None  # of a class


def predict(model, text) -> Prediction | list:
    """`Opened.predict` of an opened model."""
    kind = model.cfg.objective
    errors.require(kind in KINDS, "predict", kind, "a run that was fine-tuned to classify, regress or tag")
    if isinstance(text, str | tuple):
        return predict(model, [text])[0]
    examples = [example(model, one) for one in text]
    made = MAKERS[kind].rows(examples, model.tokenizer, model.cfg, model.about.classes)
    rows = [row for each in made for row in each]
    found: list = [None] * len(rows)
    answer = model.compiled(predicted, model.objective)
    for mine, ids_BxL in model.batches([row.ids for row in rows]):
        guess_Bx, score_Bx = answer(model.params, batch_of(model, ids_BxL, [rows[i] for i in mine]))
        for row, i in enumerate(mine):
            places = np.flatnonzero(np.array(rows[i].labels["tag"]) >= 0) if kind == "tag" else None
            found[i] = _told(model, guess_Bx[row], score_Bx[row], places)
    return found


def example(model, one) -> Example:
    classes, kind = model.about.classes, model.cfg.objective
    if kind == "tag":
        given = one.split() if isinstance(one, str) else one
        return Example("", words=tuple(given), label=classes[:1] * len(given))
    texts = (one,) if isinstance(one, str) else tuple(one)
    errors.require(len(texts) in model.texts, "text", one,
                  " or ".join({1: "one text", 2: "a pair of texts"}[count] for count in model.texts))
    return Example("", texts=texts, label=0.0 if kind == "regress" else classes[0])


def batch_of(model, ids_BxL, rows) -> types.Batch:
    """Rows without what is asked: labels that the objective looks at, and does not answer from."""
    text = masked_queries.text(jnp.asarray(ids_BxL))
    place_BxL = jnp.arange(ids_BxL.shape[1])[None]
    second_B = [row.second for row in rows] + [ids_BxL.shape[1]] * (len(ids_BxL) - len(rows))
    second_Bx1 = jnp.asarray(second_B)[:, None]
    text = text._replace(types_BxL=((place_BxL >= second_Bx1) & (text.segments_BxL > 0)).astype(jnp.int32))
    blank = types.abstract(len(ids_BxL), model.about._replace(length=ids_BxL.shape[1]))
    labels = {name: jnp.zeros(array.shape, array.dtype) for name, array in blank.labels.items()}
    return types.Batch(text, labels, jnp.arange(len(ids_BxL), dtype=jnp.int32))


def _told(model, guess, score, places):
    if model.cfg.objective == "regress":
        return Prediction(float(guess), None)
    if places is None:
        return Prediction(model.about.classes[int(guess)], float(np.exp(score)))
    return [Prediction(model.about.classes[int(guess[place])], float(np.exp(score[place]))) for place in places]


def predicted(model: types.Model, objective: types.Objective, params, batch: types.Batch):
    """What the objective predicts of each row, or token, and its score."""
    sums = objective.loss(params, model, batch, None, None, train=False).sums_B
    return sums["predicted"], sums["score"]
