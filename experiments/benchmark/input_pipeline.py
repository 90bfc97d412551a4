"""Part input_pipeline: loader and training loop beside the bare step."""

import contextlib
import dataclasses
import io
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

from experiments.benchmark import mlm_step, packing, timing
from mlm.base import config, fields
from mlm.data.rows import loader, pack
from mlm.training.run import loop

STEPS = 20  # of a training run


def measure() -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        text, _ = packing.prepare_text(folder)
        cfg = packing.make_config(text, str(Path(folder, "cache")))
        yield from measure_loader(cfg)
        yield from measure_loop(cfg)


def measure_loader(cfg: config.Config) -> Iterator[dict]:
    """Examples per second of the loader, which must exceed those of the fastest step (a tiny bag)."""
    batches = loader.iterate_train_batches(
        pack.load_dataset(cfg).train, seed=0, batch_size=cfg.train.batch_size, start_step=0
    )
    fastest = mlm_step.make_config(
        {
            "model.family": "feedforward",
            "model.cell": "bag",
            "train.batch_size": cfg.train.batch_size,
            "pack.seq_len": cfg.pack.seq_len,
            "tokenizer.vocab_size": cfg.tokenizer.vocab_size,
        }
    )
    times = timing.measure_times(
        {"ours": lambda: list(itertools.islice(batches, 20)), "step": mlm_step.build_timed_step(fastest).step}, 5
    )
    yield timing.make_row(
        f"loader, {cfg.train.batch_size} x {cfg.pack.seq_len}",
        "rows/s",
        times["ours"] / 20,
        times["step"],
        "step of the tiny bag",
        work=cfg.train.batch_size,
    )
    jax.clear_caches()


def measure_loop(cfg: config.Config) -> Iterator[dict]:
    """Tokens per second that a complete training run reports, beside those of the bare compiled step."""
    cfg = fields.override(cfg, {"train.steps": STEPS, "eval.max_examples": 64})
    packed = pack.load_dataset(cfg)
    batches = loader.iterate_train_batches(packed.train, seed=cfg.seed, batch_size=cfg.train.batch_size, start_step=0)
    bare_step, loop_R = mlm_step.build_timed_step(cfg, host_batches=list(itertools.islice(batches, STEPS))).step, []

    def run_loop():
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            result = loop.train(dataclasses.replace(cfg, workdir=folder), packed)
        loop_R.append(result["tokens"] / STEPS / result["tokens_per_second"])

    times = timing.measure_times({"loop": run_loop, "bare": lambda: bare_step(STEPS)}, 0, warm_up=1)
    yield timing.make_row(
        f"training loop, tiny {cfg.train.batch_size} x {cfg.pack.seq_len}",
        "tokens/s",
        loop_R[1:],
        times["bare"] / STEPS,
        "bare step",
        work=mlm_step.count_tokens(cfg),
    )
