"""The cycles of a compiled program by the estimate of a TPU's compiler, read from its text (XLA's HLO)."""

import re

from mlm.training.compilation import hlo

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def count_cycles(text: str) -> int | None:
    """Cycles of a core in one call of a program, one operation after the other; text: compiled.as_text().

    None where the compiler estimates none, as those of CPUs and GPUs, or a loop does not say how often it runs. What a
    kernel of Pallas takes does not count, nor does waiting for other devices.
    """
    program, total = hlo.parse_program(text), 0
    for call in hlo.iterate_calls(program):
        found = [int(cycles[1]) for one in program.computations[call.name] if (cycles := _CYCLES.search(one.rest))]
        if call.is_fused or not found:
            continue
        if call.times is None:
            return None
        total += call.times * sum(found)
    return total or None
