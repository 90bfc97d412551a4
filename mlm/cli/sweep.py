"""A sweep: lists an experiment's points, says what they would cost, runs those not done, makes its table and report.

    python -m mlm.launch.sweep list|plan|run|table|report experiments/architectures.py --scale=quick|laptop|paper
    python -m mlm.launch.sweep submit|status|cancel experiments/architectures.py --scale=paper --on=slurm

--config.name=value sets a field of every point. --budget=predictions|flops|seconds gives each point the steps that
spend what the first one does. Runs and table lie in runs/EXPERIMENT-SCALE[-BUDGET], or in --config.workdir.
"""
import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from absl import flags

from mlm.cli import command
from mlm.launch import kernel_choice
from mlm.launch.sweep import submit as submitting

_SCALE = flags.DEFINE_string("scale", "quick", "Which of the experiment's scales to use.")
_BUDGET = flags.DEFINE_enum("budget", "steps", ["steps", "predictions", "flops", "seconds"], "What all points spend: "
                            "steps, as the experiment says, or as many predictions, training FLOPs or seconds (on this "
                            "machine) as the first point in its steps.")
_WORKERS = flags.DEFINE_integer("workers", 1, "Processes that train points at the same time, the cores divided among "
                                "them. Leave it at 1 on an accelerator.", lower_bound=1, upper_bound=1024)
_TOGETHER = flags.DEFINE_integer("together", 0, "Points of one program trained side by side; 0: by the kind of device.",
                                 lower_bound=0, upper_bound=1024)
_DEVICE = flags.DEFINE_string("device", "H200",
                              "plan: the kind of device, one of mlm/launch/cluster/accelerators.py's, or here: " "this machine, on which a few steps of each program are then measured.")
_EXACT = flags.DEFINE_bool("exact", False, "plan: compile each program for its memory, in 3 to 20 s for each "
                           "column of that (as it is, with remat, sharded), instead of estimating it.")
_DEVICES = flags.DEFINE_integer("devices", 1, "plan: how many of them.", lower_bound=1, upper_bound=2**20)
_UTILISATION = flags.DEFINE_float("utilisation", 0.4, "plan: share of their dense peak that training reaches.",
                                  lower_bound=0.01, upper_bound=1)
_POINTS = flags.DEFINE_list("points", [], "Names of points, or patterns such as '*-seed0': of these alone. run then "
                            "leaves the table to the verb table.")
VERBS = ("list", "plan", "run", "table", "report", "submit", "status", "cancel")


def load_experiment(path: str):
    """The experiment's module. Raises ConfigError for a file that is none, naming the line where there is one."""
    from mlm.base import errors, user_code

    if not os.path.lexists(path):
        there = Path("experiments") if Path("experiments").is_dir() else Path(__file__).parents[2] / "experiments"
        errors.require_one_of("experiment", path, sorted(str(file) for file in there.glob("*.py")))
    module = user_code.load("experiment", path, ("SCALES", "sweep", "table"))
    for name, right, what in (("SCALES", isinstance(module.SCALES, Mapping) and bool(module.SCALES),
                               "a dict of scales by name, with one at least"),
                              ("sweep", callable(module.sweep), "a function of a scale"),
                              ("table", callable(module.table), "a function of results")):
        errors.require(right, f"experiment {path}: {name}", getattr(module, name), what)
    return module


