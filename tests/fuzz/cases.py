"""Inputs that a user could get wrong: values of every config field, command lines, and files."""

import math
from pathlib import Path

from mlm.base import config, fields

DEFAULT = fields.flatten(config.Config())
# What no field of a type can be; which other values are right, each field's own checks know.
VALUES: dict[type, tuple] = {
    float: (math.nan, math.inf, -math.inf, 1e308, 1e-300),
    int: (2**32, 2**63, -(2**63)),
    str: ("a\0b", "a\nb", "a\rb"),
    bool: (),
    tuple: ((math.nan,), (math.inf,), (1e308,), (1e-300,)),
}

# Command lines, {} a folder made by `write_files`: what a process alone meets. What one value or file may be is held
# in process (tests/test_fuzz.py, and the tests of clusters and tasks).
TRAIN = [
    ["--config={}/exits.py"],
    ["--config="],
    ["--config.workdir=/proc/none/a"],
    ["--config.workdir=gs://"],
    ["--config.workdir=hdfs://lab/a"],
    *([f"--config.data.cache_dir={path}"] for path in ("", "{}/empty.py", "/dev/null/a")),
    *([f"--config.data.path={path}"] for path in ("{}/none.txt", "{}", "{}/pipe", "{}/torn.gz", "{}/no.gz", ",")),
    ["--config.data.path={}/one.txt"],
    ["--config.data.path={}/as.txt", "--config.data.document_boundary=((a|aa)+)+!"],
    ["--config.data.corpus=tfds"],
    ["--config.data"],
    ["--config.=1"],
    ["--config.mask.rate.x=1"],
    ["word"],
    ["--coordinator=no.such.host.invalid:999", "--processes=2"],
    ["--coordinator=localhost:9", "--processes=2", "--process=1", "--join_timeout=1"],
    ["--coordinator=localhost:48761", "--processes=2", "--process=0", "--join_timeout=1"],
    ["--distributed"],
    ["--local_processes=2", "--coordinator=localhost:9"],
    ["--expect_devices=4096"],
]
SWEEP = [
    [],
    ["run"],
    ["list", "{}/deep.py"],
    ["list", "{}/same.py"],
    ["list", "{}/good.py", "--config.model.num_heads=8", "--config.model.family=rnn"],
    ["list", "{}/good.py", "--workers=2"],
    ["run", "{}/good.py", "--workers=999999999999"],
    ["plan", "{}/good.py", "--accelerator=abacus"],
    ["table", "{}/table_raises.py"],
    ["table", "{}/good.py", "--points=*"],
    ["submit", "{}/good.py"],
    ["submit", "{}/good.py", "--dry_run", "--cluster=tpu", "--accelerator=v5p-8"],
    ["cancel", "{}/good.py", "--points=*"],
]
EVALUATE = [[], ["{}/none"], ["{}"], ["{}/empty.py"], [""], ["{}/none", "--blimp={}/none"]]
FINETUNE = [[], ["{}/none"], ["{}"], [""], ["{}/none", "{}/none"], ["--config.data.task=tag"]]
USE = [
    [],
    ["fil", "{}/none", "a"],
    ["fill", "{}", "a"],
    ["fill", "{}/pipe", "a"],
    ["fill", "{}/none", "a", "--file={}/one.txt"],
    ["embed", "hf:no/such/name", "a"],
    ["attention", "", "a"],
    ["similar", "{}/none", "a", "--file={}/torn.gz"],
    ["serve", "{}/none"],
]
CONVERT = [[], ["{}/none"], ["{}", "{}/empty.py"], ["", ""]]
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
    }.items():
        (folder / f"{name}.py").write_text(text)
    for name, points in {
        "good": "{'a': {}}",
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
        "number": "{1: {}}",
        "contradiction": "{'a': {'model.window': 3}}",
        "same": "{'a': {}, 'b': {}}",
    }.items():
        experiment(name, points)
    experiment("table_raises", "{'a': {}}", "1 / 0")
    (folder / "one.txt").write_text("one document.\n")
    (folder / "as.txt").write_text("a" * 80 + "\n" + "b\n" * 50)
    (folder / "torn.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abc")
    (folder / "no.gz").write_bytes(b"no gzip at all")
