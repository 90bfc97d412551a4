"""One run from its config to its result: restore, step, evaluate, save, stop."""
import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

from mlm.base import config, errors, fields, files, types
from mlm.data.rows import loader, pack
from mlm.models import lm
from mlm.train import finetuning_recipe, resolution
from mlm.train.run import checkpoint, directory, extension, heartbeat, initialization, spikes
from mlm.train.run.log import Diverged, Log
from mlm.train.run.shutdown import Asked, Stopped
from mlm.train.step import cost, evaluation, parallel, references
from mlm.train.step import program as programs


def check(cfg: config.Config) -> None:
    """Raises ConfigError for what no run on these devices could use; compiles nothing."""
    resolution.check(cfg)
    finetuning_recipe.check(cfg)
    parallel.check(cfg)
    files.check_folder("config.workdir", cfg.workdir, schemes=directory.SCHEMES)
    cost.check_room(cfg)


def train(cfg: config.Config, packed: pack.Packed | None = None) -> dict:
    """Trains the run of a resolved config to its end, from its newest checkpoint if it has one, and returns its result.

    packed: its rows, where they are at hand. Of runs one after the other that differ in traced values alone, only the
    first compiles (step/program.py). Raises ConfigError for what cannot be run, Stopped after SIGTERM or SIGINT,
    Diverged for a loss that is not finite, unless config.train.spike_threshold answers it.
    """
    check(cfg)
    packed = packed or pack.load(cfg)
    done = directory.finished(cfg, packed.manifest["inputs"], packed.tokenizer)
    if done is not None:
        return done
    with directory.claim(cfg) if parallel.is_primary() else contextlib.nullcontext():
        # Another process may have ended it since; of several processes of one run, all must see the same.
        done = None if parallel.is_multiprocess() else directory.finished(cfg, packed.manifest["inputs"],
                                                                          packed.tokenizer)
        if done is not None:
            return done
        outcome = None
        while outcome is None or isinstance(outcome, spikes.Spike):
            with opened(cfg, packed, outcome) as (run, state):
                outcome = drive([run], Alone(run, state))[cfg.workdir]
    if isinstance(outcome, Diverged):
        raise outcome
    return outcome


def lengthen(cfg: config.Config, packed: pack.Packed) -> config.Config:
    """Makes the run in config.workdir, done or not, one of cfg's steps, and returns its config, by which it goes on.

    Nothing changes where it has so many. Raises ConfigError as `longer.resolve` does, where there is no run, where none
    of its checkpoints is on the way of the longer one. For one process alone.
    """
    data = packed.manifest["inputs"]
    errors.require(directory.read_identity(cfg.workdir) is not None, "config.workdir", cfg.workdir,
                  "the directory of a run to be trained longer")
    with directory.claim(cfg):
        saved = directory.read_identity(cfg.workdir)
        further = extension.resolve(cfg, data, saved)
        if further.train.steps > saved["config"]["train.steps"]:
            check(further)
            made = programs.build(further, packed.about)
            with contextlib.closing(checkpoint.manager(cfg.workdir)) as checkpoints:
                checkpoint.check_shared(checkpoints, further, data, made, programs.knobs(further))
            directory.lengthen(further, data, saved)
    return further


def can_lengthen(cfg: config.Config, packed: pack.Packed) -> bool:
    """Whether config.workdir holds another run than cfg's, of which `lengthen` would make it."""
    try:
        saved = directory.read_identity(cfg.workdir)
        if saved is None:
            return False
        extension.resolve(cfg, packed.manifest["inputs"], saved)
    except errors.ConfigError:
        return False
    return any(fields.flatten(cfg)[name] != saved["config"][name] for name in extension.CHANGED)


def settle(cfg: config.Config, checkpoints) -> None:
    """Puts out of the way what a run that was made longer had and the longer one has not."""
    saved = None
    with directory.mended():
        saved = directory.read_identity(cfg.workdir)
    if "begun" in (saved or {}):
        if parallel.is_primary() and (steps := directory.outgrown(cfg, saved)):
            directory.set_aside(cfg, steps)
        for step in checkpoint.outgrown(checkpoints, cfg):
            checkpoints.delete(step)


