"""What a run is fine-tuned for once its training ended, as its config says it: config.downstream."""
from mlm.base import config, errors
from mlm.base.reads import Rule
from mlm.data.tasks import tasks

READ = (Rule(tuple(f"downstream.{field}" for field in ("path", "learning_rates", "epochs", "seeds", "layers")),
             "downstream.names", unless=("",)),)


def names(cfg: config.Config) -> tuple[str, ...]:
    """The tasks, in the order they are named."""
    return tuple(name.strip() for name in cfg.downstream.names.split(",")) if cfg.downstream.names.strip() else ()


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config.downstream that no run could use; looks for no file."""
    said, field = cfg.downstream, "config.downstream"
    for name in names(cfg):
        errors.one_of(f"{field}.names", name, [*tasks.DRAWN, *tasks.TASKS])
    errors.expect(len({*names(cfg)}) == len(names(cfg)), f"{field}.names", said.names, "each task once")
    of_files = next((name for name in names(cfg) if name not in tasks.DRAWN), None)
    errors.expect(of_files is None or bool(said.path.strip()), f"{field}.path", said.path,
                  f"the folder that holds a folder {of_files!r} with the task's files, since {field}.names has it")
    for name in ("learning_rates", "epochs", "layers"):
        values = getattr(said, name)
        errors.expect(len({*values}) == len(values) and (bool(values) or name == "learning_rates"), f"{field}.{name}",
                      values, "each value once, one at least")
    for name, values in (("learning_rates", said.learning_rates), ("epochs", said.epochs)):
        errors.expect(all(value > 0 for value in values), f"{field}.{name}", values, "numbers above 0")
    errors.at_least(1, f"{field}.seeds", said.seeds)
