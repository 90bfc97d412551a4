"""What a compiled program moves between devices, read from its text: kinds, bytes, and what runs meanwhile."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from mlm.training.compilation import hlo

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
COMPUTE = ("fusion", "convolution", "dot", "custom-call", "while", "call")  # what an asynchronous one may overlap
# libtpu's fusions that start an asynchronous collective, go on with it beside other work, and end it.
TPU_START, TPU_WORK, TPU_DONE = "async-collective-start", "async_collective_fusion", "async-collective-done"

_GROUP = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


class Collective(NamedTuple):
    """A collective of a program."""

    kind: str  # one of COLLECTIVES
    size: int  # bytes of the full array: the output of an all-gather, the input of any other
    times: int  # how often it runs in one call of the program
    is_async: bool  # it starts and ends apart
    is_overlapped: bool  # something else is computed between the two
    group: tuple[int, ...]  # numbers of the devices that take part, in the first of its groups; (): all


def read_collectives(text: str) -> list[Collective]:
    """The collectives of a program; text: compiled.as_text().

    In a ring of n devices each one sends (n - 1) / n of the bytes, in an all-reduce twice that (Patarasuk & Yuan 2009).
    Raises ValueError if a loop with collectives has no known number of iterations.
    """
    program = hlo.parse_program(text)
    found: list[Collective] = []
    for call in hlo.iterate_calls(program):
        caller, body = call.caller, program.computations[call.name]
        if call.name.startswith(TPU_WORK) or (caller and caller.name.startswith(TPU_DONE)):
            continue  # counted where it starts
        sizes = {one.name: hlo.compute_type_bytes(one.type) for one in body}
        for number, one in enumerate(body):
            kind = one.operation.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            if call.times is None:
                raise ValueError(
                    f"the loop {call.loop} moves data between devices, and its number of iterations is unknown"
                )
            is_async, is_overlapped = kind != one.operation, has_compute_before_done(body, number)
            if caller and caller.name.startswith(TPU_START):
                is_async, is_overlapped = True, True  # libtpu fuses it with other work
            input_bytes = sum(sizes[name] for name in one.operands)
            # The start of an asynchronous all-gather returns its input together with its output.
            output_bytes = sizes[one.name] - (input_bytes if kind != one.operation else 0)
            size = output_bytes if kind == "all-gather" else input_bytes
            found.append(Collective(kind, size, call.times, is_async, is_async and is_overlapped, read_group(one.rest)))
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
    """The first group of devices that a collective's text names; () if it names none."""
    if group := _GROUP.search(attributes):
        return tuple(map(int, group[1].split(",")))
    if iota := _IOTA_GROUPS.search(attributes):
        sizes = [int(size) for size in iota[3].split(",")]
        order = [int(axis) for axis in iota[4].split(",")] if iota[4] else list(range(len(sizes)))
        return tuple(find_iota_device(number, sizes, order) for number in range(int(iota[2])))
    return ()


def find_iota_device(number: int, sizes: Sequence[int], order: Sequence[int]) -> int:
    """The entry at a place, counted in one row, of 0, 1, 2, ... in an array of these sizes with transposed axes."""
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    device = 0
    for axis in reversed(order):
        number, place = divmod(number, sizes[axis])
        device += place * strides[axis]
    return device


def count_bytes(text: str) -> dict[str, int]:
    """Bytes by kind of collective in one call of a program; text: compiled.as_text()."""
    return sum_bytes(read_collectives(text))


def sum_bytes(collectives: Sequence[Collective]) -> dict[str, int]:
    """Bytes by kind of collective."""
    return {kind: sum(one.size * one.times for one in collectives if one.kind == kind) for kind in COLLECTIVES}
