"""A SLURM of this machine's own, in a folder and at ports of its own, for as long as a test runs; or its commands,
which only record what they are called with."""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
WHERE = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000"
CONF = """\
ClusterName=own
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/{track}
TaskPlugin=task/none
SlurmdParameters=config_overrides
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MinJobAge=5
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=first Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""

TOOL = """#!/bin/sh
echo "{name} $*" >> {folder}/calls
cat {folder}/{name} 2>/dev/null
exit "$(cat {folder}/{name}.code 2>/dev/null || echo 0)"
"""


def record_commands(folder: Path, monkeypatch) -> Path:
    """Puts commands on PATH that keep what they are called with, say what a file of their name in the folder holds, and
    end as NAME.code there says."""
    (folder / "bin").mkdir(parents=True)
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (folder / "bin" / name).write_text(TOOL.format(name=name, folder=folder))
        (folder / "bin" / name).chmod(0o755)
    (folder / "sbatch").write_text("4711\n")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return folder


def list_calls(folder: Path, name: str) -> list[str]:
    path = folder / "calls"
    return [line for line in path.read_text().splitlines() if line.startswith(name)] if path.exists() else []


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=WHERE) is None]


class Slurm:
    """track: how SLURM knows a job's processes, by their group ("pgid") or by who started whom ("linuxproc"), as it
    also does by cgroups: then a signal for the job reaches each of them. nodes: 2 are this machine under two names."""

    def __init__(self, folder: Path, cpus: int = 4, track: str = "linuxproc", nodes: int = 1):
        self.folder, self.track, self.daemons = folder, track, {}
        host = socket.gethostname().partition(".")[0]
        self.nodes = [host, "localhost"][:nodes]
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": WHERE}
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o600)
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(nodes + 1)]
            port, *ports = (one.getsockname()[1] for one in sockets)
        lines = [
            NODE.format(name=name, host=host, port=own, cpus=cpus) for name, own in zip(self.nodes, ports, strict=True)
        ]
        (folder / "slurm.conf").write_text(
            CONF.format(
                host=host, port=port, folder=folder, user=getpass.getuser(), track=track, nodes="\n".join(lines)
            )
        )

    def start(self, *words: str) -> None:
        name = "-".join(words[::2][:2]) if words[0] == "slurmd" else words[0]
        with (self.folder / f"{name}.log").open("a") as log:
            self.daemons[name] = subprocess.Popen(words, env=self.env, stdout=log, stderr=log)

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self) -> None:
        at = self.folder
        self.start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={at}/key",
            f"--socket={at}/munge.socket",
            f"--pid-file={at}/munge.pid",
            f"--log-file={at}/munge.log",
            f"--seed-file={at}/seed",
        )
        self.wait(lambda: (at / "munge.socket").exists(), 20)
        self.start("slurmctld", "-D", "-i")
        self.wait(lambda: self.say("scontrol", "ping").find("UP") > 0, 30)
        for name in self.nodes:
            self.start("slurmd", "-N", name, "-D")
        self.wait(lambda: self.say("sinfo", "--noheader", "--Node", "--format=%T").count("idle") >= len(self.nodes), 30)

    def restart_controller(self) -> None:
        self.daemons["slurmctld"].terminate()
        self.daemons["slurmctld"].wait(30)
        self.start("slurmctld", "-D")
        self.wait(lambda: self.say("scontrol", "ping").find("UP") > 0, 30)

    def say(self, *words: str) -> str:
        return subprocess.run(words, env=self.env, capture_output=True, text=True, check=False).stdout

    def wait(self, true, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < until and all(one.poll() is None for one in self.daemons.values()), "\n".join(
                path.read_text()[-1500:] for path in self.folder.glob("*.log")
            )
            time.sleep(0.2)

    def __exit__(self, *failure):
        """Ends the jobs, then the daemons, then whatever else still runs with this SLURM's configuration."""
        self.say("scancel", "--full", "--signal=KILL", f"--user={getpass.getuser()}")
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
        mark = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
