"""The default recipe: how a model of each family and width is trained where the config does not say.

Widths of up to 128 have the recipe that experiments/architectures.py found by its trials on the built-in language: with
the larger widths' recipe, a micro Transformer is still at the unigram's loss after 700 steps. The learning rate of the
LSTM and the warm-up of the Transformer are those of experiments/default_recipe.py, whose trials are on text. Larger
widths have BERT's initialization and dropout (Devlin et al. 2019, appendix A.2).
"""

from mlm import models
from mlm.base import config, recipe_constants
from mlm.base.fields import DerivedField

SMALL_WIDTH = 128
LEARNING_RATE = 1e-3  # also of a small model that goes on from a trained one
# Of AdamW's: experiments/optimizers.py found 0.17 and 4.9 by equal trials of micro Transformers (others 0.7 to 1.4).
RELATIVE_LEARNING_RATES = {"lion": 0.2, "adafactor": 5.0}


def _is_small(cfg: config.Config) -> bool:
    return cfg.model.width <= SMALL_WIDTH and not models.reads_source(cfg)


def _derive_learning_rate(cfg):
    rate = recipe_constants.SMALL_LEARNING_RATES.get(cfg.model.cell, recipe_constants.SMALL_LEARNING_RATE)
    if cfg.init.run or cfg.init.hub or not _is_small(cfg):
        rate = LEARNING_RATE
    return rate * RELATIVE_LEARNING_RATES.get(cfg.optim.optimizer, 1.0)


def _derive_dropout(cfg):
    return recipe_constants.SMALL_DROPOUT if _is_small(cfg) else recipe_constants.BERT_DROPOUT


def _derive_warmup(cfg):
    is_trained = cfg.init.run or cfg.init.hub
    fractions = {} if is_trained or not _is_small(cfg) else recipe_constants.SMALL_WARMUP_FRACTIONS
    return fractions.get(cfg.model.family, recipe_constants.WARMUP_FRACTION)


SIZE = ("model.width", "model.family")
MEMBER = ("model.family", "model.cell")
DERIVED_FIELDS = (
    DerivedField(
        "model.positions",
        MEMBER,
        lambda cfg: "learned" if models.reads_source(cfg) else recipe_constants.SMALL_POSITIONS,
        applies=lambda cfg: models.reads_field(cfg, "positions"),
    ),
    DerivedField(
        "model.init_std",
        SIZE,
        lambda cfg: recipe_constants.SMALL_INIT_STD if _is_small(cfg) else recipe_constants.BERT_INIT_STD,
    ),
    DerivedField("model.dropout", SIZE, _derive_dropout),
    DerivedField(
        "model.attention_dropout",
        (*MEMBER, "model.width"),
        _derive_dropout,
        applies=lambda cfg: models.reads_field(cfg, "attention_dropout"),
    ),
    DerivedField(
        "model.chrono_init",
        (*MEMBER, "model.width", "model.bias"),
        lambda cfg: recipe_constants.GATE_MEMORY if _is_small(cfg) else 0,
        applies=lambda cfg: models.reads_field(cfg, "chrono_init") and cfg.model.bias == "all",
    ),
    DerivedField("optim.warmup_fraction", (*SIZE, "init.run", "init.hub"), _derive_warmup),
    DerivedField(
        "optim.learning_rate", (*SIZE, "model.cell", "optim.optimizer", "init.run", "init.hub"), _derive_learning_rate
    ),
)
