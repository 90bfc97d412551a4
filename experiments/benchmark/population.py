"""Part population: K models that differ in seed, learning rate and masking rate, trained in three ways.

1. One after the other, each traced and compiled separately, as separate commands would.
2. One after the other in one process, which compiles once, since hyperparameters are traced.
3. Together in one program, by jax.vmap (mlm/training/run/vmapped_runs.py).
Times include compilation, but not the start of Python. For 1 and 2, one run is timed and multiplied.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from experiments.benchmark import mlm_step, timing
from experiments.benchmark.compile import use_cache
from mlm.base import config
from mlm.training.run import vmapped_runs
from mlm.training.step import parallel, program

SECONDS = 20  # of rounds
MIN_ROUNDS = 2  # each round compiles the step four times and trains 22 runs
STEPS = 10  # of a run
SIZES = (1, 4, 16)
RATES = (0.15, 0.2, 0.3, 0.4)


def make_config(number: int) -> config.Config:
    """The config of a run; runs differ in traced hyperparameters only, so that they share one program."""
    return mlm_step.make_config(
        {
            "model.size": "tiny",
            "train.batch_size": 8,
            "pack.seq_len": 64,
            "tokenizer.vocab_size": 8192,
            "mask.max_rate": max(RATES),
            "seed": number,
            "mask.rate": RATES[number % len(RATES)],
            "optim.learning_rate": 1e-3 * (1 + number / 8),
        }
    )


def build_training() -> Callable[[int], None]:
    """A function that trains a run by its number; its first call compiles for all runs."""
    init_state, train_step = mlm_step.build_functions(make_config(0))
    partitioner = parallel.build_data_parallel(train_step)

    def train(number):
        hparams = program.make_train_hparams(make_config(number))
        state = partitioner.put_state(jax.device_get(jax.jit(init_state)(hparams)))
        batches = [partitioner.put_batch(batch) for batch in mlm_step.make_batches(make_config(number))]
        _run_steps(partitioner, state, batches, hparams)

    return train


def train_vmapped(count: int) -> None:
    """Compiles and trains `count` runs as one program."""
    init_state, train_step = mlm_step.build_functions(make_config(0))
    partitioner = vmapped_runs.vmap_step(train_step)
    hparams_M = vmapped_runs.stack_trees([program.make_train_hparams(make_config(number)) for number in range(count)])
    state = partitioner.put_state(jax.device_get(jax.jit(jax.vmap(init_state))(hparams_M)))
    batches = [
        partitioner.put_batch(vmapped_runs.stack_trees([batch] * count))
        for batch in mlm_step.make_batches(make_config(0))
    ]
    _run_steps(partitioner, state, batches, (hparams_M, np.ones(count, bool)))


def _run_steps(partitioner: parallel.Partitioner, state, batches, hparams) -> None:
    for index in range(STEPS):
        state, metrics = partitioner.train_step(state, batches[index % len(batches)], hparams)
    jax.block_until_ready((state, metrics))


def measure(sizes: Sequence[int] = SIZES, seconds: float = SECONDS, min_rounds: int = MIN_ROUNDS) -> Iterator[dict]:
    train_warm = build_training()
    train_warm(0)

    def run_uncached(train):
        with use_cache(None):
            train()

    sides = {"anew": lambda: run_uncached(lambda: build_training()(0)), "next": lambda: train_warm(1)}
    sides |= {count: lambda count=count: run_uncached(lambda: train_vmapped(count)) for count in sizes}
    times = timing.measure_times(sides, seconds, min_rounds=min_rounds, warm_up=0)
    for count in sizes:
        separate_R = count * times["anew"]
        case = f"{count} x {STEPS} steps"
        if count > 1:
            once_R = times["anew"] + (count - 1) * times["next"]
            yield timing.make_row(f"{case}, compiled once", "s", once_R, separate_R, "each compiled separately")
        yield timing.make_row(f"{case}, one program", "s", times[count], separate_R, "each compiled separately")
