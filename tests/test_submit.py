"""Sweeps handed to a cluster: its commands are recorded, no cluster is there. What a real one does: test_slurm.py."""

import re
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import own_slurm
import pytest
from small import environment, get_refusal

from mlm.base import config, errors, fields, files, warnings_
from mlm.cli import sweep as command
from mlm.launch import code_snapshot
from mlm.launch.cluster import job as cluster_job
from mlm.launch.cluster import slurm
from mlm.launch.sweep import jobs, submit, sweep_points, sweep_state
from mlm.training.run import provenance, resolution
from mlm.training.run.directory import RunDirectory

EXPERIMENT = """SCALES = {"quick": {}}

def sweep(scale):
    return {}

def table(results):
    return [], []
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Four points, two of each of two programs."""
    (tmp_path / "experiment.py").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs" / "some sweep"
    fields_ = {
        f"width{width}-seed{seed}": {"model.width": width, "model.num_heads": 1, "model.num_layers": 1, "seed": seed}
        for width in (8, 16)
        for seed in (0, 1)
    }
    configs = [
        fields.override(cfg, {"workdir": str(root / f"{name}-{fields.fingerprint(cfg)[:6]}")})
        for name, cfg in sweep_points.resolve_points(config.Config(), fields_, {}).items()
    ]
    return submit.Sweep(str(tmp_path / "experiment.py"), root, configs, ("--scale=quick",), (), config.Config(), "")


@pytest.fixture
def go(sweep):
    """submit with options."""

    def call(sweep=sweep, cluster="slurm", **options):
        args = command.make_parser("submit").parse_words(["experiment", f"--cluster={cluster}"])
        submit.submit_sweep(sweep, Namespace(**vars(args) | options))

    return call


def fill_queue(tools, sweep, *commands, job=0):
    """The queue holds these commands, "NUMBER|STATE", of a job."""
    name = Path(jobs.read_jobs(sweep.root)[job].file).parent.name
    with (tools / "squeue").open("a") as file:
        file.writelines(f"{name}|{4711 + job}|{command}\n" for command in commands)


def members(sweep) -> list:
    return [[name.rpartition("-")[0] for name in names] for job in jobs.read_jobs(sweep.root) for names in job.points]


def test_points_of_a_program_share_a_command_and_as_many_commands_as_may_run(sweep):
    a, b, c, d = sweep.configs
    assert submit.group_points([a, c, b, d], 1, 0) == [[a, b], [c, d]]
    assert submit.group_points([a, b, c], 3, 0) == [[a], [b], [c]]
    assert submit.group_points([a, b, c, d], 3, 0) == [[a], [b], [c, d]]
    assert submit.group_points([a, b, c, d], 8, 0) == [[a], [b], [c], [d]]
    assert submit.group_points([a, b, c, d], 1, 1) == [[a], [b], [c], [d]]
    assert submit.group_points([], 8, 0) == []


