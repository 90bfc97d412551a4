"""The run of `--card`: what to do first on a card that is lent for a few minutes, and its rows of results.

First the tests of the kernels that no card has run; then our steps with and without attention dropout and an LSTM;
last their peers, those that compile at the end. Layers are rolled, which compiles several times as fast.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.benchmark import accelerator, accelerator_sides, peers, rnn, transformer
from experiments.benchmark.accelerator_sides import BERT, Scale, Side
from mlm.base import files
from mlm.training.run import provenance

LIMIT = 9.5 * 60  # seconds, the tests' included
TEST_LIMIT = 3 * 60
TESTS = ("fused_norm", "fused_attention", "cudnn_attention")  # tests/test_NAME.py
CASES = [("base", 32, 512), ("base", 128, 128), ("large", 16, 512)]
ROLLED = {"model.scan_unroll": 1}
ROOT = Path(__file__).parents[2]


def list_sides(scale: Scale, *, is_smallest: bool) -> list[Side]:
    """The sides in the order in which they are measured."""
    shapes = [("tiny", 2, 32)] if is_smallest else CASES
    cases = [transformer.BenchmarkCase(*shape, "bfloat16", rate) for shape in shapes for rate in (0.0, 0.1)]
    ours, compiled, eager = [], [], []
    for case in cases:
        cfg = case.make_config()
        make_side = functools.partial(accelerator_sides.make_step_side, scale, "transformer", str(case), cfg)
        ours.append(make_side("", accelerator_sides.make_our_build(cfg, ROLLED)))
        for setting in peers.list_settings(attention=("sdpa",), compiled=(False, True)):
            build = accelerator_sides.make_torch_build("bert.build_tuned_step", cfg, setting)
            side = make_side(f"transformers ({setting})", build, BERT)
            (compiled if setting.compiled else eager).append(side)
    width, dtype, rows = scale.lstm
    cfg = rnn.make_config("lstm", width, dtype, rows)
    case = f"width {width}, {rows} x {cfg.pack.seq_len} {dtype}"
    make_side = functools.partial(accelerator_sides.make_step_side, scale, "lstm", case, cfg)
    ours.append(make_side("", accelerator_sides.make_our_build(cfg, ROLLED)))
    (setting,) = peers.list_settings(compiled=(False,))
    build = accelerator_sides.make_torch_build("torch_rnn.build_tuned_step", cfg, setting)
    eager.append(make_side("torch.nn.LSTM", build, BERT[:1]))
    return [*ours, *eager, *compiled]


def run_tests(platform: str, tests: Sequence[str]) -> dict:
    """A row that says how the kernels' tests end on a platform."""
    begin, paths = time.monotonic(), [f"tests/test_{name}.py" for name in tests]
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", *paths]
    environment = os.environ | {"JAX_PLATFORMS": platform, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_LIMIT, check=False
        )
        print(ended.stdout[-4000:], flush=True)
        line = (ended.stdout.strip() or ended.stderr.strip() or "no output").splitlines()[-1]
    except subprocess.TimeoutExpired:
        line = f"not over after {TEST_LIMIT} s"
    return {"part": "tests", "case": ", ".join(tests), "note": f"{line} ({time.monotonic() - begin:.0f} s)"}


def run(folder: Path, *, is_smallest: bool) -> list[str]:
    """Tests and measures; returns a line for each that failed, and writes results.md into the folder.

    The same command goes on with the sides that the time did not suffice for.
    """
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    scale = accelerator_sides.SMALLEST if is_smallest else accelerator_sides.FULL._replace(seconds=2.0)
    row = files.read_json_with_digest(folder / "tests.json") or run_tests(
        *(("cpu", TESTS[:1]) if is_smallest else ("cuda", TESTS))
    )
    files.write_json_with_digest(folder / "tests.json", row)
    print(f"tests: {row['note']}", flush=True)
    is_well = "passed" in row["note"] and not any(word in row["note"] for word in ("failed", "error"))
    failures = [] if is_well else [f"tests: {row['note']}"]
    sides = list_sides(scale, is_smallest=is_smallest)
    failures += accelerator.run(
        folder,
        sides,
        ("transformer", "lstm"),
        needs_accelerator=not is_smallest,
        limit=LIMIT - (time.monotonic() - begin),
    )
    files.write_text(folder / "results.md", "\n".join(describe_results(folder, row, failures)) + "\n")
    print(f"written: {folder}/results.md, the page for experiments/results/")
    return failures


def describe_results(folder: Path, test_row: dict, failures: Sequence[str]) -> Iterator[str]:
    """The lines of a page of experiments/results/."""
    machine, source = files.read_json_with_digest(folder / "machine.json") or {}, provenance.describe_source()
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items() if version)
    yield f"# {machine.get('device')}\n\n    python -m experiments.benchmark --card\n"
    yield f"- {machine.get('date')}, {', '.join(f'{name} {value}' for name, value in source.items())}."
    yield f"- {versions}."
    yield f"- Tests of {test_row['case']}: {test_row['note']}."
    yield from (f"- Failed: {line}." for line in failures)
    yield f"\nLayers rolled; `share of peak` is of dense bfloat16.\n\n{(folder / 'table.md').read_text()}"
