"""What a compiled program moves, read from its text: between devices, and to and from a device's main memory."""

import math
import re
from collections.abc import Mapping, Sequence
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

# What moves nothing: names of parts, results of what has been counted, control.
FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("while", "call", "conditional", "optimization-barrier", "add-dependency", "opt-barrier", "iota"),
)
# What needs of its operands the entries that are needed of its result.
ENTRYWISE = (
    *("bitcast", "reshape", "transpose", "copy", "convert", "add", "subtract", "multiply", "divide", "negate"),
    *("select", "compare", "and", "or", "xor", "not", "maximum", "minimum", "exponential", "power", "rsqrt", "sqrt"),
)


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


def count_bytes(text: str) -> float | None:
    """Bytes to and from the main memory in one call of a program; text: compiled.as_text().

    None if a loop does not say how often it runs. A bound from below on the time of a step that waits for its memory:
    each kernel reads its inputs and writes its outputs once. Of an array of which a kernel takes or replaces a slice,
    that slice counts. Arrays that a TPU's compiler places in VMEM do not count.
    """
    program, total = hlo.parse_program(text), 0.0
    for call in hlo.iterate_calls(program):
        if call.is_fused:
            continue
        if call.times is None:
            return None
        body = program.computations[call.name]
        types = {one.name: one.type for one in body}
        total += call.times * sum(count_instruction_bytes(one, types, program) for one in body)
    return total


def count_instruction_bytes(one: hlo.Instruction, types: Mapping[str, str], program: hlo.HloProgram) -> int:
    """Bytes that one kernel reads and writes; types: of the instructions of its computation."""
    kind = one.operation.removesuffix("-start")
    if kind in FREE or kind.endswith(("-done", "-update")):
        return 0
    operand_types = [types[name] for name in one.operands]
    if one.operation == "dynamic-slice":
        return 2 * measure(one.type)
    if one.operation == "dynamic-update-slice":
        return 2 * measure(operand_types[1])
    if kind == "fusion":
        called = next((name for name in hlo.list_called(one) if name in program.computations), "")
        if called:
            output_types = hlo.split_tuple(one.type)[len(operand_types) if kind != one.operation else 0 :]
            return count_fusion_bytes(program.computations[called], operand_types, output_types)
    if kind != one.operation:  # its result holds its operands, too
        return 2 * sum(map(measure, operand_types))
    return measure(one.type) + sum(map(measure, operand_types))


def count_fusion_bytes(
    body: Sequence[hlo.Instruction], operand_types: Sequence[str], output_types: Sequence[str]
) -> int:
    """Bytes that a fused computation reads and writes; the types are those of its caller's arrays."""
    by_name = {one.name: one for one in body}

    def follow(name: str) -> hlo.Instruction:
        one = by_name[name]
        return follow(one.operands[0]) if one.operation == "bitcast" and one.operands[0] in by_name else one

    root = next(one for one in body if one.is_root)
    outputs = [follow(name) for name in (root.operands if root.operation == "tuple" else (root.name,))]
    total, replaced = 0, set[str]()
    for output, type_ in zip(outputs, output_types, strict=False):
        if output.operation == "dynamic-update-slice":
            replaced.add(follow(output.operands[0]).name)
            total += measure(by_name[output.operands[1]].type)
        else:
            total += measure(type_)
    share = compute_read_shares(body)
    for one in body:
        if one.operation == "parameter" and one.name not in replaced:
            number = int(one.rest.partition(")")[0])
            type_ = operand_types[number] if number < len(operand_types) else one.type
            total += int(share[one.name] * measure(type_))
    return total


def compute_read_shares(body: Sequence[hlo.Instruction]) -> dict[str, float]:
    """By name: the share of an instruction's entries that a fused computation needs; it computes no others."""
    share = {one.name: float(one.is_root) for one in body}
    slices: dict[str, dict[str, float]] = {}  # by the sliced array: the shares of different slices
    for one in reversed(body):  # users stand behind what they use
        for number, name in enumerate(one.operands):
            if name not in share:
                continue
            if one.operation in ("slice", "dynamic-slice", "gather") and number == 0:
                part = slices.setdefault(name, {})
                type_ = next(other.type for other in body if other.name == name)
                part[one.rest] = share[one.name] * hlo.compute_type_bytes(one.type) / hlo.compute_type_bytes(type_)
                share[name] = max(share[name], min(1.0, sum(part.values())))
            else:
                share[name] = max(share[name], share[one.name] if one.operation in ENTRYWISE else 1.0)
    return share


def measure(type_: str) -> int:
    """Bytes of a type in main memory."""
    return hlo.compute_type_bytes(type_, main_memory=True)
