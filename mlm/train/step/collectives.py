"""What a compiled program moves between devices, read from its text (XLA's HLO): bytes by kind of collective."""
import collections
import functools
import re

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")

_BEGINS = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{$")               # a computation, at the start of a line
_MAKES = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.+?) ([\w\-]+)\((.*)")  # name, type, operation, operands and more
_CALLS = re.compile(r"=\{?((?:%[\w.\-]+(?:, )?)+)")                   # attributes that name computations
_TIMES = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")


def moved(text: str) -> dict[str, int]:
    """Bytes that each device gathers, scatters, adds up or exchanges in a call of a program; text: compiled.as_text().

    They are those of the whole array that a collective is about: what comes out of an all-gather, what goes into any
    other. Over a ring of n devices each one sends (n - 1) / n of them, in an all-reduce twice that (Patarasuk & Yuan
    2009). The body of a loop counts as often as it runs; raises ValueError where the compiler could not tell how often
    one that moves anything does.
    """
    bodies: dict[str, list[str]] = {}
    for line in text.splitlines():
        begins = _BEGINS.match(line)
        if begins:
            body = bodies.setdefault(begins[1], [])
            if line.startswith("ENTRY"):
                entry = begins[1]
        elif bodies:
            body.append(line)

    @functools.cache
    def of(name):
        sizes, found = {}, collections.Counter()
        for result, kind, operation, rest in (made.groups() for made in map(_MAKES.match, bodies[name]) if made):
            sizes[result] = size(kind)
            collective = operation.removesuffix("-start")
            if collective in KINDS:
                given = sum(sizes[one] for one in re.findall(r"%([\w.\-]+)", rest.partition(")")[0]))
                # What starts a gather returns what it was given beside what is gathered.
                gathered = sizes[result] - (given if collective != operation else 0)
                found[collective] += gathered if collective == "all-gather" else given
            called = collections.Counter()
            for one in (one for names in _CALLS.findall(rest) for one in re.findall(r"%([\w.\-]+)", names)):
                called += of(one) if one in bodies else {}
            times = _TIMES.search(rest) if operation == "while" else None
            if operation == "while" and called and times is None:
                raise ValueError(f"the loop {result} moves data between devices, none knows how often")
            found += {one: number * int(times[1] if times else 1) for one, number in called.items()}
        return found

    return {kind: of(entry)[kind] for kind in KINDS}


def size(kind: str) -> int:
    """Bytes of a type as HLO writes it, such as f32[8,16]{1,0}, or of a tuple of them."""
    total = 0
    for letters, bits, shape in _ARRAY.findall(kind):
        entries = functools.reduce(lambda product, axis: product * int(axis), filter(None, shape.split(",")), 1)
        total += entries * (1 if letters == "pred" else int(bits or 0) / 8)
    return int(total)
