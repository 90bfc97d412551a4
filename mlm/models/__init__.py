"""Encoders by family. A new one: a file with its FAMILY, a row here, and its sizes in sizes.py."""
import dataclasses

from mlm.base import config, errors
from mlm.base.conditional_fields import FieldCondition
from mlm.models import cpu_kernels, encoder_decoder, feedforward, rnn, transformer
from mlm.models.sizes import SIZES

MODELS = {"feedforward": feedforward.FAMILY, "rnn": rnn.FAMILY, "transformer": transformer.FAMILY,
          "encoder_decoder": encoder_decoder.FAMILY}
MEMBERS = [(family, cell) for family, row in MODELS.items() if not row.source for cell in row.cells or ("",)]


def _read(field: str) -> list[FieldCondition]:
    """Which families read a field that not every one does, and where only some cells do, which."""
    families = {name: row for name, row in MODELS.items() if field in (*row.reads, *row.of_cells)}
    cells = {cell: None for row in families.values() for cell in row.of_cells.get(field, row.cells or ("",))}
    rules = [FieldCondition((f"model.{field}",), "model.family", tuple(families))]
    if any(field in row.of_cells for row in families.values()):
        rules.append(FieldCondition((f"model.{field}",), "model.cell", tuple(cells)))
    return rules


READ = [rule for field in dict.fromkeys(field for row in MODELS.values() for field in (*row.reads, *row.of_cells))
        for rule in _read(field)]
READ.append(FieldCondition(("model.type_vocab_size", "model.embed_norm", "model.lm_head", "eval.context_range",
                            "eval.anisotropy", "eval.sts", "downstream.tasks"), "model.family", tuple(name for name,
                                                                                                      row in MODELS.items() if not row.source)))


def resolve(cfg: config.Config) -> config.Config:
    """With the family's first cell where none is named, and the zeros of its size filled."""
    model = cfg.model
    errors.require_one_of("config.model.family", model.family, list(MODELS))
    cells = MODELS[model.family].cells
    if cells:
        model = dataclasses.replace(model, cell=model.cell or cells[0])
        errors.require_one_of("config.model.cell", model.cell, cells)
    else:
        errors.require(not model.cell, "config.model.cell", model.cell, f"nothing: {model.family} has no cells")
    table = SIZES[model.cell or model.family]
    errors.require_one_of("config.model.size", model.size, list(table))
    filled = {name: getattr(model, name) or value for name, value in table[model.size].items()}
    return dataclasses.replace(cfg, model=dataclasses.replace(model, **filled))


def source(cfg: config.Config) -> bool:
    """Whether the model reads a source beside each row."""
    return MODELS[cfg.model.family].source


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.model that no run could use."""
    model, name = cfg.model, "config.model"
    for field, names in (("norm_placement", ("pre", "post")), ("positions", ("learned", "sinusoidal", "rotary")),
                         ("activation", ("gelu", "gelu_tanh", "relu")), ("lm_head", ("bert", "plain")),
                         ("dtype", ("float32", "bfloat16"))):
        errors.require_one_of(f"{name}.{field}", getattr(model, field), names)
    for field in ("dropout", "attention_dropout"):
        errors.require_number(f"{name}.{field}", getattr(model, field), 0, 1, high_open=True)
    units = "rnn_dim" if "rnn_dim" in SIZES[model.cell or model.family][model.size] else "mlp_dim"
    for field in ("num_layers", "width", units, "max_positions"):
        errors.require_at_least(1, f"{name}.{field}", getattr(model, field))
    errors.require_number(f"{name}.scan_unroll", model.scan_unroll, 0, model.num_layers)
    errors.require_number(f"{name}.type_vocab_size", model.type_vocab_size, 0, 2)
    errors.require_number(f"{name}.init_std", model.init_std, 0, 100)
    errors.require_number(f"{name}.norm_eps", model.norm_eps, 0, 1, low_open=True)
    cpu_kernels.check(model.disabled_kernels)
    if cfg.pack.mode == "segment_pair":
        errors.require(model.type_vocab_size != 1, f"{name}.type_vocab_size", 1, "2 (or 0), since rows hold pairs")
    MODELS[model.family].check(cfg)
