"""mlm train: trains the model of a config, or continues its run."""

import sys

from mlm.base import errors, fields
from mlm.cli import command, config_help
from mlm.experiment.paper_recipes import RECIPES
from mlm.launch import consistency, local_processes, rendezvous
from mlm.training.run import heartbeat

DESCRIPTION = """Train the model of a config, or continue its run from the last checkpoint.

    mlm train mask.rate=0.4 train.steps=100 workdir=runs/a
    mlm train --config=configs/base.py --config.mask.rate=0.4 --config.workdir=runs/a
    mlm train --recipe=bert model.size=small data.path='texts/*.txt' workdir=runs/a

NAME=VALUE and --config.NAME=VALUE set config fields; `mlm config` lists them. init.run=runs/b starts from the
parameters and vocabulary of another run, init.hub=FOLDER from those of a Hugging Face folder.

Several hosts: start the same command on each. Use --distributed where JAX finds the other processes itself (TPU pods,
SLURM), else --coordinator, --processes and --process. On one host, --local_processes=2 starts two processes, and
restarts both from the last checkpoint if one dies or hangs.
"""


COUNT = command.Number(int, 0, 2**20)


def make_early_parser() -> command.CommandParser:
    """The flags that are read before the others: what to do at all, and which of several processes this is."""
    parser = command.CommandParser(prog="mlm train", add_help=False)
    parser.add_argument(
        "--print_config",
        action="store_true",
        help="print the value of each config field and where it comes from, and train nothing",
    )
    group = parser.add_argument_group("several processes")
    group.add_argument(
        "--distributed", action="store_true", help="join the processes of the cluster, as jax.distributed detects them"
    )
    group.add_argument("--coordinator", default="", metavar="HOST:PORT", help="address of process 0")
    group.add_argument(
        "--processes", type=command.Number(int, 1, 2**20), default=1, help="with --coordinator: number of processes"
    )
    group.add_argument("--process", type=COUNT, default=0, help="with --coordinator: number of this process, from 0")
    group.add_argument(
        "--join_timeout",
        type=command.Number(int, 1, 86_400),
        default=300,
        help="seconds to wait for the other processes at the start (300)",
    )
    group.add_argument(
        "--local_processes",
        type=command.Number(int, 0, 2**10),
        default=0,
        help="start this many processes on this host; 0: one, this one",
    )
    return parser


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(
        prog="mlm train", description=DESCRIPTION, parents=[make_early_parser()], has_fields=True
    )
    parser.add_argument("--config", metavar="FILE", help="Python file whose get_config() returns the base config")
    parser.add_argument(
        "--recipe",
        choices=[*RECIPES],
        metavar="NAME",
        help="a paper's recipe on your text: " + " | ".join(RECIPES) + "; --config and the fields of the command line "
        "override it (mlm recipes lists them)",
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
    group = parser.add_argument_group("checks and restarts of several processes")
    group.add_argument(
        "--expect_processes",
        type=COUNT,
        default=0,
        help="stop before compilation unless this many processes join; 0: no check",
    )
    group.add_argument("--expect_devices", type=COUNT, default=0, help="the same for devices, over all processes")
    group.add_argument(
        "--restarts",
        type=COUNT,
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
    # These flags alone first: a process tells the others what is wrong with its other words.
    flags, _ = make_early_parser().parse_known_args(words[1:])
    processes = rendezvous.RendezvousConfig(
        flags.coordinator, flags.processes, flags.process, flags.distributed, flags.join_timeout
    )
    if flags.print_config:
        print_config(*parse_words(words))
        return
    is_child = heartbeat.connect_to_parent() is not None
    if not is_child:
        rendezvous.check_config(processes)
        if processes.is_multiprocess:
            errors.require(
                not flags.local_processes,
                "--local_processes",
                flags.local_processes,
                "neither --coordinator nor --distributed with it",
            )
            sys.exit(local_processes.run_on_host(sys.orig_argv[1:]))
    with consistency.agreement(processes) as facts:
        args, layers = parse_words(words)
        command.check_layers(layers)
        if args.local_processes and not is_child:
            launch_locally(args, layers)
        cfg = resolve_config(args, layers, facts)
    train(cfg, args, processes)


def parse_words(words: list[str]):
    """The flags, the config flags and the base config of a command line."""
    config_flags, others = command.extract_config_flags(words[1:], allow_bare=True)
    args = make_parser().parse_words(others)
    layers = config_flags.load_layers()
    if args.recipe:
        recipe = RECIPES[args.recipe]
        has_size = any("model.size" in layer.values for layer in layers)
        layers.insert(0, fields.Layer(f"--recipe={args.recipe}", recipe.drop_size() if has_size else recipe.fields))
        corpora = ("data.path", "data.corpus", "data.tfds_name", "data.parallel_path", "data.task")
        errors.require(
            any(name in layer.values for layer in layers for name in corpora),
            "--recipe",
            args.recipe,
            "your text beside it: data.path='FILES', or another data.corpus; a recipe brings none",
        )
    if args.extend_to:
        layers.append(fields.Layer(f"--extend_to={args.extend_to}", {"train.steps": args.extend_to}))
    return args, layers


def print_config(args, layers) -> None:
    """Prints the value of each field and where it comes from."""
    from mlm.training.run import resolution

    resolved = resolution.resolve_layers(layers, 1 + bool(args.recipe))
    resolution.check(resolved.config)
    config_help.print_origins(resolved.config, resolved.origins)


def launch_locally(args, layers) -> None:
    """Runs this command in several processes on this host, and ends as they end."""
    settings = dict(fields.DEFAULT)
    for layer in layers:
        settings |= layer.values
    launch = local_processes.LocalLaunch(args.local_processes, args.restarts, args.hang_after, settings["workdir"])
    local_processes.check_gpus(launch)
    # Without JAX: devices belong to the first process that touches them.
    sys.exit(local_processes.run_processes(launch, sys.orig_argv[1:]))


def resolve_config(args, layers, facts: dict):
    """The resolved config; adds to `facts` what must be equal in all processes of the run."""
    from mlm.training.run import resolution

    command.raise_on_interrupt()
    errors.require(
        not (args.extend_to and (args.coordinator or args.distributed)),
        "--extend_to",
        args.extend_to,
        "a single process; when it has extended the run, several processes can continue it",
    )
    cfg = resolution.resolve_layers(layers, 1 + bool(args.recipe)).config
    resolution.check(cfg)
    facts |= {"--processes": args.processes} | consistency.shared_fields(fields.flatten(cfg))
    facts |= consistency.code_versions()
    return cfg


def train(cfg, args, processes: rendezvous.RendezvousConfig) -> None:
    """Trains in this process."""
    import jax

    from mlm.base.estimates import read_scores
    from mlm.data.rows import pack
    from mlm.evaluation import engine
    from mlm.training.run import divergence, log, loop
    from mlm.training.run.directory import RunDirectory
    from mlm.training.run.preemption import RunStopped
    from mlm.training.step import optim

    with consistency.agreement(processes) as facts:
        consistency.check_devices(args.expect_processes, args.expect_devices)
        engine.check(cfg)
        packed = pack.load_dataset(cfg)
        content = "a result" if RunDirectory(cfg.workdir).result.exists() else "none"
        facts |= packed.manifest["inputs"] | {f"what {cfg.workdir} holds": content}
    try:
        if args.extend_to:
            cfg = loop.extend_run(cfg, packed)
            warmup = optim.count_warmup_steps(cfg.optim, cfg.train.steps)
            print(
                f"{cfg.workdir}: a run of {cfg.train.steps:,} steps, {warmup:,} of them warm-up "
                f"(config.optim.warmup_fraction = {cfg.optim.warmup_fraction!r})",
                flush=True,
            )
        result = engine.train(cfg, packed)
    except RunStopped as stop:
        print(stop)
        sys.exit(128 + stop.signal)
    except divergence.DivergenceError as error:
        heartbeat.send_heartbeat(heartbeat.FATAL, 0)
        jax.distributed.shutdown()  # waits for the others, which diverge at the same step
        command.exit_with_line(1, f"error: {error}")
    print(f"done: {cfg.workdir}: {log.format_evaluation(result['evaluation'], read_scores(result))}")
