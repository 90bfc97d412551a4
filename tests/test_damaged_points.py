"""One damaged point of a sweep is named, hides no other, and is made again by the next run."""

import json
import shutil
from pathlib import Path

import pytest
from small import make_run_config

from mlm.base import fields, files
from mlm.launch.sweep import runner, sweep_state, worker
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


CASES = [
    ("result.json", empty),
    ("result.json", flip_bit),
    ("evaluations.json", truncate),
    ("held_out.npz", flip_bit),
    ("held_out.npz", delete),
    ("metrics.jsonl", unreadable),
    ("config.json", flip_bit),
    ("provenance.json", remove_content),
]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two points that are done, and one that is not begun."""
    folder = tmp_path_factory.mktemp("damage")
    points = [
        make_run_config(folder / "cache", folder / "runs" / f"seed{seed}", seed=seed, eval__mask_rates=(0.3,))
        for seed in range(3)
    ]
    for cfg in points[:2]:  # one by one, by the program of all runs
        assert worker.train_points([cfg]) == {cfg.workdir: ""}
    return points


@pytest.fixture
def points(sweep, tmp_path):
    """The same in a folder of their own."""
    shutil.copytree(Path(sweep[0].workdir).parent, tmp_path, dirs_exist_ok=True)
    return [fields.override(cfg, {"workdir": str(tmp_path / Path(cfg.workdir).name)}) for cfg in sweep]


@pytest.mark.exhaustive(but=("result.json-empty", "held_out.npz-flip_bit", "provenance.json-remove_content"))
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


def test_a_point_s_last_line_has_its_score(points, monkeypatch, capsys):
    cfg = points[2]
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter does: still no terminal's control codes
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
    assert sweep_state.describe_failures(failures)[1:] == [
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
