"""Steps that are compiled for devices that are not here: memory, collectives and traffic stay below what was found once.

A change that makes one of them larger on purpose, or much smaller, writes the new figure down, here and in
docs/scaling.md.
"""

from typing import NamedTuple

import pytest
from test_target_compiler import make_target, needs

from mlm.base import config, fields
from mlm.launch.sweep import target_compiler
from mlm.models import platform_kernels
from mlm.training.run import resolution
from mlm.training.step import program

TOLERANCE = 1.05
NAMED_BYTES = 10**6  # collectives of less are not written down
VOCAB = 30_522
SHARED = {"data.corpus": "docstrings", "tokenizer.vocab_size": VOCAB, "model.dtype": "bfloat16", "model.scan_unroll": 1}
BERT = SHARED | {"model.norm_placement": "post", "model.attention_dropout": 0.0}
FUSED_NORM = {"model.kernels": ",".join((*platform_kernels.FASTER_KERNELS["gpu"], "fused_norm"))}
LSTM = SHARED | {"model.family": "rnn", "model.cell": "lstm", "model.size": "base"}


class CompiledStep(NamedTuple):
    """A step's config and what its compiler planned for a device."""

    accelerator: str
    changes: dict
    temporaries: float  # GB
    collectives: dict[str, float]  # GB of full arrays a step
    traffic: dict[str, float] | None = None  # GB of main memory a step, by the kernel of attention; of GPUs


STEPS = {
    "base, 64 x 512": CompiledStep(
        "v5e-4",
        BERT | {"model.size": "base", "train.batch_size": 64, "pack.seq_len": 512},
        temporaries=2.82,
        collectives={"all-reduce": 0.436},
    ),
    "base, 64 x 512, attention dropout": CompiledStep(
        "v5e-4",
        BERT | {"model.size": "base", "train.batch_size": 64, "pack.seq_len": 512, "model.attention_dropout": 0.1},
        temporaries=2.87,
        collectives={"all-reduce": 0.436},
    ),
    "base, 256 x 128": CompiledStep(
        "v5e-4",
        BERT | {"model.size": "base", "train.batch_size": 256, "pack.seq_len": 128},
        temporaries=3.14,
        collectives={"all-reduce": 0.436},
    ),
    "large, 128 x 512, fsdp": CompiledStep(
        "v5e-16",
        BERT | {"model.size": "large", "train.batch_size": 128, "pack.seq_len": 512, "parallel.mode": "fsdp"},
        temporaries=2.73,
        collectives={"all-gather": 1.34, "reduce-scatter": 1.52, "all-reduce": 0.16},
    ),
    "large, 4 x 8,192": CompiledStep(
        "v5p-8",
        BERT | {"model.size": "large", "train.batch_size": 4, "pack.seq_len": 8192, "model.max_positions": 8192},
        temporaries=8.89,
        collectives={"all-reduce": 1.34},
    ),
    "LSTM of base size, 64 x 128": CompiledStep(
        "v5e-1", LSTM | {"train.batch_size": 64, "pack.seq_len": 128}, temporaries=4.16, collectives={}
    ),
    "LSTM of base size on a GPU, 64 x 128": CompiledStep(
        "H100", LSTM | {"train.batch_size": 64, "pack.seq_len": 128}, 5.82, collectives={}, traffic={"": 118.2}
    ),
    "base, 32 x 512, unrolled": CompiledStep(
        "H100",
        BERT | FUSED_NORM | {"model.size": "base", "train.batch_size": 32, "pack.seq_len": 512, "model.scan_unroll": 0},
        temporaries=4.43,
        collectives={},
        traffic={"cudnn_attention": 47.2},
    ),
    "base, 32 x 512, attention dropout": CompiledStep(
        "H100",
        BERT
        | FUSED_NORM
        | {"model.size": "base", "train.batch_size": 32, "pack.seq_len": 512, "model.attention_dropout": 0.1},
        temporaries=4.75,
        collectives={},
        traffic={"fused_attention": 66.4},
    ),
}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs("H100" if step.traffic else "v5e-4")) for name, step in STEPS.items()]
)
def test_a_step_takes_no_more_than_was_written_down(name):
    step = STEPS[name]
    cfg = resolution.resolve(fields.override(config.Config(), step.changes))
    with target_compiler.open_compiler(make_target(step.accelerator)) as compile_step:
        cost = compile_step(program.make_static_config(cfg), VOCAB)
    collectives = {kind: size / 1e9 for kind, size in cost.collective_bytes.items() if size >= NAMED_BYTES}
    traffic = {cost.attention: (cost.traffic or 0) / 1e9} if step.traffic else {}
    found = {"temporaries": cost.temporaries / 1e9, **collectives, **traffic}
    written = {"temporaries": step.temporaries, **step.collectives, **(step.traffic or {})}
    assert found.keys() == written.keys()
    assert not {key: value for key, value in found.items() if value > TOLERANCE * written[key]}, found
