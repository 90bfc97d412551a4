"""What a compiled program moves between devices, read from its text: kinds, bytes, and what runs meanwhile."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm.training.compilation import hlo

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
COMPUTE = ("fusion", "convolution", "dot", "custom-call", "while", "call")  # what an asynchronous one may overlap
# libtpu's fusions that start an asynchronous collective, go on with it beside other work, and end it.
TPU_START, TPU_WORK, TPU_DONE = "async-collective-start", "async_collective_fusion", "async-collective-done"

# Groups in full (none: all), as a transposed array, as axes of a mesh, and what libtpu writes of a sum over slices.
_GROUP = re.compile(r"(?:replica_groups|source_target_pairs)=\{(?:\{([\d,]+)\}|\})")
_IOTA_GROUPS = re.compile(r"replica_groups=\[\d+,(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]+)\](?:, device_ids=\((\S+)\))? \{([^}]*)\}")
_SLICES = re.compile(r'_xla_megascale_target="\{([\d,]+)\}x\{0:(\d+)\}".*_xla_megascale_transfer_type="ALL_REDUCE"')
_AXIS = re.compile(r"'([^']+)'=(\d+)")  # of a mesh
_GROUPED_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")  # or a part of one: how many are before it, and its size
_MOVES = re.compile(r"\b(?:channel_id|replica_groups|source_target_pairs)=")  # attributes of what moves data


class Collective(NamedTuple):
    """A collective of a program."""

    kind: str  # one of COLLECTIVES
    size: int  # bytes of the full array: the output of an all-gather, the input of any other
    times: int  # how often it runs in one call of the program
    is_overlapped: bool  # something else is computed between the two
    group: tuple[int, ...]  # numbers of the devices that take part, in the first of its groups; (): all


def read_collectives(text: str) -> list[Collective]:
    """The collectives of a program; text: compiled.as_text().

    In a ring of n devices each one sends (n - 1) / n of the bytes, in an all-reduce twice that (Patarasuk & Yuan 2009).
    Raises ValueError if a loop with collectives has no known number of iterations, and for what cannot be read.
    """
    program = hlo.parse_program(text)
    found: list[Collective] = []
    for call in hlo.iterate_calls(program):
        caller, body = call.caller, program.computations[call.name]
        if call.name.startswith(TPU_WORK) or (caller and caller.name.startswith(TPU_DONE)):
            continue  # counted where it starts
        sizes = {one.name: hlo.compute_type_bytes(one.type) for one in body}
        for number, one in enumerate(body):
            is_sum_of_slices = one.operation == "send" and _SLICES.search(one.rest)
            kind = "all-reduce" if is_sum_of_slices else one.operation.removesuffix("-start")
            if kind not in COLLECTIVES:
                if _MOVES.search(one.rest) and kind not in ("recv", "recv-done", "send-done"):
                    raise ValueError(f"{kind} moves data between devices, and how much is unknown: {one.rest[:200]}")
                continue
            if call.times is None:
                raise ValueError(f"the loop {call.loop} moves data, and its number of iterations is unknown")
            is_start = kind != one.operation
            is_fused = caller is not None and caller.name.startswith(TPU_START)  # libtpu fuses it with other work
            input_bytes = sum(sizes[name] for name in one.operands)
            # The start of an asynchronous all-gather returns its input together with its output.
            size = sizes[one.name] - is_start * input_bytes if kind == "all-gather" else input_bytes
            is_overlapped = is_fused or (is_start and has_compute_before_done(body, number))
            group = read_group(one.rest)
            found.append(Collective(kind, size, call.times, is_overlapped, group))
    return found


def has_compute_before_done(body: Sequence[hlo.Instruction], number: int) -> bool:
    """Whether something is computed between an instruction and the one that takes its result."""
    for one in body[number + 1 :]:
        if body[number].name in one.operands:
            return False
        if one.operation in COMPUTE:
            return True
    return False


def read_group(attributes: str) -> tuple[int, ...]:
    """The first group of devices that a collective's text names; () if none. Raises ValueError for an unknown form."""
    if group := _GROUP.search(attributes):
        return tuple(map(int, group[1].split(","))) if group[1] else ()
    if iota := _IOTA_GROUPS.search(attributes):
        return tuple(list_devices(iota[2])[: int(iota[1])].tolist())
    if slices := _SLICES.search(attributes):
        return tuple((int(number) - 1) * (int(slices[2]) + 1) for number in slices[1].split(","))
    if mesh := _MESH_GROUPS.search(attributes):
        names, sizes = zip(*((name, int(size)) for name, size in _AXIS.findall(mesh[1])), strict=True)
        places = [0]
        for name, before, part in _GROUPED_AXIS.findall(mesh[3]):
            axis = names.index(name)
            size = int(part or sizes[axis])
            stride = math.prod(sizes[axis:]) // (int(before or 1) * size)
            places = [place + stride * number for place in places for number in range(size)]
        return tuple(list_devices(mesh[2] or f"[{math.prod(sizes)}]")[places].tolist())
    if "replica_groups=" in attributes:
        raise ValueError(f"groups of devices in an unknown form: {attributes[:200]}")
    return ()


def list_devices(text: str) -> np.ndarray:
    """The devices of a text such as 0,2,1,3 or [2,2]T(1,0), which numbers two rows and reads them by columns."""
    shape, _, axes = text.partition("T")
    numbers = [int(number) for number in shape.strip("[]").split(",")]
    if not shape.startswith("["):
        return np.array(numbers)
    order = [int(axis) for axis in axes.strip("()").split(",")] if axes else None
    return np.arange(math.prod(numbers)).reshape(numbers).transpose(order).ravel()


def sum_bytes(collectives: Sequence[Collective]) -> dict[str, int]:
    """Bytes by kind of collective."""
    return {kind: sum(one.size * one.times for one in collectives if one.kind == kind) for kind in COLLECTIVES}
