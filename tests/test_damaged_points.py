"""One damaged point of a sweep is named, hides no other, and is made again by the next run."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from small import small_config

from mlm.base import fields, files
from mlm.launch.sweep import runner, sweep_state, worker
from mlm.training.run import loop, vmapped_runs
from mlm.training.run.directory import RunDirectory

pytestmark = pytest.mark.slow


def empty(path):
    path.write_bytes(b"")


def truncate(path):
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])


def remove_content(path):
    path.write_text("{}\n")


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def unreadable(path):
    path.unlink()
    path.symlink_to(path)


def delete(path):
    path.unlink()


FILES = ("result.json", "evaluations.json", "held_out.npz", "metrics.jsonl", "config.json", "provenance.json")
CASES = [(name, harm) for name in FILES for harm in (empty, truncate, flip_bit, unreadable)] + [
    *((name, remove_content) for name in FILES if name.endswith("json")),
    ("held_out.npz", delete),
    ("metrics.jsonl", delete),
]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two points that are done, and one that is not begun."""
    folder = tmp_path_factory.mktemp("damage")
    (folder / "text.txt").write_text("\n\n".join(f"the {n} cats sat on the {n} mats ." for n in range(200)))
    points = [
        small_config(
            data__corpus="text",
            data__path=str(folder / "text.txt"),
            data__document_boundary="blank_line",
            data__cache_dir=str(folder / "cache"),
            tokenizer__kind="words",
            tokenizer__vocab_size=30,
            model__num_layers=1,
            model__width=8,
            model__mlp_dim=8,
            train__steps=6,
            train__batch_size=8,
            train__log_every=2,
            eval__batch_size=8,
            eval__max_examples=8,
            eval__mask_rates=(0.3,),
            seed=seed,
            workdir=str(folder / "runs" / f"seed{seed}"),
        )
        for seed in range(3)
    ]
    assert worker.train_points(points[:2]) == dict.fromkeys((cfg.workdir for cfg in points[:2]), "")
    return points


@pytest.fixture
def points(sweep, tmp_path):
    """The same in a folder of their own."""
    shutil.copytree(Path(sweep[0].workdir).parent, tmp_path, dirs_exist_ok=True)
    return [fields.override(cfg, {"workdir": str(tmp_path / Path(cfg.workdir).name)}) for cfg in sweep]


@pytest.mark.parametrize(("name", "harm"), CASES, ids=[f"{name}-{harm.__name__}" for name, harm in CASES])
def test_a_damaged_file_is_named_and_made_again(points, name, harm):
    before = RunDirectory(points[0].workdir).read_finished()
    harm(Path(points[0].workdir, name))
    at = sweep_state.read_state(points[0])
    assert at.name == "damaged" and f"{points[0].workdir}/{name} is damaged: " in at.error and "\n" not in str(at)
    results, faults = sweep_state.load_results(points)
    assert faults == [at.error] and results[-1]["config"]["workdir"] == points[1].workdir
    assert [sweep_state.read_state(cfg).name for cfg in points[1:]] == ["done", "not started"]
    assert worker.train_points(points[:1]) == {points[0].workdir: ""}
    assert sweep_state.read_state(points[0]).name == "done" and sweep_state.load_results(points)[1] == []
    after = RunDirectory(points[0].workdir).read_finished()
    assert (after["evaluation"], after["fingerprint"]) == (before["evaluation"], before["fingerprint"])
    assert after["evaluations"].keys() == before["evaluations"].keys()
    assert all((after["held_out"][key] == column).all() for key, column in before["held_out"].items())


def test_another_points_result_is_not_taken_for_its_own(points):
    shutil.copy(Path(points[1].workdir, "result.json"), points[0].workdir)
    assert "another config" in sweep_state.read_state(points[0]).error
    assert [one["config"]["seed"] for one in sweep_state.load_results(points)[0]] == [1]
    assert "seed = 0, there 1" in worker.train_points(points[:1])[points[0].workdir]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe no text", None], ids=["empty", "not-text", "folder"])
def test_a_damaged_account_of_a_failure_is_named_and_the_point_trained(points, content):
    path = Path(points[2].workdir, "error.txt")
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_bytes(content)
    assert sweep_state.read_state(points[2]).error.startswith(f"{path} is damaged: ")
    assert [sweep_state.read_state(cfg).name for cfg in points] == ["done", "done", "damaged"]
    assert worker.train_points(points[2:]) == {points[2].workdir: ""}
    assert sweep_state.read_state(points[2]).name == "done"


def test_a_point_whose_directory_is_a_file_fails_alone(points):
    shutil.rmtree(points[0].workdir)
    Path(points[0].workdir).write_text("a file")
    assert [sweep_state.read_state(cfg).name for cfg in points] == ["damaged", "done", "not started"]
    assert worker.train_points([points[0], points[2]])[points[2].workdir] == ""
    said = worker.train_points(points[:1])[points[0].workdir]
    assert points[0].workdir in said and "\n" not in said
    call = runner.SweepRunner(Path(points[0].workdir).parent, points, num_workers=1, vmap_runs=0)
    call.record_failure(points[0].workdir, said)  # which cannot be written there either
    assert call.failures == {points[0].workdir: said}


