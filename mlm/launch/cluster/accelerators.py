"""Accelerators by the names under which one orders them."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mlm.base import errors
from mlm.base.device_peaks import PEAK_FLOPS


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
H100, H200 = "NVIDIA H100 datasheet: SXM, half", "NVIDIA H200 datasheet: SXM, half"
B200 = "NVIDIA HGX B200 datasheet: an eighth of its BF16, half"
SPARSE = "of its speed with sparsity"
# Speeds of GPUs: memory and NVLink by those datasheets, the latter half of both ways together; the network by the DGX
# systems' datasheets: one adapter a GPU, of 200 Gbit/s with A100 and of 400 with the others.
GPUS = {
    name: gpu._replace(bandwidth=bandwidth, link_bandwidth=links, network_bandwidth=network)
    for name, gpu, bandwidth, links, network in (
        (
            "A100",
            Accelerator(PEAK_FLOPS["A100"], 80e9, 1, "NVIDIA A100 datasheet: 80 GB SXM, without sparsity"),
            2039e9,
            300e9,
            25e9,
        ),
        ("H100", Accelerator(PEAK_FLOPS["H100"], 80e9, 1, f"{H100} {SPARSE}"), 3352e9, 450e9, 50e9),
        ("H200", Accelerator(PEAK_FLOPS["H200"], 141e9, 1, f"{H200} {SPARSE}"), 4800e9, 450e9, 50e9),
        ("B200", Accelerator(PEAK_FLOPS["B200"], 180e9, 1, f"{B200} {SPARSE}"), 8000e9, 900e9, 50e9),
    )
}
# Of a TPU chip: dense bfloat16, memory, and the bandwidths of an Accelerator, by cloud.google.com/tpu/docs/NAME; where
# that page names a link's two ways together, half of it. Links of v4: Jouppi et al. 2023 (arXiv 2304.01433), six of
# 50 GB/s; its network: Austin et al. 2025 (How to Scale Your Model, table of TPUs).
TPU_CHIPS = {
    "v4": {
        "flops": PEAK_FLOPS["v4"],
        "memory": 32 * 2**30,
        "bandwidth": 1200e9,
        "link_bandwidth": 300e9,
        "network_bandwidth": 6.25e9,
    },
    "v5e": {
        "flops": PEAK_FLOPS["v5e"],
        "memory": 16e9,
        "bandwidth": 800e9,
        "link_bandwidth": 200e9,
        "network_bandwidth": 3.125e9,
    },
    "v5p": {
        "flops": PEAK_FLOPS["v5p"],
        "memory": 95e9,
        "bandwidth": 2765e9,
        "link_bandwidth": 600e9,
        "network_bandwidth": 6.25e9,
    },
    "v6e": {
        "flops": PEAK_FLOPS["v6e"],
        "memory": 32e9,
        "bandwidth": 1638e9,
        "link_bandwidth": 400e9,
        "network_bandwidth": 12.5e9,
    },
    "tpu7x": {
        "flops": 2 * PEAK_FLOPS["tpu7x"],
        "memory": 192 * 2**30,
        "bandwidth": 7380e9,
        "link_bandwidth": 600e9,
        "network_bandwidth": 12.5e9,
    },
}
GPUS_PER_HOST = 8
CUBE_TOPOLOGIES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
SQUARE_TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


def make_cube_slices(
    name: str, gke_accelerator: str, runtime_version: str, devices_per_chip: int = 1
) -> dict[str, Accelerator]:
    """Slices, by name, of a TPU that is named by its TensorCores: two per chip, four chips per host."""
    device: Mapping[str, float] = {key: value / devices_per_chip for key, value in TPU_CHIPS[name].items()}
    return {
        f"{name}-{2 * num_chips}": Accelerator(
            num_chips=num_chips,
            source=f"{TPU}/{name}: {2 * num_chips} TensorCores, two a chip",
            num_hosts=num_chips // 4,
            tpu=TpuSlice(f"{name}-{2 * num_chips}", runtime_version, gke_accelerator, topology),
            devices_per_chip=devices_per_chip,
            **device,
        )
        for num_chips, topology in CUBE_TOPOLOGIES.items()
    }


def make_square_slices(name: str, gke_accelerator: str, runtime_version: str, prefix: str) -> dict[str, Accelerator]:
    """Slices, by name, of a TPU that is named by its chips: up to eight in one host, else four per host."""
    return {
        f"{name}-{num_chips}": Accelerator(
            num_chips=num_chips,
            source=f"{TPU}/{name}",
            num_hosts=num_chips // 4 if num_chips > 8 else 1,
            tpu=TpuSlice(f"{prefix}-{num_chips}", runtime_version, gke_accelerator, topology),
            **TPU_CHIPS[name],
        )
        for num_chips, topology in SQUARE_TOPOLOGIES.items()
    }


ACCELERATORS = {
    **GPUS,
    **{f"{name}-{GPUS_PER_HOST}": gpu._replace(num_chips=GPUS_PER_HOST) for name, gpu in GPUS.items()},
    **make_cube_slices("v4", "tpu-v4-podslice", "tpu-ubuntu2204-base"),
    **make_square_slices("v5e", "tpu-v5-lite-podslice", "v2-alpha-tpuv5-lite", "v5litepod"),
    **make_cube_slices("v5p", "tpu-v5p-slice", "v2-alpha-tpuv5"),
    **make_square_slices("v6e", "tpu-v6e-slice", "v2-alpha-tpuv6e", "v6e"),
    **make_cube_slices("tpu7x", "tpu7x", "", devices_per_chip=2),
}


def find_accelerator(field: str, text: str, others: Sequence[str] = ()) -> str:
    """The name in ACCELERATORS of a text: that name in any case, or the generation with a topology or a count.

    Args:
        field: the setting, for the error.
        text: such as v5e-16, v5p:4x4x4, v5e:16 or h100:8; the number after a TPU's colon counts its chips.
        others: further names, for the error.

    Raises:
        ConfigError: no accelerator has such a name; it names the nearest.
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
    """How many accelerators a text asks for, and the text of one: 2xv5e-16 are two slices, H200:64 eight hosts of eight
    GPUs, and H200:2 two GPUs of one.
    """
    if count := re.fullmatch(r"([1-9]\d*)x(?=[a-zA-Z])(.+)", text):
        return int(count[1]), count[2]
    generation, _, size = text.partition(":")
    num_gpus = int(size) if generation.upper() in GPUS and size.isdecimal() else 0
    if num_gpus and num_gpus % GPUS_PER_HOST == 0:
        return num_gpus // GPUS_PER_HOST, f"{generation}-{GPUS_PER_HOST}"
    return (num_gpus, generation) if 0 < num_gpus < GPUS_PER_HOST else (1, text)
