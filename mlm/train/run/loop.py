"""One run from its config to its result: restore, step, evaluate, save, stop."""
import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path

import jax

from mlm.base import config, fields, types
from mlm.data.rows import loader, pack
from mlm.judge import grammar
from mlm.models import lm
from mlm.train import recipe
from mlm.train.run import checkpoint, directory
from mlm.train.run.log import Log
from mlm.train.run.stop import Asked, Stopped
from mlm.train.step import cost, evaluation, parallel, program, references, update


def check(cfg: config.Config) -> None:
    """Raises ConfigError for what no run on these devices could use; compiles nothing."""
    recipe.validate(cfg)
    parallel.check(cfg)


def train(cfg: config.Config) -> dict:
    """Trains the run of a resolved config to its end, from its newest checkpoint if it has one, and returns its result.

    Of runs one after the other that differ in traced values alone, only the first compiles (step/program.py). Raises
    ConfigError for what cannot be run, Stopped after SIGTERM or SIGINT, Diverged for a loss that is not finite.
    """
    check(cfg)
    rows, held_out = pack.load(cfg, "train"), pack.load(cfg, "validation")
    done = directory.finished(cfg, rows.manifest["inputs"])
    if done is not None:
        return done
    with directory.claim(cfg) if jax.process_index() == 0 else open(os.devnull):
        # Another process may have ended it since; of several processes of one run, all must see the same.
        done = directory.finished(cfg, rows.manifest["inputs"]) if jax.process_count() == 1 else None
        return done or _train(cfg, rows, held_out)


def _train(cfg: config.Config, rows: pack.Rows, held_out: pack.Rows) -> dict:
    made = program.build(cfg, rows)
    with contextlib.closing(Run(cfg, rows, held_out, made)) as run, Asked() as asked:
        state = made.run.put_state(run.restore())
        for number in range(run.start + 1, cfg.train.steps + 1):
            state, new = made.run.train_step(state, made.run.put_batch(next(run.batches)), run.knobs)
            run.took(number, functools.partial(made.run.get_metrics, new))
            stop = asked.now(run.checkpoints, number)
            if run.rests(number, stop):
                run.rest(number, state, stop)
            if stop and number < cfg.train.steps:
                raise Stopped(f"stopped at step {number:,} of {cfg.train.steps:,}, saved in {cfg.workdir}; "
                              "the same command continues", asked.signal)
        result = run.finish(state)
    if asked.signal is not None:
        raise Stopped(f"{cfg.workdir} is done; stopped after it", asked.signal)
    return result


class Run:
    """One run beside its steps: where it starts, what feeds it, and what is written of it. Others make the steps."""

    def __init__(self, cfg: config.Config, rows: pack.Rows, held_out: pack.Rows, made: program.Program):
        self.cfg, self.rows, self.held_out, self.made = cfg, rows, held_out, made
        self.workdir, self.data = Path(cfg.workdir), rows.manifest["inputs"]
        self.knobs = program.training_knobs(cfg)
        self.abstract = jax.eval_shape(made.initial, self.knobs)
        self.checkpoints = checkpoint.manager(self.workdir)
        self.start = self.log = self.batches = None
        self.late = self.judged = None  # metrics are read one step late, so that devices never wait for this process

    def restore(self) -> types.TrainState:
        """The state to go on from, numpy: the newest checkpoint's, or the initial one. Opens the run's files."""
        cfg = self.cfg
        state = checkpoint.restore(self.checkpoints, cfg, self.data, self.abstract)
        state = jax.device_get(self.made.initial(self.knobs)) if state is None else state
        self.start = int(state.step)
        if jax.process_index() == 0:
            directory.describe(cfg, self.data, self.start)
        self.beside = references.measure(cfg, self.held_out)
        self.log = Log(self.workdir, self.start, cfg)
        self.batches = loader.train_batches(self.rows, seed=cfg.seed, batch_size=cfg.train.batch_size,
                                            start_step=self.start, process=jax.process_index(),
                                            processes=jax.process_count())
        return state

    def took(self, number: int, read: Callable) -> None:
        """Step `number` is under way; read() waits for its metrics."""
        if self.late is not None:
            self.log.add(number - 1, self.late(), self.checkpoints)
        self.late = read

    def rests(self, number: int, stop: bool) -> bool:
        """Whether more than the next step follows step `number`: an evaluation, a checkpoint or the end."""
        return stop or self.due(number) or number % self.cfg.train.checkpoint_every == 0

    def due(self, number: int) -> bool:
        train = self.cfg.train
        return number == train.steps or bool(train.eval_every and number % train.eval_every == 0)

    def rest(self, number: int, state, stop: bool) -> None:
        """Evaluates and saves what is due after step `number`; where the run is to stop there, waits for the disk."""
        self.log.add(number, self.late(), self.checkpoints, flush=True)
        self.late = None
        last = number == self.cfg.train.steps
        if self.due(number):  # before the checkpoint, so that a run continued from it lacks no evaluation
            self.judged = self.evaluation(state)
            self.log.evaluation(number, self.judged[1])
        if last or stop or number % self.cfg.train.checkpoint_every == 0:
            checkpoint.save(self.checkpoints, self.cfg, self.data, self.made.run.get_state(state))
        if stop and not last:
            self.checkpoints.wait_until_finished()
        self.log.pause()

    def evaluation(self, state) -> tuple[types.Losses, dict]:
        cfg, made, knobs = self.cfg, self.made, program.frozen_knobs(self.cfg)
        batches = loader.eval_batches(self.held_out, batch_size=cfg.eval.batch_size, max_rows=cfg.eval.max_rows,
                                      process=jax.process_index(), processes=jax.process_count())
        eval_step = made.run.per_row(update.eval_step, made.model, made.objective(cfg.eval.rate))
        lost = evaluation.collect(eval_step, state, batches, made.run.put_batch, knobs)
        return lost, evaluation.summarise(lost, knobs, self.beside)

    def finish(self, state) -> dict:
        """Writes what the finished run is, and returns it."""
        cfg, vocab_size = self.cfg, self.rows.tokenizer.vocab_size
        lost, summary = self.judged or self.evaluation(state)
        flops = cost.per_step(cfg, vocab_size)
        result = {"fingerprint": fields.fingerprint(cfg), "config": fields.flatten(cfg), "data": self.data,
                  "steps": cfg.train.steps, "vocab_size": vocab_size, **lm.count(self.abstract.params["model"]),
                  "flops": flops and flops * cfg.train.steps, "evaluation": summary,
                  **grammar.examine(cfg, self.made, self.held_out, state), **self.log.summary()}
        self.checkpoints.wait_until_finished()
        if jax.process_index() == 0:
            directory.finish(self.workdir, result, lost)
        return result

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        self.checkpoints.close()