def test_a_full_disk_fails_a_point_in_a_line_and_no_other(points, monkeypatch):
    """Where not even the log can be written."""
    train = loop.train

    def full(cfg=None):
        if cfg == points[2]:
            return train(cfg)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    monkeypatch.setattr(loop, "train", full)
    monkeypatch.setattr(vmapped_runs, "train", full)
    monkeypatch.setattr(worker.traceback, "print_exc", full)
    said = worker.train_points([points[0], points[2]])
    assert said == {points[0].workdir: "No space left on device: somewhere", points[2].workdir: ""}


def test_a_log_folder_that_cannot_be_made_is_told(points, tmp_path):
    (tmp_path / "logs").write_text("a file")
    with (
        sweep_state.SweepDisplay(points) as view,
        pytest.raises(runner.CannotStart, match=r"cannot write its log.*logs"),
    ):
        runner.SweepRunner(tmp_path, points, num_workers=1, vmap_runs=0).run(view)


def test_lines_come_with_steps_ever_more_rarely_and_time_left_without_what_came_before_the_first(
    points, monkeypatch, capsys
):
    clock = 1000.0
    monkeypatch.setattr(sweep_state.time, "monotonic", lambda: clock)
    cfg, said = fields.override(points[2], {"train.steps": 10_000}), []
    view = sweep_state.SweepDisplay([cfg])
    RunDirectory(cfg.workdir).metrics.parent.mkdir()

    def watch(seconds, step):
        nonlocal clock
        for _ in range(seconds // 2):
            clock += 2
            view.update({cfg.workdir})
        files.write_records(RunDirectory(cfg.workdir).metrics, [{"step": step, "loss": 2.0}])

    for seconds, step in ((100, 10), (100, 20), (100, 30), *((10, 30 + i) for i in range(1, 200))):
        watch(seconds, step)
        said.append(capsys.readouterr().out.splitlines())
    lines = [line for one in said for line in one]
    assert said[0] == ["seed2: training"] and said[1] == ["seed2: training, step 10/10,000, loss 2.000"]
    assert said[2] == ["seed2: training, step 20/10,000, loss 2.000, 27:43:20 left"]  # 100 s for ten steps
    assert len(lines) == len(set(lines)) and 7 <= len(lines) <= 9
    view.update(())
    clock += 2
    view.update((), last=True)
    assert capsys.readouterr().out == f"seed2: stopped, step {30 + 199:,}/10,000, loss 2.000\n"


def test_a_point_s_last_line_has_its_score(points, monkeypatch, capsys):
    cfg = points[2]
    view = sweep_state.SweepDisplay(points)
    view.update({cfg.workdir}, last=True)
    assert capsys.readouterr().out == "seed2: training\n"
    worker.train_points([cfg])
    capsys.readouterr()
    view.update((), last=True)
    loss = json.loads(Path(cfg.workdir, "result.json").read_text())["evaluation"]["loss"]
    assert capsys.readouterr().out.startswith(f"seed2: done, held-out loss {loss:.4f} ± ")


def test_an_error_of_many_points_is_told_once(points, capsys):
    """Each in the line of its first point; at the end with how many others it ended."""
    failures = {cfg.workdir: f"ConfigError: no text (log: logs/{i}.log)" for i, cfg in enumerate(points)}
    failures["runs/odd"] = "DivergenceError: step 3"
    assert sweep_state.describe_failures(failures) == [
        f"{points[0].workdir} and {len(points) - 1} more: ConfigError: no text (log: logs/0.log)",
        "runs/odd: DivergenceError: step 3",
    ]
    new = [fields.override(cfg, {"workdir": f"{cfg.workdir}-new"}) for cfg in points]
    view = sweep_state.SweepDisplay(new)
    for cfg in new:
        Path(cfg.workdir).mkdir()
        files.write_text(RunDirectory(cfg.workdir).error, "ConfigError: no text (log: a.log)" + "\n")
    view.update({cfg.workdir for cfg in new}, last=True)
    view.update((), last=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if "failed" in line]
    assert [line.partition(": ")[2] for line in lines] == [
        "failed: ConfigError: no text (log: a.log)",
        *[f"failed: the same error as {Path(new[0].workdir).name}"] * (len(new) - 1),
    ]


def test_runs_of_another_version_or_of_other_settings_are_named_beside_a_sweep(points):
    assert sweep_state.describe_unmatched_runs(points) == ""
    drawn = fields.build_identity(points[0], {})
    for name, change in (("old", {"rng_versions": drawn["rng_versions"] | {"masks": 1}}), ("other", {})):
        shutil.copytree(points[0].workdir, Path(points[0].workdir).with_name(name))
        files.write_json_with_digest(Path(points[0].workdir).with_name(name) / "config.json", drawn | change)
    assert sweep_state.describe_unmatched_runs(points) == (
        "left out, another version's, with other random draws (masks 1, now 2): old; left out, of other settings: other"
    )
