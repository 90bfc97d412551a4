"""A run trained longer is, bit for bit, the longer run from scratch; a kill leaves the old run or the longer one."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from small import make_scheduled_config, stop_at, train_config

from mlm.base import config, errors, fields, files
from mlm.data.rows import pack
from mlm.evaluation import evaluated_run
from mlm.training.run import checkpoint, extension, loop, trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.step import optim

SHORT, LONG = 8, 12


@pytest.fixture(scope="module")
def copy_run(tmp_path_factory):
    """Makes a finished run of a schedule once, and returns the config of a copy of it with other fields."""
    folder = tmp_path_factory.mktemp("longer")

    def cfg(name, schedule, **changes):
        base = {"train__steps": SHORT, "train__milestones": "2,7", "optim__schedule": schedule}
        return make_scheduled_config(folder / "cache", folder / name, **base | changes)

    def copy(name, schedule, **changes):
        if not (folder / schedule).exists():
            train_config(cfg(schedule, schedule))
        shutil.copytree(folder / schedule, folder / name)
        return cfg(name, schedule, **changes)

    copy.cfg = cfg
    return copy


def read_run(cfg) -> dict:
    """What a finished run is: its parameters, its optimiser's state and all it says that no clock does."""
    run = trained_run.load(cfg.workdir, {})
    found = RunDirectory(cfg.workdir).read_finished()
    return {
        "step": run.step,
        "params": jax.tree.map(np.asarray, run.state.params),
        "milestones": {
            step: jax.tree.map(np.asarray, trained_run.load(cfg.workdir, {}, step=step).state.params)
            for step in checkpoint.list_milestones(RunDirectory(cfg.workdir))
        },
        **{
            name: found[name]
            for name in ("fingerprint", "steps", "evaluation", "tokens", "predictions", "flops", "held_out")
        },
    }


def assert_from_scratch(further):
    scratch = fields.override(further, {"workdir": str(Path(further.workdir).parent / fields.fingerprint(further))})
    train_config(scratch)  # which is done already where another test asked for it
    jax.tree.map(np.testing.assert_array_equal, read_run(further), read_run(scratch))


@pytest.mark.exhaustive(but=("wsd-5",))
@pytest.mark.parametrize(("schedule", "start"), [("constant", SHORT), ("wsd", 5)])
def test_it_is_the_longer_run_from_scratch_and_the_old_result_is_kept(copy_run, schedule, start):
    cfg = copy_run(f"{schedule}-more", schedule, train__steps=LONG)
    old, workdir = RunDirectory(cfg.workdir).read_result(), Path(cfg.workdir)
    columns = (workdir / "held_out.npz").read_bytes()
    RunDirectory(workdir).write_evaluations({"fingerprint": old["fingerprint"], "step": SHORT, "evaluations": {}})
    further = evaluated_run.extend(cfg, pack.load_dataset(cfg))
    assert further.optim.warmup_fraction == 2 / LONG and optim.count_warmup_steps(further.optim, LONG) == 2
    train_config(further)
    assert RunDirectory(workdir).read_provenance()[-1]["step"] == start
    assert_from_scratch(further)
    for name, content in (("held_out-8.npz", columns), ("result-8.json", None), ("evaluations-8.json", None)):
        assert (workdir / name).is_file() and content in (None, (workdir / name).read_bytes())
    assert files.read_json_with_digest(workdir / "result-8.json") == old
    assert (
        max(record["step"] for record in RunDirectory(workdir).read_history(RunDirectory(workdir).read_result()))
        == LONG
    )
    assert evaluated_run.extend(cfg, pack.load_dataset(cfg)) == further  # the same command once more


@pytest.mark.exhaustive
def test_it_can_be_made_longer_before_its_end_and_twice(copy_run):
    cfg = copy_run.cfg("twice", "wsd")
    stop_at(cfg, 4)
    longer_cfg = fields.override(cfg, {"train.steps": LONG})
    further = evaluated_run.extend(longer_cfg, pack.load_dataset(cfg))
    stop_at(further, 6)  # a checkpoint of each is there
    last = evaluated_run.extend(fields.override(cfg, {"train.steps": 16}), pack.load_dataset(cfg))
    assert last.optim.warmup_fraction == 2 / 16
    train_config(last)
    assert [start["step"] for start in RunDirectory(cfg.workdir).read_provenance()] == [0, 4, 6]
    assert_from_scratch(last)


