"""Kinds of device as one orders them."""
from typing import NamedTuple


class Slice(NamedTuple):
    """A TPU slice by Google Cloud's names."""

    accelerator: str   # gcloud's --accelerator-type
    runtime: str       # gcloud's --runtime-version
    node: str          # GKE's label cloud.google.com/gke-tpu-accelerator
    topology: str      # of its chips


class Kind(NamedTuple):
    """A kind of device as one orders it."""

    flops: float    # a second, dense bfloat16, of each chip
    memory: float   # bytes of each chip
    chips: int
    source: str
    hosts: int = 1  # which have these chips, each as many
    tpu: Slice | None = None


TPU = "cloud.google.com/tpu/docs"
H100, H200 = "NVIDIA H100 datasheet: SXM, half", "NVIDIA H200 datasheet: SXM, half"
B200 = "NVIDIA HGX B200 datasheet: an eighth of its BF16, half"
SPARSE = "of what it gives with sparsity"
GPUS = {
    "A100": Kind(312e12, 80e9, 1, "NVIDIA A100 datasheet: 80 GB SXM, without sparsity"),
    "H100": Kind(989e12, 80e9, 1, f"{H100} {SPARSE}"),
    "H200": Kind(989e12, 141e9, 1, f"{H200} {SPARSE}"),
    "B200": Kind(2250e12, 180e9, 1, f"{B200} {SPARSE}"),
}
CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
SQUARES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


def cubes(name: str, chip: tuple[float, float], node: str, runtime: str) -> dict[str, Kind]:
    """Slices of a TPU that is named by its TensorCores, two a chip, with four chips a host; by their names."""
    return {f"{name}-{2 * chips}": Kind(*chip, chips, f"{TPU}/{name}: {2 * chips} TensorCores, two a chip", chips // 4,
                                        Slice(f"{name}-{2 * chips}", runtime, node, topology))
            for chips, topology in CUBES.items()}


def squares(name: str, chip: tuple[float, float], node: str, runtime: str, prefix: str) -> dict[str, Kind]:
    """Slices of a TPU that is named by its chips: up to eight in one host, else four a host."""
    return {f"{name}-{chips}": Kind(*chip, chips, f"{TPU}/{name}", chips // 4 if chips > 8 else 1,
                                    Slice(f"{prefix}-{chips}", runtime, node, topology))
            for chips, topology in SQUARES.items()}


KINDS = {
    **GPUS,
    **{f"{name}-8": kind._replace(chips=8) for name, kind in GPUS.items()},  # a host of eight
    **cubes("v4", (275e12, 32 * 2**30), "tpu-v4-podslice", "tpu-ubuntu2204-base"),
    **squares("v5e", (197e12, 16e9), "tpu-v5-lite-podslice", "v2-alpha-tpuv5-lite", "v5litepod"),
    **cubes("v5p", (459e12, 95e9), "tpu-v5p-slice", "v2-alpha-tpuv5"),
    **squares("v6e", (918e12, 32e9), "tpu-v6e-slice", "v2-alpha-tpuv6e", "v6e"),
}
