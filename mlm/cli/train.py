"""mlm train: trains the model of a config, or continues its run."""

import signal
import sys

from mlm.cli import command, config_help
from mlm.launch import consistency, local_processes, rendezvous

DESCRIPTION = """Train the model of a config, or continue its run from the last checkpoint.

    mlm train mask.rate=0.4 train.steps=100 workdir=runs/a
    mlm train --config=configs/base.py --config.mask.rate=0.4 --config.workdir=runs/a

NAME=VALUE and --config.NAME=VALUE set config fields; `mlm config` lists them. init.run=runs/b starts from the
parameters and vocabulary of another run, init.hub=FOLDER from those of a Hugging Face folder.

Several hosts: start the same command on each. Use --distributed where JAX finds the other processes itself (TPU pods,
SLURM), else --coordinator, --processes and --process. On one host, --local_processes=2 starts two processes, and
restarts both from the last checkpoint if one dies or hangs.
"""


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(prog="mlm train", description=DESCRIPTION)
    count = command.Number(int, 0, 2**20)
    parser.add_argument("--config", metavar="FILE", help="Python file whose get_config() returns the base config")
    parser.add_argument(
        "--print_config",
        action="store_true",
        help="print the value of each config field and where it comes from, and train nothing",
    )
    parser.add_argument(
        "--extend_to",
        type=command.Number(int, 1, 2**31 - 1),
        metavar="STEPS",
        help="extend a finished run to this many steps; equals the longer run bit for bit, if the schedule allows it",
    )
    parser.add_argument(
        "--no-tune_malloc",
        dest="tune_malloc",
        action="store_false",
        help="do not tune malloc (tuned, it is faster and never returns memory to the system)",
    )
    group = parser.add_argument_group("several processes")
    group.add_argument(
        "--distributed", action="store_true", help="join the processes of the cluster, as jax.distributed detects them"
    )
    group.add_argument("--coordinator", default="", metavar="HOST:PORT", help="address of process 0")
    group.add_argument(
        "--processes", type=command.Number(int, 1, 2**20), default=1, help="with --coordinator: number of processes"
    )
    group.add_argument("--process", type=count, default=0, help="with --coordinator: number of this process, from 0")
    group.add_argument(
        "--join_timeout",
        type=command.Number(int, 1, 86_400),
        default=300,
        help="seconds to wait for the other processes at the start (300)",
    )
    group.add_argument(
        "--expect_processes",
        type=count,
        default=0,
        help="stop before compilation unless this many processes join; 0: no check",
    )
    group.add_argument("--expect_devices", type=count, default=0, help="the same for devices, over all processes")
    group.add_argument(
        "--local_processes",
        type=command.Number(int, 0, 2**10),
        default=0,
        help="start this many processes on this host; 0: one, this one",
    )
    group.add_argument(
        "--restarts",
        type=count,
        default=3,
        help="with --local_processes: maximum number of restarts without progress (3)",
    )
    group.add_argument(
        "--hang_after",
        type=command.Number(int, 1, 86_400),
        default=300,
        help="with --local_processes: seconds without a step after which a process counts as hung (300)",
    )
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    from mlm.base import errors, fields

    config_flags, others = command.extract_config_flags(words[1:], allow_bare=True)
    args = make_parser().parse_words(others)
    layers = config_flags.load_layers()
    if args.extend_to:
        layers.append(fields.Layer(f"--extend_to={args.extend_to}", {"train.steps": args.extend_to}))
    if args.print_config:
        from mlm.training.run import initialization, resolution

        resolved = initialization.resolve_layers(layers)
        resolution.check(resolved.config)
        config_help.print_origins(resolved.config, resolved.origins)
    elif args.local_processes:
        errors.require(
            not (args.coordinator or args.distributed),
            "--local_processes",
            args.local_processes,
            "neither --coordinator nor --distributed with it",
        )
        workdir = {**fields.DEFAULT, **layers[0].values, **config_flags.overrides}["workdir"]
        launch = local_processes.LocalLaunch(args.local_processes, args.restarts, args.hang_after, workdir)
        local_processes.check_gpus(launch)
        # Without JAX: devices belong to the first process that touches them.
        sys.exit(local_processes.run_processes(launch, sys.orig_argv[1:]))
    else:
        train(layers, args)


