"""Part input: packing text against Hugging Face's libraries, the loader and the loop against what the steps can eat."""
import contextlib
import dataclasses
import io
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

from experiments.benchmark import apart, ours, packing, peers, timing
from mlm.base import config, fields
from mlm.data.rows import loader, pack
from mlm.train.run import loop

SECONDS = 30   # of rounds of packing
STEPS = 20     # of a run of the loop


def rows() -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        text, learnt = packing.prepare(folder)
        yield from of_packing(text, learnt)
        cfg = packing.checked(text, str(Path(folder, "cache")))
        yield from of_loader(cfg)
        yield from of_loop(cfg)


def of_packing(text: str, learnt: str) -> Iterator[dict]:
    """MB of text a second on one core and on two; on two, datasets may use threads or processes."""
    why = peers.absent("tokenizers", "datasets")
    if why:
        print(f"Hugging Face's libraries are left out: {why}")
    for cores, name in ((1, "one core"), (2, "two cores")):
        with contextlib.ExitStack() as stack:
            jobs = {"ours": (packing.by_ours, text, learnt)}
            if not why:
                jobs["tokenizers + datasets"] = (packing.by_datasets, text, learnt, None)
                if cores > 1:
                    jobs["tokenizers + datasets, 2 processes"] = (packing.by_datasets, text, learnt, cores)
            sides = {}
            for side, job in jobs.items():
                process = stack.enter_context(apart.process(cores, allocator=side == "ours"))
                sides[side] = lambda process=process, job=job: process.submit(*job).result()
            times = timing.measure(sides, SECONDS / 2, warm_up=1)
        yield from timing.against(f"text to packed rows on {name}", "MB/s", times,
                                  work=os.path.getsize(text) / 1e6)


def of_loader(cfg: config.Config) -> Iterator[dict]:
    """Rows a second of the loader beside those of the fastest step, the tiny bag's, which it must exceed."""
    batches = loader.train_batches(pack.load(cfg).train, seed=0, batch_size=cfg.train.batch_size, start_step=0)
    fastest = ours.checked({"model.family": "feedforward", "model.cell": "bag",
                            "train.batch_size": cfg.train.batch_size, "pack.seq_len": cfg.pack.seq_len,
                            "tokenizer.vocab_size": cfg.tokenizer.vocab_size})
    times = timing.measure({"ours": lambda: list(itertools.islice(batches, 20)), "step": ours.build(fastest).step}, 5)
    yield timing.row(f"loader, {cfg.train.batch_size} x {cfg.pack.seq_len}", "rows/s", times["ours"] / 20,
                     times["step"], "step of the tiny bag", work=cfg.train.batch_size)
    jax.clear_caches()


def of_loop(cfg: config.Config) -> Iterator[dict]:
    """Tokens a second of a whole training run, by its own account, beside those of the bare compiled step."""
    cfg = fields.override(cfg, {"train.steps": STEPS, "eval.max_examples": 64})
    batches = loader.train_batches(pack.load(cfg).train, seed=cfg.seed, batch_size=cfg.train.batch_size,
                                   start_step=0)
    bare, loop_R = ours.build(cfg, rows=list(itertools.islice(batches, STEPS))).step, []

    def whole():
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            result = loop.train(dataclasses.replace(cfg, workdir=folder))
        loop_R.append(result["tokens"] / STEPS / result["tokens_per_second"])

    times = timing.measure({"loop": whole, "bare": lambda: bare(STEPS)}, 0, warm_up=1)
    yield timing.row(f"training loop, tiny {cfg.train.batch_size} x {cfg.pack.seq_len}", "tokens/s", loop_R[1:],
                     times["bare"] / STEPS, "bare step", work=ours.tokens(cfg))
