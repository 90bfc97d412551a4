"""Milestones: a run keeps its parameters at moments of its training, and every evaluation is a curve over them."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from small import make_run_config, make_scheduled_config, stop_at, train_config

import mlm
from mlm.base import batch_warmup, errors, fields, files
from mlm.base.special import NUM_SPECIAL, UNK
from mlm.cli import evaluate
from mlm.data.rows import mixture, pack
from mlm.evaluation import evaluated_run, evaluation_tasks
from mlm.report import evaluation_scores, figures, specs
from mlm.training.run import checkpoint, trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program
from mlm.training.validation import split_scores

STEPS = 8


@pytest.fixture(scope="module")
def make_config(tmp_path_factory):
    """Makes the config of a run of a few steps with milestones, on shared data."""
    folder = tmp_path_factory.mktemp("milestones")

    def make(name, **changes):
        base = {"train__steps": STEPS, "train__milestones": "1,4,7"}
        return make_scheduled_config(folder / "cache", folder / name, **base | changes)

    return make


@pytest.fixture(scope="module")
def run(make_config):
    """A run that nothing interrupted."""
    cfg = make_config("run")
    return cfg, train_config(cfg)


def read_params(workdir, step=None):
    return jax.tree.map(np.asarray, trained_run.load(workdir, {}, step=step).state.params)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.usefixtures("quick_to_compile")
def test_a_model_of_an_early_phase_has_that_phase_s_rotary_base(tmp_path):
    """Where it is evaluated on the way, and where its milestone is loaded."""
    bases = {"phases__shares": (0.5, 0.5), "phases__rope_theta": (1e4, 2.0), "model__positions": "rotary"}
    moments = {"train__steps": 2, "train__eval_every": 1, "train__milestones": "1", "model__init_std": 0.3}
    cfg = make_run_config(tmp_path / "cache", tmp_path / "run", "transformer", "", **bases | moments)
    train_config(cfg)
    records = RunDirectory(cfg.workdir).read_history({})
    (logged, _) = (record["eval_loss"] for record in records if "eval_loss" in record)
    packed = pack.load_dataset(cfg)
    loaded = trained_run.load_run(cfg.workdir, {}, packed, step=1)
    one_phase = {"phases.shares": (), "phases.rope_theta": (), "model.rope_theta": 1e4}
    alone = program.build_program(fields.override(cfg, one_phase), packed.dataset_info)
    for own in (alone, loaded.program):
        columns = split_scores.collect_columns(cfg, own, loaded.state, packed.validation)
        assert columns["mlm_nats"].sum() / columns["mlm_weight"].sum() == pytest.approx(logged, rel=1e-6)
    assert mlm.load(cfg.workdir, step=1).config.model.rope_theta == 1e4


@pytest.mark.exhaustive
def test_a_milestone_holds_the_parameters_of_its_step_alone_and_changes_no_result(run, make_config):
    cfg, result = run
    assert checkpoint.list_milestones(RunDirectory(cfg.workdir)) == [1, 4, 7]
    plain = make_config("plain", train__milestones="")
    assert fields.fingerprint(plain) == fields.fingerprint(cfg)
    stop_at(plain, 4)
    assert not RunDirectory(plain.workdir).milestones.exists()
    assert_equal(read_params(cfg.workdir, 4), read_params(plain.workdir))
    assert train_config(plain)["evaluation"] == result["evaluation"]
    assert_equal(read_params(cfg.workdir), read_params(plain.workdir))
    sizes = [
        sum(path.stat().st_size for path in folder.rglob("*"))
        for folder in (RunDirectory(cfg.workdir).milestones / "7", RunDirectory(cfg.workdir).checkpoints / str(STEPS))
    ]
    assert sizes[0] < 0.6 * sizes[1]  # parameters, without Adam's two moments


@pytest.mark.exhaustive(but=("between it and the checkpoint",))
@pytest.mark.parametrize("kill", ["before the milestone", "between it and the checkpoint"])
def test_a_killed_run_has_the_same_milestones(run, make_config, monkeypatch, kill):
    """Step 6 has a checkpoint, step 7 none: the milestone of step 7 is written again. Step 3 has both."""
    cfg = make_config(kill.replace(" ", "-"), train__milestones="1,3,4,7")
    save = checkpoint.save

    def killed_save(manager, saved_cfg, data, snapshot):
        step, is_milestone = int(snapshot.state.step), manager.directory.name == "milestones"
        if step == 3 and is_milestone == (kill == "before the milestone"):
            raise KeyboardInterrupt
        save(manager, saved_cfg, data, snapshot)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", killed_save)
        with pytest.raises(KeyboardInterrupt):
            train_config(cfg)
    stop_at(cfg, 5)
    train_config(cfg)
    assert checkpoint.list_milestones(RunDirectory(cfg.workdir)) == [1, 3, 4, 7]
    for step in (1, 4, 7):
        assert_equal(read_params(cfg.workdir, step), read_params(run[0].workdir, step))


def test_an_extended_run_drops_the_milestones_of_the_decay_that_it_does_not_share(run, make_config):
    """Those that it keeps and those that it comes to are compared with the longer run's in test_extend.py."""
    short, _ = run
    cfg = make_config("extended", train__steps=12)
    shutil.copytree(short.workdir, cfg.workdir)
    evaluated_run.extend(cfg, pack.load_dataset(cfg))
    assert checkpoint.list_milestones(RunDirectory(cfg.workdir)) == [1, 4]


