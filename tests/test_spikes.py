"""A loss that jumps sends a run back to before it, without the batches that led there, whenever it is killed."""

import functools
import itertools
import math
import shutil

import jax
import numpy as np
import pytest
from small import make_letters_config

from mlm.base import config, errors, fields, files
from mlm.data.rows import loader, pack
from mlm.training.run import checkpoint, directory, extension, log, loop, resolution, spikes, training_run, vmapped_runs

STEPS, BACK = 26, 8
JUMPS = {20}  # batches whose loss is ten times what it is


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("letters")


def make_config(folder, name, **changes):
    own = {"train__steps": STEPS, "train__spike_rewind_steps": BACK, "train__spike_threshold": 2.0}
    return make_letters_config(folder, name, **own | changes)


@pytest.fixture
def batch_numbers(monkeypatch):
    """The number of the batch of each step that is taken, which jumps where it is one of JUMPS."""
    numbers, feed, take = [], loader.iterate_train_batches, loop.SingleRun.make_step

    def batches(*rows, start_step, **how):
        for number, batch in enumerate(feed(*rows, start_step=start_step, **how), start_step):
            numbers.append(number)
            yield batch

    def taking(self, batch):
        read, number = take(self, batch), numbers[-1]
        return lambda m: (lambda values: values | {"loss": values["loss"] * 10} if number in JUMPS else values)(read(m))

    monkeypatch.setattr(loader, "iterate_train_batches", batches)
    monkeypatch.setattr(loop.SingleRun, "make_step", taking)
    return numbers


def kill_after(monkeypatch, cfg, *counts):
    """Trains, killed when so many batches were taken since the last kill."""
    for count in counts:
        left, take = itertools.count(count, -1), loop.SingleRun.make_step
        with monkeypatch.context() as patch:

            def taking(self, batch, left=left, take=take):
                if not next(left):
                    raise Killed
                return take(self, batch)

            patch.setattr(loop.SingleRun, "make_step", taking)
            with pytest.raises(Killed):
                loop.train(cfg)
    return loop.train(cfg)


def final(cfg):
    """What a run ended with: its parameters, and what it logged but for the times."""
    with checkpoint.open_manager(cfg.workdir) as checkpoints:
        kept = checkpoint._read_origin(checkpoints, STEPS)
    records = [
        {name: value for name, value in record.items() if name not in (*log.TIMING_TOTALS, "tokens_per_second")}
        for record in files.read_records(directory.metrics_file(cfg.workdir))
    ]
    return kept["state"], kept["totals"]["spikes"], kept["totals"]["loss_mean"], records


@pytest.fixture(scope="module")
def undisturbed(folder):
    with pytest.MonkeyPatch.context() as patch:
        numbers = batch_numbers.__wrapped__(patch)
        cfg = make_config(folder, "undisturbed")
        return loop.train(cfg), final(cfg), list(numbers)


def test_it_goes_back_and_leaves_out_the_batches_up_to_the_one_that_jumped(undisturbed):
    result, (_, found, mean, records), numbers = undisturbed
    assert numbers == [*range(22), *range(21, 31)]  # step 21 is read one step late; from 16 on without 16 to 20
    assert result["spikes"] == found and len(found) == 1
    assert found[0] | {"loss": 0, "mean": 0} == {
        "step": 21,
        "loss": 0,
        "mean": 0,
        "back_to": 16,
        "first_batch": 16,
        "last_batch": 20,
    }
    assert found[0]["loss"] > 8 * found[0]["mean"]
    with checkpoint.open_manager(result["config"]["workdir"]) as checkpoints:
        assert {16, 24} <= {*checkpoints.all_steps()}  # beside the two newest
    assert [record["step"] for record in records if "loss" in record] == list(range(1, STEPS + 1))
    assert [record["step"] for record in records if "spike_step" in record] == [17]
    assert mean == pytest.approx(np.mean([record["loss"] for record in records if "loss" in record]), rel=1e-6)


