"""Nats by the word, of runs that tell each piece of a word from those before it: what other vocabularies compare by."""
from collections.abc import Mapping

import numpy as np

from mlm import objectives
from mlm.base import config
from mlm.base.estimates import Score
from mlm.data.rows import pack
from mlm.data.tokenizers.tokenizer import Tokenizer


def several(cfg: config.Config, tokenizer: Tokenizer) -> bool:
    """Whether a run tells pieces of which a word may have several."""
    return objectives.seen(cfg) == "left" and not tokenizer.starts_word_V.all()


def columns(packed: pack.Packed, asked_NxL: np.ndarray) -> dict[str, np.ndarray]:
    """"words": of each held-out row, how many of the tokens that are asked for begin a word; [SEP] counts as one, as
    <eos> does where perplexities by the word are published."""
    ids_NxL = np.asarray(packed.validation["ids"][:len(asked_NxL)])
    return {"words": (packed.tokenizer.starts_word_V[ids_NxL] & asked_NxL).sum(1)}


def scores(loss: Score, beside: Mapping[str, str]) -> tuple[Score, ...]:
    """Loss by the word of the model, and of others beside it; beside: their references by the column of their nats."""
    own = Score("word_loss", "held-out loss by the word", (loss.columns[0], "words"), unit="nats per word", better=-1)
    return own, *(own._replace(name=f"{name.removesuffix('_nats')}_word_loss", title=f"{of}'s loss by the word",
                               columns=(name, "words"), better=0, reference=of, beside=own.name)
                  for name, of in beside.items())