@pytest.mark.exhaustive(but=("checkpoint",))
@pytest.mark.parametrize("where", ["before", "after", "held_out.npz", "evaluations.json", "result.json", "checkpoint"])
def test_a_kill_leaves_the_old_run_or_the_longer_one(copy_run, where, monkeypatch):
    cfg = copy_run(f"killed-{where}", "wsd", train__steps=LONG)
    RunDirectory(cfg.workdir).write_evaluations({"fingerprint": "", "step": SHORT, "evaluations": {}})
    packed, old = pack.load_dataset(cfg), RunDirectory(cfg.workdir).read_result()

    def kill(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if where == "before":
            patch.setattr(files, "write_json", kill)
        elif where == "checkpoint":
            patch.setattr(checkpoint, "delete_superseded", kill)
        elif where != "after":
            rename = files.rename_with_suffix
            patch.setattr(
                files, "rename_with_suffix", lambda path, mark: kill() if path.name == where else rename(path, mark)
            )
        further = evaluated_run.extend(cfg, packed)
        kill()
    if where == "before":
        short = fields.override(cfg, {"train.steps": SHORT})
        assert loop.train(short, packed) == old and trained_run.load(cfg.workdir, {}).step == SHORT
    further = evaluated_run.extend(cfg, packed)
    loop.train(further, packed)
    assert files.read_json_with_digest(Path(cfg.workdir, "result-8.json")) == old
    assert Path(cfg.workdir, "held_out-8.npz").is_file() and Path(cfg.workdir, "evaluations-8.json").is_file()
    assert_from_scratch(further)


def snapshot(workdir):
    return {
        path: path.read_bytes() for path in sorted(Path(workdir).rglob("*")) if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train__steps": LONG, "seed": 3}, "another config: config.seed = 3, there 0; choose"),
        ({"train__steps": LONG, "optim__warmup_fraction": 0.1}, "optim.warmup_fraction = 0.1, there 0.3"),
        ({"train__steps": 5, "train__milestones": ""}, "config.train.steps = 5: expected at least 8"),
    ],
    ids=["seed", "warm-up", "fewer"],
)
def test_what_would_be_another_run_is_refused_and_nothing_changes(copy_run, changes, said):
    cfg = copy_run(f"refused-{'-'.join(changes)}-{changes['train__steps']}", "wsd", **changes)
    before = snapshot(cfg.workdir)
    with pytest.raises(errors.ConfigError, match=said):
        evaluated_run.extend(cfg, pack.load_dataset(cfg))
    assert snapshot(cfg.workdir) == before and not evaluated_run.can_extend(cfg, pack.load_dataset(cfg))


@pytest.mark.parametrize(
    ("schedule", "changes", "said"),
    [
        ("linear", {}, "optim.schedule = 'linear': expected wsd or constant"),
        ("cosine", {}, "optim.schedule = 'cosine': expected wsd or constant"),
        ("wsd", {"mask__schedule": "linear", "mask__final_rate": 0.1}, "mask.schedule = 'linear': expected constant"),
        (
            "constant",
            {"objective": "hybrid", "hybrid__causal_first_fraction": 0.5},
            "hybrid.causal_first_fraction = 0.5: expected 0.0 or 1.0",
        ),
    ],
    ids=["linear", "cosine", "masking rate", "causal first"],
)
def test_what_spreads_over_all_steps_is_refused(copy_run, schedule, changes, said):
    cfg = copy_run.cfg("spread", schedule, **changes)
    saved = json.loads(json.dumps(fields.build_identity(cfg, {})))
    with pytest.raises(
        errors.ConfigError, match=rf"{said} .*depends on the number of all steps.*: choose another config.workdir"
    ):
        extension.extend_config(fields.override(cfg, {"train.steps": LONG}), {}, saved)


@pytest.mark.exhaustive(but=("wsd",))
@pytest.mark.parametrize("schedule", optim.EXTENDABLE_SCHEDULES)
def test_rates_are_the_same_for_just_as_many_steps_as_said(schedule):
    rng = np.random.default_rng(0)
    for _ in range(8):
        warmup, decay = rng.uniform(0, 0.5, 2)
        steps, more = (int(n) for n in np.sort(rng.choice(np.arange(1, 60), 2, replace=False)))
        short = config.Optim(schedule=schedule, warmup_fraction=warmup, decay_fraction=decay)
        long = config.Optim(
            schedule=schedule, warmup_fraction=optim.count_warmup_steps(short, steps) / more, decay_fraction=decay
        )
        assert optim.count_warmup_steps(short, steps) == optim.count_warmup_steps(long, more)
        shares = [
            np.array(jax.jit(jax.vmap(optim.build_schedule(one, n)))(np.arange(steps)))
            for one, n in ((short, steps), (long, more))
        ]
        same = optim.count_stable_steps(short, steps)
        assert same <= optim.count_stable_steps(long, more)
        np.testing.assert_array_equal(shares[0][:same], shares[1][:same])
        if schedule == "wsd" and same < steps:
            assert shares[0][same] < shares[0][same - 1]
