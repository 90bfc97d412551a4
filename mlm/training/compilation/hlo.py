"""A compiled program's text (XLA's HLO) as computations of instructions, and how often each computation runs."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

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


class HloProgram(NamedTuple):
    """A compiled program: computations by name, and the name of the first."""

    computations: dict[str, list[Instruction]]
    entry: str


class Call(NamedTuple):
    """A computation, as one place of a program calls it."""

    name: str  # of the computation
    times: int | None  # how often it runs in one call of the program; None: unknown
    caller: Instruction | None  # None: the entry
    loop: str  # the loop of unknown length that it is in; "": none
    is_fused: bool  # a part of one kernel


def parse_program(text: str) -> HloProgram:
    """The program of a text that compiled.as_text() gives. Raises ValueError for a line that cannot be read."""
    computations: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    entry = ""
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            root, name, type_, operation, rest = match.groups()
            operands = tuple(_NAME.findall(rest.partition(")")[0]))
            body.append(Instruction(name, type_, operation, operands, rest, bool(root)))
        elif start := _COMPUTATION.match(line):
            body = computations.setdefault(start[1], [])
            entry = start[1] if line.startswith("ENTRY") else entry
        elif line.startswith(" ") or line.endswith("{"):
            raise ValueError(f"HLO in an unknown form: {line.strip()[:200]}")
    return HloProgram(computations, entry)


def iterate_calls(program: HloProgram, call: Call | None = None) -> Iterator[Call]:
    """The calls of all computations; the body of a loop runs as often as the loop says."""
    call = call or Call(program.entry, 1, None, "", False)
    yield call
    for instruction in program.computations[call.name]:
        times, loop = call.times, call.loop
        if instruction.operation == "while":
            trips = count_trips(instruction, program)
            times = None if trips is None or times is None else times * trips
            loop = loop or ("" if trips is not None else instruction.name)
        kind = instruction.operation.removesuffix("-start")
        is_fused = call.is_fused or kind not in ("while", "call", "conditional", "async")
        for name in list_called(instruction):
            if name in program.computations:
                yield from iterate_calls(program, Call(name, times, instruction, loop, is_fused))


def list_called(instruction: Instruction) -> list[str]:
    """The names in an instruction's attributes, computations that it calls among them."""
    return [name for names in _CALLED_COMPUTATIONS.findall(instruction.rest) for name in _NAME.findall(names)]


def count_trips(loop: Instruction, program: HloProgram) -> int | None:
    """How often a loop runs, if its text says so: the compiler of TPUs says it in the loop's condition alone."""
    if trip_count := _TRIP_COUNT.search(loop.rest):
        return int(trip_count[1])
    condition = _CONDITION.search(loop.rest)
    body = program.computations.get(condition[1], []) if condition else []
    bounds = [int(one.rest.partition(")")[0]) for one in body if one.operation == "constant" and _BOUND.match(one.type)]
    is_counter = any(one.operation == "compare" and "direction=LT" in one.rest for one in body)
    return bounds[0] if is_counter and len(bounds) == 1 else None


def split_tuple(type_: str) -> list[str]:
    """The types of a tuple's arrays; of an array, its own."""
    return [array[0] for array in _ARRAY.finditer(type_)]


def compute_type_bytes(type_: str, *, main_memory: bool = False) -> int:
    """Bytes of a type or tuple as HLO writes it, f32[8,16]{1,0}; main_memory: without scalars and what lies in VMEM."""
    total = 0.0
    for letters, bits, shape, layout in _ARRAY.findall(type_):
        if main_memory and (not shape or _FAST_MEMORY.search(layout)):
            continue
        entries = math.prod(int(axis) for axis in shape.split(",") if axis)
        total += entries * (1 if letters == "pred" else int(bits or 0) / 8)
    return int(total)
