"""The model families. A new one is a file with a SPEC, its entry in MODELS and its sizes in SIZES."""

from mlm.base import config, errors
from mlm.base.conditional_fields import FieldCondition
from mlm.base.fields import DerivedField
from mlm.base.recipe_constants import WINDOW_NEIGHBORS
from mlm.models import encoder_decoder, feedforward, fused_attention, layers, mixer, platform_kernels, rnn, transformer

MODELS = {
    "feedforward": feedforward.SPEC,
    "rnn": rnn.SPEC,
    "transformer": transformer.SPEC,
    "mixer": mixer.SPEC,
    "encoder_decoder": encoder_decoder.SPEC,
}

_SHAPES = {
    "micro": {"num_layers": 2, "width": 64},
    "tiny": {"num_layers": 2, "width": 128},
    "mini": {"num_layers": 4, "width": 256},
    "small": {"num_layers": 4, "width": 512},
    "medium": {"num_layers": 8, "width": 512},
    "base": {"num_layers": 12, "width": 768},
    "large": {"num_layers": 24, "width": 1024},
}


def _build_sizes(field: str, dims: list[int], **fields) -> dict[str, dict[str, int]]:
    return {size: shape | {field: dim} | fields for (size, shape), dim in zip(_SHAPES.items(), dims, strict=True)}


# By cell, or family without cells. Sizes are named after BERT's (Devlin et al. 2019; Turc et al. 2019); micro is ours.
# All models of a size have the Transformer's width and depth, and within 3% as many non-embedding parameters
# (recurrent cells in both directions, a window of five); a test counts them. micro has four heads: with BERT's 64
# units per head it would have one, which is still at the unigram loss after 300 steps, when four heads are far below
# it. A bag sees two neighbors on each side, since every further one blurs the nearest, which are the most informative.
SIZES = {
    "transformer": {
        size: entry | {"num_heads": 4 if size == "micro" else entry["width"] // 64}
        for size, entry in _build_sizes("mlp_dim", [256, 512, 1024, 2048, 2048, 3072, 4096]).items()
    },
    "elman": _build_sizes("rnn_dim", [106, 212, 424, 848, 848, 1264, 1680]),
    "gru": _build_sizes("rnn_dim", [58, 116, 232, 464, 464, 688, 912]),
    "lstm": _build_sizes("rnn_dim", [48, 96, 192, 384, 384, 576, 768]),
    "mingru": _build_sizes("rnn_dim", [128, 256, 512, 1024, 1024, 1536, 2048]),
    "minlstm": _build_sizes("rnn_dim", [96, 192, 384, 768, 768, 1152, 1536]),
    "rglru": _build_sizes("rnn_dim", [72, 144, 288, 576, 576, 864, 1152]),
    "ssd": _build_sizes("rnn_dim", [80, 208, 464, 960, 960, 1472, 1984], state_dim=64),
    "window": _build_sizes("mlp_dim", [226, 448, 1216, 2432, 2752, 4288, 5936], window=WINDOW_NEIGHBORS),
    "bag": _build_sizes("mlp_dim", [370, 736, 1504, 3008, 3040, 4576, 6128], window=2),
    "conv": _build_sizes("mlp_dim", [288, 576, 1152, 2304, 2304, 3456, 4608], window=3),
    "gmlp": _build_sizes("mlp_dim", [248, 512, 1024, 2048, 2048, 3072, 4096]),
    "fnet": _build_sizes("mlp_dim", [384, 768, 1536, 3072, 3072, 4608, 6144]),
}


def _build_conditions(field: str) -> list[FieldCondition]:
    """The families, and where it depends on them the cells, that read a field of config.model."""
    families = {name: spec for name, spec in MODELS.items() if field in (*spec.conditional_fields, *spec.cell_fields)}
    cells = {cell: None for spec in families.values() for cell in spec.cell_fields.get(field, spec.cells or ("",))}
    conditions = [FieldCondition((f"model.{field}",), "model.family", tuple(families))]
    if any(field in spec.cell_fields for spec in families.values()):
        conditions.append(FieldCondition((f"model.{field}",), "model.cell", tuple(cells)))
    return conditions


_FIELDS = dict.fromkeys(field for spec in MODELS.values() for field in (*spec.conditional_fields, *spec.cell_fields))
FIELD_CONDITIONS = [condition for field in _FIELDS for condition in _build_conditions(field)]


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
    name = model.cell or model.family
    assert name in SIZES, f"SIZES of mlm/models/__init__.py has no row {name!r}, with the Transformer's parameters"
    sizes = SIZES[name]
    errors.require_one_of("config.model.size", model.size, list(sizes))
    return sizes[model.size]


def _derive_mlp_dim(cfg):
    """The size's; a gated MLP has three matrices in place of two, so that two thirds have as many parameters."""
    mlp_dim = _look_up_size(cfg.model).get("mlp_dim", 0)
    return round(mlp_dim / 12) * 8 if cfg.model.activation in layers.GATES else mlp_dim


_SIZE_FIELDS = ("model.size", "model.family", "model.cell")


def _derive_rope_factor(cfg):
    length, seq_len = cfg.model.rope_original_len, cfg.pack.seq_len
    return max(1.0, seq_len / length) if cfg.model.rope_scaling and length else 0.0


DERIVED_FIELDS = (
    DerivedField("model.cell", ("model.family",), _derive_cell),
    DerivedField("model.mlp_dim", (*_SIZE_FIELDS, "model.activation"), _derive_mlp_dim),
    DerivedField(
        "model.rope_factor", ("model.rope_scaling", "model.rope_original_len", "pack.seq_len"), _derive_rope_factor
    ),
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
    """A line for a run that trains without fused attention, since none drops weights of its shape; else empty."""
    rate, kernels = cfg.model.attention_dropout, platform_kernels.FUSED_ATTENTION
    names = [name for name in kernels if platform_kernels.uses_kernel(cfg.model, name)]
    if rate <= 0 or not names or not reads_field(cfg, "attention_dropout"):
        return ""
    if fused_attention.can_use_fused(cfg.model, cfg.pack.seq_len, cfg.model.width // cfg.model.num_heads):
        return ""
    return (
        f"config.model.attention_dropout = {rate:g}: {names[0]} drops no attention weights, and fused_attention takes "
        "bfloat16, rows of a multiple of 128 tokens, and heads of 32, 64 or 128 entries alone, so training takes the "
        "plain formula; 0 would be faster and need less memory"
    )


def reads_source(cfg: config.Config) -> bool:
    """Whether the model reads a source text beside each example."""
    return MODELS[cfg.model.family].reads_source


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.model that no run could use."""
    model = cfg.model
    divides = model.num_layers % layers.count_unique_layers(model) == 0
    expected = f"a divisor of config.model.num_layers = {model.num_layers}"
    errors.require_field(cfg, "model.num_unique_layers", divides, expected)
    errors.require_number("config.model.scan_unroll", model.scan_unroll, 0, layers.count_unique_layers(model))
    platform_kernels.check(model.kernels)
    has_types = model.type_vocab_size != 1 or cfg.pack.mode != "segment_pair"
    errors.require_field(cfg, "model.type_vocab_size", has_types, "2 (or 0)", "pack.mode")
    MODELS[model.family].check(cfg)
