"""The bytes that a compiled program reads from and writes to a device's main memory, read from its text (XLA's HLO).

A bound from below on time where a step waits for its memory: what kernels read and write once each.
"""

from collections.abc import Mapping, Sequence

from mlm.training.compilation import hlo

# What moves nothing: names of parts, results of what has been counted, control.
FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("while", "call", "conditional", "optimization-barrier", "add-dependency", "opt-barrier", "iota"),
)


def count_bytes(text: str) -> float | None:
    """Bytes in one call of a program; text: compiled.as_text(). None if a loop does not say how often it runs.

    Each kernel reads its inputs and writes its outputs once. Of an array of which a kernel takes or replaces a slice,
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
    parameters = [one for one in body if one.operation == "parameter"]
    for one in parameters:
        number = int(one.rest.partition(")")[0])
        type_ = operand_types[number] if number < len(operand_types) else one.type
        uses = [use for use in body if one.name in use.operands and use.operation != "bitcast"]
        slices = [use for use in uses if use.operation == "dynamic-slice" and use.operands[0] == one.name]
        if one.name in replaced or not measure(type_):
            continue
        total += sum(measure(use.type) for use in slices) if slices and len(slices) == len(uses) else measure(type_)
    return total


def measure(type_: str) -> int:
    """Bytes of a type in main memory."""
    return hlo.compute_type_bytes(type_, main_memory=True)