@pytest.mark.parametrize("counts", [(22, 1), (24,), (3, 12, 10)])
def test_killed_and_continued_it_leaves_out_the_same_and_ends_bit_for_bit_the_same(
    folder, batch_numbers, monkeypatch, counts, undisturbed
):
    cfg = make_config(folder, f"killed{counts}", train__checkpoint_every=3)
    result = kill_after(monkeypatch, cfg, *counts)
    ours, theirs = final(cfg), undisturbed[1]
    assert ours == theirs and result["spikes"] == theirs[1]


def test_the_step_it_goes_back_to_is_the_same_without_its_checkpoint(folder, batch_numbers, monkeypatch, undisturbed):
    cfg = make_config(folder, "gone")
    settle = training_run.migrate_extended
    monkeypatch.setattr(
        training_run,
        "migrate_extended",
        lambda cfg, managers: (
            shutil.rmtree(directory.checkpoint_folder(cfg.workdir) / "16", ignore_errors=True),
            managers[0].reload(),
            settle(cfg, managers),
        ),
    )
    loop.train(cfg)
    assert min(batch_numbers[22:]) < 16  # it came to step 16 again
    assert final(cfg) == undisturbed[1]


def test_on_one_device_it_leaves_out_the_same(folder, batch_numbers, monkeypatch, undisturbed):
    monkeypatch.setattr(
        loop.programs, "build_program", functools.partial(loop.programs.build_program, devices=jax.devices()[:1])
    )
    cfg = make_config(folder, "one")
    loop.train(cfg)
    (_, ours, mean, records), (_, theirs, its, others) = final(cfg), undisturbed[1]
    assert batch_numbers == undisturbed[2] and len(ours) == 1 and mean == pytest.approx(its, rel=1e-5)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    losses = [[record["loss"] for record in every if "loss" in record] for every in (records, others)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_run_without_the_knob_keeps_nothing_of_it(folder, batch_numbers):
    cfg = make_config(folder, "off", train__spike_threshold=0.0, train__spike_rewind_steps=100)
    result = loop.train(cfg)
    assert batch_numbers == list(range(STEPS)) and "spikes" not in result
    with checkpoint.open_manager(cfg.workdir) as checkpoints:
        assert not {"spikes", "loss_mean"} & checkpoint._read_origin(checkpoints, STEPS)["totals"].keys()
    assert "train.spike_threshold" not in {
        name for name, value in fields.flatten(cfg).items() if value != fields.DEFAULT[name]
    }
    assert fields.fingerprint(cfg) != fields.fingerprint(fields.override(cfg, {"train.spike_threshold": 2.0}))


def watch_losses(losses, knobs=(), totals=()):
    """Spikes that saw these losses, and what they raised at the last."""
    cfg = fields.override(
        config.Config(), {"train.spike_threshold": 2.0, "train.spike_rewind_steps": 10, **dict(knobs)}
    )
    found = spikes.SpikeGuard(cfg, dict(totals), None, None)
    for number, loss in enumerate(losses, 1):
        try:
            found.check_metrics(number, {"loss": np.float32(loss), "gradient_norm": 1.0, "parameter_norm": 1.0})
        except spikes.DivergenceError as diverged:
            assert number == len(losses)
            return found, diverged
    return found, None


def test_what_a_spike_is():
    assert watch_losses([2.0] * 30 + [3.9])[1] is None
    assert watch_losses([2.0] * 30 + [4.1])[1].back_to == 30
    assert watch_losses([2.0] * 29 + [4.1])[1].back_to == 20
    assert watch_losses([2.0] * 5 + [9.0])[1] is None  # the first steps may be anything,
    nan = watch_losses([2.0] * 5 + [math.nan])[1]  # but a number
    assert nan.back_to == 0 and nan.spikes[0]["loss"] is None
    assert watch_losses([8.0] * 300 + [2.0] * 500 + [4.1])[1].back_to == 800  # of the last hundred steps or so
    before = [{"step": 24, "back_to": 20, "first_batch": 20, "last_batch": 23}]
    again = watch_losses([2.0] * 30 + [5.0], totals={"spikes": before})[1]
    assert (again.spikes[-1]["first_batch"], again.spikes[-1]["last_batch"]) == (34, 34)
    ended = watch_losses([2.0] * 30 + [5.0], {"train.spike_max_rewinds": 1}, {"spikes": before})[1]
    assert (
        not isinstance(ended, spikes.LossSpike)
        and "step 31" in str(ended)
        and "config.train.spike_max_rewinds" in str(ended)
    )
    assert watch_losses([2.0] * 30 + [5.0], {"train.spike_threshold": 0.0})[1] is None


def test_the_batches_of_each_step_wherever_a_run_goes_on_from():
    cfg = fields.override(config.Config(), {"train.spike_threshold": 2.0})
    saved = [{"step": 13, "back_to": 10}, {"step": 12, "back_to": 10}, {"step": 26, "back_to": 20}]
    found = spikes.SpikeGuard(cfg, {"spikes": saved}, None, None)
    every = [*range(10), *range(15, 25), *range(31, 40)]
    for step in range(25):
        assert list(itertools.islice(found.iterate_batches(itertools.count, step), 29 - step)) == every[step:]


def test_a_longer_run_does_not_come_by_a_checkpoint_after_a_spike_that_it_would_not_have_had():
    short, long = (
        fields.override(
            config.Config(),
            {
                "train.steps": steps,
                "train.spike_threshold": 2.0,
                "optim.schedule": "wsd",
                "optim.decay_fraction": 0.2,
                "optim.warmup_fraction": 10 / steps,
            },
        )
        for steps in (100, 200)
    )
    assert extension.count_stable_steps(short) == 81

    def on_the_way(*steps):
        saved = fields.build_identity(short, {}) | {
            "totals": {"spikes": [{"step": step, "back_to": 70} for step in steps]}
        }
        return extension.match_saved_length(long, saved, 81) == short

    assert on_the_way() and on_the_way(75) and not on_the_way(95) and not on_the_way(75, 95)


def test_knobs_that_no_run_could_use(folder):
    with pytest.raises(errors.ConfigError, match=r"config.train.spike_threshold = 0.5: expected 0, or more than 1"):
        resolution.check(make_config(folder, "a", train__spike_threshold=0.5))
    with pytest.raises(errors.ConfigError, match=r"config.train.spike_rewind_steps = 50: nothing reads it"):
        resolution.resolve(config.Config(), {"train.spike_rewind_steps": 50})


def test_of_runs_side_by_side_the_one_that_goes_back_goes_on_alone(folder, monkeypatch):
    a, b = (make_config(folder, name) for name in "ab")
    spike = spikes.LossSpike("step 21: ...", [{"back_to": 16}])
    monkeypatch.setattr(vmapped_runs, "VmappedRuns", lambda *runs: None)
    monkeypatch.setattr(
        training_run, "open_run", lambda cfg, packed, **how: vmapped_runs.contextlib.nullcontext((cfg, None))
    )
    monkeypatch.setattr(loop, "train_runs", lambda runs, steps: {a.workdir: {"steps": STEPS}, b.workdir: spike})
    monkeypatch.setattr(loop, "train", lambda cfg, packed: {"alone": directory.is_held(cfg) or cfg.workdir})
    monkeypatch.setattr(
        pack, "load_dataset", lambda cfg: pack.PackedDataset(*[{"inputs": {}}] * len(pack.PackedDataset._fields))
    )
    monkeypatch.setattr(directory, "recover_finished", lambda *which: None)
    assert vmapped_runs.train([a, b]) == {a.workdir: {"steps": STEPS}, b.workdir: {"alone": b.workdir}}
