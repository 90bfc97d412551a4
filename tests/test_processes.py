"""What a process of several knows of itself and of the others, without starting any."""

import socket
import sys
import threading

import pytest

from mlm.base import errors
from mlm.launch import consistency, rendezvous, supervisor


def test_a_process_knows_which_it_is_however_its_flags_are_written():
    want = {"coordinator": "a:1", "num_processes": 2, "process_id": 1, "distributed": False}
    assert (
        consistency.parse_process_flags(["--coordinator=a:1", "--processes=2", "-process=1", "--config.data.path=x=y"])
        == want
    )
    assert (
        consistency.parse_process_flags(
            ["--coordinator", "a:1", "--config", "b.py", "--processes", "2", "--process", "1"]
        )
        == want
    )
    assert consistency.parse_process_flags(["--distributed", "--config=b.py"]) == {
        "coordinator": "",
        "num_processes": 1,
        "process_id": 0,
        "distributed": True,
    }


def test_hosts_have_paths_of_their_own_and_all_else_in_common():
    hosts = [
        consistency.shared_fields({"data.path": at, "data.parallel_path": at, "data.cache_dir": at, "seed": 3})
        for at in "ab"
    ]
    assert hosts == [{"config.seed": 3}] * 2


def test_bad_input_is_never_taken_for_the_end_of_another_process(monkeypatch):
    monkeypatch.setattr(consistency, "has_joined", lambda: True)
    monkeypatch.setattr(consistency, "read_peer_end", lambda: None)
    error = errors.ConfigError("config.data.path = 'connections/*.txt': no file matches")
    assert consistency.find_peer_failure(error) is None
    assert consistency.find_peer_failure(RuntimeError("Gloo AllReduce failed: connection reset by peer"))


def test_a_process_that_is_started_again_takes_its_place(monkeypatch):
    asked, there = rendezvous.RendezvousConfig("a:1", 3, 0, False, 5), {}

    def call():
        ours, theirs = socket.socketpair()
        theirs.sendall(f"{rendezvous.HELLO} 1 3\n".encode())
        return ours, theirs

    first, gone = call()
    assert rendezvous.read_greeting(first, asked, there) == ""
    gone.close()
    again, lives = call()
    assert rendezvous.read_greeting(again, asked, there) == "" and there == {1: again}
    other, _ = call()
    assert rendezvous.read_greeting(other, asked, there) == "two processes have --process=1"
    lives.close()


def test_the_code_of_a_process_is_known_by_every_file_and_where_it_lies(monkeypatch, tmp_path):
    known = []
    for name, text in (("mlm/a.py", "1"), ("mlm/b/a.py", "1"), ("mlm/launch/a.py", "1"), ("mlm/launch/a.py", "2")):
        root = tmp_path / str(len(known))
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
        monkeypatch.setattr(consistency, "__file__", str(root / "mlm" / "launch" / "consistency.py"))
        known.append(consistency.code_versions()["the code of mlm (SHA-256)"])
    assert len(set(known)) == 4


def test_what_native_code_logs_is_told_from_what_we_say():
    told = """E1122 08:49:46.213 12 coordination_service_agent.cc:1] Polling failed
Additional GRPC error information from remote target coordination_service while calling /xla.Poll:
:{"created":"@1","grpc_status":14}
:UNKNOWN:Error received from peer""".splitlines()
    assert all(supervisor.NATIVE.match(line) for line in told)
    for line in ("error: process 0 of this run ended", "I1122 08:49:46.2 12 pack.py:9] packed", "run: step 3/9"):
        assert not supervisor.NATIVE.match(line)


def test_one_that_waited_in_vain_does_not_wait_again_to_say_so(monkeypatch):
    monkeypatch.setattr(rendezvous, "attempted", threading.Event())
    monkeypatch.setattr(sys, "argv", ["run", "--coordinator=localhost:9", "--processes=2", "--process=1"])
    joined = []
    monkeypatch.setattr(
        rendezvous,
        "call_coordinator",
        lambda config, deadline: joined.append(config.process_id) or exec("raise OSError"),
    )
    consistency.report_failure(2, "a field is wrong")
    assert joined == [1]  # to tell the others
    consistency.report_failure(2, "nobody came")
    assert joined == [1]


def test_fewer_devices_than_were_meant_end_a_run_in_a_line_with_both_numbers(capsys):
    consistency.check_devices(0, 0)
    assert capsys.readouterr().out == ""  # one process says nothing of itself, unless something is expected
    consistency.check_devices(1, 4)
    assert capsys.readouterr().out == "1 process, 4 devices here, 4 in all (cpu)\n"
    for expected, said in (
        ((0, 16), "--expect_devices = 16, but the run has 4"),
        ((16, 4), "--expect_processes = 16, but the run has 1"),
    ):
        with pytest.raises(errors.ConfigError, match=f"^{said}: 1 process, 4 devices here, 4 in all .cpu.$"):
            consistency.check_devices(*expected)
