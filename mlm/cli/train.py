"""One run: trains the model of a config, or continues it, or says that it is done.

    python -m mlm.cli.train --config=configs/base.py --config.mask.rate=0.4 --config.workdir=runs/a

With --config.init.hub=FOLDER, or --config.init.run=runs/b, it goes on from the model, with the words, of a Hugging
Face folder or another run.

On several hosts the same command starts on each, with --distributed where the cluster tells JAX who they are (TPU pods,
SLURM), else with --coordinator, --processes and --process; --expect_processes and --expect_devices say how many there
are to be. On one host, --local_processes=2 starts two, and all again from the last checkpoint when one dies or hangs.

A run that is there with fewer config.train.steps goes on to more by --longer, where its schedules are such that it is
then what it had been with so many from the start.
"""
import signal
import sys

from absl import flags

from mlm.cli import command
from mlm.launch import consistency, kernel_choice, local_processes, supervisor

_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the processes that the cluster's environment describes.")
_COORDINATOR = flags.DEFINE_string("coordinator", "", "host:port of process 0, where no cluster tells.")
_PROCESSES = flags.DEFINE_integer("processes", 1, "Number of processes, with --coordinator.", lower_bound=1,
                                  upper_bound=2**20)
_PROCESS = flags.DEFINE_integer("process", 0, "This process's number, with --coordinator.", lower_bound=0,
                                upper_bound=2**20)
_JOIN_TIMEOUT = flags.DEFINE_integer("join_timeout", 300, "Seconds to wait for the other processes at the start.",
                                     lower_bound=1, upper_bound=86_400)
_LOCAL = flags.DEFINE_integer("local_processes", 0, "Start so many processes of this command on this host, each with "
                              "its part of the devices, and all again when one dies or hangs; 0: this one alone.",
                              lower_bound=0, upper_bound=2**10)
_RESTARTS = flags.DEFINE_integer("restarts", 3, "With --local_processes: how often to start again without coming "
                                 "further.", lower_bound=0, upper_bound=2**20)
_HANG = flags.DEFINE_integer("hang_after", 300, "With --local_processes: seconds for a step after which a process "
                             "hangs; ten times as many where none is made.", lower_bound=1, upper_bound=86_400)
_EXPECT_PROCESSES = flags.DEFINE_integer("expect_processes", 0, "Stop before compiling where the run has another "
                                         "number of processes; 0: not checked.", lower_bound=0, upper_bound=2**20)
_EXPECT_DEVICES = flags.DEFINE_integer("expect_devices", 0, "The same of devices, in all processes together.",
                                       lower_bound=0, upper_bound=2**20)
_LONGER = flags.DEFINE_bool("longer", False, "Train the run of this config further, which config.workdir holds with "
                            "fewer config.train.steps: bit for bit the longer run, for schedules that allow it.")


def main(argv):
    from mlm.base import errors

    if len(argv) > 1:
        raise errors.ConfigError(f"unexpected argument {argv[1]!r}: fields are set as --config.name=value")
    from mlm.launch import rendezvous

    if _LOCAL.value:
        errors.require(not (_COORDINATOR.value or _DISTRIBUTED.value), "--local_processes", _LOCAL.value,
                      "none beside --coordinator or --distributed")
        here = local_processes.Asked(_LOCAL.value, _RESTARTS.value, _HANG.value, command.CONFIG.value.workdir)
        local_processes.check(here)
        sys.exit(local_processes.run(here, sys.orig_argv[1:]))  # without JAX: devices belong to who touches them first
    from mlm.base import fields
    from mlm.base.estimates import scores_of
    from mlm.data.rows import pack
    from mlm.evaluation import evaluation_tasks
    from mlm.train import resolution
    from mlm.train.run import directory, heartbeat, initialization, log, loop
    from mlm.train.run.shutdown import Stopped
    from mlm.train.step import optim, parallel

    command.listen()
    asked = rendezvous.Asked(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _DISTRIBUTED.value,
                             _JOIN_TIMEOUT.value)
    rendezvous.check(asked)
    errors.require(not (_LONGER.value and (asked.coordinator or asked.distributed)), "--longer", True,
                  "a single process; once the run is made longer, several can continue it by what its config.json says")
    cfg = initialization.resolve(command.base(), command.overrides(sys.argv))
    resolution.check(cfg)
    if asked.coordinator:
        print(f"process {asked.process} of {asked.processes} waits for the others at {asked.coordinator}, at most "
              f"{asked.timeout} s (--join_timeout)", flush=True)
    rendezvous.join(asked)
    with consistency.bound():
        consistency.agree("config", consistency.shared(fields.flatten(cfg)) | consistency.program())
        consistency.agree("devices", parallel.local())
        consistency.count(_EXPECT_PROCESSES.value, _EXPECT_DEVICES.value)
        loop.check(cfg)
        evaluation_tasks.due(cfg)  # raises, before any training, for what could not be asked after it
        cfg = kernel_choice.settled(cfg, again=kernel_choice.CALIBRATE.value)
        consistency.agree("paths", {"config.model.disabled_kernels": cfg.model.disabled_kernels})
        packed = pack.load(cfg)
        consistency.agree("rows", packed.manifest["inputs"])
        consistency.agree("end",
                          {f"what {cfg.workdir} holds": "a result" if directory.end(cfg.workdir).exists() else "none"})
        if _LONGER.value:
            cfg = loop.lengthen(cfg, packed)
            print(f"{cfg.workdir}: a run of {cfg.train.steps:,} steps, {optim.warmup(cfg.optim, cfg.train.steps):,} of "
                  f"them warm-up (config.optim.warmup_fraction = {cfg.optim.warmup_fraction!r})", flush=True)
        try:
            result = loop.train(cfg, packed)
            try:
                evaluation_tasks.finish(cfg, packed)
            except KeyboardInterrupt:
                raise Stopped(f"{cfg.workdir} is trained; the same command asks what is left", signal.SIGINT) from None
        except Stopped as stop:
            print(stop)
            sys.exit(128 + stop.signal)
        except errors.ConfigError as error:
            if parallel.is_multiprocess() or not loop.can_lengthen(cfg, packed):
                raise
            raise errors.ConfigError(f"{error}, or give --longer, which trains the run there further") from None
        except log.Diverged as diverged:
            print(f"error: {diverged}", file=sys.stderr, flush=True)
            heartbeat.say(heartbeat.OVER, 0)
            sys.exit(1)
    print(f"done: {cfg.workdir}: {log.brief(result['evaluation'], scores_of(result))}")


if __name__ == "__main__":
    supervisor.supervise()
    command.run(main, consistency.tell)
