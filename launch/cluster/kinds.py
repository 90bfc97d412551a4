"""Kinds of device as one orders them."""
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of device as one orders it."""

    flops: float    # a second, dense bfloat16, of each chip
    memory: float   # bytes of each chip
    chips: int
    source: str


TPU = "cloud.google.com/tpu/docs"
KINDS = {
    "H200": Kind(989e12, 141e9, 1, "NVIDIA H200 datasheet: SXM, half of what it gives with sparsity"),
    "A100": Kind(312e12, 80e9, 1, "NVIDIA A100 datasheet: 80 GB SXM, without sparsity"),
    "v4-8": Kind(275e12, 32 * 2**30, 4, f"{TPU}/v4: eight TensorCores, two a chip"),
    "v5e-8": Kind(197e12, 16e9, 8, f"{TPU}/v5e"),
    "v5p-8": Kind(459e12, 95e9, 4, f"{TPU}/v5p: eight TensorCores, two a chip"),
}
