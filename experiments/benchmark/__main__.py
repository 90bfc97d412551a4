"""Training and inference speed of this project and of its peers, measured in one run.

Both sides have the same shapes, maths, data and optimizer, each at its best settings. Each side that is compared with a
peer has a process of its own. The sides take turns, and a ratio is the median over rounds of the ratio within a round.
Every part's module says what it measures. After each row, the table is written to --workdir, beside a
description of the machine. All parts take half an hour on two cores. accelerator.py is the run of --accelerator.
"""

import functools
import importlib
import os
import sys
import time
import traceback
from collections.abc import Collection, Sequence
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
EXTRA_PARTS = ("scaling", "packing")  # run only if --only names them: one has no peer, one needs 3 GB of disk
COMPILED_PARTS = ("gpu", "tpu", "paper")
ACCELERATOR_PARTS = ("matmul", "transformer", "finetuning", "lstm", "generation", "population")

DESCRIPTION = """Measure training and inference speed, beside PyTorch, transformers, Flax and datasets.

    python -m experiments.benchmark --only=transformer,rnn
    python -m experiments.benchmark --accelerator [--smallest] [--only=matmul,lstm]
    python -m experiments.benchmark --card [--smallest]
    python -m experiments.benchmark --compiled [--only=gpu,tpu,paper]

Peers that are not installed (pip install -e .[bench]) are left out.
"""


def make_parser() -> command.CommandParser:
    parser = command.CommandParser(prog="python -m experiments.benchmark", description=DESCRIPTION)
    parser.add_argument(
        "--only",
        type=functools.partial(command.split_values, str),
        default=[],
        metavar="PART,...",
        help=f"parts to run: {', '.join((*PARTS, *EXTRA_PARTS))} (default: all but {' and '.join(EXTRA_PARTS)}); with "
        f"--accelerator: {', '.join(ACCELERATOR_PARTS)}",
    )
    parser.add_argument(
        "--accelerator",
        action="store_true",
        help="what to measure on a card, within 40 minutes; the same command goes on where it ended",
    )
    parser.add_argument(
        "--card",
        action="store_true",
        help="what to do first on a card that is lent, within 10 minutes: the kernels' tests, then the figures that "
        "answer the open questions, as rows of results",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="what the compilers of devices that are not here say (pip install 'mlm[tpu,gpu-plan]'): docs/scaling.md",
    )
    parser.add_argument("--smallest", action="store_true", help="--accelerator on tiny shapes, also on a CPU")
    parser.add_argument("--workdir", default="runs/benchmark", metavar="FOLDER", help="folder of the table")
    parser.add_argument("--no-tune_malloc", dest="tune_malloc", action="store_false", help="do not tune malloc")
    return parser


def main() -> None:
    args = make_parser().parse_words(sys.argv[1:])
    from experiments.benchmark import machine
    from mlm.base import errors
    from mlm.cli import entry

    known = ACCELERATOR_PARTS if args.accelerator else COMPILED_PARTS if args.compiled else (*PARTS, *EXTRA_PARTS)
    for name in args.only:
        errors.require_one_of("--only", name, known)
    has_smallest = args.accelerator or args.card
    errors.require(has_smallest or not args.smallest, "--smallest", True, "--accelerator or --card beside it")
    if args.tune_malloc:
        entry.tune_malloc()
        os.environ.update(machine.ENVIRONMENT)

    folder = Path(args.workdir)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))  # parts and sides share programs

    from experiments.benchmark import timing
    from mlm.base import files
    from mlm.report import table

    command.configure_logs(has_progress=False)
    if args.accelerator or args.card:
        measure_accelerator(folder, args.only or ACCELERATOR_PARTS, is_smallest=args.smallest, is_card=args.card)
        return
    if args.compiled:
        measure_compiled(folder / "compiled", args.only or COMPILED_PARTS)
        return
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
    print()
    table.print_table(rows, timing.COLUMNS)
    print(f"\nwritten: {folder}/table.md, .csv, .tex, machine.json")
    if failures:
        print("\n".join(["parts that failed:", *failures]), file=sys.stderr)
        sys.exit(1)


def measure_accelerator(folder: Path, parts: Collection[str], *, is_smallest: bool, is_card: bool) -> None:
    from experiments.benchmark import accelerator, accelerator_sides, card

    if is_card:
        exit_if_failed(card.run(folder / ("card_smallest" if is_smallest else "card"), is_smallest=is_smallest))
        return
    scale = accelerator_sides.SMALLEST if is_smallest else accelerator_sides.FULL
    failures = accelerator.run(
        folder / ("smallest" if is_smallest else "accelerator"),
        accelerator_sides.list_sides(scale),
        parts,
        needs_accelerator=not is_smallest,
    )
    exit_if_failed(failures)


def measure_compiled(folder: Path, parts: Collection[str]) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"  # nothing here needs an accelerator
    from experiments.benchmark import compiled
    from mlm.report import table

    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in compiled.measure(parts):
        rows.append(row)
        print(table.to_grid(rows[-1:], compiled.COLUMNS, "plain").splitlines()[1], flush=True)
        table.write_table(folder, rows, compiled.COLUMNS)
    print(f"written: {folder}/table.md, .csv, .tex")


def exit_if_failed(failures: Sequence[str]) -> None:
    if failures:
        print("\n".join(["what failed:", *failures]), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    command.run_main(main)
