"""What a process of several knows of itself and of the others, without starting any."""

import json
import os
import shlex
import socket
import tempfile

import jax
import pytest

from mlm.base import errors
from mlm.cli import command, train
from mlm.launch import local_processes, rendezvous
from mlm.training.step import parallel

ASKED = rendezvous.RendezvousConfig("a:1", 3, 0, False, 300)


def test_a_process_knows_which_it_is_whatever_is_wrong_with_its_other_words():
    words = "mask.raet=1 --coordinator a:1 --config b.py --processes=2 --nonsense --process 1 --config.x"
    flags, _ = train.make_early_parser().parse_known_args(shlex.split(words))
    assert (flags.coordinator, flags.processes, flags.process, flags.distributed) == ("a:1", 2, 1, False)
    assert train.make_early_parser().parse_known_args(["--distributed", "x"])[0].distributed


def test_hosts_have_paths_of_their_own_and_all_else_in_common():
    hosts = [
        rendezvous.shared_fields({"data.path": at, "data.parallel_path": at, "data.cache_dir": at, "seed": 3})
        for at in "ab"
    ]
    assert hosts == [{"config.seed": 3}] * 2


@pytest.fixture
def others(monkeypatch):
    """Two other processes, which have joined and report what a test puts here: a failure or none, and facts."""
    reports, sent = [], []
    monkeypatch.setattr(rendezvous, "has_joined", lambda: True)
    monkeypatch.setattr(parallel, "gather_texts", lambda text: sent.append(text) or [text, *map(json.dumps, reports)])
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: sent.append("end"))
    return reports, sent


def agree(asked=ASKED, error=None, **found):
    with rendezvous.agreement(asked) as facts:
        facts |= found
        if error:
            raise error


def test_processes_that_agree_go_on_and_those_that_differ_end_together(others):
    reports, sent = others
    reports[:] = [[None, {"a": 1, "b": [2]}]] * 2
    agree(a=1, b=(2,))
    assert sent.pop() != "end"
    reports[1] = [None, {"a": 1, "b": [3]}]
    with pytest.raises(errors.ConfigError, match=r"differ: b is \[2\] on process 0 and \[3\] on process 2$"):
        agree(a=1, b=(2,))
    assert sent[-1] == "end"


def test_what_fails_on_one_process_ends_all_each_with_the_exit_code_and_the_line(others):
    reports, sent = others
    reports[:] = [[None, {}], [[2, "config.a = 1: expected 2"], {}]]
    with pytest.raises(errors.ConfigError, match=r"^process 2 of this run ended: config.a = 1: expected 2$"):
        agree(a=1)
    reports[1] = [[1, "PermissionError: no"], {}]
    with pytest.raises(ConnectionAbortedError) as aborted:
        agree(a=1)
    line = "process 2 of this run ended: PermissionError: no"
    assert command.describe_machine_failure(aborted.value) == (1, f"error: {line}")
    with pytest.raises(OSError, match="here"):  # its own error, whatever the others say
        agree(error=OSError("here"))
    assert json.loads(sent[-2]) == [[1, "OSError: here"], {}] and sent[-1] == "end"


@pytest.mark.parametrize(
    ("end", "code", "line"),
    [
        ("os.abort()", 1, "error: another ended (log: LOG)"),
        ("heartbeat.send_end(heartbeat.ERROR, 2, 'error: mine'), os.abort()", 2, "error: mine (log: LOG)"),
        ("os.kill(os.getpid(), 9)", 1, "error: killed by SIGKILL (log: LOG)"),
        ("sys.exit(143)", 143, ""),
        ("sys.exit(0)", 0, ""),
    ],
)
def test_a_process_ends_in_one_line_and_what_native_code_prints_is_in_its_log(
    monkeypatch, capfd, tmp_path, end, code, line
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    lines = [
        "import os, sys",
        "from mlm.launch import child_process",
        "from mlm.training.run import heartbeat",
        "child_process.attach_to_parent()",
        "os.write(2, b'F1122 native.cc:1] a page')",
        "print('a line', file=sys.stderr)",
        "heartbeat.send_end(heartbeat.LAST_WORDS, 1, 'another ended')",
        end,
    ]
    assert local_processes.run_on_host(["-c", "\n".join(lines)]) == code
    logs = [*tmp_path.iterdir()]
    assert [path.read_text() for path in logs] == (["F1122 native.cc:1] a page"] if line else [])
    said = line.replace("LOG", str(logs[0])) if logs else line
    assert capfd.readouterr().err.splitlines() == ["a line", *([said] if said else [])]


def test_the_code_of_a_process_is_known_by_every_file_and_where_it_lies(monkeypatch, tmp_path):
    known = []
    for name, text in (("mlm/a.py", "1"), ("mlm/b/a.py", "1"), ("mlm/launch/a.py", "1"), ("mlm/launch/a.py", "2")):
        root = tmp_path / str(len(known))
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
        monkeypatch.setattr(rendezvous, "__file__", str(root / "mlm" / "launch" / "rendezvous.py"))
        known.append(rendezvous.code_versions()["the code of mlm (SHA-256)"])
    assert len(set(known)) == 4


def test_fewer_devices_than_were_meant_end_a_run_in_a_line_with_both_numbers(capsys):
    rendezvous.check_devices(0, 0)
    assert capsys.readouterr().out == ""  # one process says nothing of itself, unless something is expected
    rendezvous.check_devices(1, 4)
    assert capsys.readouterr().out == "1 process, 4 devices here, 4 in all (cpu)\n"
    for expected, said in (
        ((0, 16), "--expect_devices = 16, but the run has 4"),
        ((16, 4), "--expect_processes = 16, but the run has 1"),
    ):
        with pytest.raises(errors.ConfigError, match=f"^{said}: 1 process, 4 devices here, 4 in all .cpu.$"):
            rendezvous.check_devices(*expected)


def test_a_port_that_is_in_use_is_named_before_jax_comes_to_it(monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OSError) as raised:
            rendezvous.join_processes(rendezvous.RendezvousConfig(coordinator, 2, 0, False, 1))
    assert command.describe_machine_failure(raised.value) == (1, f"error: the address is in use: {coordinator}")
