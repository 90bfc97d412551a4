"""Runs that share a program trained side by side: one step under jax.vmap over a leading axis of members.

Letters in array names: M members; others as in types.py.
"""
import contextlib
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors
from mlm.data.rows import pack
from mlm.train.run import directory, log, loop
from mlm.train.run.stop import Asked, Stopped
from mlm.train.step import parallel, program


def train(configs: Sequence[config.Config]) -> dict[str, dict | log.Diverged]:
    """Trains the runs of resolved configs that program.blank makes equal, each from where it stands to its end.

    Returns by workdir each one's result, or how it diverged, which stops no other. A run is what it would be alone: its
    own rows, masks, checkpoints and directory, its numbers equal to rounding. One that is ahead of the others waits,
    its state kept, until they are where it is. One that another process is at work on is left out. Raises ConfigError
    as loop.train does, and Stopped once all are saved.
    """
    for cfg in configs:
        loop.check(cfg)
        errors.expect(program.blank(cfg) == program.blank(configs[0]), "config.workdir", cfg.workdir,
                      f"a run that shares its program with that of {configs[0].workdir}")
    errors.expect(configs[0].parallel.mode == "jit" and jax.process_count() == 1, "config.parallel.mode",
                  configs[0].parallel.mode, "jit, in one process, for runs trained side by side")
    rows, held_out = pack.load(configs[0], "train"), pack.load(configs[0], "validation")
    outcomes = {}
    with contextlib.ExitStack() as held:
        runs = []
        for cfg in configs:
            with contextlib.suppress(directory.Taken):
                held.enter_context(directory.claim(cfg))
                done = directory.finished(cfg, rows.manifest["inputs"])
                if done is not None:
                    outcomes[cfg.workdir] = done
                else:
                    run = loop.Run(cfg, rows, held_out, program.build(cfg, rows))
                    runs.append(held.enter_context(contextlib.closing(run)))
        return outcomes | (_train(runs) if runs else {})


def _train(runs: Sequence[loop.Run]) -> dict[str, dict | log.Diverged]:
    steps, outcomes = runs[0].cfg.train.steps, {}
    together = over_members(runs[0].made.train_step)
    states = together.put_state(stack([run.restore() for run in runs]))
    knobs_M = stack([run.knobs for run in runs])
    with Asked() as asked:
        for number in range(min(run.start for run in runs) + 1, steps + 1):
            moves_M = np.array([run.start < number and run.cfg.workdir not in outcomes for run in runs])
            if not moves_M.any():  # those behind have diverged, and those ahead wait
                continue
            batches = {m: next(runs[m].batches) for m in np.nonzero(moves_M)[0]}
            spare = next(iter(batches.values()))  # for those that wait: what they make of it is dropped
            batch_M = stack([batches.get(m, spare) for m in range(len(runs))])
            states, new = together.train_step(states, together.put_batch(batch_M), (knobs_M, moves_M))
            read = functools.cache(functools.partial(together.get_metrics, new))
            stop = asked.now(runs[0].checkpoints, number)
            for m in batches:
                try:
                    runs[m].took(number, functools.partial(_read, read, m))
                    if runs[m].rests(number, stop):
                        runs[m].rest(number, take(states, m), stop)
                except log.Diverged as diverged:
                    outcomes[runs[m].cfg.workdir] = diverged
            if stop and number < steps:
                raise Stopped(f"stopped at step {number:,} of {steps:,}, {len(runs)} runs saved; the same command "
                                   "continues", asked.signal)
        for m, run in enumerate(runs):
            if run.cfg.workdir not in outcomes:
                outcomes[run.cfg.workdir] = run.finish(take(states, m))
    if asked.signal is not None:
        raise Stopped(f"{len(runs)} runs are done; stopped after them", asked.signal)
    return outcomes


@functools.lru_cache(maxsize=1)  # as programs are kept
def over_members(train_step) -> parallel.Parallel:
    """The step for all members at once, its knobs_M beside moves_M: a member that does not move keeps its state."""
    def step(state, batch, knobs_and_moves):
        knobs, moves = knobs_and_moves
        new, metrics = train_step(state, batch, knobs)
        return jax.tree.map(lambda after, before: jnp.where(moves, after, before), new, state), metrics

    return parallel.over_mesh(jax.vmap(step), members=True)


def stack(trees: Sequence):
    """Trees of numpy arrays as one, with a leading axis of members."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


@jax.jit
def take(states, m):
    """The state of one member, on the devices."""
    return jax.tree.map(lambda x_Mx: x_Mx[m], states)


def _read(read, m):
    return jax.tree.map(lambda x_M: x_M[m], read())
