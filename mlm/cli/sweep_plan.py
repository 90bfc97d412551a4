"""mlm sweep plan: what each point of a sweep needs, on devices that need not be here."""

import contextlib
from pathlib import Path

from mlm.base import errors
from mlm.base.flag import Flag

PLANNED_ACCELERATOR = "H200"  # unless --accelerator names another


FLAGS = (
    Flag(
        "accelerator",
        "",
        "a name of mlm/launch/cluster/accelerators.py; NAME:TOPOLOGY, such as v5p:4x4x4; NAME:COUNT, such as H100:8, "
        "H100:64 for eight hosts; 2xNAME, such as 2xv5e-16, for two slices; or local, to measure a few steps of each "
        f"program on this machine ({PLANNED_ACCELERATOR})",
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


def print_plan(configs, args) -> None:
    """Prints what each point needs, as soon as it is known."""
    from mlm.launch.cluster.accelerators import ACCELERATORS, find_accelerator, split_count
    from mlm.launch.sweep import local_timing, plan, roofline, target_compiler

    if not args.accelerator:
        args.accelerator = PLANNED_ACCELERATOR
        line = (
            f"This plan is for {args.count} x {PLANNED_ACCELERATOR}; --accelerator=local measures this machine instead."
        )
        print(f"{line}\n", flush=True)
    points, local = {Path(cfg.workdir).name: cfg for cfg in configs}, args.accelerator == "local"
    if local:
        errors.require(
            args.count == 1, "--count", args.count, "1 with --accelerator=local, which uses the devices of this machine"
        )
        timing = local_timing.LocalMachine({cfg.model.dtype for cfg in configs}, args.utilisation)
        accelerator, machine = timing.accelerator(), timing.machine
        options = plan.PlanOptions(
            accelerator,
            1,
            args.utilisation,
            args.compile,
            finds_batch=args.largest_batch,
            measure_step=timing.measure_step,
            as_configured=args.as_configured,
        )
        peaks = " and ".join(
            f"{flops / 1e12:,.3g} TFLOP/s in products of {dtype} matrices" for dtype, flops in machine.flops.items()
        )
        note = (
            f"On this machine ({machine.num_devices} x {machine.name}, each {peaks}, "
            f"{accelerator.memory / 1e9:.1f} GB), steps as measured, valid if nothing else runs"
        )
    else:
        count, name = split_count(args.accelerator)
        args.count, args.accelerator = args.count * count, find_accelerator("--accelerator", name, ["local"])
        accelerator = ACCELERATORS[args.accelerator]
        target = target_compiler.make_target(args.accelerator, accelerator, args.count) if args.compile else None
        if target and not target_compiler.is_installed(target):
            print(f"note: compiled for simulated devices of a CPU; pip install 'mlm[{target.extra}]' compiles for them")
            target = None
        options = plan.PlanOptions(
            accelerator,
            args.count,
            args.utilisation,
            args.compile,
            target,
            finds_batch=args.largest_batch,
            as_configured=args.as_configured,
        )
        note = (
            f"On {args.count} x {args.accelerator} (devices: {args.count * accelerator.num_devices}, each "
            f"{accelerator.flops / 1e12:,.0f} TFLOP/s dense bfloat16 and {accelerator.memory / 1e9:.0f} GB; "
            f"{accelerator.source}), at {args.utilisation:.0%} of that peak"
        )
    with contextlib.closing(timing) if local else contextlib.nullcontext():
        for line in plan.format_plan(points, options):
            print(line, flush=True)
    memory_note = "as compiled" if args.compile else "estimated to within a quarter (--compile compiles each step)"
    limit = f"{plan.USABLE_MEMORY:.0%} of the memory"
    if not local and options.target:
        limit = f"{options.target.memory / 1e9:.1f} GB, what {options.target.module} lets a program have"
    print(f"\n{note}; a step fits if it needs at most {limit}, {memory_note}.")
    if not local and options.target:
        print(roofline.ASSUMPTIONS)
    for line in plan.list_shortfalls(configs):
        print(line)
    if any(cfg.downstream.tasks for cfg in configs):
        print("Fine-tunings (config.downstream) are not counted.")
    if not local and any(cfg.model.dtype != "bfloat16" for cfg in configs):
        print("Some points compute in float32, whose peak is lower; model.dtype=bfloat16 is faster.")