def list_steps(cfg, packed):
    return checkpoint.list_milestone_steps(cfg.train, pack.list_segments(cfg, packed))


def test_words_are_those_that_the_run_has_read(run):
    cfg, _ = run
    packed = pack.load_dataset(cfg)
    ids, starts_V = packed.train["ids"], packed.tokenizer.starts_word_V
    words = sum(int(id_ == UNK or (id_ >= NUM_SPECIAL and starts_V[id_])) for id_ in ids.ravel())
    assert mixture.count_words(packed) == words
    cfg = fields.override(cfg, {"train.milestones": "1kw,2kw,90Mw", "train.steps": 100})
    per_step = words / len(ids) * 8
    first, second = list_steps(cfg, packed)
    for step, count in ((first, 1000), (second, 2000)):
        assert (step - 1) * per_step < count <= step * per_step
    grown = {"train.batch_warmup_fraction": 1.0, "train.grad_accum_steps": 8, "train.initial_batch_fraction": 0.125}
    cfg = fields.override(cfg, grown)
    shares = [int(batch_warmup.count_microbatches(cfg.train, step)) / 8 for step in range(100)]
    later = list_steps(cfg, packed)
    assert later[0] > first and later[1] > second
    for step, count in zip(later, (1000, 2000), strict=True):
        assert sum(shares[: step - 1]) * per_step < count <= sum(shares[:step]) * per_step


def test_log_milestones_are_even_in_the_logarithm_and_end_with_the_run(run):
    cfg, packed = run[0], pack.load_dataset(run[0])
    cfg = fields.override(cfg, {"train.milestones": "log:24", "train.steps": 10**6})
    steps = list_steps(cfg, packed)
    assert len(steps) == 24 and steps[-1] == 10**6
    np.testing.assert_allclose(np.diff(np.log(steps)), np.log(10**6) / 24, atol=0.35)
    short = fields.override(cfg, {"train.steps": 5})
    assert list_steps(short, packed) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("value", "changes", "expected"),
    [
        ("log:0", {}, "log:24"),
        ("9", {}, "steps up to config.train.steps = 8"),
        ("1kw", {"data__corpus": "text", "data__path": "x", "tokenizer__kind": "characters"}, "words are counted"),
    ],
)
def test_impossible_milestones_are_one_line(make_config, value, changes, expected):
    with pytest.raises(errors.ConfigError, match=f"config.train.milestones = '{value}': expected .*{expected}"):
        checkpoint.check_milestones(
            fields.override(
                make_config("never"),
                {"train.milestones": value, **{name.replace("__", "."): text for name, text in changes.items()}},
            )
        )


def test_every_evaluation_is_a_curve_over_training(run, monkeypatch, capsys):
    cfg, _ = run
    evaluate.main(["evaluate", cfg.workdir, "--milestones", "--max_sentences=4"])
    out = capsys.readouterr().out
    finished = evaluation_tasks.add_scores(RunDirectory(cfg.workdir).read_finished())
    assert finished["evaluations"] == {} or "pseudo_likelihood" not in finished["evaluations"]
    rows, columns = evaluation_scores.build_milestone_table([finished])
    assert [row["step"] for row in rows] == [1, 4, 7] and columns[-1].title in out
    for row in rows:
        model = mlm.load(cfg.workdir, step=row["step"])
        again = mlm.evaluate(model, max_sentences=4)["evaluations"]["pseudo_likelihood"]["all"]
        assert again["pll_word_l2r"]["word_perplexity"] == row["pseudo_perplexity"].mean
    assert len({row["pseudo_perplexity"].mean for row in rows}) == 3
    (chart,) = evaluation_scores.build_milestone_charts([finished])
    assert chart.series[0].x == [1, 4, 7] and chart.log_y
    assert [value.mean for value in chart.series[0].y] == [row["pseudo_perplexity"].mean for row in rows]
    assert specs.build_lines(chart, specs.assign_styles([chart]))["encoding"]["x"]["scale"]["type"] == "log"
    assert json.loads(figures.build_figure(chart, specs.assign_styles([chart])))

    def fail(*_):
        raise AssertionError("evaluated twice")

    monkeypatch.setattr("mlm.evaluation.sentence_scores.evaluate", fail)
    again = mlm.evaluate(cfg.workdir, milestones=True, max_sentences=4)
    assert list(again) == [1, 4, 7]


def test_a_damaged_milestone_is_named(run, make_config):
    copy = Path(make_config("damaged").workdir)
    shutil.copytree(run[0].workdir, copy)
    for path in (copy / "milestones" / "4" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(files.DamagedFile, match="checkpoint 4 is damaged"):
        mlm.load(copy, step=4)
