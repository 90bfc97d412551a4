"""A sweep: lists the points of an experiment, runs those not done, prints and writes its table.

    python -m launch.sweep list|run|table experiments/architectures.py --scale=quick|laptop|paper

--config.name=value sets a field of every point. Runs and table lie in runs/EXPERIMENT-SCALE, or in --config.workdir.
"""
import dataclasses
import importlib.util
import json
import sys
import traceback
from pathlib import Path

from absl import flags

from launch import command

_SCALE = flags.DEFINE_string("scale", "quick", "Which of the experiment's scales to use.")
VERBS = ("list", "run", "table")


def load_experiment(path: str):
    from mlm import config

    found = sorted(str(file) for file in Path("experiments").glob("*.py"))
    if not Path(path).is_file():
        config.one_of("experiment", path, found)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def points(experiment, argv) -> tuple[Path, list]:
    """The sweep's folder and the resolved config of each point; what the command line sets wins over the experiment."""
    from configs.sizes import SIZES
    from mlm import config, limits
    from mlm.models import CELLS

    config.one_of("--scale", _SCALE.value, list(experiment.SCALES))
    asked = command.overrides(argv)
    root = Path(asked.pop("workdir", f"runs/{Path(experiment.__file__).stem}-{_SCALE.value}"))
    configs, names = [], {}
    for name, fields in experiment.sweep(_SCALE.value).items():
        cfg = config.override(config.override(command.CONFIG.value, fields), asked)
        cfg = config.resolve(cfg, SIZES, CELLS)
        limits.validate(cfg)
        print_ = config.fingerprint(cfg)
        if print_ in names:
            raise config.ConfigError(f"points {names[print_]} and {name} are the same: the command line sets what the "
                                     f"sweep varies ({', '.join(f'config.{field}' for field in asked)})")
        names[print_] = name
        configs.append(dataclasses.replace(cfg, workdir=str(root / f"{name}-{print_[:6]}")))
    return root, configs


def state(cfg) -> str:
    from mlm import metrics

    if (Path(cfg.workdir) / "result.json").exists():
        return "done"
    records = metrics.read(Path(cfg.workdir) / "metrics.jsonl")
    return f"step {records[-1]['step']:,} of {cfg.train.steps:,}" if records else "not started"


def show(experiment, root: Path, configs) -> None:
    """Prints and writes the table of the points that are done, saying how many of how many those are, and figures."""
    from mlm.report import gallery, table

    results = [json.loads(path.read_text()) for cfg in configs if (path := Path(cfg.workdir) / "result.json").exists()]
    print(f"{len(results)} of {len(configs)} points are done")
    if results:
        rows, columns = experiment.table(results)
        table.write(root, rows, columns)
        drawn = ", ".join(path.name for path in gallery.write(root, results))
        print(f"\n{table.markdown(rows, columns)}\n\nwritten in {root}: table.md, .csv, .tex; as .png, .svg, .csv: "
              f"{drawn}; runs: {root}/*/")


def train(configs) -> list[str]:
    """Trains the points not done, one after the other; one that fails does not stop the rest. Returns the failures."""
    import jax

    from mlm import loop

    for cfg in configs:
        loop.check(cfg)
    failures = []
    for number, cfg in enumerate(configs, 1):
        if state(cfg) == "done":
            continue
        print(f"point {number} of {len(configs)}")
        try:
            loop.train(cfg)
        except loop.Stopped as stop:
            print(stop)
            sys.exit(128 + stop.signal)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{cfg.workdir}: {type(error).__name__}: {error}".splitlines()[0])
        jax.clear_caches()
    return failures


def main(argv):
    from mlm import config

    if len(argv) != 3:
        raise config.ConfigError(f"expected a verb ({', '.join(VERBS)}) and an experiment, such as: "
                                 "python -m launch.sweep run experiments/architectures.py --scale=quick")
    verb, path = argv[1:]
    config.one_of("verb", verb, VERBS)
    experiment = load_experiment(path)
    root, configs = points(experiment, sys.argv)
    if verb == "list":
        for cfg in configs:
            print(f"{cfg.workdir}: {state(cfg)}")
        return
    failures = train(configs) if verb == "run" else []
    show(experiment, root, configs)
    if failures:
        print("\n".join([f"{len(failures)} failed; the same command tries again:", *failures]), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    command.run(main)
