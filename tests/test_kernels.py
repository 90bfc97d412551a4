"""A platform decides which kernels a run begins with; the run records them and never changes them."""

import itertools

import jax
import pytest
from small import drawn_config, stop_at, train_config

from mlm.base import config, errors, fields
from mlm.data.rows import pack
from mlm.models import platform_kernels
from mlm.training.run import resolution, vmapped_runs
from mlm.training.run.directory import RunDirectory

ALL = ",".join(platform_kernels.FASTER_KERNELS["cpu"])
SMALL = {
    "train__steps": 4,
    "train__log_every": 1,
    "train__batch_size": 8,
    "eval__batch_size": 8,
    "eval__max_examples": 8,
    "optim__schedule": "constant",
    "optim__warmup_fraction": 0.0,
}


def set_kernels(cfg: config.Config, kernels: str, **changes) -> config.Config:
    return fields.override(cfg, {"model.kernels": kernels} | changes)


def read_kernels(cfg: config.Config) -> str:
    return RunDirectory(cfg.workdir).read_identity()["config"]["model.kernels"]


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ("atuo", "expected one of auto, reference, matmul, .*; did you mean 'auto'?"),
        ("gelu,recurence", "expected one of matmul, .*; did you mean 'recurrence'?"),
        ("auto,gelu", "expected one of matmul"),
        ("", "expected one of auto, reference"),
        ("gelu,", "expected one of matmul"),
    ],
)
def test_names_are_checked(kernels, message):
    with pytest.raises(errors.ConfigError, match=f"^config.model.kernels = .*: {message}"):
        resolution.check(set_kernels(resolution.resolve(config.Config()), kernels))


@pytest.mark.parametrize("kernels", ["auto", "reference", "gelu", "gelu,attention", ALL])
def test_names_are_accepted(kernels):
    resolution.check(set_kernels(resolution.resolve(config.Config()), kernels))


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("cpu", ALL),
        ("gpu", "recurrence,cross_entropy,gelu,cudnn_attention,fused_attention,recomputation"),
        (
            "tpu",
            "recurrence,blocked_cross_entropy,gelu,splash_attention,fused_attention,fused_recurrence,recomputation",
        ),
    ],
)
def test_the_platform_decides_for_auto_alone(platform, expected, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert platform_kernels.resolve_kernels("auto") == expected
    for names in itertools.permutations(platform_kernels.KERNELS, 2):
        ordered = ",".join(sorted(names, key=platform_kernels.KERNELS.index))
        assert platform_kernels.resolve_kernels(",".join(names)) == ordered
        model = config.Model(kernels=ordered)
        assert [
            name for name in platform_kernels.KERNELS if platform_kernels.uses_kernel(model, name)
        ] == ordered.split(",")
    assert platform_kernels.resolve_kernels("reference") == "reference"
    assert not any(
        platform_kernels.uses_kernel(config.Model(kernels="reference"), name) for name in platform_kernels.KERNELS
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_keeps_the_kernels_it_began_with(tmp_path, monkeypatch):
    member = {"family": "feedforward", "cell": "bag", "model__num_layers": 1}
    cfg = drawn_config(tmp_path / "cache", workdir=str(tmp_path / "run"), **member, **SMALL)
    monkeypatch.setattr(platform_kernels, "FASTER_KERNELS", {})
    stop_at(set_kernels(cfg, "gelu"), 2)
    train_config(cfg)
    assert read_kernels(cfg) == "gelu"
    with pytest.raises(errors.ConfigError, match=r"config.model.kernels = 'reference', there 'gelu'"):
        train_config(set_kernels(cfg, "reference"))
    monkeypatch.undo()
    train_config(cfg)  # finished: auto asks for no other kernels
    assert read_kernels(cfg) == "gelu"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_runs_that_began_with_other_kernels_are_trained_alone(tmp_path):
    points = [
        drawn_config(tmp_path / "cache", workdir=str(tmp_path / str(seed)), seed=seed, **SMALL) for seed in (0, 1)
    ]
    packed = pack.load_dataset(points[1])  # the second has begun, and was stopped before its first checkpoint
    RunDirectory(set_kernels(points[1], "reference").workdir).write_identity(
        set_kernels(points[1], "reference"), packed.manifest["inputs"], packed.tokenizer
    )
    results = vmapped_runs.train_vmapped(points)
    assert results.keys() == {cfg.workdir for cfg in points}
    assert [read_kernels(cfg) for cfg in points] == [ALL, "reference"]
