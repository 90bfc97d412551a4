"""One run from its config to its result: restore, step, evaluate, save, stop."""
import functools
import os
import signal
import threading
from pathlib import Path

import jax
import numpy as np

from mlm import checkpoint, config, evaluate, examine, flops, gap, limits, masking, parallel, rundir, step, types
from mlm.data import loader, pack
from mlm.log import Log
from mlm.models import MODELS, layers
from mlm.objectives import OBJECTIVES


class Stopped(Exception):
    """The run was asked to stop by `signal`; it saved its state first, and the same command continues it."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.signal = number


def check(cfg: config.Config) -> None:
    """Raises ConfigError for what no run on these devices could use; compiles nothing."""
    limits.validate(cfg)
    parallel.check(cfg)


def train(cfg: config.Config) -> dict:
    """Trains the run of a resolved config to its end, from its newest checkpoint if it has one, and returns its result.

    Raises ConfigError for what cannot be run, Stopped after SIGTERM or SIGINT, Diverged for a loss that is not finite.
    """
    check(cfg)
    rows, held_out = pack.load(cfg, "train"), pack.load(cfg, "validation")
    done = rundir.finished(cfg, rows.manifest["inputs"])
    if done is not None:
        return done
    with rundir.claim(cfg) if jax.process_index() == 0 else open(os.devnull):
        return _train(cfg, rows, held_out)


def training_knobs(cfg: config.Config) -> types.Knobs:
    return types.Knobs(seed=np.uint32(cfg.seed), mask_rate=np.float32(cfg.mask.rate),
                       mask_share=np.float32(cfg.mask.mask_share), random_share=np.float32(cfg.mask.random_share),
                       learning_rate=np.float32(cfg.optim.learning_rate),
                       weight_decay=np.float32(cfg.optim.weight_decay))


def _train(cfg: config.Config, rows: pack.Rows, held_out: pack.Rows) -> dict:
    workdir, data = Path(cfg.workdir), rows.manifest["inputs"]
    vocab_size = rows.tokenizer.vocab_size
    model = MODELS[cfg.model.family](cfg.model, vocab_size)
    objective, frozen = (OBJECTIVES[cfg.objective](cfg.mask, masking.slots(rate, cfg.pack.length), rows.unigram_V)
                         for rate in (cfg.mask.max_rate, cfg.eval.rate))
    knobs = training_knobs(cfg)
    run = parallel.MODES[cfg.parallel.mode](functools.partial(step.train_step, cfg, model, objective))
    eval_step = run.per_row(functools.partial(step.eval_step, model, frozen))

    initial = jax.jit(functools.partial(step.init_state, cfg, model, objective))
    checkpoints = checkpoint.manager(workdir)
    abstract = jax.eval_shape(initial, knobs)
    state = checkpoint.restore(checkpoints, cfg, data, abstract)
    state = run.put_state(jax.device_get(initial(knobs)) if state is None else state)
    start = int(run.get_state(state.step))
    if jax.process_index() == 0:
        rundir.describe(cfg, data, start)

    beside = gap.measure(cfg, held_out)

    def evaluation():
        batches = loader.eval_batches(held_out, batch_size=cfg.eval.batch_size, max_rows=cfg.eval.max_rows,
                                      process=jax.process_index(), processes=jax.process_count())
        lost = evaluate.collect(eval_step, state, batches, run.put_batch, evaluate.frozen_knobs(cfg))
        return lost, evaluate.summarise(lost, evaluate.frozen_knobs(cfg), beside)

    log = Log(workdir, start, cfg)
    batches = loader.train_batches(rows, seed=cfg.seed, batch_size=cfg.train.batch_size, start_step=start,
                                   process=jax.process_index(), processes=jax.process_count())
    asked = Asked()
    late = judged = None  # metrics are read one step late, so that devices never wait for this process
    try:
        for number in range(start + 1, cfg.train.steps + 1):
            state, new = run.train_step(state, run.put_batch(next(batches)), knobs)
            if late is not None:
                log.add(number - 1, run.get_metrics(late), checkpoints)
            late = new
            last, stop = number == cfg.train.steps, asked.now(checkpoints, number)
            due = last or (cfg.train.eval_every and number % cfg.train.eval_every == 0)
            if due or stop or number % cfg.train.checkpoint_every == 0:
                log.add(number, run.get_metrics(late), checkpoints, flush=True)
                late = None
                if due:  # before the checkpoint, so that a run continued from it lacks no evaluation
                    judged = evaluation()
                    log.evaluation(number, judged[1])
                if last or stop or number % cfg.train.checkpoint_every == 0:
                    checkpoint.save(checkpoints, cfg, data, run.get_state(state))
                if stop and not last:
                    checkpoints.wait_until_finished()
                    raise Stopped(f"stopped at step {number:,} of {cfg.train.steps:,}, saved in {workdir}; "
                                  "the same command continues", asked.signal)
                log.pause()
        lost, summary = judged or evaluation()
        cost = flops.per_step(cfg, vocab_size, objective, knobs)
        result = {"fingerprint": config.fingerprint(cfg), "config": config.flatten(cfg), "data": data,
                  "steps": cfg.train.steps, "vocab_size": vocab_size, **layers.count(abstract.params["model"]),
                  "flops": cost and cost * cfg.train.steps, "evaluation": summary,
                  **examine.examine(cfg, model, rows, held_out, run, state), **log.summary()}
        checkpoints.wait_until_finished()
    finally:
        asked.restore()
        log.close()
        checkpoints.close()
    if jax.process_index() == 0:
        rundir.finish(workdir, result, lost)
    if asked.signal is not None:
        raise Stopped(f"{workdir} is done; stopped after it", asked.signal)
    return result


class Asked:
    """Whether the run was asked to stop; processes of one run agree on the step.

    One process listens to SIGTERM and SIGINT, and a second signal ends it at once. Several listen to SIGTERM alone,
    through JAX's preemption service.
    """

    def __init__(self):
        self.signal = None
        self.before = {}
        if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}

    def note(self, number, frame):
        self.signal = number
        self.restore()

    def now(self, checkpoints, number: int) -> bool:
        if jax.process_count() > 1 and checkpoints.reached_preemption(number):
            self.signal = signal.SIGTERM
        return self.signal is not None

    def restore(self):
        for number, handler in self.before.items():
            signal.signal(number, handler)
