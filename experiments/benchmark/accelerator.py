"""The run of `--accelerator`: each side has a file, written as it ends, and the same command goes on from there."""

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import jax

from experiments.benchmark import accelerator_sides, machine, peers, timing
from experiments.benchmark.accelerator_sides import Side
from mlm.base import errors, files
from mlm.base.machine import find_peak_flops
from mlm.launch.sweep import subprocess_worker
from mlm.report import table
from mlm.report.table import Column

LIMIT = 40 * 60  # seconds of a command
SIDE_LIMIT = 5 * 60  # seconds of a side
COLUMNS = (
    *timing.COLUMNS,
    Column("tflops", "TFLOP/s", ".3g"),
    Column("share", "share of peak", ".1%"),
    Column("planned_gb", "GB planned", ".2f"),
    Column("measured_gb", "GB measured", ".2f"),
    Column("note", "note"),
)


def run(
    folder: Path, sides: Sequence[Side], parts: Collection[str], *, needs_accelerator: bool, limit: float = LIMIT
) -> list[str]:
    """Measures the sides of these parts that have no rows in the folder; returns a line for each that failed.

    After each, it writes the table of all results in the folder. A side whose package or devices are missing does not
    fail. Sides that have not begun after `limit` seconds are left to the next command.

    Raises:
        ConfigError: The folder has results of another device, or there is no accelerator although needs_accelerator.
    """
    jax.config.update("jax_platforms", "cpu")  # the devices belong to the processes of the sides
    begin = time.monotonic()
    description = _call_in_process(machine.describe_machine)
    device = description["device"]
    errors.require(
        device != "cpu" or not needs_accelerator, "--accelerator: device", device, "not a CPU, or --smallest"
    )
    earlier = files.read_json_with_digest(folder / "machine.json") or description
    errors.require(device == earlier["device"], "--workdir: device", device, f"{earlier['device']}, as in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json_with_digest(folder / "machine.json", description)
    print("\n".join(f"{name}: {value}" for name, value in description.items()))
    print(f"results: {folder}, a file for each side, and table.md", flush=True)

    results = {side: files.read_json_with_digest(make_path(folder, side)) or {} for side in sides}
    chosen = [side for side in sides if side.part in parts]
    waiting = [side for side in chosen if "rows" not in results[side]]
    if len(waiting) < len(chosen):
        print(f"{len(chosen) - len(waiting)} of {len(chosen)} sides are skipped: they have a file with their rows")
    start, failures = time.monotonic(), []
    for number, side in enumerate(waiting):
        now = time.monotonic()
        if now > begin + limit:
            failures.append(f"the time is up: {len(waiting) - number} sides are left to the same command")
            break
        left = f", about {(now - start) / number * (len(waiting) - number) / 60:,.0f} min left" if number else ""
        print(f"[{number + 1} of {len(waiting)}{left}] {side}", flush=True)
        results[side] = measure(side, description["device_count"])
        files.write_json_with_digest(make_path(folder, side), results[side])
        rows = list(make_rows(side, results, device))
        print(table.to_grid(rows, COLUMNS, "plain").partition("\n")[2], f" {time.monotonic() - now:,.0f} s", flush=True)
        table.write_table(folder, [row for each in sides for row in make_rows(each, results, device)], COLUMNS)
        if "error" in results[side]:
            failures.append(f"{side}: {results[side]['error']}")
    print(f"\n{(folder / 'table.md').read_text()}\nwritten: {folder}/table.md, .csv, .tex, machine.json")
    return failures


def make_path(folder: Path, side: Side) -> Path:
    return folder / f"{re.sub(r'[^a-z0-9]+', '-', str(side).lower()).strip('-')}.json"


def measure(side: Side, device_count: int) -> dict:
    """What a process of its own finds: {"rows": ...}, {"missing": why there are none} or {"error": its line}."""
    if side.min_devices > device_count:
        return {"missing": f"it needs {side.min_devices} devices, the machine has {device_count}"}
    if missing := peers.find_missing(*side.packages):
        return {"missing": missing}
    try:
        result = _call_in_process(accelerator_sides.measure_with_packages, side.packages, side.measure)
    except (errors.ConfigError, subprocess_worker.WorkerEnded) as error:
        return {"error": errors.first_line(error)}
    return result | {"flops": side.count_flops and side.count_flops()}


def _call_in_process(function: Callable, *arguments):
    """function(*arguments) in a new process, which ends with it, or after SIDE_LIMIT seconds."""
    with contextlib.closing(subprocess_worker.SubprocessWorker()) as worker:
        return worker.call(function, *arguments, timeout=SIDE_LIMIT)


def make_rows(side: Side, results: Mapping[Side, dict], device: str) -> Iterator[dict]:
    """The rows of a side's result, beside ours of the same case. FLOPs and memory are of the side itself."""
    result = results[side]
    shown = {"part": side.part, "case": side.case, "peer_name": side.name}
    if note := result.get("missing") or result.get("error"):
        yield shown | {"note": f"{'left out' if 'missing' in result else 'failed'}: {note}"}
    ours = next((own["rows"][0] for other, own in results.items() if _is_base(other, side) and "rows" in own), None)
    peak = find_peak_flops(device)
    for row in result.get("rows", ()):
        row = shown | row
        if result.get("flops"):
            row["tflops"] = result["flops"] / row["seconds"] / 1e12
            row["share"] = peak and row["tflops"] * 1e12 / peak
        row |= {f"{name}_gb": row[name] / 1e9 for name in ("planned", "measured") if row.get(name)}
        if ours and row["ours"] is None:
            row |= {"ours": ours["ours"], "ratio": row["seconds"] / ours["seconds"]}
        yield row


def _is_base(side, other):
    return not side.name and (side.part, side.case) == (other.part, other.case)
