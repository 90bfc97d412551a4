"""Runs that share a program trained side by side: one step under jax.vmap over a leading axis of members.

Letters in array names: M members; others as in types.py.
"""
import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, lease, types
from mlm.data.rows import pack
from mlm.train.run import directory, log, loop, spikes
from mlm.train.step import parallel, program


def train(configs: Sequence[config.Config]) -> dict[str, dict | log.Diverged]:
    """Trains the runs of resolved configs that program.blank makes equal, each from where it stands to its end.

    Returns by workdir each one's result, or how it diverged, which stops no other. A run is what it would be alone: its
    own rows, masks, checkpoints and directory, its numbers equal to rounding. One that is ahead of the others waits,
    its state kept, until they are where it is. One that a spike sends back goes on alone, when the others are done. One
    that another process is at work on is left out. Raises ConfigError as loop.train does, and Stopped once all are
    saved.
    """
    for cfg in configs:
        loop.check(cfg)
        errors.require(program.blank(cfg) == program.blank(configs[0]), "config.workdir", cfg.workdir,
                      f"a run that shares its program with that of {configs[0].workdir}")
    errors.require(configs[0].parallel.mode == "jit" and not parallel.is_multiprocess(), "config.parallel.mode",
                  configs[0].parallel.mode, "jit, in one process, for runs trained side by side")
    packed, outcomes = pack.load(configs[0]), {}
    with contextlib.ExitStack() as held:
        runs, states = [], []
        for cfg in configs:
            with contextlib.suppress(lease.Taken):
                held.enter_context(directory.claim(cfg))
                done = directory.finished(cfg, packed.manifest["inputs"], packed.tokenizer)
                if done is not None:
                    outcomes[cfg.workdir] = done
                else:
                    run, state = held.enter_context(loop.opened(cfg, packed, cut=False))
                    runs.append(run)
                    states.append(state)
        outcomes |= loop.drive(runs, Together(runs, states)) if runs else {}
    for cfg in configs:
        if isinstance(outcomes.get(cfg.workdir), spikes.Spike):
            outcomes[cfg.workdir] = alone(cfg, packed)
    return outcomes


def alone(cfg: config.Config, packed: pack.Packed) -> dict | log.Diverged:
    """The result of a run, from where it stands to its end, or how it diverged."""
    try:
        return loop.train(cfg, packed)
    except log.Diverged as diverged:
        return diverged


class Together:
    """The steps of runs that share one program, made at once."""

    def __init__(self, runs: Sequence[loop.Run], states: Sequence[types.TrainState]):
        self.run = over_members(runs[0].made.train_step)
        self.now, self.knobs_M = self.run.put_state(stack(states)), stack([program.knobs(run.cfg) for run in runs])
        self.members = range(len(runs))

    def take(self, batches: Mapping[int, types.Batch]) -> Callable:
        """Makes one step of the members that have a batch; the others keep their state."""
        moves_M = np.array([m in batches for m in self.members])
        spare = next(iter(batches.values()))  # for those that wait: what they make of it is dropped
        batch_M = stack([batches.get(m, spare) for m in self.members])
        self.now, metrics = self.run.train_step(self.now, self.run.put_batch(batch_M), (self.knobs_M, moves_M))
        read = functools.cache(functools.partial(self.run.get_metrics, metrics))
        return lambda m: jax.tree.map(lambda x_M: x_M[m], read())

    def state(self, m: int):
        return member(self.now, m)


@functools.lru_cache(maxsize=1)  # as programs are kept
def over_members(train_step) -> parallel.Parallel:
    """The step for all members at once, its knobs_M beside moves_M: a member that does not move keeps its state."""
    def step(total, state, batch, knobs_and_moves):
        knobs, moves = knobs_and_moves
        new, metrics = train_step(total, state, batch, knobs)
        return jax.tree.map(lambda after, before: jnp.where(moves, after, before), new, state), metrics

    return parallel.over_mesh(lambda total, *each_M: jax.vmap(functools.partial(step, total))(*each_M), members=True)


def stack(trees: Sequence):
    """Trees of numpy arrays as one, with a leading axis of members."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


@jax.jit
def member(states, m):
    """The state of one member, on the devices."""
    return jax.tree.map(lambda x_Mx: x_Mx[m], states)