def points(experiment, argv, verb: str) -> tuple[Path, list]:
    """The sweep's folder and the resolved config of each point; what the command line sets wins over the experiment."""
    from mlm.base import buckets, errors, fields, files, user_code
    from mlm.launch.sweep import sweep_points as checked
    from mlm.train.run import directory

    errors.require_one_of("--scale", _SCALE.value, list(experiment.SCALES))
    asked = command.overrides(argv)
    own_steps = _BUDGET.value == "steps"
    name = f"{Path(experiment.__file__).stem}-{_SCALE.value}" + ("" if own_steps else f"-{_BUDGET.value}")
    root = files.path(asked.pop("workdir", f"runs/{name}"))
    shown = verb == "plan" or (verb == "submit" and submitting.dry())  # for which a bucket may be out of reach
    with contextlib.suppress(*([buckets.OutOfReach] if shown else [])):
        files.check_folder("config.workdir", str(root), writing=not shown and verb not in ("list", "status"),
                           schemes=directory.SCHEMES)
    with user_code.blamed("experiment", experiment.__file__):
        sweep = experiment.sweep(_SCALE.value)
    resolved = list(checked.resolved(command.base(), sweep, asked).values())
    if not own_steps:
        from mlm.launch.sweep import budget

        resolved = budget.rewrite(resolved, _BUDGET.value, root, measure=verb == "run")
    configs, names = [], {}
    for name, cfg in zip(sweep, resolved, strict=True):
        print_ = fields.fingerprint(cfg)
        if print_ in names:
            raise errors.ConfigError(f"points {names[print_]} and {name} are the same: the command line sets what the "
                                     f"sweep varies ({', '.join(f'config.{field}' for field in asked)})")
        names[print_] = name
        configs.append(dataclasses.replace(cfg, workdir=str(root / f"{name}-{print_[:6]}")))
    return root, checked.chosen(configs, _POINTS.value)


def settings() -> list[str]:
    """The flags of this command line that say which sweep this is and how its points are trained."""
    said = [f"--{flag.name}={flag.value}" for flag in (_SCALE, _BUDGET, _WORKERS, _TOGETHER)
            if flag.value != flag.default or flag is _SCALE]
    return [*said, *(submitting.flag(name, value) for name, value in command.overrides(sys.argv).items())]


def finished(configs) -> list[dict]:
    """The points that are trained, as reports read them; what is damaged, or of another sweep, is named on stderr."""
    from mlm.launch.sweep import sweep_state

    results, faults = sweep_state.finished(configs)
    for said in (*faults, sweep_state.strangers(configs)):
        if said:
            print(said, file=sys.stderr)
    return results


def show(experiment, root: Path, configs) -> None:
    """Prints and writes the table of the points that are done, saying how many of how many those are, and figures."""
    from mlm.report import table
    from mlm.report.pages import sweep as page

    results = finished(configs)
    print(f"{len(results)} of {len(configs)} points are done")
    if results:
        found = page.files(root, experiment, results)
        print(f"\n{table.markdown(found.rows, found.columns)}\n\nwritten in {root}: table.md, .csv, .tex; claims.md; "
              f"figures/ (.png, .svg, .csv): {', '.join(chart.name for chart in found.charts)}; runs: */")


def plan(configs) -> None:
    """Prints what the points would cost, each as soon as it is known."""
    import jax

    from mlm.base import errors
    from mlm.launch.cluster import accelerators
    from mlm.launch.sweep import local_timing, plan

    jax.config.update("jax_platforms", "cpu")  # an accelerator is left to those at work there
    points, exact = {Path(cfg.workdir).name: cfg for cfg in configs}, _EXACT.value
    if _DEVICE.value == "here":
        errors.require(_DEVICES.value == 1, "--devices", _DEVICES.value, "1 beside --device=here, which has its own")
        found = local_timing.Here({cfg.model.dtype for cfg in configs}, _UTILISATION.value)
        kind, machine = found.kind(), found.machine
        asked = plan.Plan(kind, 1, _UTILISATION.value, exact, found.step)
        peaks = " and ".join(f"{flops / 1e12:,.3g} TFLOP/s in products of {dtype} matrices"
                             for dtype, flops in machine.flops.items())
        note = (f"On this machine ({machine.devices} x {machine.name}, each {peaks} and {kind.memory / 1e9:.1f} GB), a "
                f"step as measured, with nothing else at work one hopes")
    else:
        errors.require_one_of("--device", _DEVICE.value, [*accelerators.KINDS, "here"])
        kind = accelerators.KINDS[_DEVICE.value]
        asked = plan.Plan(kind, _DEVICES.value, _UTILISATION.value, exact)
        note = (f"On {_DEVICES.value} x {_DEVICE.value} (chips: {_DEVICES.value * kind.chips}, each "
                f"{kind.flops / 1e12:,.0f} TFLOP/s dense bfloat16 and {kind.memory / 1e9:.0f} GB; {kind.source}), at "
                f"{_UTILISATION.value:.0%} of that peak")
    with contextlib.closing(found) if _DEVICE.value == "here" else contextlib.nullcontext():
        for line in plan.lines(points, asked):
            print(line, flush=True)
    how = "as compiled" if exact else "estimated, which may be wrong by a quarter (--exact compiles each step)"
    print(f"\n{note}; a step fits where it takes at most {plan.USABLE:.0%} of the memory, {how}.")
    if any(cfg.downstream.tasks for cfg in configs):
        print("What points are fine-tuned for (config.downstream) is not counted.")
    if _DEVICE.value != "here" and any(cfg.model.dtype != "bfloat16" for cfg in configs):
        print("Some points compute in float32, for which the peak is lower: --config.model.dtype=bfloat16")


