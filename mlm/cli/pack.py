"""mlm pack: packs a corpus into examples, ahead of the runs that train on it."""

import itertools
import time

from absl import logging

from mlm.base import errors, fields, machine
from mlm.base.flag import Flag
from mlm.cli import command, train

DESCRIPTION = """Pack the corpus of a config into examples, in data.cache_dir, from where all runs read them.

    mlm pack data.path='texts/*.jsonl' tokenizer.kind=wordpiece pack.seq_len=512
    mlm pack --recipe=bert data.path='texts/*.jsonl' --processes=16
    mlm pack data.path='texts/*.jsonl' --tasks=16 --cluster=slurm

It takes the words of `mlm train`. A corpus of more than 1024 MB, or than pack.shard_mb, is packed in shards, several at
once; the same command continues after a stop. As tasks of a cluster, each packs its share, and the last joins them.
"""
FLAGS = (
    Flag("processes", 0, "number of processes, of each task; 0: one for each core", low=0, high=2**10),
    Flag("verify", False, "hash all files of the corpus and of the cache, also those of the same size and time"),
)
JOB_FLAGS = (
    Flag("tasks", 0, "number of tasks that share the shards, each on a host", high=2**16),
    Flag("task", 0, "pack the share of this task alone, a number from 1", high=2**16),
    Flag("cluster", "", "submit the tasks as a job to this kind of cluster", choices=("slurm", "kubernetes")),
    command.HOURS,
    command.DRY_RUN,
)


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(prog="mlm pack", description=DESCRIPTION, has_fields=True)
    command.add_flags(parser, command.CONFIG, train.RECIPE, *FLAGS)
    group = parser.add_argument_group("several hosts")
    command.add_flags(group, *JOB_FLAGS)
    command.add_cluster_option(group)
    return parser


def check_tasks(args) -> None:
    """Raises ConfigError for flags of tasks and jobs that do not go together."""
    if args.tasks or args.task or args.cluster:
        errors.require(args.tasks > 0, "--tasks", args.tasks, "the number of tasks that share the shards")
        expected = f"a number from 1 to --tasks={args.tasks}, or --cluster in its place, which starts all of them"
        is_job = bool(args.cluster)
        errors.require(args.task == 0 if is_job else 0 < args.task <= args.tasks, "--task", args.task, expected)
    if not args.cluster:
        errors.require(not args.option, "--option", args.option, "--cluster with it")
        command.refuse_flags(args, (command.DRY_RUN, command.HOURS), "--cluster with it")


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    config_flags, others = command.extract_config_flags(words[1:])
    args = make_parser().parse_words(others)
    check_tasks(args)
    layers = train.make_layers(config_flags, args.recipe)
    command.check_layers(layers)
    from mlm.data.rows import pack
    from mlm.data.text import corpus
    from mlm.training.run import resolution

    cfg = resolution.resolve_layers(layers, 1 + bool(args.recipe)).config
    if args.cluster:
        submit_job(cfg, args, config_flags)
        return
    processes = args.processes or len(machine.list_cores())
    start = time.monotonic()
    if args.processes and not args.tasks:
        pack.warn_of_few_shards(cfg, "--processes", processes)
    if args.tasks:
        packers = pack.make_packers(cfg)
        firsts = [*itertools.accumulate((len(packer.shards) for packer in packers), initial=0)]
        numbers = range((args.task - 1) * firsts[-1] // args.tasks, args.task * firsts[-1] // args.tasks)
        logging.info("shards %s of %d", f"{numbers[0]}-{numbers[-1]}" if numbers else "none", firsts[-1])
        for first, packer in zip(firsts, packers, strict=False):
            packer.make_shards([i for i in packer.list_missing_shards() if first + i in numbers], processes)
        if num_missing := sum(len(packer.list_missing_shards()) for packer in packers):
            print(f"{num_missing} of {firsts[-1]} shards are missing; whoever packs the last joins them")
            return
    options = {"processes": processes, "verify": args.verify}
    segments = pack.list_segments(cfg, pack.load_dataset(cfg, **options), **options)
    for packed in {one.packed.dataset_info.seq_len: one.packed for one in segments}.values():
        print_summary(packed)
    seconds, num_bytes = time.monotonic() - start, corpus.count_bytes(cfg.data)
    print(f"{seconds:.1f} s" + (f", {num_bytes / 1e6 / seconds:.1f} MB/s" if num_bytes else ""))


def submit_job(cfg, args, config_flags: command.ConfigFlags) -> None:
    """Submits a job whose commands pack a share each, or prints it with --dry_run."""
    from mlm.launch.sweep import submit

    values = {name: getattr(args, name) for name in ("recipe", "processes")}
    flags = [f"--{name}={value}" for name, value in values.items() if value]
    flags += ["--verify"] if args.verify else []
    flags += itertools.starmap(fields.format_flag, config_flags.overrides.items())
    submit.submit_packing(cfg, flags, config_flags.path, args)


def print_summary(packed) -> None:
    """Prints what was packed, and where it lies."""
    for split in packed.splits:
        counts = packed.manifest[split]
        documents = counts.get("documents", counts.get("examples", counts.get("pairs", 0)))
        print(
            f"{split}: {documents:,} documents, {counts['rows']:,} examples of {packed.dataset_info.seq_len} tokens, "
            f"{counts['tokens']:,} tokens, {counts['padding']:.1%} padding, {counts['unknown']:.2%} unknown"
        )
    num_tokens = sum(packed.manifest[split]["tokens"] for split in packed.splits)
    size = sum(path.stat().st_size for folder in packed.folders for path in folder.glob("*.bin"))
    folders = ", ".join(map(str, packed.folders))
    print(f"{folders}: {size / 1e6:.1f} MB, {size / num_tokens:.2f} bytes a token")
