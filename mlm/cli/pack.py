"""mlm pack: packs a corpus into examples, ahead of the runs that train on it."""

import functools
import itertools
import os
import time

from absl import logging

from mlm.base import errors
from mlm.base.flag import Flag
from mlm.cli import command, train

DESCRIPTION = """Pack the corpus of a config into examples, in data.cache_dir, from where all runs read them.

    mlm pack data.path='texts/*.jsonl' tokenizer.kind=wordpiece pack.seq_len=512
    mlm pack --recipe=bert data.path='texts/*.jsonl' --processes=16
    sbatch --array=0-15 --wrap "mlm pack data.path='texts/*.jsonl' --tasks=16"

It takes the words of `mlm train`. A corpus of more than 1024 MB, or than pack.shard_mb, is packed in shards, several at
once; the same command continues after a stop. As tasks of a cluster, each packs its share, and the last joins them.
"""
TASK_VARIABLES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")  # of SLURM and Kubernetes: the number of a task
FLAGS = (
    Flag("processes", 0, "number of processes; 0: one for each core", low=0, high=2**10),
    Flag(
        "tasks", 0, f"number of tasks that share the shards; this one's is in {' or '.join(TASK_VARIABLES)}", high=2**16
    ),
    Flag("verify", False, "hash all files of the corpus and of the cache, also those of the same size and time"),
)


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(prog="mlm pack", description=DESCRIPTION, has_fields=True)
    command.add_flags(parser, command.CONFIG, train.RECIPE, *FLAGS)
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    config_flags, others = command.extract_config_flags(words[1:])
    args = make_parser().parse_words(others)
    layers = train.make_layers(config_flags, args.recipe)
    command.check_layers(layers)
    from mlm.data.rows import mixture, pack
    from mlm.training.run import resolution

    cfg = resolution.resolve_layers(layers, 1 + bool(args.recipe)).config
    processes = args.processes or os.cpu_count() or 1
    start = time.monotonic()
    if args.processes and not args.tasks:
        pack.warn_of_few_shards(cfg, processes)
    if args.tasks:
        packers = pack.make_packers(cfg)
        firsts = [*itertools.accumulate((len(packer.shards) for packer in packers), initial=0)]
        numbers = _share_shards(args.tasks, firsts[-1])
        logging.info("shards %s of %d", f"{numbers[0]}-{numbers[-1]}" if numbers else "none", firsts[-1])
        for first, packer in zip(firsts, packers, strict=False):
            packer.make_shards([i for i in packer.list_missing_shards() if first + i in numbers], processes)
        if num_missing := sum(len(packer.list_missing_shards()) for packer in packers):
            print(f"{num_missing} of {firsts[-1]} shards are missing; whoever packs the last joins them")
            return
    load_dataset = functools.partial(pack.load_dataset, processes=processes, verify=args.verify)
    packed = load_dataset(cfg)
    mixture.list_segments(cfg, packed, load_dataset)  # of other lengths, if the run has phases
    print_summary(packed, cfg, time.monotonic() - start)


def _share_shards(tasks: int, count: int) -> range:
    """The shards of this task."""
    numbers = {name: os.environ[name] for name in TASK_VARIABLES if name in os.environ}
    expected = f"a task of a cluster, whose number is in {' or '.join(TASK_VARIABLES)}"
    errors.require(bool(numbers), "--tasks", tasks, expected)
    name, number = next(iter(numbers.items()))
    errors.require(number.isdigit() and int(number) < tasks, name, number, f"a number below --tasks={tasks}")
    return range(int(number) * count // tasks, (int(number) + 1) * count // tasks)


def print_summary(packed, cfg, seconds: float) -> None:
    """Prints what was packed, and where it lies."""
    from mlm.data.text import corpus

    for split in packed.splits:
        counts = packed.manifest[split]
        documents = counts.get("documents", counts.get("examples", counts.get("pairs", 0)))
        print(
            f"{split}: {documents:,} documents, {counts['rows']:,} examples, {counts['tokens']:,} tokens, "
            f"{counts['padding']:.1%} padding, {counts['unknown']:.2%} unknown"
        )
    num_tokens = sum(packed.manifest[split]["tokens"] for split in packed.splits)
    size = sum(path.stat().st_size for folder in packed.folders for path in folder.glob("*.bin"))
    num_bytes = corpus.count_bytes(cfg.data)
    rate = f", {num_bytes / 1e6 / seconds:.1f} MB/s" if num_bytes else ""
    folders = ", ".join(map(str, packed.folders))
    print(f"{folders}: {size / 1e6:.1f} MB, {size / num_tokens:.2f} bytes a token; {seconds:.1f} s{rate}")