def train(experiment, root: Path, configs) -> None:
    """Trains the points not done, shows what there is then, and ends with 1 where a point failed, or 128 + signal."""
    from mlm.launch.sweep import runner, sweep_state

    configs = kernel_choice.each_settled(configs, _WORKERS.value, again=kernel_choice.CALIBRATE.value)
    with sweep_state.Overview(configs) as view:
        call = runner.Runner(root, configs, workers=_WORKERS.value, together=_TOGETHER.value)
        call.run(view)
    if call.signal is not None:
        done = len(sweep_state.finished(configs)[0])
        print(f"stopped; {done} of {len(configs)} points are done; the same command continues")
        sys.exit(128 + call.signal)
    if _POINTS.value:
        print(f"{len(sweep_state.finished(configs)[0])} of {len(configs)} points are done, of those selected")
    else:
        show(experiment, root, configs)
    if call.failed:
        print("\n".join([f"{len(call.failed)} failed; the same command tries again:",
                         *(f"{workdir}: {error}" for workdir, error in call.failed.items())]), file=sys.stderr)
        sys.exit(1)


def main(argv):
    from mlm.base import errors
    from mlm.launch.sweep import status, subprocess_worker

    if len(argv) != 3:
        raise errors.ConfigError(f"expected a verb ({', '.join(VERBS)}) and an experiment, such as: "
                                 "python -m mlm.launch.sweep run experiments/architectures.py --scale=quick")
    verb, path = argv[1:]
    errors.require_one_of("verb", verb, VERBS)
    errors.require(verb == "submit" or not submitting.dry(), "--dry_run", True, f"none beside {verb}")
    errors.require_number(
        "--utilisation", _UTILISATION.value, 0.01, 1
    )  # which the flag's own bounds let pass where it is nan
    errors.require(not _POINTS.value or verb not in ("table", "report", "cancel"), "--points", ",".join(_POINTS.value),
                  f"none beside {verb}, which is of all points")
    experiment = load_experiment(path)
    try:
        root, configs = points(experiment, sys.argv, verb)
        if verb == "list":
            listed(configs)
        elif verb == "plan":
            plan(configs)
        elif verb == "run":
            train(experiment, root, configs)
        elif verb == "report":
            report(experiment, root, configs)
        elif verb == "submit":
            submitting.submit(submitting.Sweep(path, root, configs, tuple(settings()), command.base(), command.given()))
        elif verb == "status":
            status.show(root, configs)
        elif verb == "cancel":
            status.cancel(root)
        else:
            show(experiment, root, configs)
    except (subprocess_worker.CannotStart, subprocess_worker.Ended) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def listed(configs) -> None:
    """Prints where each point stands; one whose steps are unknown has no directory yet, for they are in its name."""
    from mlm.launch.sweep import sweep_state

    for cfg in configs:
        workdir = cfg.workdir if cfg.train.steps else cfg.workdir.rpartition("-")[0]
        print(f"{workdir}: {sweep_state.state(cfg)}", flush=True)
    if not _POINTS.value and (said := sweep_state.strangers(configs)):
        print(said, file=sys.stderr)


def report(experiment, root: Path, configs) -> None:
    from mlm.report.pages import sweep as page

    results = finished(configs)
    path = page.write(root, experiment, results, len(configs))
    print(f"{len(results)} of {len(configs)} points are done; written: {path}, with figures/ and table.* beside it")


if __name__ == "__main__":
    command.run(main)
