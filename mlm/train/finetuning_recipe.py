"""The config of a fine-tuning, from that of the run it starts from and a recipe."""
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mlm.base import config, errors, fields
from mlm.data.rows import pack
from mlm.data.tasks import splits, tasks
from mlm.train import downstream, resolution
from mlm.train.run import initialization

# As Devlin et al. 2019, appendix A.3, with the 6% of warm-up of Liu et al. 2019: a few epochs, of which they take the
# best of 2, 3 and 4, at the best of three learning rates. Those are of models of a hundred million parameters; the
# smallest sizes want larger ones.
RECIPE = {"optim.schedule": "linear", "optim.warmup_fraction": 0.06, "optim.b2": 0.999, "model.dropout": 0.1}
EPOCHS, BATCH = 3.0, 32
APART = 1000  # fine-tunings of one seed of pretraining and of the next: no two start alike
RATES = (2e-5, 3e-5, 5e-5)
RATES_OF = {"micro": (5e-4, 1e-3, 2e-3), "tiny": (5e-4, 1e-3, 2e-3), "mini": (3e-4, 5e-4, 1e-3)}
LENGTHS = {"topic": 32, "pair": 32, "tag": 32, "subject": 32, "sst2": 64, "cola": 32, "wnut17": 64,  # most examples fit
           "swag": 64, "stsb": 96, "mnli": 128, "qnli": 128, "qqp": 128, "mrpc": 128, "rte": 128}


class Trial(NamedTuple):
    """One of the fine-tunings that config.downstream asks for."""

    task: str
    variant: str          # one of config.downstream.variants
    learning_rate: float
    epochs: float
    batch_size: int
    seed: int             # 0, 1, ...


def rates(size: str) -> tuple[float, ...]:
    """The learning rates to choose from for a model of a row of mlm/models/sizes.py."""
    return RATES_OF.get(size, RATES)


def trials(cfg: config.Config) -> list[Trial]:
    """What config.downstream asks for; those that share a program stand together."""
    said = cfg.downstream
    return [Trial(task, variant, rate, epochs, size, seed)
            for task, variant, size, epochs, rate, seed in itertools.product(
                downstream.names(cfg), downstream.variants(cfg), said.batch_sizes, said.epochs,
                said.learning_rates or rates(cfg.model.size), range(said.seeds))]


def given(cfg: config.Config, trial: Trial) -> dict[str, Any]:
    """What a trial sets of the config of its fine-tuning, by dotted name; cfg: the pretrained run's."""
    path = {} if trial.task in tasks.DRAWN else {"data.task_path": f"{cfg.downstream.path}/{trial.task}"}
    of_row = tasks.objective(trial.task) in ("classify", "regress", "choice")
    read = {"finetune.pooling": "last"} if of_row and cfg.model.context in ("left", "apart") else {}
    return path | read | {"data.task": trial.task, "data.cache": cfg.data.cache, "train.batch_size": trial.batch_size,
                          "optim.learning_rate": trial.learning_rate,
                          "seed": (cfg.seed * APART + trial.seed) % 2**32} | downstream.settings(trial.variant)


def planned(cfg: config.Config, trial: Trial) -> config.Config:
    """The config that a trial will have once the run of cfg is trained, but for the steps and the state it starts from.

    Raises ConfigError for what cannot be fine-tuned so.
    """
    began = initialization.model_of(fields.flatten(cfg), cfg.workdir) | {"init.run": cfg.workdir}
    made = resolution.resolve(*_layers(config.Config(), began, given(cfg, trial)))
    resolution.check(made)
    return made


def check(cfg: config.Config) -> None:
    """Raises ConfigError where the run of a resolved config could not be fine-tuned as config.downstream says, or where
    files that it names are not there.
    """
    for trial in {(one.task, one.variant, one.batch_size): one for one in trials(cfg)}.values():
        try:
            made = planned(cfg, trial)
            if trial.task not in tasks.DRAWN:
                splits.paths(made.data)
        except errors.ConfigError as error:
            raise errors.ConfigError(f"config.downstream, {trial.task}: {error}") from None


def resolve(base: config.Config, run: str, given: Mapping[str, Any], *, drawn: bool = False,
            epochs: float | None = None) -> tuple[config.Config, pack.Packed]:
    """The resolved and checked config of a fine-tuning of a run, or a Hugging Face folder, and its rows.

    given: fields by dotted name, data.task among them, that win over the recipe, which wins over the run's own, which
    win over base. drawn: with first parameters drawn, not the run's. epochs: in the place of train.steps. Raises
    ConfigError for what cannot be.
    """
    errors.require(bool(given.get("data.task")), "config.data.task", given.get("data.task", ""),
                  "the task to fine-tune for: --config.data.task=NAME")
    errors.require(epochs is None or "train.steps" not in given, "--epochs", epochs,
                  "left out beside config.train.steps, which says how long to train too")
    errors.require(epochs is None or math.isfinite(epochs), "--epochs", epochs, "a finite number of passes")
    workdir = {"workdir": str(initialization.directory_of(run, given["data.task"] + ("-drawn" if drawn else "")))}
    began = initialization.of(run, fields.override(base, workdir | given), drawn=drawn)
    layers = _layers(base, began | workdir, given)
    cfg = resolution.resolve(*layers)
    if not drawn:
        initialization.check_same(cfg, began)
    resolution.check(cfg)
    packed = pack.load(cfg)
    if "train.steps" not in given:
        rows, wanted = len(packed.train["ids"]), EPOCHS if epochs is None else epochs
        cfg = resolution.resolve(*layers, {"train.steps": max(1, math.ceil(rows * wanted / cfg.train.batch_size))})
    return cfg, packed


def _layers(base, began, given) -> Sequence:
    """The config and the fields over it of which a fine-tuning's is made; began: those of the run it starts from."""
    own = RECIPE | {"train.batch_size": BATCH, "optim.learning_rate": rates(began["model.size"])[1]}
    own |= {"pack.seq_len": min(began["pack.seq_len"], LENGTHS.get(given["data.task"], began["pack.seq_len"]))}
    return base, began, own, given
