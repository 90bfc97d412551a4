"""Which hand-written kernels a run uses: those that it began with, else those that are faster on this machine.

With MLM_AUTOTUNE=0 in the environment nothing is measured: a new run then uses all kernels. One of several processes
uses all except the one that needs a C++ compiler, which some hosts may lack, as the processes must agree.
"""

import contextlib
import dataclasses
import os
from collections.abc import Sequence

from mlm.base import machine

AUTOTUNE_VARIABLE = "MLM_AUTOTUNE"
COMPILED_KERNEL = "native"  # needs a C++ compiler on the host


def resolve_kernels(cfg, *, autotune: bool = False):
    """The config with the kernels that its run uses; prints a choice that was not known before.

    autotune: discard this machine's saved measurements first.
    """
    from mlm.training.step import parallel

    disabled = find_fixed_kernels(cfg)
    if disabled is None and parallel.is_multiprocess():
        disabled = COMPILED_KERNEL
    return autotune_kernels(cfg, autotune=autotune) if disabled is None else disable_kernels(cfg, disabled)


def autotune_kernels(cfg, *, autotune: bool = False):
    """The config with the kernels that are faster on this machine's cores, for a new run."""
    from mlm.training import kernel_autotune

    folder, num_cores = machine.cache_folder("kernels"), len(list_cores())
    if autotune:
        kernel_autotune.clear_cache(folder, num_cores)
    found = kernel_autotune.autotune(cfg, folder, num_cores)
    print_kernels(found)
    return disable_kernels(cfg, found.disabled_kernels)


def resolve_sweep_kernels(configs: Sequence, num_workers: int, *, autotune: bool = False) -> list:
    """The configs of a sweep, as by `resolve_kernels`, for workers that share the cores.

    One measurement serves all configs with the same kernels. It runs in a subprocess, since the workers need the
    devices.
    """
    from mlm.launch.sweep import subprocess_worker
    from mlm.training import kernel_autotune, kernel_benchmark

    cores = list_cores()[:: max(1, min(num_workers, len(configs)))]
    folder, resolved, measurements = machine.cache_folder("kernels"), [], {}
    if autotune:
        kernel_autotune.clear_cache(folder, len(cores))
    with contextlib.ExitStack() as stack:
        worker = None
        for cfg in configs:
            disabled, key = find_fixed_kernels(cfg), tuple(kernel_benchmark.name_cases(cfg).items())
            if disabled is None and key not in measurements:
                measurements[key] = kernel_autotune.read_result(cfg, folder, len(cores))
                if measurements[key] is None:
                    worker = worker or stack.enter_context(contextlib.closing(subprocess_worker.SubprocessWorker()))
                    try:
                        measurements[key] = worker.call(measure_on_cores, (cfg, folder, cores))
                    except subprocess_worker.WorkerEnded as ended:
                        print(f"kernels: all enabled, since measuring them failed: {ended}", flush=True)
                        return [disable_kernels(cfg, find_fixed_kernels(cfg) or "") for cfg in configs]
                print_kernels(measurements[key], f" of {cfg.model.cell or cfg.model.family}")
            resolved.append(disable_kernels(cfg, measurements[key].disabled_kernels if disabled is None else disabled))
    return resolved


def measure_on_cores(arguments):
    """What `kernel_autotune.autotune` finds on some of the cores; arguments: config, folder, cores."""
    from mlm.training import kernel_autotune

    cfg, folder, cores = arguments
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    return kernel_autotune.autotune(cfg, folder, len(cores))


def list_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def find_fixed_kernels(cfg) -> str | None:
    """config.model.disabled_kernels if nothing has to be measured for it: the config's value, or the existing run's.

    Touches no device.
    """
    from mlm.base import files
    from mlm.training.run import directory

    if cfg.model.disabled_kernels != "auto":
        return cfg.model.disabled_kernels
    with contextlib.suppress(files.DamagedFile):
        saved = directory.read_identity(cfg.workdir)
        if saved is not None:
            # A run from before there was a choice used all kernels of its time.
            disabled = saved["config"].get("model.disabled_kernels", COMPILED_KERNEL)
            return "" if disabled == "auto" else disabled
    return "" if os.environ.get(AUTOTUNE_VARIABLE) == "0" else None


def disable_kernels(cfg, disabled: str):
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, disabled_kernels=disabled))


def print_kernels(found, suffix: str = "") -> None:
    """Prints which kernels are used and why."""
    if found.ratios:
        print(f"kernels{suffix}: {describe_kernels(found)}", flush=True)


def describe_kernels(found) -> str:
    disabled = found.disabled_kernels.split(",") if found.disabled_kernels else []
    enabled = [name for name in found.ratios if name not in disabled]
    parts = [", ".join(enabled) + " enabled"] if enabled else []
    if disabled:
        parts.append(
            ", ".join(
                f"{name} disabled ({found.ratios[name]:.2f} times as fast as the plain formula)"
                if found.ratios[name]
                else f"{name} disabled (no compiler here)"
                for name in disabled
            )
        )
    source = f"measured on this machine in {found.seconds:.1f} s" if found.seconds else "measured here before"
    return f"{'; '.join(parts)}; {source}" + (f", saved in {found.file}" if found.file else "")
