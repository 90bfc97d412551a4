"""Runs that share a program, trained together: one step under jax.vmap over a leading axis of members.

Letters in array names: M members; others as in types.py.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, lease, types
from mlm.data.rows import pack
from mlm.training.run import loop
from mlm.training.run.directory import RunDirectory
from mlm.training.run.hooks import DivergenceError
from mlm.training.step import parallel, program


def train_vmapped(configs: Sequence[config.Config]) -> dict[str, dict | DivergenceError]:
    """Trains the runs of resolved configs that program.make_static_config makes equal, each to its end.

    Returns each run's result by its workdir, or its divergence, which stops no other run. A run is the same as when it
    is trained alone: its own data order, masks, checkpoints and directory, its numbers equal up to rounding. A run that
    is ahead of the others waits, with its state unchanged, until they are where it is. A run that began with other
    kernels continues alone when the others are done. A run that another process holds is left out. Works in a single
    process alone, in a mode that vmaps runs, on configs that `loop.check` passed. Raises RunStopped once all are saved.
    """
    packed, outcomes = pack.load_dataset(configs[0]), {}
    opened, others = [], []
    with contextlib.ExitStack() as stack:
        for cfg in configs:
            directory = RunDirectory(cfg.workdir)
            cfg, result = directory.recover(cfg, packed.manifest["inputs"], packed.tokenizer)
            if result is not None:
                outcomes[cfg.workdir] = result
            elif opened and cfg.model.kernels != opened[0][0].cfg.model.kernels:
                others.append(cfg)
            else:
                with contextlib.suppress(lease.FolderInUse):
                    stack.enter_context(directory.lock())
                    opened.append(stack.enter_context(loop.open_run(directory, cfg, packed, cut=False)))
        if opened:
            runs, states = zip(*opened, strict=True)
            outcomes |= loop.train_runs(runs, VmappedRuns(runs, states))
    for cfg in others:
        with contextlib.suppress(lease.FolderInUse):
            try:
                outcomes[cfg.workdir] = loop.train(cfg, packed)
            except DivergenceError as diverged:
                outcomes[cfg.workdir] = diverged
    return outcomes


class VmappedRuns:
    """The steps of runs that share a program, made together."""

    def __init__(self, runs: Sequence[loop.TrainingRun], states: Sequence[types.TrainState]):
        self.partitioner = vmap_step(runs[0].program.train_step)
        self.states = self.partitioner.put_state(stack_trees(states))
        self.hparams_M = stack_trees([program.make_train_hparams(run.cfg) for run in runs])
        self.members = range(len(runs))

    def make_step(self, batches: Mapping[int, types.Batch]) -> Callable:
        """Makes one step of the members that have a batch; the others keep their state."""
        is_active_M = np.array([m in batches for m in self.members])
        filler = next(iter(batches.values()))  # for the members that wait; their new state is dropped
        batch_M = self.partitioner.put_batch(stack_trees([batches.get(m, filler) for m in self.members]))
        self.states, metrics = self.partitioner.train_step(self.states, batch_M, (self.hparams_M, is_active_M))
        get_metrics = functools.cache(functools.partial(self.partitioner.get_metrics, metrics))
        return lambda m: jax.tree.map(lambda x_M: x_M[m], get_metrics())

    def get_state(self, m: int):
        """The state of one member, on the devices."""
        return select_member(self.states, m)


@functools.lru_cache(maxsize=1)  # like programs: compiled steps hold memory
def vmap_step(train_step) -> parallel.Partitioner:
    """The step for all members; its hparams are (hparams_M, is_active_M). An inactive member keeps its state."""

    def step(sharding, state, batch, hparams_and_active):
        hparams, is_active = hparams_and_active
        new_state, metrics = train_step(sharding, state, batch, hparams)
        return jax.tree.map(lambda new, old: jnp.where(is_active, new, old), new_state, state), metrics

    return parallel.build_data_parallel(
        lambda sharding, *values_M: jax.vmap(functools.partial(step, sharding))(*values_M), members=True
    )


def stack_trees(trees: Sequence):
    """Trees of numpy arrays as one tree, with a leading axis of members."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


@jax.jit
def select_member(states, m):
    """The state of one member, on the devices."""
    return jax.tree.map(lambda x_Mx: x_Mx[m], states)
