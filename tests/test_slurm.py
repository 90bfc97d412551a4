"""Sweeps on a real SLURM of this machine's own: whatever befalls their jobs, each point is done once, as it is alone.

It takes minutes, and Debian's slurm-wlm and munge (apt-get install; no service needs to run).
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import own_slurm
import pytest
from small import environment

from mlm.base import files
from mlm.launch.cluster import job as jobs
from mlm.launch.cluster import slurm as cluster
from mlm.training.run.directory import RunDirectory

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(bool(own_slurm.missing()), reason=f"not here: {', '.join(own_slurm.missing())}"),
]

ROOT = Path(__file__).parents[1]
STEPS = 800
EXPERIMENT = f'''
from mlm.experiment.grid import cross_points, make_axis, name_points
from mlm.report import summary
from mlm.report.table import Column

FIELDS = {{"model.family": "feedforward", "model.num_layers": 2, "model.width": 32, "model.mlp_dim": 64,
          "pack.seq_len": 32, "data.language.train_documents": 1000, "data.language.validation_documents": 100,
          "tokenizer.kind": "words", "train.steps": {STEPS}, "train.batch_size": 16, "train.checkpoint_every": 200,
          "train.log_every": 10, "eval.max_examples": 64}}
SCALES = {{"quick": FIELDS}}


def sweep(scale):
    """Twelve points of two programs."""
    points = cross_points(make_axis("model.window", 1, 2, name="window{{}}"),
                     make_axis("optim.learning_rate", 1e-3, 4e-3, name="lr{{}}"), make_axis("seed", 0, 1, 2, name="seed{{}}"))
    return {{name: SCALES[scale] | point for name, point in name_points(points).items()}}


def about(seeds):
    return {{name: seeds[0]["config"][name] for name in ("model.window", "optim.learning_rate")}}


def table(results):
    columns = [Column(name, name, "g") for name in ("model.window", "optim.learning_rate")]
    return summary.build_table(results, columns, about)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "experiment.py").write_text(EXPERIMENT)
    return folder


@pytest.fixture(scope="module", params=["linuxproc", "pgid"])
def slurm(request, tmp_path_factory):
    with own_slurm.Slurm(tmp_path_factory.mktemp("slurm") / "own", track=request.param) as slurm:
        yield slurm


def sweep(slurm, folder, verb, root, *more, code=0):
    command = [
        sys.executable,
        "-m",
        "mlm",
        "sweep",
        verb,
        str(folder / "experiment.py"),
        f"--config.workdir={folder / root}",
        f"--config.data.cache_dir={folder / 'cache'}",
        *more,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=(slurm.env if slurm else os.environ) | {"XLA_FLAGS": environment()["XLA_FLAGS"]},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def alone(folder):
    """The table of the sweep on this machine, without a cluster."""
    sweep(None, folder, "run", "alone")
    return (folder / "alone" / "table.csv").read_bytes()


def step(run: Path) -> int:
    return max((record["step"] for record in files.read_complete_lines(RunDirectory(run).metrics)[0]), default=0)


def starts(root: Path) -> dict[str, list[int]]:
    """The steps at which each run was started, by the point's name."""
    return {
        path.parent.name.rpartition("-")[0]: [start["step"] for start in RunDirectory(path.parent).read_provenance()]
        for path in root.glob("*/provenance.json")
    }


