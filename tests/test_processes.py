"""What a process of several knows of itself and of the others, without starting any."""
from launch import peers
from mlm.base import errors


def test_a_process_knows_which_it_is_however_its_flags_are_written():
    want = {"coordinator": "a:1", "processes": 2, "process": 1, "distributed": False}
    assert peers.given(["--coordinator=a:1", "--processes=2", "-process=1", "--config.data.path=x=y"]) == want
    assert peers.given(["--coordinator", "a:1", "--config", "b.py", "--processes", "2", "--process", "1"]) == want
    assert peers.given(["--distributed", "--config=b.py"]) == {
        "coordinator": "", "processes": 1, "process": 0, "distributed": True}


def test_bad_input_is_never_taken_for_the_end_of_another_process(monkeypatch):
    monkeypatch.setattr(peers, "joined", lambda: True)
    monkeypatch.setattr(peers, "how", lambda: None)
    assert peers.lost(errors.ConfigError("config.data.path = 'connections/*.txt': no file matches")) is None
    assert peers.lost(RuntimeError("Gloo AllReduce failed: connection reset by peer"))
