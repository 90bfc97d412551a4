"""Part population: K models that differ in seed, learning rate and masking rate, trained in three ways.

Anew: one after the other, each traced and compiled for itself, as separate commands would. Once: one after the other in
a process that compiles once, since knobs are traced. Together: one program, as mlm/train/run/vmapped_runs.py makes it.
Compilation is included, starting Python is not. Runs made anew share nothing, and those made in one process the
compilation only: a round times one run of each, and K of them follow.
"""
from collections.abc import Callable, Iterator

import jax
import numpy as np

from experiments.benchmark import ours, timing
from experiments.benchmark.compile import cache
from mlm.base import config
from mlm.train.run import vmapped_runs
from mlm.train.step import parallel, program

SECONDS = 20   # of rounds
LEAST = 2      # rounds: each compiles the step four times and trains 22 runs
STEPS = 10     # of a run
SIZES = (1, 4, 16)
RATES = (0.15, 0.2, 0.3, 0.4)


def member(number: int) -> config.Config:
    """The run of this number: all its differences are knobs, so that every run is the same program."""
    return ours.checked({"model.size": "tiny", "train.batch_size": 8, "pack.seq_len": 64, "tokenizer.vocab_size": 8192,
                         "mask.max_rate": max(RATES), "seed": number, "mask.rate": RATES[number % len(RATES)],
                         "optim.learning_rate": 1e-3 * (1 + number / 8)})


def alone() -> Callable[[int], None]:
    """A function that trains the run of a number; its first call compiles, for all."""
    initial, train_step = ours.functions(member(0))
    run = parallel.over_mesh(train_step)

    def train(number):
        knobs = program.knobs(member(number))
        state = run.put_state(jax.device_get(jax.jit(initial)(knobs)))
        batches = [run.put_batch(batch) for batch in ours.batches(member(number))]
        _steps(run, state, batches, knobs)

    return train


def together(count: int) -> None:
    """Trains `count` runs as one program, which is compiled first."""
    initial, train_step = ours.functions(member(0))
    run = vmapped_runs.over_members(train_step)
    knobs_M = vmapped_runs.stack([program.knobs(member(number)) for number in range(count)])
    state = run.put_state(jax.device_get(jax.jit(jax.vmap(initial))(knobs_M)))
    batches = [run.put_batch(vmapped_runs.stack([batch] * count)) for batch in ours.batches(member(0))]
    _steps(run, state, batches, (knobs_M, np.ones(count, bool)))


def _steps(run: parallel.Parallel, state, batches, knobs) -> None:
    for index in range(STEPS):
        state, metrics = run.train_step(state, batches[index % len(batches)], knobs)
    jax.block_until_ready((state, metrics))


def rows() -> Iterator[dict]:
    warm = alone()
    warm(0)

    def compiling(train):
        with cache(None):
            train()

    sides = {"anew": lambda: compiling(lambda: alone()(0)), "next": lambda: warm(1)}
    sides |= {count: lambda count=count: compiling(lambda: together(count)) for count in SIZES}
    times = timing.measure(sides, SECONDS, least=LEAST, warm_up=0)
    for count in SIZES:
        anew_R = count * times["anew"]
        case = f"{count} x {STEPS} steps"
        if count > 1:
            once_R = times["anew"] + (count - 1) * times["next"]
            yield timing.row(f"{case}, compiled once", "s", once_R, anew_R, "each compiled anew")
        yield timing.row(f"{case}, one program", "s", times[count], anew_R, "each compiled anew")
