"""Objectives by name. To add one: write a file with its SPEC and add an entry to OBJECTIVES."""

import operator

from mlm.base import config, errors, types
from mlm.base.conditional_fields import list_registry_conditions
from mlm.base.fields import DerivedField
from mlm.objectives import (
    causal,
    classification,
    contrastive,
    denoising,
    diffusion,
    edge_probing,
    extractive_qa,
    hybrid,
    masking,
    mlm,
    regression,
    replaced_token_detection,
    tagging,
)

OBJECTIVES = {
    "mlm": mlm.SPEC,
    "nsp": mlm.NSP_SPEC,
    "causal": causal.SPEC,
    "hybrid": hybrid.SPEC,
    "diffusion": diffusion.SPEC,
    "denoising": denoising.SPEC,
    "replaced_token_detection": replaced_token_detection.SPEC,
    "classification": classification.SPEC,
    "regression": regression.SPEC,
    "multiple_choice": classification.MULTIPLE_CHOICE_SPEC,
    "tagging": tagging.SPEC,
    "extractive_qa": extractive_qa.SPEC,
    "edge_probing": edge_probing.SPEC,
    "contrastive": contrastive.SPEC,
}
_FIELDS = {name: spec.conditional_fields for name, spec in OBJECTIVES.items()}
FIELD_CONDITIONS = list_registry_conditions("objective", _FIELDS)


def _derive_pooling(cfg):
    if pooling := OBJECTIVES[cfg.objective].embedding_pooling:
        return pooling.value
    if is_one_sided(cfg.model.directionality):
        return "last"
    return "first" if cfg.model.family == "transformer" else "mean"


DERIVED_FIELDS = (
    DerivedField("model.directionality", ("objective",), lambda cfg: list_directionalities(cfg)[0].value),
    DerivedField(
        "finetune.pooling",
        ("objective", "model.directionality", "model.family"),
        _derive_pooling,
        applies=lambda cfg: "finetune.pooling" in OBJECTIVES[cfg.objective].conditional_fields,
    ),
    *masking.DERIVED_FIELDS,
)


def is_one_sided(directionality: str) -> bool:
    """Whether the states of a model see one side of a token alone."""
    return directionality in (types.Directionality.CAUSAL, types.Directionality.TWO_STACK)


def find_token_objective(directionality: str) -> str:
    """The name of the first objective that predicts tokens and whose default is this config.model.directionality."""
    return next(
        name
        for name, spec in OBJECTIVES.items()
        if spec.visibility is not types.Visibility.FULL and spec.directionalities[0] == directionality
    )


def list_directionalities(cfg: config.Config) -> tuple[types.Directionality, ...]:
    """The values of config.model.directionality that the objective can use, its default first."""
    errors.require_one_of("config.objective", cfg.objective, list(OBJECTIVES))
    return OBJECTIVES[cfg.objective].directionalities


def get_visibility(cfg: config.Config) -> types.Visibility:
    """Which tokens of its example the model may see when evaluation predicts a token."""
    visibility = OBJECTIVES[cfg.objective].visibility
    two_stack = visibility is types.Visibility.CAUSAL and cfg.model.directionality == types.Directionality.TWO_STACK
    return types.Visibility.TWO_STACK if two_stack else visibility


def get_loss_visibilities(cfg: config.Config) -> dict[str, types.Visibility]:
    """`get_visibility` of each loss among the objective's scores, by the score's name."""
    return {"loss": get_visibility(cfg)} | dict(OBJECTIVES[cfg.objective].loss_visibility)


def get_embedding_pooling(cfg: config.Config) -> str:
    """The value of config.finetune.pooling that makes the embeddings which the objective trains; "": it has none."""
    return cfg.finetune.pooling if OBJECTIVES[cfg.objective].embedding_pooling else ""


def makes_source(cfg: config.Config) -> bool:
    """Whether the objective makes the source that a model reads beside each example."""
    return OBJECTIVES[cfg.objective].makes_source


def shift_states(cfg: config.Config, model: types.Model) -> types.Model:
    """The same model, whose state at a masked token predicts that token."""
    return OBJECTIVES[cfg.objective].shift_states(model)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for what the objective cannot use."""
    allowed = list_directionalities(cfg)
    is_allowed = cfg.model.directionality in allowed
    errors.require_field(cfg, "model.directionality", is_allowed, " or ".join(allowed), "objective")
    for name, value in OBJECTIVES[cfg.objective].required_fields.items():
        errors.require_field(cfg, name, operator.attrgetter(name)(cfg) == value, str(value), "objective")
    OBJECTIVES[cfg.objective].check(cfg)
