"""The config of a fine-tuning, from that of the run it starts from and a recipe."""
import math
from collections.abc import Mapping
from typing import Any

from mlm.base import config, errors
from mlm.data.rows import pack
from mlm.train import recipe
from mlm.train.run import start

# As Devlin et al. 2019, appendix A.3, with the 6% of warm-up of Liu et al. 2019: a few epochs, of which they take the
# best of 2, 3 and 4, at the best of three learning rates. Those are of models of a hundred million parameters; the
# smallest sizes want larger ones.
RECIPE = {"train.batch_size": 32, "optim.schedule": "linear", "optim.warmup_fraction": 0.06, "optim.b2": 0.999,
          "model.dropout": 0.1}
EPOCHS = 3.0
RATES = (2e-5, 3e-5, 5e-5)
RATES_OF = {"micro": (5e-4, 1e-3, 2e-3), "tiny": (5e-4, 1e-3, 2e-3), "mini": (3e-4, 5e-4, 1e-3)}
LENGTHS = {"topic": 32, "pair": 32, "tag": 32, "subject": 32, "sst2": 64, "cola": 32, "wnut17": 64}  # most examples fit


def rates(size: str) -> tuple[float, ...]:
    """The learning rates to choose from for a model of a row of mlm/models/sizes.py."""
    return RATES_OF.get(size, RATES)


def resolve(base: config.Config, run: str, given: Mapping[str, Any], *, drawn: bool = False,
            epochs: float | None = None) -> tuple[config.Config, pack.Packed]:
    """The resolved and checked config of a fine-tuning of the run in a directory, and its rows.

    given: fields by dotted name, data.task among them, that win over the recipe, which wins over the run's own, which
    win over base. drawn: with first parameters drawn, not the run's. epochs: in the place of train.steps. Raises
    ConfigError for what cannot be.
    """
    errors.expect(bool(given.get("data.task")), "config.data.task", given.get("data.task", ""),
                  "the task to fine-tune for: --config.data.task=NAME")
    errors.expect(epochs is None or "train.steps" not in given, "--epochs", epochs,
                  "left out beside config.train.steps, which says how long to train too")
    errors.expect(epochs is None or math.isfinite(epochs), "--epochs", epochs, "a finite number of passes")
    task, began = given["data.task"], start.of_run(run, drawn=drawn)
    size = began["model.size"]
    own = RECIPE | {"optim.learning_rate": rates(size)[1], "workdir": f"{run}-{task}" + ("-drawn" if drawn else "")}
    own |= {"pack.length": min(began["pack.length"], LENGTHS.get(task, began["pack.length"]))}
    layers = base, began, own, given
    cfg = recipe.resolve(*layers)
    recipe.check(cfg)
    packed = pack.load(cfg)
    if "train.steps" not in given:
        rows, wanted = len(packed.train["ids"]), EPOCHS if epochs is None else epochs
        cfg = recipe.resolve(*layers, {"train.steps": max(1, math.ceil(rows * wanted / cfg.train.batch_size))})
    return cfg, packed
