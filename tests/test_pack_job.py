"""Packing as a job of a cluster: its commands, run one after the other from the job's file, give what one process packs."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import clouds
import own_slurm
import pytest
import yaml
from small import environment
from test_shards import digest, make_config, write_rows

from mlm.base import errors
from mlm.cli import entry
from mlm.data.rows import pack
from mlm.launch.cluster import slurm

CONFIG = """from mlm.base import config, fields

def get_config(mode):
    return fields.override(config.Config(), {"pack.mode": mode})
"""
OPTIONS = {"slurm": ["partition=cpu"], "kubernetes": ["image=a", "claim=b", "mount={}"]}


@pytest.fixture
def words(tmp_path, monkeypatch):
    """The command that packs a file of rows, whose path is relative, in shards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm, "PRIVATE_FOLDERS", ())  # it may be in one
    write_rows(tmp_path / "a.jsonl", random.Random(21), count=200)
    fields_ = {"data.path": "a.jsonl", "data.text_column": "body", "data.cache_dir": "cache", "pack.shard_mb": 0.003}
    fields_ |= {"tokenizer.kind": "words", "tokenizer.vocab_size": 12, "pack.seq_len": 16}
    return ["pack", *(f"{name}={value}" for name, value in fields_.items()), "--processes=1"]


def add_cluster(words, cluster, folder, *more):
    options = (f"--option={option.format(folder)}" for option in OPTIONS[cluster])
    return [*words, "--tasks=2", f"--cluster={cluster}", *options, *more]


def list_scripts(cluster, path):
    """The shell script of each command of a job, and its environment."""
    if cluster == "slurm":
        return [(path.read_text(), {"SLURM_ARRAY_TASK_ID": str(number)}) for number in range(2)]
    jobsets = [*yaml.safe_load_all(path.read_text())]
    pods = [jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"] for jobset in jobsets]
    containers = [container for pod in pods for container in pod["containers"]]
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # that of the image
    return [(one["args"][0], python | {pair["name"]: pair["value"] for pair in one["env"]}) for one in containers]


@pytest.mark.slow
@pytest.mark.exhaustive(but=("slurm",))
@pytest.mark.parametrize("cluster", OPTIONS)
def test_the_commands_of_a_job_pack_what_one_process_packs(tmp_path, words, tools, capsys, monkeypatch, cluster):
    (tools / "bin" / "kubectl").write_text("#!/bin/sh\n")
    (tools / "bin" / "kubectl").chmod(0o755)
    (tmp_path / "own.py").write_text(CONFIG)
    entry.run_command(add_cluster([*words, "--config=own.py:doc_sentences"], cluster, tmp_path))
    (path,) = (tmp_path / "cache" / "jobs").glob("*/*.*")
    assert re.search(rf"2 tasks; output: {path.parent}", capsys.readouterr().out)
    (tmp_path / "own.py").unlink()  # the job has a copy
    outputs = []
    for script, variables in list_scripts(cluster, path):
        assert not [*(tmp_path / "cache").glob("rows-*")]
        done = subprocess.run(
            ["bash", "-c", script],
            env=environment(**variables),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout)
    if cluster == "slurm":
        assert re.search(r"\d+ of \d+ shards are missing", outputs[0]) and "train: " in outputs[1]
    assert [*(tmp_path / "cache").glob("rows-*")] and not [*(tmp_path / "cache").glob("shard-*")]
    options = {"data__text_column": "body", "pack__mode": "doc_sentences", "data__document_boundary": "file"}
    monkeypatch.setattr(pack.text_rows.Packer, "make_dataset", None)  # all is there
    joined = pack.load_dataset(make_config("a.jsonl", "cache", **options))
    monkeypatch.undo()
    assert digest(joined) == digest(
        pack.load_dataset(make_config(str(tmp_path / "a.jsonl"), tmp_path / "b", **options))
    )


@pytest.mark.parametrize("cluster", OPTIONS)
def test_a_dry_run_shows_a_command_for_each_task_and_writes_nothing(tmp_path, words, capsys, cluster):
    before = sorted(tmp_path.rglob("*"))
    entry.run_command(add_cluster(words, cluster, tmp_path, "--hours=2", "--dry_run"))
    shown = capsys.readouterr()
    assert sorted(tmp_path.rglob("*")) == before
    assert re.findall(r"--tasks=2\s+(?:\\\n\s+)?--task=(\d)", shown.out) == ["1", "2"]
    assert shown.out.count("--config.data.path=a.jsonl") == 2 and shown.out.count("--processes=1") == 2
    assert {"slurm": "#SBATCH --time=0-02:00:00", "kubernetes": "7200"}[cluster] in shown.out
    assert "gpu" not in shown.out


def test_a_job_with_more_tasks_than_shards_is_warned_of(tmp_path, words, capsys):
    entry.run_command([*words, "--tasks=99", "--cluster=slurm", "--dry_run"])
    assert re.search(r"--tasks=99: \d+ can work, one a shard; config\.pack\.shard_mb=", capsys.readouterr().err)


def test_a_job_that_is_in_the_queue_is_not_submitted_again(words, tools, capsys):
    for state in ("", "PENDING", ""):
        if (tools / "calls").exists():
            name = Path(own_slurm.list_calls(tools, "sbatch")[0].split()[-1]).parent.name
            (tools / "squeue").write_text(f"{name}|4711|0|{state}\n" if state else "")
        entry.run_command(add_cluster(words, "slurm", ""))
        assert ("1 of 2 tasks are queued or running; submitted nothing" in capsys.readouterr().out) == bool(state)
    assert len(own_slurm.list_calls(tools, "sbatch")) == 2


def test_a_job_of_pods_that_has_ended_is_submitted_again_under_another_name(tmp_path, words, monkeypatch):
    cloud = clouds.install(tmp_path, monkeypatch)
    for count in (1, 2):
        entry.run_command(add_cluster(words, "kubernetes", tmp_path))
        jobsets = json.loads((cloud / "jobsets.json").read_text())
        assert len({one["metadata"]["labels"]["mlm-job"] for one in jobsets.values()}) == count
        for one in jobsets.values():
            one["status"] = {"terminalState": "Failed"}
        (cloud / "jobsets.json").write_text(json.dumps(jobsets))


def test_jobs_of_two_folders_with_one_cache_differ(tmp_path, words, tools, monkeypatch):
    words = [word.replace("cache_dir=cache", f"cache_dir={tmp_path / 'cache'}") for word in words]
    for folder in (tmp_path, tmp_path / "b"):
        folder.mkdir(exist_ok=True)
        (folder / "a.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
        monkeypatch.chdir(folder)
        entry.run_command(add_cluster(words, "slurm", ""))
    first, second = (Path(call.split()[-1]).parent.name for call in own_slurm.list_calls(tools, "sbatch"))
    assert first.rpartition("-")[0] != second.rpartition("-")[0]


def test_a_cache_that_pods_do_not_see_is_named(words):
    with pytest.raises(errors.ConfigError, match=r"^--config\.data\.cache_dir = 'cache': expected a folder in /mnt"):
        entry.run_command([*words, "--tasks=2", "--cluster=kubernetes", *add_cluster([], "kubernetes", "/mnt")[2:]])
