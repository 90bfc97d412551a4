"""What is damaged in a run's directory is named, and made again or gone back from; nothing else comes of it."""

import json
import logging
import random
import shutil
import time
from pathlib import Path

import pytest
from small import make_run_config, train_config

from mlm.base import errors, fields, files
from mlm.data.rows import pack
from mlm.evaluation import evaluated_run
from mlm.training.run import hooks, inheritance, trained_run
from mlm.training.run.directory import RunDirectory
from tests.fuzz.bit_flips import flip_bit, read_outcome

STEPS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directories of a finished run and of one stopped at step 4, and the config that continues either."""
    folder = tmp_path_factory.mktemp("damage")

    def cfg(name):
        return make_run_config(folder / "cache", folder / name, train__steps=STEPS)

    done = cfg("done")
    train_config(done)
    half = cfg("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks.Preemption, "is_requested", lambda self, checkpoints, number: number == 4)
        with pytest.raises(errors.RunStopped):
            train_config(half)
    return folder, cfg


def copy(runs, name, to) -> Path:
    folder, cfg = runs
    shutil.copytree(folder / name, folder / to)
    return cfg(to)


def data_of(workdir, step) -> Path:
    """The largest file of a checkpoint: its arrays."""
    return max(
        (path for path in RunDirectory(workdir).checkpoints.glob(f"{step}/**/*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )


def empty(workdir):
    data_of(workdir, 4).write_bytes(b"")


def lose(workdir):
    data_of(workdir, 4).unlink()


def tear(workdir):
    for path in RunDirectory(workdir).checkpoints.glob("4/**/*META*"):
        path.write_bytes(path.read_bytes()[:20])


def change(workdir):
    path = data_of(workdir, 4)
    flip_bit(path, path.stat().st_size // 2, 0)


@pytest.mark.exhaustive(but=("change", "lose"))
@pytest.mark.parametrize("damage", [change, empty, lose, tear], ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(runs, damage, caplog):
    cfg = copy(runs, "half", f"half-{damage.__name__}")
    damage(cfg.workdir)
    with pytest.raises(files.DamagedFile, match=r"^[^\n]*: checkpoint 4 is damaged: [^\n]+$"):
        trained_run.load(cfg.workdir, {})
    with caplog.at_level(logging.WARNING):
        train_config(cfg)
    assert "checkpoint 4 is damaged" in caplog.text and "continuing from step 2" in caplog.text
    assert read_outcome(cfg.workdir) == read_outcome(runs[0] / "done")
    trained_run.load(cfg.workdir, {})


def test_a_finished_run_whose_checkpoint_is_damaged_is_mended_as_it_says(runs):
    cfg = copy(runs, "done", "done-damaged")
    flip_bit(data_of(cfg.workdir, STEPS), 100, 0)
    assert train_config(cfg)["steps"] == STEPS  # its result is whole
    with pytest.raises(
        files.DamagedFile, match=rf"checkpoint {STEPS} is damaged: .*; remove \S+ and start the run again"
    ) as error:
        trained_run.load(cfg.workdir, {})
    Path(str(error.value).partition("; remove ")[2].split()[0]).unlink()
    train_config(cfg)
    assert read_outcome(cfg.workdir) == read_outcome(runs[0] / "done")
    assert trained_run.load(cfg.workdir, {}).step == STEPS


def test_where_no_checkpoint_is_whole_nothing_is_lost_and_the_way_out_is_told(runs):
    cfg = copy(runs, "half", "hopeless")
    for step in (2, 4):
        flip_bit(data_of(cfg.workdir, step), 100, 0)
    before = sorted(path for path in Path(cfg.workdir).rglob("*"))
    with pytest.raises(files.DamagedFile, match=r"4 is damaged.*2 is damaged.*none is intact: remove "):
        train_config(cfg)
    assert sorted(path for path in Path(cfg.workdir).rglob("*")) == before
    shutil.rmtree(RunDirectory(cfg.workdir).checkpoints)
    train_config(cfg)
    assert read_outcome(cfg.workdir) == read_outcome(runs[0] / "done")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (None, "held_out.npz"),
        (None, "config.json"),
        (b"", "result.json"),
        (b"{}", "provenance.json"),
        ("changed", "result.json"),
        ("changed", "metrics.jsonl"),
        ("changed", "config.json"),
    ],
)
def test_a_finished_run_notices_and_mends_its_files(runs, content, name, tmp_path, caplog):
    cfg = copy(runs, "done", f"done-{name}-{time.time_ns()}")
    path = Path(cfg.workdir, name)
    if content is None:
        path.unlink()
    elif content == "changed":
        flip_bit(path, path.stat().st_size // 2, 0)
    else:
        path.write_bytes(content)
    if (content is not None and name != "config.json") or name in ("held_out.npz", "metrics.jsonl"):
        with pytest.raises(files.DamagedFile, match=rf"^[^\n]*{name} is damaged: [^\n]+$"):
            RunDirectory(cfg.workdir).read_finished()
    before = read_outcome(runs[0] / "done")
    with caplog.at_level(logging.WARNING):
        train_config(cfg)
    assert name in caplog.text or content is None
    found = read_outcome(cfg.workdir)
    if name == "metrics.jsonl":  # what it said of each step is lost, but not the totals
        assert found.pop("history")[-1]["step"] == STEPS
        before.pop("history")
    assert found | {"history": []} == before | {"history": []}
    identity, data = RunDirectory(cfg.workdir).read_identity(), RunDirectory(cfg.workdir).read_result()["data"]
    assert identity == json.loads(json.dumps(fields.build_identity(cfg, data))) | {"config": identity["config"]}


def test_a_result_without_its_config_is_given_to_no_other_run(runs):
    cfg = copy(runs, "done", "bare")
    Path(cfg.workdir, "config.json").unlink()
    other = fields.override(cfg, {"train.steps": 8, "optim.learning_rate": 0.1})
    with pytest.raises(errors.ConfigError, match=r"optim.learning_rate = 0.1, there 0.001; config.train.steps = 8, "):
        train_config(other)


def test_totals_do_not_hang_on_the_log(runs):
    cfg = copy(runs, "half", "unlogged")
    RunDirectory(cfg.workdir).metrics.unlink()
    train_config(cfg)
    assert read_outcome(cfg.workdir)["totals"] == read_outcome(runs[0] / "done")["totals"]


def test_a_directory_is_whole_without_its_cache(runs, monkeypatch, tmp_path):
    shutil.copytree(runs[0] / "done", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    found = trained_run.load("elsewhere", {"data.cache_dir": str(tmp_path / "none")})
    assert found.step == STEPS and found.tokenizer.vocab_size and not (tmp_path / "none").exists()


def test_runs_of_other_draws_are_told_apart(runs, monkeypatch):
    cfg = copy(runs, "done", "older")
    now = fields.fingerprint(cfg)
    monkeypatch.setitem(fields.RNG_VERSIONS, "masks", 99)
    assert fields.fingerprint(cfg) != now
    with pytest.raises(errors.ConfigError, match=r"another version with other random draws \(masks \d+, now 99\)"):
        train_config(cfg)


def test_flipped_bits_are_noticed_or_change_nothing(runs, caplog):
    """One bit, at a place of chance, in each of some files of a half-done and of a finished run; of all: chaos."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng, want = random.Random(seed), read_outcome(runs[0] / "done")
    for name in ("half", "done"):
        paths = [path for path in sorted((runs[0] / name).rglob("*")) if path.is_file() and path.stat().st_size]
        paths = [path for path in paths if path.parent.name != "tensorboard"]
        for number, path in enumerate(rng.sample(paths, 4)):
            cfg = copy(runs, name, f"{name}-flip{number}")
            flip_bit(
                Path(cfg.workdir, path.relative_to(runs[0] / name)),
                rng.randrange(path.stat().st_size),
                rng.randrange(8),
            )
            caplog.clear()
            try:
                train_config(cfg)
                found = read_outcome(cfg.workdir)
            except files.DamagedFile as damaged:
                assert "damaged" in str(damaged)
                continue
            if path.name == "metrics.jsonl":  # of a run that is not done it may say anything
                del found["history"]
            assert found == {part: want[part] for part in found}, path
            shutil.rmtree(cfg.workdir)


