"""One run from its config to its result: restore, step, evaluate, save, stop."""
import functools
import signal
import threading
from pathlib import Path

import jax
import numpy as np

from mlm import checkpoint, config, evaluate, flops, gap, limits, masking, metrics, parallel, rundir, step, types
from mlm.data import loader, pack
from mlm.data.corpus import CORPORA
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
    config.one_of("config.data.corpus", cfg.data.corpus, list(CORPORA))
    config.one_of("config.objective", cfg.objective, list(OBJECTIVES))
    parallel.check(cfg)


def train(cfg: config.Config) -> dict:
    """Trains the run of a resolved config to its end, from its newest checkpoint if it has one, and returns its result.

    Raises ConfigError for what cannot be run, Stopped after SIGTERM or SIGINT, Diverged for a loss that is not finite.
    """
    check(cfg)
    done = rundir.finished(cfg)
    if done is not None:
        return done
    with rundir.claim(cfg) if jax.process_index() == 0 else open("/dev/null"):
        return _train(cfg)


def training_knobs(cfg: config.Config) -> types.Knobs:
    return types.Knobs(seed=np.uint32(cfg.seed), mask_rate=np.float32(cfg.mask.rate),
                       mask_share=np.float32(cfg.mask.mask_share), random_share=np.float32(cfg.mask.random_share),
                       learning_rate=np.float32(cfg.optim.learning_rate),
                       weight_decay=np.float32(cfg.optim.weight_decay))


def _train(cfg: config.Config) -> dict:
    workdir, title = Path(cfg.workdir), Path(cfg.workdir).name
    rows, held_out = pack.load(cfg, "train"), pack.load(cfg, "validation")
    vocab_size = rows.tokenizer.vocab_size
    model = MODELS[cfg.model.family](cfg.model, vocab_size)
    objective, frozen = (OBJECTIVES[cfg.objective](cfg.mask, masking.slots(rate, cfg.pack.length), rows.unigram_V)
                         for rate in (cfg.mask.max_rate, cfg.eval.rate))
    knobs = training_knobs(cfg)
    run = parallel.MODES[cfg.parallel.mode](functools.partial(step.train_step, cfg, model, objective),
                                            functools.partial(step.eval_step, model, frozen))

    initial = jax.jit(functools.partial(step.init_state, cfg, model, objective))
    checkpoints = checkpoint.manager(workdir)
    abstract = jax.eval_shape(initial, knobs)
    state = checkpoint.restore(checkpoints, cfg, abstract)
    if jax.process_index() == 0:
        rundir.describe(cfg)
    state = run.put_state(jax.device_get(initial(knobs)) if state is None else state)
    start = int(run.get_state(state.step))

    beside = gap.measure(cfg, held_out)

    def evaluation():
        batches = loader.eval_batches(held_out, batch_size=cfg.eval.batch_size, max_rows=cfg.eval.max_rows,
                                      process=jax.process_index(), processes=jax.process_count())
        return evaluate.evaluate(run.eval_step, state, batches, run.put_batch, evaluate.frozen_knobs(cfg), beside)

    log = Log(workdir, start, cfg, title)
    batches = loader.train_batches(rows, seed=cfg.seed, batch_size=cfg.train.batch_size, start_step=start,
                                   process=jax.process_index(), processes=jax.process_count())
    asked = Asked()
    late = None  # the metrics of the last step, read once the next is under way, so that devices never wait for us
    try:
        for number in range(start + 1, cfg.train.steps + 1):
            state, new = run.train_step(state, run.put_batch(next(batches)), knobs)
            if late is not None:
                log.add(number - 1, run.get_metrics(late), checkpoints)
            late = new
            last, stop = number == cfg.train.steps, asked.now(checkpoints, number)
            if last or stop or number % cfg.train.checkpoint_every == 0:
                log.add(number, run.get_metrics(late), checkpoints, flush=True)
                late = None
                checkpoint.save(checkpoints, cfg, run.get_state(state))
                if stop and not last:
                    checkpoints.wait_until_finished()
                    raise Stopped(f"stopped at step {number:,} of {cfg.train.steps:,}, saved in {workdir}; "
                                  "the same command continues", asked.signal or signal.SIGTERM)
                log.pause()
            if cfg.train.eval_every and number % cfg.train.eval_every == 0 and not last:
                log.evaluation(number, evaluation())
        result = {"fingerprint": config.fingerprint(cfg), "config": config.flatten(cfg), "steps": cfg.train.steps,
                  "vocab_size": vocab_size, **layers.count(abstract.params["model"]),
                  "flops": flops.per_step(cfg, vocab_size, objective, knobs) * cfg.train.steps,
                  "evaluation": evaluation()}
        log.evaluation(cfg.train.steps, result["evaluation"])
        result |= log.summary()
        checkpoints.wait_until_finished()
    finally:
        asked.restore()
        log.close()
        checkpoints.close()
    if jax.process_index() == 0:
        metrics.write_json(workdir / "result.json", result)
    return result


class Asked:
    """Whether the run was asked to stop (SIGTERM, SIGINT); processes of one run agree on the step."""

    def __init__(self):
        self.signal = None
        self.before = {}
        if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}

    def note(self, number, frame):
        self.signal = number

    def now(self, checkpoints, number: int) -> bool:
        return checkpoints.reached_preemption(number) if jax.process_count() > 1 else self.signal is not None

    def restore(self):
        for number, handler in self.before.items():
            signal.signal(number, handler)
