"""What is damaged in a run's directory is named, and made again or gone back from; nothing else comes of it."""
import json
import logging
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from small import drawn_config

from experiments.attack.flips import flip, outcome
from mlm.base import errors, fields, files
from mlm.train.run import directory, loop, shutdown, trained_run

STEPS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directories of a finished run and of one stopped at step 4, and the config that continues either."""
    folder = tmp_path_factory.mktemp("damage")

    def cfg(name):
        return drawn_config(folder / "cache", workdir=str(folder / name), train__steps=STEPS, train__batch_size=8,
                            train__checkpoint_every=2, train__log_every=2, eval__batch_size=8)

    done = cfg("done")
    loop.train(done)
    half = cfg("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutdown.Asked, "now", lambda self, checkpoints, number: number == 4)
        with pytest.raises(shutdown.Stopped):
            loop.train(half)
    return folder, cfg


def copy(runs, name, to) -> Path:
    folder, cfg = runs
    shutil.copytree(folder / name, folder / to)
    return cfg(to)


def data_of(workdir, step) -> Path:
    """The largest file of a checkpoint: its arrays."""
    return max((path for path in directory.checkpoints(workdir).glob(f"{step}/**/*") if path.is_file()),
               key=lambda path: path.stat().st_size)


def empty(workdir):
    data_of(workdir, 4).write_bytes(b"")


def lose(workdir):
    data_of(workdir, 4).unlink()


def tear(workdir):
    for path in directory.checkpoints(workdir).glob("4/**/*META*"):
        path.write_bytes(path.read_bytes()[:20])


def change(workdir):
    path = data_of(workdir, 4)
    flip(path, path.stat().st_size // 2, 0)


@pytest.mark.parametrize("damage", [change, empty, lose, tear], ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(runs, damage, caplog):
    cfg = copy(runs, "half", f"half-{damage.__name__}")
    damage(cfg.workdir)
    with pytest.raises(files.Damaged, match=r"^[^\n]*: checkpoint 4 is damaged: [^\n]+$"):
        trained_run.load(cfg.workdir, {})
    with caplog.at_level(logging.WARNING):
        loop.train(cfg)
    assert "checkpoint 4 is damaged" in caplog.text and "continuing from step 2" in caplog.text
    assert outcome(cfg.workdir) == outcome(runs[0] / "done")
    trained_run.load(cfg.workdir, {})


def test_a_finished_run_whose_checkpoint_is_damaged_is_mended_as_it_says(runs):
    cfg = copy(runs, "done", "done-damaged")
    flip(data_of(cfg.workdir, STEPS), 100, 0)
    assert loop.train(cfg)["steps"] == STEPS  # its result is whole
    with pytest.raises(files.Damaged, match=rf"checkpoint {STEPS} is damaged: .*; remove \S+ and start the run again"
                       ) as error:
        trained_run.load(cfg.workdir, {})
    Path(str(error.value).partition("; remove ")[2].split()[0]).unlink()
    loop.train(cfg)
    assert outcome(cfg.workdir) == outcome(runs[0] / "done") and trained_run.load(cfg.workdir, {}).step == STEPS


def test_a_log_without_its_last_line_s_end_is_noticed(runs):
    cfg = copy(runs, "done", "done-unended")
    path = directory.metrics(cfg.workdir)
    flip(path, path.stat().st_size - 1, 0)
    with pytest.raises(files.Damaged, match=r"metrics.jsonl is damaged: it ends at step 6 of 6, or before"):
        directory.reported(cfg.workdir)
    loop.train(cfg)
    assert outcome(cfg.workdir) == outcome(runs[0] / "done")


def test_where_no_checkpoint_is_whole_nothing_is_lost_and_the_way_out_is_told(runs):
    cfg = copy(runs, "half", "hopeless")
    for step in (2, 4):
        flip(data_of(cfg.workdir, step), 100, 0)
    before = sorted(path for path in Path(cfg.workdir).rglob("*"))
    with pytest.raises(files.Damaged, match=r"4 is damaged.*2 is damaged.*none is whole: remove "):
        loop.train(cfg)
    assert sorted(path for path in Path(cfg.workdir).rglob("*")) == before
    shutil.rmtree(directory.checkpoints(cfg.workdir))
    loop.train(cfg)
    assert outcome(cfg.workdir) == outcome(runs[0] / "done")


@pytest.mark.parametrize("name", ["result.json", "config.json", "held_out.npz", "provenance.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"{\n", "changed"], ids=lambda content: repr(content))
def test_a_finished_run_notices_and_mends_its_files(runs, name, content, tmp_path, caplog):
    cfg = copy(runs, "done", f"done-{name}-{time.time_ns()}")
    path = Path(cfg.workdir, name)
    if content is None:
        path.unlink()
    elif content == "changed":
        flip(path, path.stat().st_size // 2, 0)
    else:
        path.write_bytes(content)
    if (content is not None and name != "config.json") or name in ("held_out.npz", "metrics.jsonl"):
        with pytest.raises(files.Damaged, match=rf"^[^\n]*{name} is damaged: [^\n]+$"):
            directory.reported(cfg.workdir)
    before = outcome(runs[0] / "done")
    with caplog.at_level(logging.WARNING):
        loop.train(cfg)
    assert name in caplog.text or content is None
    found = outcome(cfg.workdir)
    if name == "metrics.jsonl":  # what it said of each step is lost, but not the totals
        assert found.pop("history")[-1]["step"] == STEPS
        before.pop("history")
    assert found | {"history": []} == before | {"history": []}
    assert directory.read_identity(cfg.workdir) == json.loads(json.dumps(fields.identity(cfg, directory.read_result(
        cfg.workdir)["data"]))) | {"config": directory.read_identity(cfg.workdir)["config"]}


def test_a_result_without_its_config_is_given_to_no_other_run(runs):
    cfg = copy(runs, "done", "bare")
    Path(cfg.workdir, "config.json").unlink()
    other = fields.override(cfg, {"train.steps": 8, "optim.learning_rate": 0.1})
    with pytest.raises(errors.ConfigError, match=r"optim.learning_rate = 0.1, there 0.001; config.train.steps = 8, "):
        loop.train(other)


def test_totals_do_not_hang_on_the_log(runs):
    cfg = copy(runs, "half", "unlogged")
    directory.metrics(cfg.workdir).unlink()
    loop.train(cfg)
    assert outcome(cfg.workdir)["totals"] == outcome(runs[0] / "done")["totals"]


def test_a_directory_is_whole_without_its_cache(runs, monkeypatch, tmp_path):
    shutil.copytree(runs[0] / "done", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    found = trained_run.load("elsewhere", {"data.cache": str(tmp_path / "none")})
    assert found.step == STEPS and found.tokenizer.vocab_size and not (tmp_path / "none").exists()


def test_runs_of_other_draws_are_told_apart(runs, monkeypatch):
    cfg = copy(runs, "done", "older")
    now = fields.fingerprint(cfg)
    monkeypatch.setitem(fields.RNG_VERSIONS, "masks", 99)
    assert fields.fingerprint(cfg) != now
    with pytest.raises(errors.ConfigError, match=r"another version's, which drew otherwise \(masks \d+, now 99\)"):
        loop.train(cfg)


def test_flipped_bits_are_noticed_or_change_nothing(runs, caplog):
    """One bit in each file of a half-done and of a finished run, at a place of chance."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng, want = random.Random(seed), outcome(runs[0] / "done")
    for name in ("half", "done"):
        for number, path in enumerate(sorted(path for path in (runs[0] / name).rglob("*") if path.is_file())):
            if path.stat().st_size == 0 or path.parent.name == "tensorboard":
                continue
            cfg = copy(runs, name, f"{name}-flip{number}")
            flip(Path(cfg.workdir, path.relative_to(runs[0] / name)), rng.randrange(path.stat().st_size),
                 rng.randrange(8))
            caplog.clear()
            try:
                loop.train(cfg)
                found = outcome(cfg.workdir)
            except files.Damaged as damaged:
                assert "damaged" in str(damaged)
                continue
            if "metrics" in caplog.text:
                found, wanted = found | {"history": []}, want | {"history": []}
            else:
                wanted = want
            assert found == wanted, path
            shutil.rmtree(cfg.workdir)


