"""A laboratory for masked language models: what changes when only the architecture, size or masking rate does?

    import mlm

    model = mlm.load("runs/a")
    model.fill_mask("the [MASK] milks the old cow .", top_k=3)

`import mlm` is cheap: JAX is imported when a name below is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlm.api import Result, evaluate, load, train
    from mlm.base.config import Config
    from mlm.inference.language_model import LanguageModel

__version__ = "0.2.0"
__all__ = ["Config", "LanguageModel", "Result", "__version__", "evaluate", "load", "train"]

_MODULES = {
    "Config": "mlm.base.config",
    "LanguageModel": "mlm.inference.language_model",
    "Result": "mlm.api",
    "evaluate": "mlm.api",
    "load": "mlm.api",
    "train": "mlm.api",
}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module 'mlm' has no attribute {name!r}; it has {', '.join(sorted(_MODULES))}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__():
    return sorted([*globals(), *_MODULES])
