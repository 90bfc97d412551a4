"""mlm sweep plan: what each point of a sweep needs, on devices that need not be here."""

import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

from mlm.base import errors
from mlm.base.flag import Flag
from mlm.launch.cluster.accelerators import ACCELERATORS, Accelerator, find_accelerator, split_count

FLAGS = (
    Flag(
        "accelerator",
        "local",
        "a name of mlm/launch/cluster/accelerators.py; NAME:TOPOLOGY, such as v5p:4x4x4; NAME:COUNT, such as H100:8, "
        "H100:64 for eight hosts; 2xNAME, such as 2xv5e-16, for two slices; or local, to measure a few steps of each "
        "program on this machine, in three minutes at most (local)",
    ),
    Flag("count", 1, "how many of them: GPUs, hosts of GPUs, slices of TPUs (1)", low=1, high=2**20),
    Flag("utilisation", 0.4, "share of the peak FLOP/s that training reaches (0.4)", low=0.01, high=1),
    Flag(
        "compile",
        False,
        "compile each program for its exact memory, instead of an estimate: by the compiler of TPUs (pip install "
        "'mlm[tpu]', a minute or more each) or of GPUs ('mlm[gpu-plan]'), else for simulated devices of a CPU",
    ),
    Flag("as_configured", False, "plan each point as its config has it, not also with model.remat and FSDP; faster"),
    Flag("largest_batch", False, "look for the largest batch that fits; with --compile each try is compiled"),
)


def print_plan(sweep) -> None:
    """Prints what each point needs, as soon as it is known; sweep: as mlm/cli/sweep.py resolves it."""
    from mlm.launch.sweep import plan
    from mlm.launch.sweep.target_compiler import ASSUMPTIONS

    args, configs = sweep.args, sweep.configs
    is_local = args.accelerator == "local"
    if is_local:
        print("This plan is for this machine, which is measured; --accelerator=H100 plans for one.\n", flush=True)
    with contextlib.ExitStack() as stack:
        accelerator, more, note = measure_machine(configs, args, stack) if is_local else find_devices(args)
        more |= {"finds_batch": args.largest_batch, "as_configured": args.as_configured}
        options = plan.PlanOptions(accelerator, args.count, args.utilisation, args.compile, **more)
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for line in plan.format_plan({Path(cfg.workdir).name: cfg for cfg in configs}, options, width):
            print(line, flush=True)
    memory_note = "as compiled" if args.compile else "estimated to within a quarter (--compile compiles each step)"
    limit = f"{plan.USABLE_MEMORY:.0%} of the memory"
    if options.target:
        limit = f"{options.target.memory / 1e9:.1f} GB, what {options.target.module} lets a program have"
    print(f"\n{note}; a step fits if it needs at most {limit}, {memory_note}.")
    if options.target:
        print(ASSUMPTIONS)
    for line in (*plan.list_shortfalls(configs), *plan.list_repetitions(configs)):
        print(line)
    if any(cfg.downstream.tasks for cfg in configs):
        print("Fine-tunings (config.downstream) are not counted.")
    if not is_local and any(cfg.model.dtype != "bfloat16" for cfg in configs):
        print("Some points compute in float32, whose peak is lower; model.dtype=bfloat16 is faster.")


def measure_machine(configs, args, stack: contextlib.ExitStack) -> tuple[Accelerator, dict[str, Any], str]:
    """This machine, which it measures until the stack closes, with more options of a plan for it, and a note on it."""
    from mlm.launch.sweep import local_timing

    expected = "1 with --accelerator=local, which uses the devices of this machine"
    errors.require(args.count == 1, "--count", args.count, expected)
    timing = local_timing.LocalMachine({cfg.model.dtype for cfg in configs}, args.utilisation)
    stack.callback(timing.worker.close)
    machine = timing.machine
    # One accelerator of all its devices, with the peak of its fastest dtype.
    accelerator = Accelerator(max(machine.flops.values()), machine.memory, machine.num_devices, "measured just now")
    peaks = " and ".join(
        f"{flops / 1e12:,.3g} TFLOP/s in products of {dtype} matrices" for dtype, flops in machine.flops.items()
    )
    note = (
        f"On this machine ({machine.num_devices} x {machine.name}, each {peaks}, "
        f"{accelerator.memory / 1e9:.1f} GB), steps as measured, valid if nothing else runs"
    )
    return accelerator, {"measure_step": timing.measure_step}, note


def find_devices(args) -> tuple[Accelerator, dict[str, Any], str]:
    """An accelerator that need not be here, with more options of a plan for it, and a note on it."""
    from mlm.launch.sweep import target_compiler

    count, name = split_count(args.accelerator)
    args.count, args.accelerator = args.count * count, find_accelerator("--accelerator", name, ["local"])
    accelerator = ACCELERATORS[args.accelerator]
    target = target_compiler.make_target(args.accelerator, accelerator, args.count) if args.compile else None
    if target and not target_compiler.is_installed(target):
        print(f"note: compiled for simulated devices of a CPU; pip install 'mlm[{target.extra}]' compiles for them")
        target = None
    note = (
        f"On {args.count} x {args.accelerator} (devices: {args.count * accelerator.num_devices}, each "
        f"{accelerator.flops / 1e12:,.0f} TFLOP/s dense bfloat16 and {accelerator.memory / 1e9:.0f} GB; "
        f"{accelerator.source}), at {args.utilisation:.0%} of that peak"
    )
    return accelerator, {"target": target}, note
