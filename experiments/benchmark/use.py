"""Part use: sentences with a word hidden filled in, and sentences embedded, by a trained model of size mini."""
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from experiments.benchmark import apart, asked, packing, peers, timing

SECONDS = 25            # of rounds of each
BATCHES = (8, 32, 128)  # of which the peer takes its fastest


def rows() -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        model, to_fill, to_embed = asked.prepare(folder, *packing.prepare(folder))
        yield from against(f"fill in {len(to_fill)} sentences", model, to_fill, asked.fill_by_ours,
                           asked.fill_by_pipeline, "transformers' pipeline", same=lambda a, b: np.mean(
                               [one[0] == other[0] for one, other in zip(a, b, strict=True)]) > 0.98)
        yield from against(f"embed {len(to_embed):,} sentences of mixed lengths", model, to_embed, asked.embed_by_ours,
                           asked.embed_by_sorting, "torch, sorted batches",
                           same=lambda a, b: np.abs(a - b).max() < 1e-3 * np.abs(b).max())


def against(case: str, model: str, texts: Sequence[str], ours: Callable, theirs: Callable, name: str,
            same: Callable) -> Iterator[dict]:
    """Both sides on all cores, each in a process of its own, the peer at its fastest batch size."""
    why = peers.absent("torch", "transformers")
    if why:
        print(f"{name} is left out: {why}")
    with contextlib.ExitStack() as stack:
        def side(job, *given, allocator=False):
            process = stack.enter_context(apart.process(apart.ALL, allocator=allocator))
            return lambda: process.submit(job, *given).result()

        sides = {"ours": side(ours, model, texts, allocator=True)}
        if not why:
            tried = {size: side(theirs, model, size, texts) for size in BATCHES}
            times = timing.measure(tried, seconds=0, least=2, warm_up=1)
            for size, side_R in times.items():
                print(f"  trial: {name}, batches of {size}: {np.median(side_R):,.2f} s", flush=True)
            best = min(times, key=lambda size: np.median(times[size]))
            sides[f"{name}, batches of {best}"] = tried[best]
            if not same(sides["ours"](), tried[best]()):
                raise RuntimeError(f"{case}: the two sides do not say the same")
        yield from timing.against(case, "sentences/s", timing.measure(sides, SECONDS, warm_up=1), work=len(texts))
