"""Part inference: fill one masked word of each sentence, and embed sentences, with a model of size mini."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from experiments.benchmark import inference_sides, packing, peers, side_processes, timing

SECONDS = 25  # of rounds for each task
BATCH_SIZES = (8, 32, 128)  # the peer uses the fastest of these


def measure() -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        model, to_fill, to_embed = inference_sides.prepare_model(folder, *packing.prepare_text(folder))
        yield from compare(
            f"fill in {len(to_fill)} sentences",
            model,
            to_fill,
            inference_sides.fill_with_mlm,
            inference_sides.fill_with_pipeline,
            "transformers' pipeline",
            are_equal=lambda a, b: np.mean([one[0] == other[0] for one, other in zip(a, b, strict=True)]) > 0.98,
        )
        yield from compare(
            f"embed {len(to_embed):,} sentences of mixed lengths",
            model,
            to_embed,
            inference_sides.embed_with_mlm,
            inference_sides.embed_with_torch,
            "torch, sorted batches",
            are_equal=lambda a, b: np.abs(a - b).max() < 1e-3 * np.abs(b).max(),
        )


def compare(
    case: str, model: str, texts: Sequence[str], mlm_job: Callable, peer_job: Callable, name: str, are_equal: Callable
) -> Iterator[dict]:
    """Times both sides on all cores, each in its own process, the peer at its fastest batch size."""
    missing = peers.find_missing("torch", "transformers")
    if missing:
        print(f"{name} is left out: {missing}")
    with contextlib.ExitStack() as stack:

        def side(job, *given, allocator=False):
            process = stack.enter_context(side_processes.open_process(side_processes.ALL_CORES, tune_malloc=allocator))
            return lambda: process.submit(job, *given).result()

        sides = {"ours": side(mlm_job, model, texts, allocator=True)}
        if not missing:
            peer_sides = {size: side(peer_job, model, size, texts) for size in BATCH_SIZES}
            times = timing.measure_times(peer_sides, seconds=0, min_rounds=2, warm_up=1)
            for size, side_R in times.items():
                print(f"  trial: {name}, batches of {size}: {np.median(side_R):,.2f} s", flush=True)
            best = min(times, key=lambda size: np.median(times[size]))
            sides[f"{name}, batches of {best}"] = peer_sides[best]
            if not are_equal(sides["ours"](), peer_sides[best]()):
                raise RuntimeError(f"{case}: the two sides give different results")
        yield from timing.make_peer_rows(
            case, "sentences/s", timing.measure_times(sides, SECONDS, warm_up=1), work=len(texts)
        )
