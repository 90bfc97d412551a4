"""How fast is training here, and how fast is it elsewhere, side by side in one run?

    python -m experiments.benchmark [--only=transformer,rnn]

Both sides have the same shapes, maths, data and optimiser, each at its best settings and, against a peer, in a process
of its own; they take turns, and a ratio is the median over rounds of the ratio within each round. Peers that are not
installed (pip install -e .[bench]) are left out with a line. Parts: transformer (with its limit), rnn, head, compile,
population, input, use, generation, start, growth; each begins with what it measures, as does scaling, which is run
where it is named. The table of the parts run and the machine's description are written to runs/benchmark after every
part; the parts take half an hour on two cores.
"""
import importlib
import os
import sys
import time
import traceback
from pathlib import Path

from absl import app, flags, logging

PARTS = ("transformer", "rnn", "head", "compile", "population", "input", "use", "generation", "start", "growth")
ASKED = ("scaling",)  # has no peer, and is run where it is named

_ONLY = flags.DEFINE_list("only", [], "The parts to run, separated by commas; all where none is named.")
_WORKDIR = flags.DEFINE_string("workdir", "runs/benchmark", "Folder of the table.")
_ALLOCATOR = flags.DEFINE_bool("allocator", True,
                               "Start again with the allocator's settings of mlm/cli/process_environment.py.")


def main(argv):
    from experiments.benchmark import machine
    from mlm.base import errors
    from mlm.cli import process_environment

    if len(argv) > 1:
        raise errors.ConfigError(f"unexpected argument {argv[1]!r}: parts are named as --only=transformer,rnn")
    for name in _ONLY.value:
        errors.require_one_of("--only", name, (*PARTS, *ASKED))
    if _ALLOCATOR.value:
        process_environment.restart(machine.ENVIRONMENT)

    folder = Path(_WORKDIR.value)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))  # parts and sides share programs

    from experiments.benchmark import timing
    from mlm.base import files
    from mlm.report import table

    logging.set_verbosity(logging.WARNING)  # libraries tell of every checkpoint and cache
    folder.mkdir(parents=True, exist_ok=True)
    description = machine.describe()
    files.write_json(folder / "machine.json", description)
    print("\n".join(f"{name}: {value}" for name, value in description.items()))
    rows, failures = [], []
    for name in _ONLY.value or PARTS:
        start = time.monotonic()
        try:
            for row in importlib.import_module(f"experiments.benchmark.{name}").rows():
                rows.append({"part": name} | row)
                print(table.grid(rows[-1:], timing.COLUMNS, "plain").splitlines()[1], flush=True)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
        print(f"{name}: {time.monotonic() - start:,.0f} s", flush=True)
        table.write(folder, rows, timing.COLUMNS)
    print(f"\n{table.markdown(rows, timing.COLUMNS)}\n\nwritten: {folder}/table.md, .csv, .tex, machine.json")
    if failures:
        print("\n".join(["parts that failed:", *failures]), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    from mlm.base.errors import ConfigError

    try:
        app.run(main, flags_parser=flags.FLAGS)
    except (ConfigError, flags.Error) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