@contextlib.contextmanager
def opened(cfg: config.Config, packed: pack.Packed, spike: spikes.Spike | None = None, *, cut: bool = True):
    """A run with its files open, and the state that it goes on from (numpy): its newest checkpoint's, or the first.

    spike: one that it goes back from. cut: as loader.train_batches has it; else all batches have one shape.
    """
    made = programs.build(cfg, packed.about)
    with contextlib.closing(checkpoint.manager(cfg.workdir, extension.stable(cfg), every=spikes.every(cfg))
                            ) as checkpoints:
        settle(cfg, checkpoints)
        for step in checkpoints.all_steps() if spike else ():
            if step > spike.back_to:
                checkpoints.delete(step)
        saved = checkpoint.first(checkpoints, cfg, packed.manifest["inputs"], made, programs.knobs(cfg))
        if spike:
            saved = saved._replace(totals={**saved.totals, "spikes": spike.found})
        if saved.state.step == 0:
            saved = saved._replace(state=initialization.begin(cfg, saved.state, packed.tokenizer))
        with contextlib.closing(Run(cfg, packed, made, checkpoints, saved, cut)) as run:
            if spike:
                run.log.say(str(spike))
            yield run, saved.state


class Run:
    """One run beside its steps: what feeds it, and what is written of it. Others make the steps."""

    def __init__(self, cfg: config.Config, packed: pack.Packed, made: programs.Program, checkpoints,
                 saved: checkpoint.Saved, cut: bool):
        self.cfg, self.packed, self.made, self.checkpoints = cfg, packed, made, checkpoints
        self.start = int(saved.state.step)
        self.data = packed.manifest["inputs"]
        if parallel.is_primary():
            directory.describe(cfg, self.data, packed.tokenizer, self.start)
        self.references = references.measure(cfg, made, packed)
        self.scores = (*made.objective.scores, *self.references.scores)
        self.spikes = spikes.Spikes(cfg, saved.totals)
        self.log = Log(cfg, made.objective, self.start, saved.totals)
        self.batches = self.spikes.batches(lambda first: loader.train_batches(
            packed.train, seed=cfg.seed, batch_size=cfg.train.batch_size, start_step=first,
            cut=cut and cfg.model.context != "apart",  # whose right half reads padding first: its draws hang on it
            grouped=cfg.train.group_by_length, **parallel.process_slice()), self.start)
        self.late: list[Callable] = []  # metrics are read one step late, so that devices never wait for this process
        self.evaluations: dict[int, tuple[evaluation.Columns, dict]] = {}  # the newest, by its step

    def took(self, number: int, read: Callable) -> None:
        """Step `number` is under way; read() waits for its metrics."""
        if self.late:
            self.read(number - 1)
        self.late.append(read)

    def read(self, number: int, flush: bool = False) -> None:
        """Takes the metrics of step `number`, for which it waits."""
        values = self.late.pop()()
        self.spikes.see(number, values)
        self.log.note(number, self.spikes.records(number))
        self.log.add(number, values, self.checkpoints, flush=flush)

    def rests(self, number: int, stop: bool) -> bool:
        """Whether more than the next step follows step `number`: an evaluation, a checkpoint or the end."""
        return stop or self.due(number) or self.saves(number)

    def due(self, number: int) -> bool:
        train = self.cfg.train
        return number == train.steps or bool(train.eval_every and number % train.eval_every == 0)

    def saves(self, number: int) -> bool:
        train = self.cfg.train
        often = (train.checkpoint_every, spikes.every(self.cfg) or train.checkpoint_every)
        return number in (train.steps, extension.stable(self.cfg)) or any(number % steps == 0 for steps in often)

    def rest(self, number: int, state, stop: bool) -> None:
        """Evaluates and saves what is due after step `number`; where the run is to stop there, waits for the disk."""
        self.read(number, flush=True)
        last = number == self.cfg.train.steps
        if self.due(number):  # before the checkpoint, so that a run continued from it lacks no evaluation
            self.evaluations = {number: self.evaluate(state)}
            self.log.evaluation(number, self.evaluations[number][1], self.scores)
        if stop or self.saves(number):
            saved = checkpoint.Saved(self.made.run.kept(state), self.log.totals | self.spikes.totals())
            checkpoint.save(self.checkpoints, self.cfg, self.data, saved)
        if stop and not last:
            self.checkpoints.wait_until_finished()
        self.log.pause()

    def evaluate(self, state) -> tuple[evaluation.Columns, dict]:
        columns = self.references.add(evaluation.judge(self.cfg, self.made, state, self.packed))
        return columns, evaluation.summary(columns, self.scores)

    def finish(self, state) -> dict:
        """Writes what the finished run is, and returns it."""
        cfg, vocab_size = self.cfg, self.packed.about.vocab_size
        if cfg.train.steps not in self.evaluations:  # the run was trained before, and its result was lost
            self.evaluations = {cfg.train.steps: self.evaluate(state)}
            self.log.evaluation(cfg.train.steps, self.evaluations[cfg.train.steps][1], self.scores)
        columns, found = self.evaluations[cfg.train.steps]
        flops = cost.per_step(cfg, vocab_size)
        result = {"fingerprint": fields.fingerprint(cfg), **fields.identity(cfg, self.data),
                  "steps": cfg.train.steps, "vocab_size": vocab_size,
                  **lm.count(cost.abstract(programs.blank(cfg), vocab_size).params["model"]),
                  "flops": flops and flops * cfg.train.steps, "evaluation": found,
                  "scores": [score._asdict() for score in self.scores], **self.log.summary(),
                  **self.spikes.result()}
        self.checkpoints.wait_until_finished()
        if parallel.is_primary():
            directory.finish(files.path(cfg.workdir), result, columns)
        return result

    def close(self) -> None:
        self.log.close()


