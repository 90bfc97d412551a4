"""Loss per word, for causal runs: it compares runs whose vocabularies differ."""

from collections.abc import Mapping

import numpy as np

from mlm import objectives
from mlm.base import config, types
from mlm.base.estimates import Score
from mlm.data.rows import pack
from mlm.data.tokenizers.tokenizer import Tokenizer


def has_multi_token_words(cfg: config.Config, tokenizer: Tokenizer) -> bool:
    """Whether a run predicts tokens left to right and its words may have several."""
    return objectives.get_visibility(cfg) == types.Visibility.CAUSAL and not tokenizer.starts_word_V.all()


def count_words(packed: pack.PackedDataset, mask_NxL: np.ndarray) -> dict[str, np.ndarray]:
    """Counts "words": how many of the predicted tokens of each held-out example begin a word.

    [SEP] counts as a word, as <eos> does in published perplexities per word.
    """
    ids_NxL = np.asarray(packed.validation["ids"][: len(mask_NxL)])
    return {"words": (packed.tokenizer.find_word_starts(ids_NxL) & mask_NxL).sum(1)}


def make_scores(loss: Score, references: Mapping[str, str]) -> tuple[Score, ...]:
    """The loss per word of the model and of its references; references: their names, by the column of their nats."""
    word_loss = Score(
        "word_loss", "held-out loss per word", (loss.columns[0], "words"), unit="nats per word", better=-1
    )
    return word_loss, *(
        word_loss._replace(
            name=f"{column.removesuffix('_nats')}_word_loss",
            title=f"{reference}'s loss per word",
            columns=(column, "words"),
            better=0,
            reference=reference,
            reference_for=word_loss.name,
        )
        for column, reference in references.items()
    )
