"""Accelerators by the names under which one orders them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from mlm.base import errors
from mlm.base.machine import CHIPS


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


BANDWIDTHS = ("bandwidth", "link_bandwidth", "network_bandwidth")
GPUS = {
    name: Accelerator(
        chip["flops"], chip["memory"], 1, chip["source"], **{bandwidth: chip[bandwidth] for bandwidth in BANDWIDTHS}
    )
    for name, chip in CHIPS.items()
    if "capability" in chip
}
GPUS_PER_HOST = 8
CUBE_TOPOLOGIES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
SQUARE_TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


def make_slices(name: str) -> dict[str, Accelerator]:
    """Slices of a TPU by name.

    A TPU that is named by its chips has up to eight in one host, else four a host; one that is named by its
    TensorCores, two a chip, has four chips a host.
    """
    chip = CHIPS[name]
    prefix, devices_per_chip = chip["prefix"], chip["devices_per_chip"]
    memory, *bandwidths = (chip[key] / devices_per_chip for key in ("memory", *BANDWIDTHS))
    slices = {}
    for num_chips, topology in (SQUARE_TOPOLOGIES if prefix else CUBE_TOPOLOGIES).items():
        size = num_chips if prefix else 2 * num_chips
        source = f"cloud.google.com/tpu/docs/{name}" + ("" if prefix else f": {size} TensorCores, two a chip")
        num_hosts = 1 if prefix and num_chips <= 8 else num_chips // 4
        tpu = TpuSlice(f"{prefix or name}-{size}", chip["runtime_version"], chip["gke_accelerator"], topology)
        slices[f"{name}-{size}"] = Accelerator(
            chip["flops"], memory, num_chips, source, num_hosts, tpu, devices_per_chip, *bandwidths
        )
    return slices


ACCELERATORS = {
    **GPUS,
    **{f"{name}-{GPUS_PER_HOST}": gpu._replace(num_chips=GPUS_PER_HOST) for name, gpu in GPUS.items()},
    **{name: each for chip in CHIPS if chip not in GPUS for name, each in make_slices(chip).items()},
}


def find_accelerator(field: str, text: str, others: Sequence[str] = ()) -> str:
    """The name of v5e-16, v5p:4x4x4, v5e:16 (chips) or h100:8. Raises ConfigError, which names `others`, too."""
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
