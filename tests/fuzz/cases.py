"""Inputs that a user could get wrong: values of every config field, command lines, and files."""

import math
from pathlib import Path

from mlm.base import config, fields

DEFAULT = fields.flatten(config.Config())
VALUES: dict[type, tuple] = {
    float: (math.nan, math.inf, -math.inf, -1.0, 1e308, 1e-300),
    int: (-1, 0, 2**31 - 1, 2**31, 2**63),
    str: ("", "nonsense", "a/b", "a\0b", "a\nb", "x" * 5000),
    bool: (),
    tuple: ((math.nan,), (0.0,), (1.0,), (2,), ("a",), ((0.1,),)),
}
# Fields that contradict one another.
CONTRADICTIONS = [
    {"data.validation_path": "a.txt"},
    {"data.tfds_name": "lm1b"},
    {"model.family": "rnn", "model.num_heads": 8},
    {"model.window": 3},
    {"model.family": "rnn", "model.cell": "elman", "model.chrono_init": 9},
    {"objective": "causal", "mask.rate": 0.3},
    {"objective": "causal", "eval.mask_rates": (0.3,)},
    {"mask.final_rate": 0.2},
    {"optim.decay_fraction": 0.3},
    {"optim.schedule": "constant", "optim.final_lr_fraction": 0.1},
    {"data.corpus": "docstrings", "data.language.num_topics": 2},
    {"pack.isolate_documents": False},
    {"data.corpus": "docstrings", "data.path": "a.txt"},
    {"model.family": "feedforward", "model.qk_norm": True},
    {"data.language.modifier_prob": 0.0, "data.language.modifier_continue_prob": 0.2},
    {"model.scan_unroll": 9},
    {"train.batch_size": 3, "train.grad_accum_steps": 2},
    {"model.width": 7, "model.num_heads": 2},
]

