"""The default recipe: how a model of each family and width is trained where the config does not say.

Widths of up to 128 have the recipe that experiments/architectures.py found by its trials on the built-in language, and
that the quickstart uses: with the larger widths' recipe, a micro Transformer is still at the unigram's loss after 700
steps. Larger widths have BERT's initialization and dropout (Devlin et al. 2019, appendix A.2).
"""

from mlm import models
from mlm.base import config
from mlm.base.derived_fields import DerivedField

SMALL_WIDTH = 128
LEARNING_RATE = 1e-3  # also of a small model that goes on from a trained one
SMALL_LEARNING_RATES = {"gru": 8e-3}  # by cell; 4e-3 for the others
MEMORY = 128  # longest memory, in tokens, of a small gated cell's initial gates


def _is_small(cfg: config.Config) -> bool:
    return cfg.model.width <= SMALL_WIDTH and not models.reads_source(cfg)


def _derive_learning_rate(cfg):
    if cfg.init.run or cfg.init.hub or not _is_small(cfg):
        return LEARNING_RATE
    return SMALL_LEARNING_RATES.get(cfg.model.cell, 4e-3)


SIZE = ("model.width", "model.family")
MEMBER = ("model.family", "model.cell")
DERIVED_FIELDS = (
    DerivedField(
        "model.positions",
        MEMBER,
        lambda cfg: "learned" if models.reads_source(cfg) else "rotary",
        applies=lambda cfg: models.reads_field(cfg, "positions"),
    ),
    DerivedField("model.init_std", SIZE, lambda cfg: 0.08 if _is_small(cfg) else 0.02),
    DerivedField("model.dropout", SIZE, lambda cfg: 0.0 if _is_small(cfg) else 0.1),
    DerivedField(
        "model.attention_dropout",
        (*MEMBER, "model.width"),
        lambda cfg: 0.0 if _is_small(cfg) else 0.1,
        applies=lambda cfg: models.reads_field(cfg, "attention_dropout"),
    ),
    DerivedField(
        "model.chrono_init",
        (*MEMBER, "model.width"),
        lambda cfg: MEMORY if _is_small(cfg) else 0,
        applies=lambda cfg: models.reads_field(cfg, "chrono_init"),
    ),
    DerivedField("optim.learning_rate", (*SIZE, "model.cell", "init.run", "init.hub"), _derive_learning_rate),
)
