"""Training and inference speed of this project and of its peers, measured in one run.

Both sides have the same shapes, maths, data and optimizer, each at its best settings. Each side that is compared with a
peer has a process of its own. The sides take turns, and a ratio is the median over rounds of the ratio within a round.
Every part's module says what it measures. After each row, the table is written to --workdir, beside a
description of the machine. All parts take half an hour on two cores.
"""

import importlib
import os
import sys
import time
import traceback
from pathlib import Path

from mlm.cli import command

PARTS = (
    "transformer",
    "rnn",
    "head",
    "kernels",
    "compile",
    "population",
    "input_pipeline",
    "inference",
    "generation",
    "startup",
    "growth",
)
EXTRA_PARTS = ("scaling",)  # run only if --only names it: it has no peer

DESCRIPTION = """Measure training and inference speed, beside PyTorch, transformers, Flax and datasets.

    python -m experiments.benchmark --only=transformer,rnn

Peers that are not installed (pip install -e .[bench]) are left out.
"""


def make_parser() -> command.CommandParser:
    parser = command.CommandParser(
        prog="python -m experiments.benchmark",
        description=DESCRIPTION,
        stray_hint="parts are named as --only=transformer,rnn",
    )
    parser.add_argument(
        "--only",
        type=command.split_words,
        default=[],
        metavar="PART,...",
        help=f"parts to run: {', '.join((*PARTS, *EXTRA_PARTS))} (default: all but {EXTRA_PARTS[0]})",
    )
    parser.add_argument("--workdir", default="runs/benchmark", metavar="FOLDER", help="folder of the table")
    parser.add_argument("--no-tune_malloc", dest="tune_malloc", action="store_false", help="do not tune malloc")
    return parser


def main() -> None:
    args = make_parser().parse_words(sys.argv[1:])
    from experiments.benchmark import machine
    from mlm.base import errors
    from mlm.cli import process_environment

    for name in args.only:
        errors.require_one_of("--only", name, (*PARTS, *EXTRA_PARTS))
    if args.tune_malloc:
        process_environment.restart_process(machine.ENVIRONMENT)

    folder = Path(args.workdir)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))  # parts and sides share programs

    from experiments.benchmark import timing
    from mlm.base import files
    from mlm.report import table

    command.configure_logs(has_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    description = machine.describe_machine()
    files.write_json(folder / "machine.json", description)
    print("\n".join(f"{name}: {value}" for name, value in description.items()))
    rows, failures = [], []
    for name in args.only or PARTS:
        start = time.monotonic()
        try:
            for row in importlib.import_module(f"experiments.benchmark.{name}").measure():
                rows.append({"part": name} | row)
                print(table.to_grid(rows[-1:], timing.COLUMNS, "plain").splitlines()[1], flush=True)
                table.write_table(folder, rows, timing.COLUMNS)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
        print(f"{name}: {time.monotonic() - start:,.0f} s", flush=True)
    print(f"\n{table.to_markdown(rows, timing.COLUMNS)}\n\nwritten: {folder}/table.md, .csv, .tex, machine.json")
    if failures:
        print("\n".join(["parts that failed:", *failures]), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    command.run_main(main)