def train(layers, args) -> None:
    """Trains in this process."""
    from mlm.base import errors, fields
    from mlm.base.estimates import read_scores
    from mlm.training.run import heartbeat, initialization, log, resolution, spikes
    from mlm.training.run.preemption import RunStopped
    from mlm.training.step import parallel

    command.raise_on_interrupt()
    config = rendezvous.RendezvousConfig(
        args.coordinator, args.processes, args.process, args.distributed, args.join_timeout
    )
    rendezvous.check_config(config)
    errors.require(
        not (args.extend_to and (args.coordinator or args.distributed)),
        "--extend_to",
        args.extend_to,
        "a single process; when it has extended the run, several processes can continue it",
    )
    cfg = initialization.resolve_layers(layers).config
    resolution.check(cfg)
    if args.coordinator:
        print(
            f"process {args.process} of {args.processes} waits at {args.coordinator} for the others, for up to "
            f"{args.join_timeout} s (--join_timeout)",
            flush=True,
        )
    rendezvous.join_processes(config)
    with consistency.exit_with_peers():
        consistency.require_agreement(
            "config", consistency.shared_fields(fields.flatten(cfg)) | consistency.code_versions()
        )
        consistency.require_agreement("devices", parallel.describe_local_devices())
        consistency.check_devices(args.expect_processes, args.expect_devices)
        try:
            result = run_training(cfg, extend=bool(args.extend_to))
        except RunStopped as stop:
            print(stop)
            sys.exit(128 + stop.signal)
        except spikes.DivergenceError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            heartbeat.send_heartbeat(heartbeat.FATAL, 0)
            sys.exit(1)
    print(f"done: {cfg.workdir}: {log.format_evaluation(result['evaluation'], read_scores(result))}")


def run_training(cfg, *, extend: bool = False) -> dict:
    """Trains the model of a resolved config, or continues its run, and runs the evaluations that the config names.

    Args:
        cfg: the resolved config.
        extend: trains a finished run on, to the steps of the config.

    Returns:
        The run's result.

    Raises:
        ConfigError: the config cannot be trained here, or the directory holds another run.
        DivergenceError, RunStopped: as loop.train.
    """
    from mlm.base import errors
    from mlm.data.rows import pack
    from mlm.evaluation import evaluation_tasks
    from mlm.training.run import directory, loop
    from mlm.training.run.preemption import RunStopped
    from mlm.training.step import optim, parallel

    loop.check(cfg)
    evaluation_tasks.list_due_cases(cfg)  # before training: raises for an evaluation that cannot run after it
    packed = pack.load_dataset(cfg)
    consistency.require_agreement("rows", packed.manifest["inputs"])
    result = "a result" if directory.result_file(cfg.workdir).exists() else "none"
    consistency.require_agreement("end", {f"what {cfg.workdir} holds": result})
    if extend:
        cfg = loop.extend_run(cfg, packed)
        warmup = optim.count_warmup_steps(cfg.optim, cfg.train.steps)
        print(
            f"{cfg.workdir}: a run of {cfg.train.steps:,} steps, {warmup:,} of them warm-up "
            f"(config.optim.warmup_fraction = {cfg.optim.warmup_fraction!r})",
            flush=True,
        )
    try:
        result = loop.train(cfg, packed)
    except errors.ConfigError as error:
        if parallel.is_multiprocess() or not loop.can_extend(cfg, packed):
            raise
        raise errors.ConfigError(f"{error}, or --extend_to={cfg.train.steps}, which extends the run there") from None
    try:
        evaluation_tasks.finish_evaluations(cfg, packed)
    except KeyboardInterrupt:
        raise RunStopped(
            f"{cfg.workdir} is trained; the same command runs the missing evaluations", signal.SIGINT
        ) from None
    return result