class Watched:
    """A sweep that was submitted."""

    def __init__(self, slurm, root: Path, said: str):
        self.slurm, self.root = slurm, root
        self.number = re.search(r"SLURM job (\d+): \d+ points", said)[1]

    def member(self) -> tuple[str, str]:
        """A command that is at work, in the middle of a run: its number, and the name of its point."""
        found = []

        def look():
            for task in self.slurm.say(
                "squeue", "--noheader", "--states=RUNNING", f"--jobs={self.number}", "--format=%K"
            ).split():
                for path in (self.root / "jobs").glob("*/job.sh"):
                    if match := re.search(rf"^ +{task}\) .*--points=(\S+)", path.read_text(), re.MULTILINE):
                        at = [step(run) for run in self.root.glob(f"{match[1]}-??????")]
                        if at and 50 < at[0] < STEPS / 2:
                            found.append((f"{self.number}_{task}", match[1]))
            return bool(found)

        self.slurm.wait(look, 900)
        return found[0]

    def ended(self, task: str) -> bool:
        return not self.slurm.say("squeue", "--noheader", "--array", f"--jobs={task}", "--format=%T").strip()

    def process(self, point: str) -> int:
        """The id of the command that trains a point: not of its worker, nor of the shell around it."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = path.read_bytes().split(b"\0") if path.exists() else []
            if f"--points={point}".encode() in words and b"sweep" in words:
                return int(path.parent.name)
        raise AssertionError(point)


def test_requeued_cancelled_killed_and_without_its_controller_every_point_is_done_once(slurm, folder, alone):
    root = folder / f"submitted-{slurm.track}"
    began = time.monotonic()
    said = sweep(slurm, folder, "submit", root.name, "--cluster=slurm", "--max_running=2", "--points_per_command=1")
    assert "12 points: 12 to submit" in said
    watched = Watched(slurm, root, said)

    task, requeued = watched.member()
    slurm.say("scontrol", "requeue", task)
    slurm.wait(lambda: "PENDING" in slurm.say("squeue", "--noheader", "--array", f"--jobs={task}", "--format=%T"), 300)
    task, cancelled = watched.member()
    slurm.say("scancel", task)
    slurm.wait(lambda: watched.ended(task), 300)
    slurm.restart_controller()
    task, killed = watched.member()
    os.kill(watched.process(killed), signal.SIGKILL)
    slurm.wait(lambda: watched.ended(task), 300)
    task, warned = watched.member()
    slurm.say("scancel", "--batch", "--signal=USR1", task)  # as SLURM does before the time is up
    assert len({requeued, cancelled, killed, warned}) >= 3

    states = sweep(slurm, folder, "status", root.name)
    lost = sorted(re.findall(r"^(\S+-seed\d) +lost", states, re.MULTILINE))
    assert lost == sorted({cancelled, killed})
    again = ("submit", root.name, "--cluster=slurm", "--max_running=2", "--points_per_command=1")
    assert f"{len(lost)} to submit" in sweep(slurm, folder, *again)
    said = sweep(slurm, folder, *again)
    assert "0 to submit" in said and "SLURM job" not in said
    slurm.wait(lambda: not slurm.say("squeue", "--noheader"), 3600)
    assert "12 of 12 points are done" in (root / "jobs" / name_last_job(root) / "0.log").read_text()
    assert (root / "table.csv").read_bytes() == alone
    found = starts(root)
    print(
        f"\n{slurm.track}: {time.monotonic() - began:.0f} s; requeued {requeued}, cancelled {cancelled}, killed "
        f"{killed}, warned {warned}; started at steps {found}"
    )
    for name, steps in found.items():
        assert (len(steps) > 1) == (name in {requeued, cancelled, killed, warned}), (name, steps)
        assert all(later > 0 for later in steps[1:]), (name, steps)
    assert all(at % 200 for at in (found[cancelled][1], found[warned][1]))  # saved when told
    assert "12 done" in sweep(slurm, folder, "status", root.name)


def name_last_job(root: Path) -> str:
    return Path(files.read_json_with_digest(root / "submitted.json")["jobs"][-1]["file"]).parent.name


SAVES = """import signal, sys, time

def told(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(2)
    print("saved", flush=True)
    sys.exit(143)

signal.signal(signal.SIGTERM, told)
print("begins", flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_a_command_that_is_preempted_or_whose_time_is_up_saves_and_is_queued_again(slurm, tmp_path):
    def put(name, seconds, *options):
        made = jobs.Job(
            name,
            ((sys.executable, "-c", SAVES, str(seconds)),),
            tmp_path / name,
            tmp_path,
            tmp_path,
            "",
            hours=0.05,
            max_running=1,
            options=jobs.parse_options(cluster.OPTIONS, options),
        )
        made.folder.mkdir()
        (made.folder / cluster.FILE).write_text(cluster.render_script(made))
        return slurm.say("sbatch", "--parsable", str(made.folder / cluster.FILE)).strip(), made.folder / "0.log"

    def waits(word, times, seconds):
        slurm.wait(lambda: log.exists() and log.read_text().count(word) == times, seconds)

    number, log = put("low", 600)
    waits("begins", 1, 120)
    _, above = put("high", 0, "partition=first", "cpus=4")
    waits("saved", 1, 120)
    slurm.wait(lambda: above.exists() and "begins" in above.read_text(), 300)
    slurm.wait(lambda: "PENDING" in slurm.say("squeue", "--noheader", f"--jobs={number}", "--format=%T"), 300)
    slurm.say("scontrol", "update", f"JobId={number}", "StartTime=now")  # which is after two minutes
    waits("begins", 2, 300)
    waits("saved", 2, 120)  # of its three minutes
    slurm.wait(lambda: "PENDING" in slurm.say("squeue", "--noheader", f"--jobs={number}", "--format=%T"), 300)
    slurm.say("scancel", number)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with own_slurm.Slurm(tmp_path_factory.mktemp("hosts") / "own", nodes=2) as slurm:
        yield slurm


def test_two_hosts_train_a_point_together_and_go_on_after_a_cancel(hosts, folder):
    root, points = folder / "hosts", "--points=window1-lr0.001-seed0"
    sweep(None, folder, "run", "one", points)
    sweep(hosts, folder, "submit", root.name, "--cluster=slurm", "--hosts=2", points)
    hosts.wait(lambda: any(step(run) > 50 for run in root.glob("window1-*")), 600)
    assert "1 running" in sweep(hosts, folder, "status", root.name, points)
    sweep(hosts, folder, "cancel", root.name)
    hosts.wait(lambda: not hosts.say("squeue", "--noheader"), 900)
    assert "1 stopped" in sweep(hosts, folder, "status", root.name, points)
    sweep(hosts, folder, "submit", root.name, "--cluster=slurm", "--hosts=2", points)
    hosts.wait(lambda: not hosts.say("squeue", "--noheader"), 900)
    assert "1 done" in sweep(hosts, folder, "status", root.name, points)
    (run,) = root.glob("window1-*")
    first, second = RunDirectory(run).read_provenance()
    assert first["step"] == 0 and second["step"] % 200 and first["processes"] == second["processes"] == 2
    ours, theirs = (RunDirectory(one).read_result()["evaluation"]["loss"] for one in (run, folder / "one" / run.name))
    assert ours == pytest.approx(theirs, rel=1e-4)
