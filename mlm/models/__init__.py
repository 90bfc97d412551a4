"""The model families. A new one is a file with a SPEC, an entry of MODELS and its sizes in sizes.py."""

from mlm.base import config, errors
from mlm.base.conditional_fields import FieldCondition
from mlm.base.derived_fields import DerivedField
from mlm.models import encoder_decoder, feedforward, layers, platform_kernels, rnn, transformer
from mlm.models.sizes import SIZES

MODELS = {
    "feedforward": feedforward.SPEC,
    "rnn": rnn.SPEC,
    "transformer": transformer.SPEC,
    "encoder_decoder": encoder_decoder.SPEC,
}


def _build_conditions(field: str) -> list[FieldCondition]:
    """The families, and where it depends on them the cells, that read a field of config.model."""
    families = {name: spec for name, spec in MODELS.items() if field in (*spec.conditional_fields, *spec.cell_fields)}
    cells = {cell: None for spec in families.values() for cell in spec.cell_fields.get(field, spec.cells or ("",))}
    conditions = [FieldCondition((f"model.{field}",), "model.family", tuple(families))]
    if any(field in spec.cell_fields for spec in families.values()):
        conditions.append(FieldCondition((f"model.{field}",), "model.cell", tuple(cells)))
    return conditions


FIELD_CONDITIONS = [
    condition
    for field in dict.fromkeys(
        field for spec in MODELS.values() for field in (*spec.conditional_fields, *spec.cell_fields)
    )
    for condition in _build_conditions(field)
]


def _derive_cell(cfg):
    name = cfg.model.family
    family = next((family for family, spec in MODELS.items() if name in spec.cells), "")
    if family and name not in MODELS:
        raise errors.ConfigError(
            f"config.model.family = {name!r}: expected one of {', '.join(MODELS)}; did you mean model.family={family} "
            f"model.cell={name}?"
        )
    errors.require_one_of("config.model.family", name, list(MODELS))
    return (*MODELS[cfg.model.family].cells, "")[0]


def _look_up_size(model: config.Model) -> dict[str, int]:
    """The row of SIZES of a model's cell and size."""
    if cells := MODELS[model.family].cells:
        errors.require_one_of("config.model.cell", model.cell, cells)
    else:
        errors.require(not model.cell, "config.model.cell", model.cell, f"nothing: {model.family} has no cells")
    sizes = SIZES[model.cell or model.family]
    errors.require_one_of("config.model.size", model.size, list(sizes))
    return sizes[model.size]


def _derive_mlp_dim(cfg):
    """The size's; a gated MLP has three matrices in place of two, so that two thirds have as many parameters."""
    mlp_dim = _look_up_size(cfg.model).get("mlp_dim", 0)
    return round(mlp_dim / 12) * 8 if cfg.model.activation in layers.GATES else mlp_dim


_SIZE_FIELDS = ("model.size", "model.family", "model.cell")
DERIVED_FIELDS = (
    DerivedField("model.cell", ("model.family",), _derive_cell),
    DerivedField("model.mlp_dim", (*_SIZE_FIELDS, "model.activation"), _derive_mlp_dim),
    *(
        DerivedField(f"model.{name}", _SIZE_FIELDS, lambda cfg, name=name: _look_up_size(cfg.model).get(name, 0))
        for name in dict.fromkeys(name for sizes in SIZES.values() for name in sizes["tiny"] if name != "mlp_dim")
    ),
)


def reads_field(cfg: config.Config, field: str) -> bool:
    """Whether the model reads a field of config.model that not every family reads."""
    spec = MODELS[cfg.model.family]
    return field in spec.conditional_fields or cfg.model.cell in spec.cell_fields.get(field, ())


def explain_plain_attention(cfg: config.Config) -> str:
    """A line for a run that trains without its fused attention, since it drops attention weights; else empty."""
    rate, kernels = cfg.model.attention_dropout, platform_kernels.FUSED_ATTENTION
    if rate <= 0 or not reads_field(cfg, "attention_dropout"):
        return ""
    names = [name for name in kernels if platform_kernels.uses_kernel(cfg.model, name)]
    if not names:
        return ""
    return (
        f"config.model.attention_dropout = {rate:g}: {names[0]} drops no attention weights, so training takes the "
        "plain formula; 0 would be faster and need less memory"
    )


def reads_source(cfg: config.Config) -> bool:
    """Whether the model reads a source text beside each example."""
    return MODELS[cfg.model.family].reads_source


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.model that no run could use."""
    model, name = cfg.model, "config.model"
    errors.require_number(f"{name}.scan_unroll", model.scan_unroll, 0, model.num_layers)
    expected = "all, norms or none, since config.model.lm_head is linear, whose output has no bias"
    errors.require_field(cfg, "model.bias", model.lm_head == "bert" or model.bias != "output", expected)
    platform_kernels.check(model.kernels)
    if cfg.pack.mode == "segment_pair":
        errors.require(
            model.type_vocab_size != 1, f"{name}.type_vocab_size", 1, "2 (or 0), since config.pack.mode is segment_pair"
        )
    MODELS[model.family].check(cfg)
