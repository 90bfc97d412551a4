"""Scores of labelled rows by name: which a run asks for, and of which columns they are."""
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.estimates import Score

FIELD = "config.data.labelled.scores"


def names(cfg: config.Config, known: Sequence[str]) -> tuple[str, ...]:
    """Those that config.data.labelled.scores asks for, the one that is judged by first; the first of `known` where it
    is empty. Raises ConfigError for a name that is not one of `known`, and for one that is said twice.
    """
    said = cfg.data.labelled.scores
    asked = tuple(name.strip() for name in said.split(",")) if said else tuple(known[:1])
    for name in asked:
        errors.one_of(FIELD, name, known)
    errors.expect(len({*asked}) == len(asked), FIELD, said, "each name once")
    return asked


def loss(term: str, unit: str, title: str = "held-out loss") -> Score:
    return Score("loss", title, (f"{term}_nats", f"{term}_weight"), unit=unit, better=-1, chart=True)


def accuracy(weight: str, title: str) -> Score:
    return Score("accuracy", title, ("correct", weight), better=1, share=True, chart=True)


def f1(classes: Sequence[str], weight: str) -> Score:
    """Of the second of two classes. Raises ConfigError for any other number of them."""
    errors.expect(len(classes) == 2, FIELD, "f1", f"accuracy or matthews, since there are {len(classes)} classes")
    return Score("f1", f"held-out F1 of {classes[1]}", ("right", "found_1", "there_1", weight), "f1", better=1,
                 share=True, chart=True)


def matthews(classes: Sequence[str], weight: str) -> Score:
    counts = (f"{count}_{number}" for count in ("found", "there") for number in range(len(classes)))
    return Score("matthews", "held-out Matthews correlation", ("correct", *counts, weight), "matthews", better=1,
                 chart=True)


def counts(predicted_B, label_B, weight_B, classes: int) -> dict:
    """The columns that `f1` and `matthews` are of, beside those of accuracy."""
    each = {f"{count}_{number}": (of_B == number) * weight_B for count, of_B in (("found", predicted_B),
                                                                               ("there", label_B))
            for number in range(classes)}
    return each | {"right": (predicted_B == 1) * (label_B == 1) * weight_B}


def log_shares(about: types.About):
    """log_share_C: the train split's shares of the classes, one added to the count of each."""
    smooth_C = np.frombuffer(about.counts, np.int64) + 1
    errors.expect(len(smooth_C) == len(about.classes) > 1, "classes of the train split", about.classes,
                  f"two or more, each counted, not {len(smooth_C)} counts")
    return jnp.asarray(np.log(smooth_C / smooth_C.sum()), jnp.float32)


def baseline(log_share_C, label, weight) -> dict:
    """What always answering by the train split's shares would lose and get right, by the shape of `label`."""
    most, right = log_share_C.argmax(), (label == log_share_C.argmax()) * weight
    return {"majority_nats": -log_share_C[label] * weight, "majority_correct": right,
            "majority_right": (most == 1) * right, "majority_found": (most == 1) * weight}


MAJORITY = {"loss": ("majority_nats",), "accuracy": ("majority_correct",),
            "f1": ("majority_right", "majority_found", "there_1")}


def references(scores: Sequence[Score]) -> tuple[Score, ...]:
    """The majority class beside those scores of classes that it moves; its correlations are 0."""
    return tuple(score._replace(name=f"majority_{score.name}", title=score.title.replace("held-out", "majority class"),
                                columns=(*MAJORITY[score.name], score.columns[-1]), better=0, chart=False,
                                reference="majority class", beside=score.name)
                 for score in scores if score.name in MAJORITY)