def test_columns_of_another_run_are_not_taken_for_a_run_s_own(runs):
    cfg = copy(runs, "done", "swapped")
    np.savez(Path(cfg.workdir, "held_out.npz"), **{name: np.zeros(3) for name in ("mlm_nats", "mlm_weight")})
    with pytest.raises(files.Damaged, match=r"held_out.npz is damaged: it is not what the run wrote"):
        directory.reported(cfg.workdir)


def test_a_digest_whose_name_is_damaged_is_no_older_version():
    with pytest.raises(files.Damaged, match=r"^a\.json is damaged: it lacks its digest$"):
        files.unseal({"step": 1, files.SEAL.replace("_", "^", 1): "0"}, "a.json")


def test_what_an_older_version_wrote_is_refused_and_stays(runs):
    cfg = copy(runs, "done", "unsealed")
    path = directory.end(cfg.workdir)
    older = {name: value for name, value in json.loads(path.read_text()).items() if name != files.SEAL}
    path.write_text(json.dumps(older))
    with pytest.raises(
        files.OutdatedFormat, match=r"^[^\n]*result.json lacks its digest: an older version wrote it; [^\n]+$"
    ):
        loop.train(cfg)
    assert json.loads(path.read_text()) == older


def test_a_finished_run_is_looked_at_without_a_write(runs):
    cfg = copy(runs, "done", "looked-at")
    loop.train(cfg)  # takes down where it lies now
    before = {path: path.stat().st_mtime_ns for path in Path(cfg.workdir).rglob("*") if path.is_file()}
    loop.train(cfg)
    assert {path: path.stat().st_mtime_ns for path in before} == before
