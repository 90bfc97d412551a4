"""mlm train: trains the model of a config, or continues its run."""

import sys

from mlm.base import errors, fields
from mlm.base.flag import Flag
from mlm.cli import command, config_help
from mlm.experiment.recipes import RECIPES
from mlm.launch import local_processes, rendezvous
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

PROCESSES = (
    Flag("distributed", False, "join the processes of the cluster, as jax.distributed detects them"),
    Flag("coordinator", "", "address of process 0", "HOST:PORT"),
    Flag("processes", 1, "with --coordinator: number of processes", low=1, high=2**20),
    Flag("process", 0, "with --coordinator: number of this process, from 0", high=2**20),
    Flag("join_timeout", 300, "seconds to wait for the other processes at the start (300)", low=1, high=86_400),
    Flag("local_processes", 0, "start this many processes on this host; 0: one, this one", high=2**10),
)
CHECKS = (
    Flag("expect_processes", 0, "stop before compilation unless so many processes join; 0: no check", high=2**20),
    Flag("expect_devices", 0, "the same for devices, over all processes", high=2**20),
    Flag("restarts", 3, "with --local_processes: maximum number of restarts without progress (3)", high=2**20),
    Flag(
        "hang_after", 300, "with --local_processes: seconds without a step of a hung process (300)", low=1, high=86_400
    ),
)
RECIPE = Flag(
    "recipe",
    "",
    f"a paper's recipe on your text, which --config and fields override: {' | '.join(RECIPES)} (see mlm recipes)",
    "NAME",
    choices=(*RECIPES,),
)
FLAGS = (
    RECIPE,
    Flag("extend_to", 0, "extend a finished run to so many steps: bit for bit the longer run", "STEPS", low=1),
    command.NO_TUNE_MALLOC,
)


def make_early_parser() -> command.CommandParser:
    """The flags that are read before the others: what to do at all, and which of several processes this is."""
    parser = command.CommandParser(prog="mlm train", add_help=False)
    command.add_flags(parser, command.PRINT_CONFIG)
    command.add_flags(parser.add_argument_group("several processes"), *PROCESSES)
    return parser


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(
        prog="mlm train", description=DESCRIPTION, parents=[make_early_parser()], has_fields=True
    )
    command.add_flags(parser, command.CONFIG, *FLAGS)
    command.add_flags(parser.add_argument_group("checks and restarts of several processes"), *CHECKS)
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    # These flags alone first: a process tells the others what is wrong with its other words.
    flags, _ = make_early_parser().parse_known_args(words[1:])
    processes = rendezvous.RendezvousConfig(
        flags.coordinator, flags.processes, flags.process, flags.distributed, flags.join_timeout
    )
    if flags.print_config:
        from mlm.training.run import resolution

        args, layers = parse_words(words)
        resolved = resolution.resolve_layers(layers, 1 + bool(args.recipe))
        config_help.print_origins(resolved.config, resolved.origins)
        return
    is_child = heartbeat.connect_to_parent() is not None
    if not is_child:
        rendezvous.check_config(processes)
        if processes.is_multiprocess:
            count, expected = flags.local_processes, "neither --coordinator nor --distributed with it"
            errors.require(not count, "--local_processes", count, expected)
            sys.exit(local_processes.run_on_host(sys.orig_argv[1:]))
    with rendezvous.agreement(processes) as facts:
        args, layers = parse_words(words)
        command.check_layers(layers)
        if args.local_processes and not is_child:
            # Without JAX: devices belong to the first process that touches them.
            workdirs = [layer.values["workdir"] for layer in layers if "workdir" in layer.values]
            workdir = ["", *workdirs][-1] or fields.DEFAULT["workdir"]
            options = args.local_processes, args.restarts, args.hang_after
            sys.exit(local_processes.run_processes(sys.orig_argv[1:], workdir, *options))
        cfg = resolve_config(args, layers, facts)
    if args.extend_to:
        cfg = extend(cfg, args)
    run_training(cfg, args, processes)