# Command lines; {} is a folder made by `write_files`.
TRAIN = [
    ["--config={}/none.py"],
    ["--config={}"],
    ["--config={}/pipe"],
    ["--config={}/syntax.py"],
    ["--config={}/raises.py"],
    ["--config={}/exits.py"],
    ["--config={}/empty.py"],
    ["--config={}/nothing.py"],
    ["--config={}/wrong.py"],
    ["--config={}/types.py"],
    ["--config={}/nul.py"],
    ["--config="],
    ["--config.workdir={}/empty.py"],
    ["--config.workdir={}/empty.py/below"],
    ["--config.workdir=/proc/none/a"],
    ["--config.workdir="],
    ["--config.workdir={}/" + "n" * 300],
    ["--config.data.cache_dir={}/empty.py"],
    ["--config.data.cache_dir="],
    ["--config.data.cache_dir=/dev/null/a"],
    ["--config.data.path={}/none.txt"],
    ["--config.data.path={}"],
    ["--config.data.path={}/pipe"],
    ["--config.data.path={}/torn.gz"],
    ["--config.data.path={}/no.gz"],
    ["--config.data.path={}/one.txt"],
    ["--config.data.path=,"],
    ["--config.data.path={}/one.txt", "--config.data.document_boundary=("],
    ["--config.data.path={}/as.txt", "--config.data.document_boundary=((a|aa)+)+!"],
    ["--config.data.corpus=tfds"],
    ["--config.data"],
    ["--config.mask.rate"],
    ["--config.mask.rate="],
    ["--config.train.steps=1e3"],
    ["--config.train.steps=many"],
    ["--config.model.kernels=maybe"],
    ["--config.=1"],
    ["--config.mask.rate.x=1"],
    ["word"],
    ["--unknown"],
    ["--processes=2"],
    ["--process=1"],
    ["--coordinator=localhost:0", "--processes=2"],
    ["--coordinator=localhost:99999", "--processes=2"],
    ["--coordinator=localhost:port", "--processes=2"],
    ["--coordinator=localhost", "--processes=2"],
    ["--coordinator=:1", "--processes=2"],
    ["--coordinator=no.such.host.invalid:999", "--processes=2"],
    ["--coordinator=localhost:9", "--processes=2", "--process=2"],
    ["--coordinator=localhost:9", "--distributed"],
    ["--coordinator=localhost:9", "--processes=2", "--process=1", "--join_timeout=1"],
    ["--coordinator=localhost:48761", "--processes=2", "--process=0", "--join_timeout=1"],
    ["--distributed"],
    ["--processes=0"],
    ["--process=-1"],
    ["--processes=99999999999"],
    ["--join_timeout=0"],
    ["--local_processes=-1"],
    ["--local_processes=2", "--coordinator=localhost:9"],
    ["--restarts=-1"],
    ["--hang_after=0"],
    ["--expect_processes=3"],
    ["--expect_devices=4096"],
    ["--config.workdir=gs:/lab/a"],
    ["--config.workdir=s3://lab/a"],
    ["--config.workdir=gs://"],
    ["--config.workdir=hdfs://lab/a"],
]
SWEEP = [
    [],
    ["run"],
    ["lst", "{}/good.py"],
    ["list", "{}/none.py"],
    ["list", "{}"],
    ["list", "{}/pipe"],
    *(
        ["list", f"{{}}/{name}.py"]
        for name in (
            "syntax",
            "raises",
            "exits",
            "empty",
            "nul",
            "no_scales",
            "scales_no_dict",
            "no_table",
            "sweep_raises",
            "sweep_exits",
            "sweep_nothing",
            "sweep_list",
            "sweep_empty",
            "unknown_field",
            "wrong_type",
            "deep",
            "dots",
            "slash",
            "newline",
            "nul_name",
            "empty_name",
            "long_name",
            "number_name",
            "contradiction",
            "same",
        )
    ),
    ["list", "{}/good.py", "--scale=large"],
    ["list", "{}/good.py", "--budget=money"],
    ["list", "{}/good.py", "--config.model.num_heads=8", "--config.model.family=rnn"],
    ["list", "{}/good.py", "--config.workdir={}/empty.py/a"],
    ["list", "{}/good.py", "--config.workdir="],
    ["list", "{}/good.py", "--workers=2"],
    ["run", "{}/good.py", "--workers=0"],
    ["run", "{}/good.py", "--workers=999999999999"],
    ["plan", "{}/good.py", "--accelerator=abacus"],
    ["plan", "{}/good.py", "--count=0"],
    ["plan", "{}/good.py", "--utilisation=nan"],
    ["plan", "{}/good.py", "--utilisation=2"],
    ["table", "{}/table_raises.py"],
    ["list", "{}/good.py", "extra"],
    ["list", "{}/good.py", "--dry_run"],
    ["list", "{}/good.py", "--points=none"],
    ["table", "{}/good.py", "--points=*"],
    ["submit", "{}/good.py"],
    *(
        ["submit", "{}/good.py", "--dry_run", f"--cluster={cluster}", *more]
        for cluster, *more in (
            ("lsf",),
            ("slurm", "--accelerator=abacus"),
            ("slurm", "--hours=nan"),
            ("slurm", "--hours=-1"),
            ("slurm", "--hosts=-1"),
            ("slurm", "--max_running=0"),
            ("slurm", "--option=zone=a"),
            ("slurm", "--option=cpus=x"),
            ("slurm", '--option=sbatch="a'),
            ("tpu",),
            ("tpu", "--accelerator=v5p-8"),
            ("tpu", "--accelerator=H200"),
            ("tpu", "--accelerator=v5p-8", "--option=zone=us-east5-a"),
            ("kubernetes",),
            ("kubernetes", "--accelerator=v5p-8"),
            ("kubernetes", "--accelerator=H200", "--option=image=a b"),
        )
    ),
    ["cancel", "{}/good.py", "--points=*"],
]
EVALUATE = [
    [],
    ["{}/none"],
    ["{}"],
    ["{}/empty.py"],
    [""],
    ["{}/none", "--blimp={}/none"],
    ["{}/none", "--max_pairs=-1"],
    ["{}/none", "--config.seed=3"],
    ["{}/none", "--paradigms=a"],
    ["{}/none", "--config.eval.batch_size=-4"],
]
FINETUNE = [
    [],
    ["{}/none"],
    ["{}"],
    ["{}/empty.py"],
    [""],
    ["{}/none", "--epochs=nan"],
    ["{}/none", "--epochs=-1"],
    ["{}/none", "--config.data.task=topic"],
    ["{}/none", "{}/none"],
    ["--config.data.task=tag"],
    ["{}/none", "--config.data.task=sst2", "--config.data.task_path={}"],
    ["{}/none", "--from_scratch", "--config.data.task=topik"],
]
USE = [
    [],
    ["fill"],
    ["fil", "{}/none", "a"],
    ["fill", "{}/none", "a"],
    ["fill", "{}", "a"],
    ["fill", "{}/pipe", "a"],
    ["fill", "{}/none", "--file={}/none"],
    ["fill", "{}/none", "a", "--file={}/one.txt"],
    ["fill", "{}/none"],
    ["embed", "hf:no/such/name", "a"],
    ["attention", "", "a"],
    ["score", "{}/none", "a", "--metric=pl"],
    ["readability", "{}/none", "a", "--every=1"],
    ["similar", "{}/none", "a", "--file={}/torn.gz"],
    ["serve", "{}/none"],
    ["serve", "{}/none", "--port=70000"],
]
CONVERT = [[], ["{}/none"], ["{}/none", "{}/out"], ["{}", "{}/empty.py"], ["", ""]]
COMMANDS = {"train": TRAIN, "sweep": SWEEP, "evaluate": EVALUATE, "finetune": FINETUNE, "": USE, "convert": CONVERT}
COMMAND_LINES = [[*name.split(), *words] for name, group in COMMANDS.items() for words in group]