class Alone:
    """The steps of a run that has its program to itself."""

    def __init__(self, run: Run, state: types.TrainState):
        self.run, self.knobs = run.made.run, programs.knobs(run.cfg)
        self.now = self.run.put_state(state)

    def take(self, batches: Mapping[int, types.Batch]) -> Callable:
        """Makes one step; what it returns waits for the metrics of a run, by its number."""
        self.now, metrics = self.run.train_step(self.now, self.run.put_batch(batches[0]), self.knobs)
        return lambda m: self.run.get_metrics(metrics)

    def state(self, m: int):
        """The state of a run, on the devices."""
        return self.now


def drive(runs: Sequence[Run], steps) -> dict[str, dict | Diverged]:
    """Takes runs of one length from where they stand to their end. Returns by workdir each one's result, or how it
    diverged, which stops no other.

    steps: what makes them, such as Alone. A run that is ahead of the others waits until they are where it is.
    """
    outcomes, last, shapes = {}, runs[0].cfg.train.steps, set()
    first = min(run.start for run in runs) + 1
    heartbeat.say(heartbeat.REST, first - 1)
    with Asked() as asked:
        for number in range(first, last + 1):
            moving = [m for m, run in enumerate(runs) if run.start < number and run.cfg.workdir not in outcomes]
            if not moving:  # those behind have diverged, and those ahead wait
                continue
            batches = {m: next(runs[m].batches) for m in moving}
            compiles = {batch.text.ids_BxL.shape for batch in batches.values()} - shapes
            if compiles:
                heartbeat.say(heartbeat.REST, number - 1)
            read = steps.take(batches)
            heartbeat.say(heartbeat.STEP, number)
            stop, shapes = asked.now(runs[0].checkpoints, number), shapes | compiles
            for m in moving:
                if compiles:
                    runs[m].log.pause()
                try:
                    runs[m].took(number, functools.partial(read, m))
                    if runs[m].rests(number, stop):
                        heartbeat.say(heartbeat.REST, number)
                        runs[m].rest(number, steps.state(m), stop)
                except Diverged as diverged:
                    outcomes[runs[m].cfg.workdir] = diverged
            if stop and number < last:
                saved = f"saved in {runs[0].cfg.workdir}" if len(runs) == 1 else f"{len(runs)} runs saved"
                raise Stopped(f"stopped at step {number:,} of {last:,}, {saved}; the same command continues",
                              asked.signal)
        heartbeat.say(heartbeat.TRAINED, last)
        for m, run in enumerate(runs):
            if run.cfg.workdir not in outcomes:
                outcomes[run.cfg.workdir] = run.finish(steps.state(m))
    if asked.signal is not None:
        raise Stopped(f"{', '.join(run.cfg.workdir for run in runs)}: done; stopped after it", asked.signal)
    return outcomes