def test_a_finished_run_is_looked_at_without_a_write(runs):
    cfg = copy(runs, "done", "looked-at")
    train_config(cfg)  # takes down where it lies now
    before = {path: path.stat().st_mtime_ns for path in Path(cfg.workdir).rglob("*") if path.is_file()}
    train_config(cfg)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_run_of_an_earlier_version_is_refused_everywhere(runs, name):
    """Its files have no "format"; the line says which version made it, and nothing in the directory changes."""
    cfg = copy(runs, "done", f"earlier-{name}")
    path = Path(cfg.workdir, name)
    saved = files.read_json_with_digest(path)
    del saved["format"]
    files.write_json_with_digest(path, saved)
    before = {file: file.read_bytes() for file in Path(cfg.workdir).rglob("*") if file.is_file()}
    message = rf"^{cfg.workdir} was made by an earlier version of mlm \(run format 1, this one reads 3\): use [^\n]*$"
    readers = [lambda: train_config(cfg)]
    if name == "config.json":
        readers += [
            lambda: trained_run.load(cfg.workdir, {}),
            lambda: evaluated_run.extend(cfg, pack.load_dataset(cfg)),
            lambda: inheritance.read_source_fields(cfg.workdir, cfg),
        ]
    else:
        readers.append(lambda: RunDirectory(cfg.workdir).read_finished())
    for read in readers:
        with pytest.raises(errors.ConfigError, match=message):
            read()
    assert {file: file.read_bytes() for file in Path(cfg.workdir).rglob("*") if file.is_file()} == before


def test_a_run_that_still_names_removed_fields_continues_and_opens(runs):
    """A checkpoint's totals may hold what a removed hook kept."""
    cfg = copy(runs, "half", "removed-fields")
    removed_fields = dict.fromkeys(fields.REMOVED_FIELDS, 0)
    path = Path(cfg.workdir, "config.json")
    saved = files.read_json_with_digest(path)
    files.write_json_with_digest(path, saved | {"config": saved["config"] | removed_fields})
    path = RunDirectory(cfg.workdir).checkpoints / "4" / "origin" / "metadata"
    origin = json.loads(path.read_bytes())
    del origin[files.DIGEST_KEY]
    origin |= {
        "config": origin["config"] | removed_fields,
        "totals": origin["totals"] | {"spikes": [], "loss_mean": 2.0},
    }
    path.write_text(json.dumps(files.add_digest(origin)))
    assert trained_run.load(cfg.workdir, {}).step == 4
    train_config(cfg)
    assert read_outcome(cfg.workdir) == read_outcome(runs[0] / "done")