def test_a_dry_run_shows_whole_files_and_writes_nothing(sweep, go, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    site = ("partition=gpu", "cpus=8", "sbatch=--qos=long --mem=64G")
    go(dry_run=True, max_running=2, accelerator="H200-8", hours=25.5, option=site)
    assert sorted(tmp_path.rglob("*")) == before
    told = capsys.readouterr().out
    train, table = re.split(r"^==> .* <==\n", told, flags=re.MULTILINE)[1:]
    for text in (train, table):
        assert text.startswith("#!/bin/bash\n")
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    for line in (
        "--array=0-1%2",
        "--gpus-per-node=h200:8",
        "--time=1-01:30:00",
        "--partition=gpu",
        "--cpus-per-task=8",
        "--qos=long",
        "--mem=64G",
        "--requeue",
        "--nodes=1",
        f'--output="{sweep.root}/jobs/',
    ):
        assert f"#SBATCH {line}" in train, line
    assert train.count("--points=") == 2 and "'--points=width8-seed0,width8-seed1'" not in train
    assert "--points=width8-seed0,width8-seed1 ;;" in train and "--points=width16-seed0,width16-seed1 ;;" in train
    assert " report " in table and "gpus" not in table and "--points" not in table
    assert not any(word in table for word in ("partition", "--mem", "--qos", "cpus-per-task"))  # they are of the GPUs
    name = re.search("--job-name=(.*)", train)[1]
    assert f"sbatch --parsable '{sweep.root}/jobs/{name}/job.sh'\n" in told
    assert f"sbatch --parsable --dependency=afterany:ID_OF_{name} '{sweep.root}/jobs/{name}-table/job.sh'\n" in told


@pytest.mark.parametrize(
    ("cluster", "asked", "fields_", "said"),
    [
        ("tpu", ("zone=a", "files=texts"), {"data.path": "texts/../a.txt"}, r"data.path = 'texts/../a.txt'"),
        ("slurm", (), {"tokenizer.path": "/tmp/run"}, r"tokenizer.path = '/tmp/run': expected a path on a disk that"),
        (
            "kubernetes",
            ("image=a", "claim=a", "mount=/mnt"),
            {"init.run": "/home/r"},
            r"init.run = '/home/r': .*in /mnt ",
        ),
    ],
)
def test_data_that_a_cluster_cannot_see_is_named_before_anything_is_submitted(
    sweep, go, monkeypatch, cluster, asked, fields_, said
):
    monkeypatch.setattr(submit, "is_reachable", lambda root: False)
    monkeypatch.setattr(code_snapshot, "make_snapshot", lambda *_: code_snapshot.CodeSnapshot(Path("/mnt/code/a"), {}))
    (Path("texts")).mkdir()
    root = Path("/mnt/lab/runs") if "claim=a" in asked else files.make_path("gs://lab")
    configs = [fields.override(cfg, fields_) for cfg in sweep.configs]
    with pytest.raises(errors.ConfigError, match=said):
        go(sweep._replace(root=root, configs=configs), cluster, dry_run=True, option=asked)


@pytest.mark.parametrize("case", ["slurm H200-8", "tpu v5e-8 zone=a", "kubernetes H200-8 image=a"])
def test_setup_lines_come_first_and_a_job_of_gpus_demands_them(sweep, go, monkeypatch, capsys, case):
    cluster, accelerator, *options = case.split()
    monkeypatch.setattr(code_snapshot, "make_snapshot", lambda *_: code_snapshot.CodeSnapshot(Path("/mnt/code/a"), {}))
    root = sweep.root if cluster == "slurm" else files.make_path("gs://lab")
    monkeypatch.setattr(submit, "BUCKET_SECONDS", 0.0)
    go(
        sweep._replace(root=root),
        cluster,
        dry_run=True,
        accelerator=accelerator,
        option=(*options, "setup=module load cuda; true;"),
    )
    train, table = re.split(r"^==> .* <==\n", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    for text in (train, table):
        assert 0 < text.find("{ module load cuda; true; } || exit 1") < text.find("mlm sweep")
    assert ("JAX_PLATFORMS" in train) == accelerator.startswith("H") and "JAX_PLATFORMS" not in table


def test_paths_that_one_host_alone_sees_are_named(sweep, go, tmp_path, monkeypatch, caplog):
    (private := tmp_path / "private").mkdir()
    (tmp_path / "link").symlink_to(private)
    monkeypatch.setattr(slurm, "PRIVATE_FOLDERS", (str(private),))
    monkeypatch.setattr(sys, "executable", str(private / "python"))
    monkeypatch.chdir(private)
    warnings_.warn_once.cache_clear()
    go(sweep._replace(root=tmp_path / "link" / "runs"), dry_run=True)
    for name in ("config.workdir", "the folder that this is called from", "the interpreter"):
        assert caplog.text.count(f"{name} = '") == 1 and f"each host has its own {private}" in caplog.text


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_dry_run_waits_seconds_for_a_bucket_that_does_not_answer(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables = environment(STORAGE_EMULATOR_HOST=f"http://127.0.0.1:{silent.getsockname()[1]}")
        words = ["architectures", "--cluster=tpu", "--option=zone=a", "workdir=gs://lab/runs", "--dry_run"]
        command = [sys.executable, "-m", "mlm", "sweep", "submit", *words]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "gs://lab/runs: no answer within 8 s; shown as if no point were done" in done.stderr


def test_data_that_a_cluster_sees_is_accepted(sweep):
    told = {
        "data.path": "a.txt,gs://b/c",
        "init.hub": "hf:a/b",
        "data.labelled.format": "tfds",
        "data.task_path": "glue",
    }
    assert cluster_job.find_data_paths([fields.override(sweep.configs[0], told)]) == (("--config.data.path", "a.txt"),)


def test_what_is_queued_done_or_held_is_submitted_no_second_time(sweep, go, tools, monkeypatch):
    go(max_running=4)
    train, table = own_slurm.list_calls(tools, "sbatch")
    assert "--dependency" not in train and train.endswith("job.sh") and table.endswith("-table/job.sh")
    assert members(sweep) == [["width8-seed0"], ["width8-seed1"], ["width16-seed0"], ["width16-seed1"], []]
    fill_queue(tools, sweep, "0|RUNNING", "1|RUNNING", "2|PENDING")
    at = sweep_state.read_state(sweep.configs[0])
    monkeypatch.setattr(
        sweep_state, "read_state", lambda cfg: at._replace(name="done") if cfg == sweep.configs[3] else at
    )
    go(max_running=4)
    assert members(sweep)[5:] == [[]]  # the table's job, which is in no queue
    assert "--dependency=afterany:4711" in own_slurm.list_calls(tools, "sbatch")[-1]
    (tools / "squeue").write_text("")
    with RunDirectory(sweep.configs[1].workdir).lock():
        monkeypatch.setattr(
            sweep_state,
            "read_state",
            lambda cfg: at._replace(name="in use") if RunDirectory(cfg.workdir).is_locked() else at,
        )
        go(max_running=1)
    assert members(sweep)[6:] == [["width8-seed0"], ["width16-seed0", "width16-seed1"], []]


@pytest.mark.parametrize("reached", [True, False])
def test_who_is_cut_short_while_submitting_submits_nothing_twice(sweep, go, tools, reached):
    (tools / "sbatch.code").write_text("1")
    (tools / "sbatch").write_text("")
    with pytest.raises(errors.ConfigError, match="sbatch --parsable failed"):
        go(max_running=1)
    (tools / "sbatch.code").unlink()
    if reached:
        fill_queue(tools, sweep, "0|PENDING", "1|PENDING")
    (tools / "calls").unlink()
    go(max_running=1)
    assert len(own_slurm.list_calls(tools, "sbatch")) == (1 if reached else 2)  # the table's job alone, or all
    assert (members(sweep)[2:] == [[]]) == reached


def test_the_status_of_each_point(sweep, go, tools, monkeypatch, capsys):
    files.write_text(RunDirectory(sweep.configs[1].workdir).error, "Diverged, before it was submitted\n")
    go(max_running=1, points_per_command=2)
    first = Path(jobs.read_jobs(sweep.root)[0].file)
    cluster_job.log_path(first, 1).write_text("began\nslurmstepd: error: *** NODE FAILURE ***\n\n")
    fill_queue(tools, sweep, "0|RUNNING")
    a, b, c, d = sweep.configs
    files.write_text(RunDirectory(d.workdir).error, "Diverged: step 3\n")
    RunDirectory(a.workdir).metrics.parent.mkdir()
    files.write_records(RunDirectory(a.workdir).metrics, [{"step": 100, "loss": 2.0, "timed_seconds": 50.0}])
    with RunDirectory(a.workdir).lock():
        found = {one.point: one for one in jobs.read_status(sweep.root, sweep.configs)}
    assert [found[sweep_points.point_name(cfg)].state for cfg in (a, b, c, d)] == [
        "running",
        "queued",
        "lost",
        "failed",
    ]
    seconds = (a.train.steps - 100) // 2
    with RunDirectory(b.workdir).lock():
        assert [one.state for one in jobs.read_status(sweep.root, sweep.configs)] == [
            "queued",
            "running",
            "lost",
            "failed",
        ]
    assert found[sweep_points.point_name(a)].time_left == sweep_state.format_duration(seconds)
    assert found[sweep_points.point_name(a)].step == f"100/{a.train.steps:,}"
    assert found[sweep_points.point_name(c)].note == "slurmstepd: error: *** NODE FAILURE ***"
    assert found[sweep_points.point_name(d)].note == "Diverged: step 3"
    states = [one.state for one in jobs.read_status(sweep.root, sweep.configs)]
    assert states == ["running", "queued", "lost", "failed"]  # on a disk that tells no host what another holds
    (tools / "squeue").unlink()
    fill_queue(tools, sweep, "0|PENDING", "1|PENDING")
    assert [one.state for one in jobs.read_status(sweep.root, sweep.configs)] == [
        "queued",
        "queued",
        "queued",
        "queued",
    ]
    jobs.show_status(sweep.root, sweep.configs)
    assert "4 queued" in capsys.readouterr().out


def test_cancel_tells_those_at_work_to_save(sweep, go, tools, capsys):
    go(max_running=1)
    fill_queue(tools, sweep, "0|RUNNING", "1|PENDING")
    fill_queue(tools, sweep, "0|PENDING", job=1)
    jobs.cancel_jobs(sweep.root)
    assert own_slurm.list_calls(tools, "scancel") == [
        "scancel --quiet --state=PENDING 4711 4712",
        "scancel --quiet --batch --signal=TERM 4711",
    ]
    assert "2 queued commands, and 1 running ones" in capsys.readouterr().out
    (tools / "squeue").write_text("")
    assert [one.state for one in jobs.read_status(sweep.root, sweep.configs)] == ["not started"] * 4  # and none is lost
    jobs.cancel_jobs(sweep.root)
    assert len(own_slurm.list_calls(tools, "scancel")) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"accelerator": "v4-8"}, "--accelerator = 'v4-8': expected one of A100, "),
        ({"hours": float("nan")}, "--hours = nan: expected 0.05 <= value"),
        ({"option": ("partitoin=gpu",)}, "--option = 'partitoin': .*did you mean 'partition'"),
        ({"option": ("sbatch=rm -rf",)}, "--option=sbatch = 'rm -rf': expected flags"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_what_no_cluster_could_be_asked_is_refused_in_a_line(sweep, go, tools, given, said):
    assert re.search(said, get_refusal(go, **given)) and not own_slurm.list_calls(tools, "sbatch")


def test_where_no_slurm_is_submit_says_so_and_leaves_nothing(sweep, go, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(errors.ConfigError, match=r"sbatch is not on PATH: .*; --dry_run shows"):
        go()
    assert not sweep.root.exists()


def test_several_hosts_train_each_point_by_a_command_that_is_the_same_run(sweep, go, capsys):
    go(dry_run=True, hosts=2, accelerator="H200-8")
    train, table = re.split(r"^==> .* <==\n", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    assert "#SBATCH --nodes=2" in train and "srun --label --kill-on-bad-exit=0 " in train
    assert "export JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7\n" in train
    assert "#SBATCH --nodes=1" in table and "srun" not in table
    found = re.findall(r"-m mlm train --distributed --expect_processes=2 --expect_devices=16 (.*) ;;", train)
    for words, cfg in zip(found, sweep.configs, strict=True):
        given = dict(re.findall(r"--config\.([\w.]+)='?([^' ]*(?: sweep[^']*)?)", words))
        typed = {name: type(fields.DEFAULT[name])(value) for name, value in given.items()}
        assert resolution.resolve(config.Config(), typed) == cfg
        assert given["workdir"] == cfg.workdir


def test_the_code_is_copied_once_and_as_it_was(sweep, go, tools, tmp_path, monkeypatch):
    go(max_running=1)
    (folder,) = (sweep.root / "code").iterdir()
    assert (folder / "user" / "experiment.py").read_text() == EXPERIMENT
    assert {"mlm", "configs", "experiments"} <= {path.name for path in folder.iterdir()}
    assert not [path for path in folder.rglob("*") if path.name == "__pycache__" or path.name.startswith(".git")]
    source = provenance.describe_source()
    monkeypatch.setattr(provenance, "__file__", str(folder / "mlm/training/run/provenance.py"))
    assert provenance.describe_source() == source
    go(max_running=1)
    assert len(list((sweep.root / "code").iterdir())) == 1
    (tmp_path / "experiment.py").write_text(f"{EXPERIMENT}# changed\n")
    go(max_running=1)
    assert len(list((sweep.root / "code").iterdir())) == 2
    (tmp_path / "experiment.py").write_text(EXPERIMENT)
    (folder / "mlm" / "launch" / "rendezvous.py").write_text("changed")
    with pytest.raises(errors.ConfigError, match="expected an unchanged copy"):
        go(max_running=1)


def test_a_recipe_of_one_s_own_is_copied_too(sweep, go, tools, tmp_path):
    (tmp_path / "own.py").write_text("the recipe")
    go(sweep._replace(config_path="own.py:small"), max_running=1)
    (code,) = (sweep.root / "code").iterdir()
    assert (code / "user" / "own.py").read_text() == "the recipe"
    text = Path(jobs.read_jobs(sweep.root)[0].file).read_text()
    assert f"'--config={code}/user/own.py:small' --scale=quick" in text


def test_points_are_chosen_by_name_and_by_pattern(sweep):
    names = lambda *wanted: [sweep_points.point_name(cfg) for cfg in sweep_points.select_points(sweep.configs, wanted)]
    assert names() == ["width8-seed0", "width8-seed1", "width16-seed0", "width16-seed1"]
    assert names("width16-seed0", "*-seed1") == ["width8-seed1", "width16-seed0", "width16-seed1"]
    with pytest.raises(errors.ConfigError, match=r"--points = 'width8-seed': .*did you mean 'width8-seed"):
        names("width8-seed")


def test_the_command_line_s_own_settings_reach_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(code_snapshot.ROOT)
    words = [
        "experiments/masking_rate.py",
        "--cluster=slurm",
        "--dry_run",
        "--config.eval.mask_rates=(0.15,0.4)",
        "--config.train.steps=7",
        "--points=*-0.15-*,*-0.8-*",
        "--workers=2",
        f"--config.workdir={tmp_path / 'sweep'}",
    ]
    command.main(["sweep", "submit", *words])
    assert re.search(
        r"sweep/code/\w{12}/experiments/masking_rate.py --scale=quick .*"
        r"'--config.eval.mask_rates=\(0.15, 0.4\)'.* --config.train.steps=7 .*--workers=2 "
        r"--points=transformer-micro-mask-0.8-seed0 ;;",
        capsys.readouterr().out,
    )
    assert not (tmp_path / "sweep").exists() and set(command.VERBS) >= {"submit", "status", "cancel"}
