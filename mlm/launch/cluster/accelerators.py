"""Accelerators by the names under which one orders them."""

from collections.abc import Sequence
from typing import NamedTuple

from mlm.base import errors


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

    @property
    def num_devices(self) -> int:
        """Devices as JAX counts them, on all hosts."""
        return self.num_chips * self.devices_per_chip


TPU = "cloud.google.com/tpu/docs"
H100, H200 = "NVIDIA H100 datasheet: SXM, half", "NVIDIA H200 datasheet: SXM, half"
B200 = "NVIDIA HGX B200 datasheet: an eighth of its BF16, half"
SPARSE = "of its speed with sparsity"
GPUS = {
    "A100": Accelerator(312e12, 80e9, 1, "NVIDIA A100 datasheet: 80 GB SXM, without sparsity"),
    "H100": Accelerator(989e12, 80e9, 1, f"{H100} {SPARSE}"),
    "H200": Accelerator(989e12, 141e9, 1, f"{H200} {SPARSE}"),
    "B200": Accelerator(2250e12, 180e9, 1, f"{B200} {SPARSE}"),
}
CUBE_TOPOLOGIES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
SQUARE_TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


def make_cube_slices(
    name: str, device: tuple[float, float], gke_accelerator: str, runtime_version: str, devices_per_chip: int = 1
) -> dict[str, Accelerator]:
    """Slices, by name, of a TPU that is named by its TensorCores: two per chip, four chips per host."""
    return {
        f"{name}-{2 * num_chips}": Accelerator(
            *device,
            num_chips,
            f"{TPU}/{name}: {2 * num_chips} TensorCores, two a chip",
            num_chips // 4,
            TpuSlice(f"{name}-{2 * num_chips}", runtime_version, gke_accelerator, topology),
            devices_per_chip,
        )
        for num_chips, topology in CUBE_TOPOLOGIES.items()
    }


def make_square_slices(
    name: str, chip: tuple[float, float], gke_accelerator: str, runtime_version: str, prefix: str
) -> dict[str, Accelerator]:
    """Slices, by name, of a TPU that is named by its chips: up to eight in one host, else four per host."""
    return {
        f"{name}-{num_chips}": Accelerator(
            *chip,
            num_chips,
            f"{TPU}/{name}",
            num_chips // 4 if num_chips > 8 else 1,
            TpuSlice(f"{prefix}-{num_chips}", runtime_version, gke_accelerator, topology),
        )
        for num_chips, topology in SQUARE_TOPOLOGIES.items()
    }


ACCELERATORS = {
    **GPUS,
    **{f"{name}-8": gpu._replace(num_chips=8) for name, gpu in GPUS.items()},  # a host of eight
    **make_cube_slices("v4", (275e12, 32 * 2**30), "tpu-v4-podslice", "tpu-ubuntu2204-base"),
    **make_square_slices("v5e", (197e12, 16e9), "tpu-v5-lite-podslice", "v2-alpha-tpuv5-lite", "v5litepod"),
    **make_cube_slices("v5p", (459e12, 95e9), "tpu-v5p-slice", "v2-alpha-tpuv5"),
    **make_square_slices("v6e", (918e12, 32e9), "tpu-v6e-slice", "v2-alpha-tpuv6e", "v6e"),
    **make_cube_slices("tpu7x", (2307e12 / 2, 192 * 2**30 / 2), "tpu7x", "", devices_per_chip=2),
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
