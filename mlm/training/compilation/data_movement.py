"""What a compiled program moves, read from its text (XLA's HLO): between devices, and to and from a device's memory."""

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

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
ALLOCATION = 'custom_call_target="AllocateBuffer"'  # a TPU's, whose first values nothing reads
# What needs of its operands the entries that are needed of its result.
ENTRYWISE = (
    *("bitcast", "reshape", "transpose", "copy", "convert", "add", "subtract", "multiply", "divide", "negate"),
    *("select", "compare", "and", "or", "xor", "not", "maximum", "minimum", "exponential", "power", "rsqrt", "sqrt"),
)

_COMPUTATION = re.compile(r"(?:ENTRY )?%([\w.\-]+) .*\{$")  # the first line of a computation
# Name, type, operation, then operands, whose types are not repeated, and attributes.
_INSTRUCTION = re.compile(r"\s+(ROOT )?%([\w.\-]+) = (.+?) ([\w\-]+)\(([^)\[]*\).*)")
_CALLED_COMPUTATIONS = re.compile(r"=\{?((?:%[\w.\-]+(?:, )?)+)")  # attributes that name computations
_NAME = re.compile(r"%([\w.\-]+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%([\w.\-]+)")
_BOUND = re.compile(r"^s32\[\]")  # the type of a constant in a condition, of a loop that counts from 0
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([^\]]*)\](\{[^}]*\})?")
_FAST_MEMORY = re.compile(r"S\([1-9]\)")  # in a layout: not in the device's main memory


class Instruction(NamedTuple):
    """An instruction of a computation."""

    name: str
    type: str
    operation: str
    operands: tuple[str, ...]  # names of instructions
    rest: str  # of its line: operands and attributes
    is_root: bool


HloProgram = dict[str, list[Instruction]]  # computations by name; the name of the first is ""


class Call(NamedTuple):
    """A computation, as one place of a program calls it."""

    name: str  # of the computation
    times: int | None  # how often it runs in one call of the program; None: unknown
    caller: str  # the instruction that calls it; "": it is the entry
    loop: str  # the loop of unknown length that it is in; "": none
    is_fused: bool  # a part of one kernel


def parse_program(text: str) -> HloProgram:
    """The program of a text that compiled.as_text() gives. Raises ValueError for a line that cannot be read."""
    program: HloProgram = {}
    body: list[Instruction] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            root, name, type_, operation, rest = match.groups()
            operands = tuple(_NAME.findall(rest.partition(")")[0]))
            body.append(Instruction(name, type_, operation, operands, rest, bool(root)))
        elif start := _COMPUTATION.match(line):
            body = program.setdefault("" if line.startswith("ENTRY") else start[1], [])
        elif line.startswith(" ") or line.endswith("{"):
            raise ValueError(f"HLO in an unknown form: {line.strip()[:200]}")
    return program


def iterate_calls(program: HloProgram, call: Call | None = None) -> Iterator[Call]:
    """The calls of all computations; the body of a loop runs as often as the loop says."""
    call = call or Call("", 1, "", "", False)
    yield call
    for instruction in program[call.name]:
        times, loop = call.times, call.loop
        if instruction.operation == "while":
            trips = count_trips(instruction, program)
            times = None if trips is None or times is None else times * trips
            loop = loop or ("" if trips is not None else instruction.name)
        kind = instruction.operation.removesuffix("-start")
        is_fused = call.is_fused or kind not in ("while", "call", "conditional", "async")
        for name in list_called(instruction, program):
            yield from iterate_calls(program, Call(name, times, instruction.name, loop, is_fused))


def list_called(instruction: Instruction, program: HloProgram) -> list[str]:
    """The computations that an instruction calls."""
    attributes = " ".join(_CALLED_COMPUTATIONS.findall(instruction.rest))
    return [name for name in _NAME.findall(attributes) if name in program]


def count_trips(loop: Instruction, program: HloProgram) -> int | None:
    """How often a loop runs, if its text says so: the compiler of TPUs says it in the loop's condition alone."""
    if trip_count := _TRIP_COUNT.search(loop.rest):
        return int(trip_count[1])
    condition = _CONDITION.search(loop.rest)
    body = program.get(condition[1], []) if condition else []
    bounds = [int(one.rest.partition(")")[0]) for one in body if one.operation == "constant" and _BOUND.match(one.type)]
    is_counter = any(one.operation == "compare" and "direction=LT" in one.rest for one in body)
    return bounds[0] if is_counter and len(bounds) == 1 else None


def compute_type_bytes(type_: str, *, main_memory: bool = False) -> int:
    """Bytes of a type or tuple as HLO writes it, f32[8,16]{1,0}; main_memory: without scalars and what lies in VMEM."""
    total = 0.0
    for letters, bits, shape, layout in _ARRAY.findall(type_):
        if main_memory and (not shape or _FAST_MEMORY.search(layout)):
            continue
        entries = math.prod(int(axis) for axis in shape.split(",") if axis)
        total += entries * (1 if letters == "pred" else int(bits or 0) / 8)
    return int(total)


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
    program = parse_program(text)
    found: list[Collective] = []
    for call in iterate_calls(program):
        if call.name.startswith(TPU_WORK) or call.caller.startswith(TPU_DONE):
            continue  # counted where it starts
        body = program[call.name]
        sizes = {one.name: compute_type_bytes(one.type) for one in body}
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
            input_bytes = sum(sizes[name] for name in one.operands)
            # The start of an asynchronous all-gather returns its input together with its output.
            size = sizes[one.name] - is_start * input_bytes if kind == "all-gather" else input_bytes
            is_overlapped = call.caller.startswith(TPU_START) or (is_start and has_compute_before_done(body, number))
            found.append(Collective(kind, size, call.times, is_overlapped, read_group(one.rest)))
    return found


