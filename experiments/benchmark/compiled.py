"""The figures of docs/scaling.md: what compilers of devices that are not here say of our steps, by kernel and by scale.

Nothing is run. A case takes its compiler a minute or several; data.cache_dir keeps what was found for the same program.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from experiments import masking_rate, objectives
from mlm.base import config, errors, fields
from mlm.launch.cluster.accelerators import ACCELERATORS, find_accelerator, split_count
from mlm.launch.sweep import subprocess_worker, target_compiler
from mlm.models import platform_kernels
from mlm.report.table import Column
from mlm.training.compilation import cost
from mlm.training.run import resolution
from mlm.training.step import program

COLUMNS = (
    Column("part", "part"),
    Column("case", "step"),
    Column("devices", "devices"),
    Column("attention", "attention"),
    Column("arguments", "GB arguments", ".2f"),
    Column("temporaries", "GB temporaries", ".2f"),
    Column("traffic", "GB traffic", ".1f"),
    Column("least", "ms at least", ".3g"),
    Column("bound", "of these"),
)
VOCAB = 30_522
BERT = {
    **{"data.corpus": "docstrings", "tokenizer.vocab_size": VOCAB, "model.dtype": "bfloat16", "model.size": "base"},
    **{"model.norm_placement": "post", "train.batch_size": 32, "pack.seq_len": 512, "model.attention_dropout": 0.0},
}
DROPOUT, ROLLED = {"model.attention_dropout": 0.1}, {"model.scan_unroll": 1}
FUSED_NORM = {"model.kernels": ",".join((*platform_kernels.FASTER_KERNELS["gpu"], "fused_norm"))}
PAPER_DEVICES = ("H100:8", "v5e-16", "v5p-128", "H200:64")
PAPER_OBJECTIVES = {  # a point for each program of objectives.py; all hybrids are one
    "masked, room for 40%": "masked15",
    "causal": "causal",
    "hybrid": "hybrid",
    "diffusion": "diffusion",
    "replaced token detection": "replaced_token_detection",
}


class CompiledCase(NamedTuple):
    """A step and the devices that it is compiled for."""

    part: str
    name: str
    devices: str  # as --accelerator of `mlm sweep plan` takes them
    changes: dict[str, Any]


def list_cases() -> list[CompiledCase]:
    """All cases, by part."""
    on_gpu = {"base 32 x 512": {}, "base 32 x 512, rolled": ROLLED, "base 32 x 512, attention dropout": DROPOUT}
    on_gpu |= {f"{name}, fused_norm": changes | FUSED_NORM for name, changes in on_gpu.items()}
    on_tpu = {"base 64 x 512, rolled": {"train.batch_size": 64} | ROLLED}
    return [
        *(CompiledCase("gpu", name, "H100", BERT | changes) for name, changes in on_gpu.items()),
        *(CompiledCase("tpu", name, "v5e-4", BERT | changes) for name, changes in on_tpu.items()),
        *(
            CompiledCase("paper", name, devices, point | (FUSED_NORM if devices[0] == "H" else {}))
            for name, point in list_paper_points().items()
            for devices in PAPER_DEVICES
        ),
    ]


def list_paper_points() -> dict[str, dict[str, Any]]:
    """Points of masking_rate.py and objectives.py at scale paper, 4,096 x 128, by name."""
    rates, base = masking_rate.sweep("paper"), objectives.sweep("paper")
    return {
        f"{size}, {rate:.0%} masked": rates[f"transformer-{size}-mask-{rate}-seed0"]
        for size in ("base", "large")
        for rate in (0.15, 0.8)
    } | {f"base, {name}": base[f"{point}-base-seed0"] for name, point in PAPER_OBJECTIVES.items()}


def measure(parts: Collection[str]) -> Iterator[dict]:
    """A row for each case whose compiler is installed here."""
    for case in list_cases():
        if case.part in parts:
            row = {"part": case.part, "case": case.name, "devices": case.devices}
            try:
                yield row | plan_step(case)
            except (errors.ConfigError, subprocess_worker.WorkerEnded) as error:
                yield row | {"bound": errors.first_line(error)}


def plan_step(case: CompiledCase) -> dict[str, Any]:
    """What the compiler says of a case."""
    count, name = split_count(case.devices)
    accelerator = ACCELERATORS[find_accelerator("devices", name)]
    target = target_compiler.make_target(name, accelerator, count)
    errors.require(target_compiler.is_installed(target), "devices", case.devices, f"pip install 'mlm[{target.extra}]'")
    cfg = resolution.resolve(fields.override(config.Config(), case.changes))
    vocab_size = cfg.tokenizer.vocab_size
    with target_compiler.open_compiler(target) as compile_mesh:
        found = compile_mesh(program.make_static_config(cfg), vocab_size)
    if not found.arguments:
        return {"bound": f"does not fit: it needs at least {found.memory / 1e9:.1f} GB"}
    num_devices = count * accelerator.num_devices
    flops = cost.count_step_flops(cfg, vocab_size) or 0.0
    bound = target_compiler.bound_step(found, flops, accelerator, num_devices)
    return {
        "attention": found.attention or "plain",
        "arguments": found.arguments / 1e9,
        "temporaries": found.temporaries / 1e9,
        "traffic": None if found.traffic is None else found.traffic / 1e9,
        "least": bound and 1e3 * bound.total,
        "bound": bound and target_compiler.describe_roofline(bound),
    }
