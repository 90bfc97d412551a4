"""Accelerators by the names under which one orders them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from mlm.base import errors
from mlm.base.machine import PEAK_FLOPS


class TpuSlice(NamedTuple):
    """A TPU slice by Google Cloud's names."""

    accelerator_type: str  # gcloud's --accelerator-type
    runtime_version: str  # gcloud's --runtime-version; "": only GKE orders it
    gke_accelerator: str  # GKE's label cloud.google.com/gke-tpu-accelerator
    topology: str  # of its chips


class Accelerator(NamedTuple):
    """An accelerator as one orders it: one chip, a host of chips, or several hosts."""

    flops: float  # per second and device, dense bfloat16
    memory: float  # bytes per device
    num_chips: int
    source: str
    num_hosts: int = 1  # each with the same number of chips
    tpu: TpuSlice | None = None
    devices_per_chip: int = 1  # devices as JAX counts them
    bandwidth: float = 0.0  # of its memory, bytes per second and device
    link_bandwidth: float = 0.0  # one way, of all links of a device to others of its slice or host; bytes per second
    network_bandwidth: float = 0.0  # one way, a device's share of the network of its host; bytes per second

    @property
    def num_devices(self) -> int:
        """Devices as JAX counts them, on all hosts."""
        return self.num_chips * self.devices_per_chip


TPU = "cloud.google.com/tpu/docs"
# Bytes of memory, and bandwidths as of an Accelerator. GPUs: memory and NVLink by their datasheets, the latter half of
# both ways together; the network by the DGX systems' datasheets: one adapter a GPU, of 200 Gbit/s with A100 and of 400
# with the others.
GPUS = {
    name: Accelerator(PEAK_FLOPS[name], memory, 1, f"NVIDIA {source}", 1, None, 1, bandwidth, links, network)
    for name, memory, bandwidth, links, network, source in (
        ("A100", 80e9, 2039e9, 300e9, 25e9, "A100 datasheet: 80 GB SXM, without sparsity"),
        ("H100", 80e9, 3352e9, 450e9, 50e9, "H100 datasheet: SXM, half of its speed with sparsity"),
        ("H200", 141e9, 4800e9, 450e9, 50e9, "H200 datasheet: SXM, half of its speed with sparsity"),
        ("B200", 180e9, 8000e9, 900e9, 50e9, "HGX B200 datasheet: an eighth of its BF16, half of that with sparsity"),
    )
}
# Of a TPU chip, by cloud.google.com/tpu/docs/NAME; where that page names a link's two ways together, half of it. Links
# of v4: Jouppi et al. 2023 (arXiv 2304.01433), six of 50 GB/s; its network: Austin et al. 2025 (How to Scale Your
# Model, table of TPUs).
TPU_CHIPS = {  # dense bfloat16 FLOP/s, memory, bandwidth, link_bandwidth, network_bandwidth
    "v4": (PEAK_FLOPS["v4"], 32 * 2**30, 1200e9, 300e9, 6.25e9),
    "v5e": (PEAK_FLOPS["v5e"], 16e9, 800e9, 200e9, 3.125e9),
    "v5p": (PEAK_FLOPS["v5p"], 95e9, 2765e9, 600e9, 6.25e9),
    "v6e": (PEAK_FLOPS["v6e"], 32e9, 1638e9, 400e9, 12.5e9),
    "tpu7x": (2 * PEAK_FLOPS["tpu7x"], 192 * 2**30, 7380e9, 600e9, 12.5e9),
}
GPUS_PER_HOST = 8
CUBE_TOPOLOGIES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
SQUARE_TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


def make_slices(
    name: str, gke_accelerator: str, runtime_version: str, prefix: str = "", devices_per_chip: int = 1
) -> dict[str, Accelerator]:
    """Slices of a TPU by name.

    prefix: of gcloud's names, for a TPU that is named by its chips: up to eight in one host, else four a host. "": it
    is named by its TensorCores, two a chip, four chips a host.
    """
    flops, memory, *bandwidths = (value / devices_per_chip for value in TPU_CHIPS[name])
    slices = {}
    for num_chips, topology in (SQUARE_TOPOLOGIES if prefix else CUBE_TOPOLOGIES).items():
        size = num_chips if prefix else 2 * num_chips
        source = f"{TPU}/{name}" if prefix else f"{TPU}/{name}: {size} TensorCores, two a chip"
        num_hosts = 1 if prefix and num_chips <= 8 else num_chips // 4
        tpu = TpuSlice(f"{prefix or name}-{size}", runtime_version, gke_accelerator, topology)
        slices[f"{name}-{size}"] = Accelerator(
            flops, memory, num_chips, source, num_hosts, tpu, devices_per_chip, *bandwidths
        )
    return slices


ACCELERATORS = {
    **GPUS,
    **{f"{name}-{GPUS_PER_HOST}": gpu._replace(num_chips=GPUS_PER_HOST) for name, gpu in GPUS.items()},
    **make_slices("v4", "tpu-v4-podslice", "tpu-ubuntu2204-base"),
    **make_slices("v5e", "tpu-v5-lite-podslice", "v2-alpha-tpuv5-lite", "v5litepod"),
    **make_slices("v5p", "tpu-v5p-slice", "v2-alpha-tpuv5"),
    **make_slices("v6e", "tpu-v6e-slice", "v2-alpha-tpuv6e", "v6e"),
    **make_slices("tpu7x", "tpu7x", "", devices_per_chip=2),
}


def find_accelerator(field: str, text: str, others: Sequence[str] = ()) -> str:
    """The name in ACCELERATORS of a text such as v5e-16, v5p:4x4x4, v5e:16 (chips) or h100:8, else a ConfigError.

    field: the setting, for the error; others: further names, for the error.
    """
    generation, _, size = text.lower().partition(":")
    for name, accelerator in ACCELERATORS.items():
        prefix = name.partition("-")[0].lower()
        sizes = {str(accelerator.num_chips), *([accelerator.tpu.topology] if accelerator.tpu else [])}
        if text.lower() == name.lower() or (prefix == generation and size in sizes):
            return name
    errors.require_one_of(field, text, [*ACCELERATORS, *others])
    return text


def split_count(text: str) -> tuple[int, str]:
    """The number and the text of one: 2xv5e-16 are two slices, H200:64 eight hosts of eight, H200:2 two of one host."""
    if count := re.fullmatch(r"([1-9]\d*)x(?=[a-zA-Z])(.+)", text):
        return int(count[1]), count[2]
    generation, _, size = text.partition(":")
    num_gpus = int(size) if generation.upper() in GPUS and size.isdecimal() else 0
    if num_gpus and num_gpus % GPUS_PER_HOST == 0:
        return num_gpus // GPUS_PER_HOST, f"{generation}-{GPUS_PER_HOST}"
    return (num_gpus, generation) if 0 < num_gpus < GPUS_PER_HOST else (1, text)
