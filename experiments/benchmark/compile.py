"""Part compile: seconds to trace and compile a training step, by depth, by scan_unroll, and from the persistent cache.

A rolled scan over layers (model.scan_unroll=1) compiles in the same time at any depth; an unrolled one has faster steps
on a CPU.
"""

import contextlib
import functools
import tempfile
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from experiments.benchmark import mlm_step, timing
from mlm.base import config, types
from mlm.training.step import parallel, program

SECONDS = 20  # of rounds
MIN_ROUNDS = 2  # rounds: each compiles every case once
ROLLED = {layers: f"{layers} layers, rolled" for layers in (2, 12, 24)}
UNROLLED = {12: "12 layers, unrolled"}


def compile_step(cfg: config.Config) -> None:
    """Traces and compiles the step; nothing is allocated or run."""
    init_state, train_step = mlm_step.build_functions(cfg)
    hparams, batch = (
        program.make_train_hparams(cfg),
        types.abstract_batch(cfg.train.batch_size, mlm_step.make_dataset_info(cfg)),
    )
    parallel.build_single_device(train_step).train_step.lower(
        jax.eval_shape(init_state, hparams), batch, hparams
    ).compile()


@contextlib.contextmanager
def use_cache(folder: str | None) -> Iterator[None]:
    """Sets JAX's persistent compilation cache to this folder, or switches it off."""
    changes = {
        "jax_enable_compilation_cache": folder is not None,
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in changes}
    try:
        for name, value in changes.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def measure() -> Iterator[dict]:
    recipes = {
        name: mlm_step.make_config({"model.num_layers": layers, "model.scan_unroll": unroll, "train.batch_size": 8})
        for unroll, names in ((1, ROLLED), (0, UNROLLED))
        for layers, name in names.items()
    }

    def compile_uncached(cfg):
        jax.clear_caches()
        with use_cache(None):
            compile_step(cfg)

    def compile_cached(folder):
        jax.clear_caches()
        with use_cache(folder):
            compile_step(recipes[ROLLED[12]])

    with tempfile.TemporaryDirectory() as folder:
        compile_cached(folder)
        sides = {name: functools.partial(compile_uncached, cfg) for name, cfg in recipes.items()}
        times = timing.measure_times(
            sides | {"again": lambda: compile_cached(folder)}, SECONDS, min_rounds=MIN_ROUNDS, warm_up=0
        )
    for layers, name in ROLLED.items():
        peer = UNROLLED.get(layers)
        yield timing.make_row(name, "s", times[name], times[peer] if peer else None, peer or "")
    yield timing.make_row(ROLLED[24], "s", times[ROLLED[24]], times[ROLLED[2]], ROLLED[2])
    yield timing.make_row(
        f"{ROLLED[12]}, from the persistent cache", "s", times["again"], times[ROLLED[12]], "no cache"
    )
