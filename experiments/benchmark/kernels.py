"""Part kernels: a training step with all hand-written kernels, beside the same step without one of them.

A ratio above 1 means that the kernel earns its place. `FASTER_KERNELS` of mlm/models/platform_kernels.py follows from
these rows, so that a run's kernels depend on its platform and never on a stopwatch.
"""

from collections.abc import Iterator

import jax

from experiments.benchmark import mlm_step, rnn, side_processes, timing
from mlm.base import config, fields

SECONDS = 20  # of rounds for each case
TRANSFORMER = {"model.size": "mini", "train.batch_size": 32, "pack.seq_len": 128}
ACCELERATOR_TRANSFORMER = {
    "model.size": "base",
    "train.batch_size": 64,
    "pack.seq_len": 512,
    "model.dtype": "bfloat16",
    "model.attention_dropout": 0.0,  # cuDNN's attention and splash attention have none
}
CANDIDATES = {  # by platform and family
    ("cpu", "transformer"): ("matmul", "gelu", "attention", "cross_entropy"),
    ("cpu", "rnn"): ("matmul", "recurrence", "cross_entropy"),
    ("gpu", "transformer"): ("gelu", "cudnn_attention", "cross_entropy"),
    ("tpu", "transformer"): ("gelu", "splash_attention", "blocked_cross_entropy", "recomputation"),
}


def list_cases() -> dict[str, config.Config]:
    """The config of each case, by its name."""
    if jax.default_backend() != "cpu":
        return {
            "transformer base, 64 x 512 bfloat16, no attention dropout": mlm_step.make_config(ACCELERATOR_TRANSFORMER)
        }
    cases = {
        f"transformer mini, 32 x 128 {dtype}": mlm_step.make_config(TRANSFORMER | {"model.dtype": dtype})
        for dtype in ("float32", "bfloat16")
    }
    for cell in ("lstm", "gru", "elman"):
        cases[f"{cell} width 256, 32 x 128 float32"] = rnn.make_config(cell, 256, "float32", 32)
    return cases


def measure() -> Iterator[dict]:
    for case, cfg in list_cases().items():
        candidates = CANDIDATES[jax.default_backend(), cfg.model.family]
        with side_processes.SideProcesses() as processes:
            sides = {}
            for name in ("", *candidates):
                kernels = ",".join(kernel for kernel in candidates if kernel != name)
                without = fields.override(cfg, {"model.kernels": kernels})
                sides[name] = processes.build_side(name, mlm_step.build_step, without)
            times = timing.measure_times(sides, SECONDS)
        for name in candidates:
            yield timing.make_row(
                case, "tokens/s", times[""], times[name], f"without {name}", work=mlm_step.count_tokens(cfg)
            )
