"""The static part of a config: what a program is compiled for. Runs whose static configs are equal share a program."""

from typing import Any, NewType, NoReturn

from mlm.base import fields
from mlm.base.config import Config, Role

StaticConfig = NewType("StaticConfig", Config)  # a HiddenField in place of each value that no program knows
HIDDEN_FIELDS = tuple(
    name for name, declared in fields.DECLARATIONS.items() if declared.facts.get("role") in (Role.TRACED, Role.HOST)
)


class HiddenField:
    """Stands for a value that no compiled function may read: any use but the comparison of two raises TypeError."""

    def __init__(self, name: str):
        self.name = name  # dotted

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"config.{self.name}: a compiled function cannot read it, since runs that differ in it share the program; "
            "what is traced is in hparams (mlm/training/step/program.py)"
        )

    __bool__ = __int__ = __float__ = __index__ = __str__ = __format__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __add__ = __radd__ = __sub__ = __rsub__ = _refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __rpow__ = _refuse

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HiddenField):
            self._refuse()
        return self.name == other.name

    def __hash__(self) -> int:
        return hash((HiddenField, self.name))

    def __repr__(self) -> str:
        return f"HiddenField({self.name!r})"


def hide_fields(cfg: Config) -> StaticConfig:
    """The config without the values of HIDDEN_FIELDS."""
    return StaticConfig(fields.replace_values(cfg, {name: HiddenField(name) for name in HIDDEN_FIELDS}))


def fill_hidden_fields(cfg: StaticConfig) -> Config:
    """A config of the same program, with the defaults in place of what is hidden."""
    return fields.replace_values(cfg, {name: fields.DEFAULT[name] for name in HIDDEN_FIELDS})
