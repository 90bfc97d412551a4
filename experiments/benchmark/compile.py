"""Part compile: seconds to trace and compile a training step by depth, by the scan, and with the persistent cache.

Depth costs nothing where the scan over layers is rolled (model.scan_unroll = 1), and CPU steps are faster where it is not.
"""
import contextlib
import functools
import tempfile
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from experiments.benchmark import ours, timing
from mlm.base import config, types
from mlm.train.step import parallel, program

SECONDS = 20   # of rounds
LEAST = 2      # rounds: each compiles every case once
ROLLED = {layers: f"{layers} layers, rolled" for layers in (2, 12, 24)}
UNROLLED = {12: "12 layers, unrolled"}


def compiled(cfg: config.Config) -> None:
    """Traces and compiles the step anew; nothing is allocated or run."""
    initial, train_step = ours.functions(cfg)
    knobs, batch = program.knobs(cfg), types.abstract(cfg.train.batch_size, ours.about(cfg))
    parallel.one_device(train_step).train_step.lower(jax.eval_shape(initial, knobs), batch, knobs).compile()


@contextlib.contextmanager
def cache(folder: str | None) -> Iterator[None]:
    """JAX's persistent compilation cache in this folder, or switched off."""
    changes = {"jax_enable_compilation_cache": folder is not None, "jax_compilation_cache_dir": folder,
               "jax_persistent_cache_min_compile_time_secs": 0.0}
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


def rows() -> Iterator[dict]:
    recipes = {name: ours.checked({"model.num_layers": layers, "model.scan_unroll": unroll, "train.batch_size": 8})
               for unroll, names in ((1, ROLLED), (0, UNROLLED)) for layers, name in names.items()}

    def anew(cfg):
        jax.clear_caches()
        with cache(None):
            compiled(cfg)

    def again(folder):
        jax.clear_caches()
        with cache(folder):
            compiled(recipes[ROLLED[12]])

    with tempfile.TemporaryDirectory() as folder:
        again(folder)
        sides = {name: functools.partial(anew, cfg) for name, cfg in recipes.items()}
        times = timing.measure(sides | {"again": lambda: again(folder)}, SECONDS, least=LEAST, warm_up=0)
    for layers, name in ROLLED.items():
        peer = UNROLLED.get(layers)
        yield timing.row(name, "s", times[name], times[peer] if peer else None, peer or "")
    yield timing.row(ROLLED[24], "s", times[ROLLED[24]], times[ROLLED[2]], ROLLED[2])
    yield timing.row(f"{ROLLED[12]}, from the persistent cache", "s", times["again"], times[ROLLED[12]], "anew")