def has_compute_before_done(body: Sequence[Instruction], number: int) -> bool:
    """Whether something is computed between an instruction and the one that takes its result."""
    between = itertools.takewhile(lambda one: body[number].name not in one.operands, body[number + 1 :])
    return any(one.operation in COMPUTE for one in between)


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
    """Bytes to and from the main memory in one call of a program, at least; None if a loop's length is unknown.

    Each kernel reads its inputs and writes its outputs once. Of an array of which a kernel takes or replaces a slice,
    that slice counts. Arrays that a TPU's compiler places in VMEM do not count. text: compiled.as_text().
    """
    program, total = parse_program(text), 0.0
    for call in iterate_calls(program):
        if call.is_fused:
            continue
        if call.times is None:
            return None
        body = program[call.name]
        types = {one.name: one.type for one in body}
        total += call.times * sum(count_instruction_bytes(one, types, program) for one in body)
    return total


def count_instruction_bytes(one: Instruction, types: Mapping[str, str], program: HloProgram) -> int:
    """Bytes that one kernel reads and writes; types: of its computation's instructions."""
    kind = one.operation.removesuffix("-start")
    if kind in FREE or kind.endswith(("-done", "-update")) or ALLOCATION in one.rest:
        return 0
    operand_types = [types[name] for name in one.operands]
    is_start = kind != one.operation  # its result holds its operands, then its output
    output_types = [array[0] for array in _ARRAY.finditer(one.type)][len(operand_types) if is_start else 0 :]
    if kind in ("slice", "dynamic-slice"):
        return measure(output_types[0]) + measure_part(output_types[0], operand_types[0])
    if kind == "dynamic-update-slice":
        return measure(operand_types[1]) + measure_part(operand_types[1], operand_types[0])
    if kind == "fusion" and (called := list_called(one, program)):
        return count_fusion_bytes(program[called[0]], operand_types, output_types, program)
    if is_start and output_types:
        return measure(one.type)
    return measure(one.type) + sum(map(measure, operand_types))


def count_fusion_bytes(
    body: Sequence[Instruction], operand_types: Sequence[str], output_types: Sequence[str], program: HloProgram
) -> int:
    """Bytes that a fused computation reads and writes; the types are those of its caller's arrays."""
    by_name = {one.name: one for one in body}

    def follow(name: str) -> Instruction:
        one = by_name[name]
        return follow(one.operands[0]) if one.operation == "bitcast" and one.operands[0] in by_name else one

    root = next(one for one in body if one.is_root)
    outputs = [follow(name) for name in (root.operands if root.operation == "tuple" else (root.name,))]
    total, replaced = 0, set[str]()
    for output, type_ in zip(outputs, output_types, strict=False):
        if output.operation == "dynamic-update-slice":
            replaced.add(follow(output.operands[0]).name)
            total += measure_part(by_name[output.operands[1]].type, type_)
        else:
            total += measure(type_)
    for (name, share), type_ in zip(compute_read_shares(body, program).items(), operand_types, strict=False):
        total += 0 if name in replaced else int(share * measure(type_))
    return total


def compute_read_shares(body: Sequence[Instruction], program: HloProgram) -> dict[str, float]:
    """By parameter, in order: the share of its entries that a fused computation needs; it computes no others."""
    share = {one.name: float(one.is_root) for one in body}
    slices: dict[str, dict[str, float]] = {}  # by the sliced array: the shares of different slices
    for one in reversed(body):  # users stand behind what they use
        called = list_called(one, program) if one.operation == "fusion" else ()
        inner = [*compute_read_shares(program[called[0]], program).values()] if called else ()
        for number, name in enumerate(one.operands):
            if name not in share:
                continue
            if one.operation in ("slice", "dynamic-slice", "gather") and number == 0:
                part = slices.setdefault(name, {})
                type_ = next(other.type for other in body if other.name == name)
                part[one.rest] = share[one.name] * compute_type_bytes(one.type) / compute_type_bytes(type_)
                share[name] = max(share[name], min(1.0, sum(part.values())))
            else:
                needed = inner[number] if inner else share[one.name] if one.operation in ENTRYWISE else 1.0
                share[name] = max(share[name], needed)
    parameters = {int(one.rest.partition(")")[0]): one.name for one in body if one.operation == "parameter"}
    return {parameters[number]: share[parameters[number]] for number in sorted(parameters)}


measure = functools.partial(compute_type_bytes, main_memory=True)  # bytes in the device's main memory


def measure_part(part: str, whole: str) -> int:
    """Bytes in main memory of a part of an array, wherever its copy is."""
    return compute_type_bytes(part) if measure(whole) else 0
