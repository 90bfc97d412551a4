"""A config on its way to a run: what follows from other fields is filled, and each room checks what it will read."""
from mlm import models, objectives
from mlm.base import errors
from mlm.base.config import Config
from mlm.data.language import grammar
from mlm.data.rows import pack
from mlm.data.text import corpus
from mlm.train.step import optim, parallel


def resolve(cfg: Config) -> Config:
    """Fills what follows from other fields, room by room. What is set is never changed."""
    return objectives.resolve(models.resolve(pack.resolve(cfg)))


def check(cfg: Config) -> None:
    """Raises ConfigError for the first value of a resolved config that no run could use; compiles nothing."""
    corpus.check(cfg.data)
    pack.check(cfg)
    grammar.check(cfg.data.language)
    models.check(cfg)
    objectives.check(cfg)
    optim.check(cfg.optim)
    parallel.check_mode(cfg)
    for name, value in (("seed", cfg.seed), ("eval.seed", cfg.eval.seed)):
        errors.number(f"config.{name}", value, 0, 2**32 - 1)
    for name in ("steps", "batch_size", "accumulate", "checkpoint_every", "log_every"):
        errors.at_least(1, f"config.train.{name}", getattr(cfg.train, name))
    errors.at_least(0, "config.train.eval_every", cfg.train.eval_every)
    errors.expect(cfg.train.batch_size % cfg.train.accumulate == 0, "config.train.accumulate", cfg.train.accumulate,
                  f"a divisor of config.train.batch_size = {cfg.train.batch_size}")
    errors.at_least(1, "config.eval.batch_size", cfg.eval.batch_size)
    errors.at_least(0, "config.eval.max_rows", cfg.eval.max_rows)
    errors.number("config.eval.rate", cfg.eval.rate, 0, 1, low_open=True, high_open=True)
    for rate in cfg.eval.rates:
        errors.expect(isinstance(rate, float) and 0 < rate < 1, "config.eval.rates", cfg.eval.rates,
                      "each 0 < rate < 1")
