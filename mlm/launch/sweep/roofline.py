"""The time that a compiled step takes at least, from what was counted in it and what its devices could do at best."""

from typing import NamedTuple

from mlm.launch.cluster.accelerators import Accelerator
from mlm.training.compilation.cost import StepCost
from mlm.training.compilation.data_movement import Collective

# What the bound assumes, for the reader of a plan.
ASSUMPTIONS = (
    "Time at least: a roofline, no measurement. The longest of the counted FLOPs at the dense bfloat16 peak, the "
    "bytes that kernels read and write at the memory's bandwidth, and asynchronous collectives; then collectives that "
    "nothing overlaps. Collectives are rings over all links of a device at once, or over its share of the network if "
    "they leave its slice or host. Nothing waits, and no kernel is slower than its bounds."
)


class Roofline(NamedTuple):
    """Seconds of a step, at least, by what bounds it."""

    compute: float
    memory: float
    overlapped: float  # collectives beside compute
    exposed: float  # collectives that everything else waits for

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return max(self.compute, self.memory, self.overlapped) + self.exposed


def bound_step(cost: StepCost, flops: float, accelerator: Accelerator, num_devices: int) -> Roofline | None:
    """The bound of a step on so many devices; flops: of the whole step. None where the step's memory was not read."""
    if cost.traffic is None or not accelerator.bandwidth:
        return None
    # A single GPU is planned as one of a host.
    num_linked = accelerator.num_devices if accelerator.num_chips > 1 else num_devices
    seconds = {
        one: one.times * bound_collective(one, accelerator, num_devices, num_linked) for one in set(cost.transfers)
    }
    overlapped = sum(seconds[one] for one in cost.transfers if one.is_overlapped)
    exposed = sum(seconds[one] for one in cost.transfers if not one.is_overlapped)
    return Roofline(flops / num_devices / accelerator.flops, cost.traffic / accelerator.bandwidth, overlapped, exposed)


def bound_collective(one: Collective, accelerator: Accelerator, num_devices: int, num_linked: int) -> float:
    """Seconds of one call of a collective; num_linked: devices of a slice or host."""
    group = one.group or tuple(range(num_devices))
    share = 1.0 if one.kind == "collective-permute" else (len(group) - 1) / len(group)
    leaves = len({device // num_linked for device in group}) > 1
    bandwidth = accelerator.network_bandwidth if leaves else accelerator.link_bandwidth
    return one.size * share * (2 if one.kind == "all-reduce" else 1) / bandwidth


def describe_roofline(bound: Roofline) -> str:
    """The bound in milliseconds, with what makes it."""
    parts = {"FLOPs": bound.compute, "memory": bound.memory, "overlapped collectives": bound.overlapped}
    parts |= {"exposed collectives": bound.exposed}
    described = ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in parts.items() if seconds)
    return f"{1e3 * bound.total:.3g} ms ({described})"