EXPERIMENT = "SCALES = {{'quick': {{}}}}\ndef sweep(scale):\n    return {}\ndef table(results):\n    return {}\n"


def write_files(folder: Path) -> None:
    """Writes the files that the cases name."""

    def experiment(name, points, table="[], []"):
        (folder / f"{name}.py").write_text(EXPERIMENT.format(points, table))

    import os

    os.mkfifo(folder / "pipe")
    for name, text in {
        "syntax": "def get_config(:\n",
        "raises": "x = 1\n1 / 0\n",
        "exits": "import sys\nsys.exit(3)\n",
        "empty": "",
        "nothing": "def get_config():\n    pass\n",
        "nul": "a = 1\0\n",
        "wrong": "def get_config():\n    return {'mask.rate': 0.1}\n",
        "types": "from mlm.base.config import Config\ndef get_config():\n    return Config(seed='a')\n",
        "no_scales": "def sweep(scale): pass\ndef table(results): pass\n",
        "scales_no_dict": "SCALES = 3\ndef sweep(scale): pass\ndef table(results): pass\n",
        "no_table": "SCALES = {'quick': 1}\ndef sweep(scale): return {}\n",
    }.items():
        (folder / f"{name}.py").write_text(text)
    for name, points in {
        "good": "{'a': {}}",
        "sweep_raises": "1 / 0",
        "sweep_exits": "exit(0)",
        "sweep_nothing": "None",
        "sweep_list": "[{}]",
        "sweep_empty": "{}",
        "unknown_field": "{'a': {'mask.raet': 0.1}}",
        "wrong_type": "{'a': {'seed': '1'}}",
        "deep": "{'a': {'seed': __import__('functools').reduce(lambda x, _: [x], range(99999), 0)}}",
        "dots": "{'..': {}}",
        "slash": "{'a/b': {}}",
        "newline": "{'a\\nb': {}}",
        "nul_name": "{'a\\0b': {}}",
        "empty_name": "{'': {}}",
        "long_name": "{'a' * 300: {}}",
        "number_name": "{1: {}}",
        "contradiction": "{'a': {'model.window': 3}}",
        "same": "{'a': {}, 'b': {}}",
    }.items():
        experiment(name, points)
    experiment("table_raises", "{'a': {}}", "1 / 0")
    (folder / "one.txt").write_text("one document.\n")
    (folder / "as.txt").write_text("a" * 80 + "\n" + "b\n" * 50)
    (folder / "torn.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abc")
    (folder / "no.gz").write_bytes(b"no gzip at all")
