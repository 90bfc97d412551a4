"""The bytes that a compiled program moves between devices, by kind of collective, read from its text (XLA's HLO)."""

import collections
import functools
import math
import re

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{$")  # the first line of a computation
# Name, type, operation, then operands and attributes.
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.+?) ([\w\-]+)\((.*)")
_CALLED_COMPUTATIONS = re.compile(r"=\{?((?:%[\w.\-]+(?:, )?)+)")  # attributes that name computations
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%([\w.\-]+)")
_BOUND = re.compile(r" = s32\[\]\S* constant\((\d+)\)")  # in a condition, of a loop that counts from 0
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")


def count_bytes(text: str) -> dict[str, int]:
    """Bytes by kind of collective in one call of a program; text: compiled.as_text().

    Counted are the bytes of the full array: the output of an all-gather, the input of any other collective. In a ring
    of n devices each one sends (n - 1) / n of them, in an all-reduce twice that (Patarasuk & Yuan 2009). The body of a
    loop counts as often as it runs. Raises ValueError if a loop with collectives has no known number of iterations.
    """
    bodies: dict[str, list[str]] = {}
    body: list[str] = []
    entry = ""
    for line in text.splitlines():
        start = _COMPUTATION.match(line)
        if start:
            body = bodies.setdefault(start[1], [])
            if line.startswith("ENTRY"):
                entry = start[1]
        else:
            body.append(line)

    @functools.cache
    def count(name: str) -> collections.Counter[str]:
        sizes: dict[str, int] = {}
        total: collections.Counter[str] = collections.Counter()
        instructions = filter(None, map(_INSTRUCTION.match, bodies[name]))
        for result, type_, operation, arguments in (instruction.groups() for instruction in instructions):
            sizes[result] = compute_type_bytes(type_)
            collective = operation.removesuffix("-start")
            if collective in COLLECTIVES:
                input_bytes = sum(sizes[name] for name in re.findall(r"%([\w.\-]+)", arguments.partition(")")[0]))
                # The start of an asynchronous all-gather returns its input together with its output.
                output_bytes = sizes[result] - (input_bytes if collective != operation else 0)
                total[collective] += output_bytes if collective == "all-gather" else input_bytes
            called_bytes: collections.Counter[str] = collections.Counter()
            for computations in _CALLED_COMPUTATIONS.findall(arguments):
                for name in re.findall(r"%([\w.\-]+)", computations):
                    called_bytes += count(name) if name in bodies else collections.Counter()
            iterations = _count_iterations(arguments, bodies) if operation == "while" else 1
            if called_bytes and iterations is None:
                raise ValueError(
                    f"the loop {result} moves data between devices, and its number of iterations is unknown"
                )
            total += collections.Counter({kind: number * (iterations or 0) for kind, number in called_bytes.items()})
        return total

    return {kind: count(entry)[kind] for kind in COLLECTIVES}


def _count_iterations(arguments: str, bodies: dict[str, list[str]]) -> int | None:
    """How often a loop runs, if its text says so: the compiler of TPUs says it in the loop's condition alone."""
    if trip_count := _TRIP_COUNT.search(arguments):
        return int(trip_count[1])
    condition = _CONDITION.search(arguments)
    lines = bodies.get(condition[1], []) if condition else []
    bounds = [int(bound[1]) for bound in map(_BOUND.search, lines) if bound]
    is_counter = any("compare(" in line and "direction=LT" in line for line in lines)
    return bounds[0] if is_counter and len(bounds) == 1 else None


def compute_type_bytes(type_: str) -> int:
    """Bytes of a type as HLO writes it, such as f32[8,16]{1,0}, or of a tuple of them."""
    total = 0.0
    for letters, bits, shape in _ARRAY.findall(type_):
        entries = math.prod(int(axis) for axis in shape.split(",") if axis)
        total += entries * (1 if letters == "pred" else int(bits or 0) / 8)
    return int(total)
