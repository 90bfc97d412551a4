"""Which hand-written paths a run takes: those that it began with, else what measuring on this machine found faster.

MLM_CALIBRATE=0 in the environment measures nothing: a run that begins then takes all there are. One of several
processes takes all but the one that not every host's compiler may make, as they must agree.
"""
import contextlib
import dataclasses
import os
from collections.abc import Sequence

from absl import flags

from mlm.base import machine

CALIBRATE = flags.DEFINE_bool("calibrate", False, "Measure again which hand-written paths are faster on this machine; "
                              "runs that are there keep theirs.")
SWITCH = "MLM_CALIBRATE"
MADE = "native"  # by a compiler


def settled(cfg, *, again: bool = False):
    """The config with the paths that its run takes; tells which, where they are not known before.

    again: what is kept of this machine is dropped first.
    """
    from mlm.train.step import parallel

    fixed = known(cfg)
    if fixed is None and parallel.is_multiprocess():
        fixed = MADE
    return new(cfg, again=again) if fixed is None else with_plain(cfg, fixed)


def new(cfg, *, again: bool = False):
    """The config with what this machine's cores find for a run that begins."""
    from mlm.train import kernel_autotune

    folder, count = machine.cache("paths"), len(cores())
    if again:
        kernel_autotune.forget(folder, count)
    found = kernel_autotune.measure(cfg, folder, count)
    tell(found)
    return with_plain(cfg, found.plain)


def each_settled(configs: Sequence, workers: int, *, again: bool = False) -> list:
    """The configs of a sweep, as `settled`, for workers that share the cores; one measure serves all of a kind.

    It is made in a process of its own, since devices are the workers'.
    """
    from mlm.launch.sweep import subprocess_worker
    from mlm.train import kernel_autotune, kernel_benchmark

    own = cores()[::max(1, min(workers, len(configs)))]
    folder, made, found = machine.cache("paths"), [], {}
    if again:
        kernel_autotune.forget(folder, len(own))
    with contextlib.ExitStack() as stack:
        process = None
        for cfg in configs:
            plain, kind = known(cfg), tuple(kernel_benchmark.names(cfg).items())
            if plain is None and kind not in found:
                found[kind] = kernel_autotune.kept(cfg, folder, len(own))
                if found[kind] is None:
                    process = process or stack.enter_context(contextlib.closing(subprocess_worker.Process()))
                    try:
                        found[kind] = process.ask(alone, (cfg, folder, own))
                    except subprocess_worker.Ended as ended:
                        print(f"paths: all by hand, since they could not be measured: {ended}", flush=True)
                        return [with_plain(cfg, known(cfg) or "") for cfg in configs]
                tell(found[kind], f" of {cfg.model.cell or cfg.model.family}")
            made.append(with_plain(cfg, found[kind].plain if plain is None else plain))
    return made


def alone(asked):
    """What `measured.measure` finds on some of the cores."""
    from mlm.train import kernel_autotune

    cfg, folder, own = asked
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, own)
    return kernel_autotune.measure(cfg, folder, len(own))


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))


def known(cfg) -> str | None:
    """config.model.disabled_kernels where nothing is to be measured for it: what it says, or what the run there began with.

    Touches no device.
    """
    from mlm.base import files
    from mlm.train.run import directory

    if cfg.model.disabled_kernels != "auto":
        return cfg.model.disabled_kernels
    with contextlib.suppress(files.Damaged):
        saved = directory.read_identity(cfg.workdir)
        if saved is not None:
            began = saved["config"].get(
                "model.disabled_kernels", MADE
            )  # of one from before there was a choice: all there were
            return "" if began == "auto" else began
    return "" if os.environ.get(SWITCH) == "0" else None


def with_plain(cfg, plain: str):
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, disabled_kernels=plain))


def tell(found, of: str = "") -> None:
    """Says which paths are taken and why."""
    if found.ratios:
        print(f"paths{of}: {line(found)}", flush=True)


def line(found) -> str:
    plain = found.plain.split(",") if found.plain else []
    by_hand = [path for path in found.ratios if path not in plain]
    said = [", ".join(by_hand) + " by hand"] if by_hand else []
    if plain:
        said.append(", ".join(f"{path} plain ({found.ratios[path]:.2f} of its time by hand)" if found.ratios[path] else
                              f"no {path}, which no compiler makes here" for path in plain))
    how = f"measured on this machine in {found.seconds:.1f} s" if found.seconds else "as this machine measured before"
    return f"{'; '.join(said)}; {how}" + (f", kept in {found.file}" if found.file else "")
