"""Encoders by family. A new one: a file with its FAMILY, a row here, and its sizes in sizes.py."""
import dataclasses

from mlm.base import config, errors
from mlm.base.reads import Rule
from mlm.models import feedforward, rnn, transformer
from mlm.models.sizes import SIZES

MODELS = {"feedforward": feedforward.FAMILY, "rnn": rnn.FAMILY, "transformer": transformer.FAMILY}
_READERS = {field: tuple(name for name, one in MODELS.items() if field in (*one.reads, *one.of_cells))
            for family in MODELS.values() for field in (*family.reads, *family.of_cells)}
READ = [*(Rule((f"model.{field}",), "model.family", names) for field, names in _READERS.items()),
        *(Rule((f"model.{field}",), "model.cell", cells) for family in MODELS.values()
          for field, cells in family.of_cells.items())]
MEMBERS = [(family, cell) for family, row in MODELS.items() for cell in row.cells or ("",)]


def resolve(cfg: config.Config) -> config.Config:
    """With the family's first cell where none is named, and the zeros of its size filled."""
    model = cfg.model
    errors.one_of("config.model.family", model.family, list(MODELS))
    cells = MODELS[model.family].cells
    if cells:
        model = dataclasses.replace(model, cell=model.cell or cells[0])
        errors.one_of("config.model.cell", model.cell, cells)
    else:
        errors.expect(not model.cell, "config.model.cell", model.cell, f"nothing: {model.family} has no cells")
    table = SIZES[model.cell or model.family]
    errors.one_of("config.model.size", model.size, list(table))
    filled = {name: getattr(model, name) or value for name, value in table[model.size].items()}
    return dataclasses.replace(cfg, model=dataclasses.replace(model, **filled))


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.model that no run could use."""
    model, name = cfg.model, "config.model"
    for field, names in (("norm", ("pre", "post")), ("positions", ("learned", "sinusoidal", "rotary")),
                         ("activation", ("gelu", "gelu_tanh", "relu")), ("output", ("bert", "plain")),
                         ("dtype", ("float32", "bfloat16"))):
        errors.one_of(f"{name}.{field}", getattr(model, field), names)
    for field in ("dropout", "attention_dropout"):
        errors.number(f"{name}.{field}", getattr(model, field), 0, 1, high_open=True)
    for field in ("layers", "width", "hidden", "max_positions"):
        errors.at_least(1, f"{name}.{field}", getattr(model, field))
    errors.number(f"{name}.unroll", model.unroll, 0, model.layers)
    errors.number(f"{name}.segment_types", model.segment_types, 0, 2)
    errors.number(f"{name}.init_std", model.init_std, 0, 100)
    errors.number(f"{name}.norm_eps", model.norm_eps, 0, 1, low_open=True)
    if cfg.pack.mode == "segment_pair":
        errors.expect(model.segment_types != 1, f"{name}.segment_types", 1, "2 (or 0), since rows hold pairs")
    MODELS[model.family].check(cfg)