def parse_words(words: list[str]):
    """The flags of a command line, and its layers of fields, the lowest first."""
    config_flags, others = command.extract_config_flags(words[1:])
    args = make_parser().parse_words(others)
    layers = make_layers(config_flags, args.recipe)
    if args.extend_to:
        layers.append(fields.Layer(f"--extend_to={args.extend_to}", {"train.steps": args.extend_to}))
    return args, layers


def make_layers(config_flags: command.ConfigFlags, recipe_name: str) -> list[fields.Layer]:
    """The layers of fields, the lowest first: of a recipe, if there is one, the --config file and the command line."""
    layers = config_flags.load_layers()
    if recipe_name:
        recipe = RECIPES[recipe_name]
        has_size = any("model.size" in layer.values for layer in layers)
        layers.insert(0, fields.Layer(f"--recipe={recipe_name}", recipe.drop_size() if has_size else recipe.fields))
        corpora = ("data.path", "data.sources", "data.corpus", "data.tfds_name", "data.parallel_path", "data.task")
        has_corpus = any(name in layer.values for layer in layers for name in corpora)
        expected = "your text beside it: data.path='FILES', or another data.corpus; a recipe brings none"
        errors.require(has_corpus, "--recipe", recipe_name, expected)
    return layers


def resolve_config(args, layers, facts: dict):
    """The resolved config; adds to `facts` what must be equal in all processes of the run."""
    from mlm.training.run import resolution

    command.raise_on_interrupt()
    is_single = not (args.extend_to and (args.coordinator or args.distributed))
    expected = "a single process; when it has extended the run, several processes can continue it"
    errors.require(is_single, "--extend_to", args.extend_to, expected)
    cfg = resolution.resolve_layers(layers, 1 + bool(args.recipe)).config
    facts |= {"--processes": args.processes} | rendezvous.shared_fields(fields.flatten(cfg))
    facts |= rendezvous.code_versions()
    return cfg


def extend(cfg, args):
    """Extends the run in config.workdir to cfg's steps; returns the config with which `run_training` continues it."""
    from mlm.data.rows import pack
    from mlm.evaluation import evaluated_run
    from mlm.training.step import optim

    rendezvous.check_devices(args.expect_processes, args.expect_devices)
    evaluated_run.check(cfg)
    cfg = evaluated_run.extend(cfg, pack.load_dataset(cfg))
    warmup = optim.count_warmup_steps(cfg.optim, cfg.train.steps)
    field = f"config.optim.warmup_fraction = {cfg.optim.warmup_fraction!r}"
    print(f"{cfg.workdir}: a run of {cfg.train.steps:,} steps, {warmup:,} of them warm-up ({field})", flush=True)
    return cfg


def run_training(cfg, args, processes: rendezvous.RendezvousConfig) -> None:
    """Trains in this process."""
    import jax

    from mlm.base.estimates import read_scores
    from mlm.data.rows import pack
    from mlm.evaluation import evaluated_run
    from mlm.training.run import hooks, log
    from mlm.training.run.directory import RunDirectory

    with rendezvous.agreement(processes) as facts:
        rendezvous.check_devices(args.expect_processes, args.expect_devices)
        evaluated_run.check(cfg)
        packed = pack.load_dataset(cfg)
        content = "a result" if RunDirectory(cfg.workdir).result.exists() else "none"
        facts |= packed.manifest["inputs"] | {f"what {cfg.workdir} holds": content}
    try:
        result = evaluated_run.train_and_evaluate(cfg, packed)
    except errors.ConfigError as error:
        if processes.is_multiprocess or not evaluated_run.can_extend(cfg, packed):
            raise
        raise errors.ConfigError(f"{error}, or --extend_to={cfg.train.steps}, which extends the run there") from None
    except hooks.DivergenceError as error:
        heartbeat.send_heartbeat(heartbeat.FATAL, 0)
        jax.distributed.shutdown()  # waits for the others, which diverge at the same step
        command.exit_with_line(1, f"error: {error}")
    print(f"done: {cfg.workdir}: {log.format_evaluation(result['evaluation'], read_scores(result))}")
