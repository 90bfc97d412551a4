"""Which hand-written paths are taken follows from what was measured on this machine, and a run keeps those it has."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import jaxlib
import pytest
from small import environment, small_config

from mlm.base import config, errors, fields, files, machine
from mlm.cli import process_environment
from mlm.launch import kernel_choice
from mlm.launch.sweep import subprocess_worker
from mlm.models import cpu_kernels, recurrence
from mlm.models.native import library
from mlm.training import kernel_autotune, kernel_benchmark
from mlm.training.run import directory, loop, resolution

ROOT = Path(__file__).parents[1]
SLOW = 0.5  # of a path's time, which the plain formula takes
CORES = len(kernel_choice.list_cores())
RECURRENT = ("recurrence", "native")
recurrent = lambda cell: {path: f"{path} {cell} float32" for path in RECURRENT}


def resolved(**changes) -> config.Config:
    return resolution.resolve(config.Config(), {name.replace("__", "."): value for name, value in changes.items()})


RNN = resolved(model__family="rnn", model__cell="gru")


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """The same paths on every machine."""
    monkeypatch.setattr(library, "get_ffi_target", lambda: None)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's cache with nothing in it, and a user who leaves measuring on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(kernel_choice.AUTOTUNE_VARIABLE, raising=False)
    return machine.cache_folder("kernels")


@pytest.fixture
def stopwatch(monkeypatch):
    """Nothing is compiled: each path has the worth that `worth` gives it, else 1. What was measured is in `asked`."""

    class Stopwatch:
        def __init__(self):
            self.worth, self.inputs = {}, []

        def measured(self, model, wanted, known):
            new = {name: self.worth.get(path, 1.0) for path, name in wanted.items() if name not in known}
            self.inputs += new
            return new

    watch = Stopwatch()
    monkeypatch.setattr(kernel_benchmark, "measure_ratios", watch.measured)
    return watch


def test_every_path_is_measured_where_a_model_comes_by_it():
    assert list(kernel_benchmark.CASES) == sorted(cpu_kernels.KERNELS["cpu"], key=list(kernel_benchmark.CASES).index)
    common = {"matmul": "matmul float32", "cross_entropy": "cross_entropy float32"}
    gelu, attention = {"gelu": "gelu float32"}, {"attention": "attention float32"}
    source = {"objective": "denoising", "model__family": "encoder_decoder"}
    for cfg, names in (
        (resolved(), common | gelu | attention),
        (resolved(model__activation="relu"), common | attention),
        (resolved(model__family="feedforward"), common | gelu),
        (RNN, common | recurrent("gru")),
        (resolved(model__family="rnn"), common | recurrent("lstm")),
        (resolved(**source), common | gelu | attention),
        (resolved(**source, model__cell="gru"), common | recurrent("gru")),
        (resolved(model__fused_kernels=False), {}),
    ):
        assert kernel_benchmark.name_cases(cfg) == names
    assert set(kernel_benchmark.name_cases(resolved(model__dtype="bfloat16")).values()).isdisjoint(common.values())
    assert "cross_entropy" not in kernel_benchmark.name_cases(small_config("rnn", "gru", objective="classification"))


def slowed(function):
    def slow(x):
        return function(x) + 0 * jax.lax.stop_gradient(jax.lax.fori_loop(0, 3000, lambda _, y: jax.numpy.sin(y), x))

    return slow


@pytest.mark.parametrize("cfg", [resolved(), RNN], ids=["transformer", "gru"])
def test_a_path_that_is_slower_than_the_plain_formula_is_left_out(cfg, home, monkeypatch):
    """A thousand times slower here, so that what else the machine is at cannot make up for it."""
    for name, value in (("BATCH_SIZE", 2), ("SEQ_LEN", 8), ("WIDTH", 16), ("VOCAB_SIZE", 64), ("MAX_SECONDS", 0.0)):
        monkeypatch.setattr(kernel_benchmark, name, value)
    slow = "gelu" if cfg.model.family == "transformer" else "recurrence"
    monkeypatch.setattr(cpu_kernels, "gelu", slowed(cpu_kernels.gelu))
    by_hand = recurrence.scan_cell
    monkeypatch.setattr(recurrence, "scan_cell", lambda *given: tuple(map(slowed(lambda h: h), by_hand(*given))))
    found = kernel_autotune.autotune(cfg, home, CORES)
    assert found.ratios.keys() == kernel_benchmark.name_cases(cfg).keys()
    assert found.ratios[slow] < 0.5 and slow in found.disabled_kernels.split(",") and found.seconds > 0
    if "native" in found.ratios:  # which nothing has made
        assert found.ratios["native"] == 0 and ", native disabled (no compiler here)" in kernel_choice.describe_kernels(
            found
        )


def test_each_path_is_measured_beside_those_before_it_that_are_worth_it(monkeypatch):
    """So two that take each other's place are compared with each other, the better one with the plain formula."""
    times = {"": 10, "matmul": 8, "matmul gelu": 9, "matmul attention": 7, "matmul attention cross_entropy": 7.2}
    compiled = []

    def ready(_, plain):
        compiled.append(
            " ".join(path for path in kernel_benchmark.CASES if path not in plain and path not in RECURRENT)
        )
        return compiled[-1]

    cases = {
        path: case._replace(build=lambda model: (None, model.disabled_kernels.split(",")))
        for path, case in kernel_benchmark.CASES.items()
    }
    monkeypatch.setattr(kernel_benchmark, "CASES", cases)
    monkeypatch.setattr(kernel_benchmark, "compile_gradient", ready)
    monkeypatch.setattr(kernel_benchmark, "measure_ratio", lambda plain, by_hand: times[plain] / times[by_hand])
    found = kernel_benchmark.measure_ratios(config.Model(), kernel_benchmark.name_cases(resolved()), {})
    assert found == {
        "matmul float32": 10 / 8,
        "gelu float32": 8 / 9,
        "attention float32": 8 / 7,
        "cross_entropy float32": 7 / 7.2,
    }
    known = {"matmul float32": 0.1}  # was measured before: not worth it, as all that follows is told
    times |= {"gelu": 5, "gelu attention": 4, "gelu attention cross_entropy": 4}
    assert kernel_benchmark.measure_ratios(config.Model(), kernel_benchmark.name_cases(resolved()), known) == {
        "gelu float32": 2,
        "attention float32": 5 / 4,
        "cross_entropy float32": 1,
    }


def test_what_was_measured_is_kept_and_what_is_lacking_is_added(home, stopwatch):
    stopwatch.worth = {"attention": SLOW, "recurrence": 2.0}
    assert kernel_autotune.read_result(RNN, home, CORES) is None
    first = kernel_autotune.autotune(RNN, home, CORES)
    assert first.disabled_kernels == "" and first.ratios["recurrence"] == 2 and first.file.parent == Path(home)
    assert (
        kernel_autotune.read_result(RNN, home, CORES)
        == first._replace(seconds=0.0)
        == kernel_autotune.autotune(RNN, home, CORES)
    )
    assert stopwatch.inputs == ["matmul float32", *recurrent("gru").values(), "cross_entropy float32"]
    assert kernel_autotune.autotune(resolved(), home, CORES).disabled_kernels == "attention"
    assert stopwatch.inputs[4:] == ["gelu float32", "attention float32"]
    stopwatch.worth = {}
    kernel_autotune.clear_cache(home, CORES)
    assert kernel_autotune.read_result(RNN, home, CORES) is None
    assert kernel_autotune.autotune(resolved(), home, CORES).disabled_kernels == "" and len(stopwatch.inputs) == 10
    assert kernel_autotune.autotune(RNN, "", CORES).file is None  # of a user without a home nothing is
    assert kernel_autotune.read_result(RNN, "", CORES) is None


@pytest.mark.parametrize("other", ["processor", "cores", "jaxlib", "flags", "compiler", "sources"])
def test_another_machine_version_or_source_is_measured_again(other, home, stopwatch, monkeypatch, tmp_path):
    kernel_autotune.autotune(RNN, home, CORES)
    cores = CORES
    if other == "processor":
        monkeypatch.setattr(machine, "describe_processor", lambda: "another; avx9")
    elif other == "cores":
        cores += 1
    elif other == "jaxlib":
        monkeypatch.setattr(jaxlib, "__version__", "99.0")
    elif other == "compiler":
        monkeypatch.setattr(kernel_autotune.shutil, "which", lambda _: "/another/c++")
    elif other == "flags":
        monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"] + " ")
    else:
        monkeypatch.setattr(kernel_autotune, "PACKAGE", tmp_path)
        for module in kernel_autotune.SOURCES:
            path = tmp_path / module / "deep/source.cc" if not Path(module).suffix else tmp_path / module
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("other")
        kernel_autotune.autotune(RNN, home, cores)
        (tmp_path / "models" / "deep" / "source.cc").write_text("another")
        stopwatch.inputs.clear()
        stopwatch.inputs += [None] * len(kernel_benchmark.name_cases(RNN))
    assert kernel_autotune.read_result(RNN, home, cores) is None
    kernel_autotune.autotune(RNN, home, cores)
    assert len(stopwatch.inputs) == 2 * len(kernel_benchmark.name_cases(RNN)) and kernel_autotune.read_result(
        RNN, home, cores
    )


@pytest.mark.parametrize("text", ["", '{"ratios"', "{}", "[]", '{"ratios": {"matmul float32": 0.1}}'])
def test_a_broken_file_is_measured_again(text, home, stopwatch):
    found = kernel_autotune.autotune(RNN, home, CORES)
    found.file.write_text(text)
    assert kernel_autotune.read_result(RNN, home, CORES) is None
    assert kernel_autotune.autotune(RNN, home, CORES).ratios == found.ratios and len(stopwatch.inputs) == 8
    assert kernel_autotune.read_result(RNN, home, CORES).ratios == found.ratios


def test_a_cache_that_cannot_be_written_stops_nothing(home, stopwatch):
    Path(home).parent.mkdir(parents=True)
    Path(home).write_text("no folder")
    found = kernel_autotune.autotune(RNN, home, CORES)
    assert found.ratios and found.file is None


def test_names_are_checked():
    def refused(plain):
        with pytest.raises(errors.ConfigError) as error:
            resolution.check(resolved(model__disabled_kernels=plain))
        return str(error.value)

    for plain in ("", "auto", "gelu", "gelu,attention"):
        resolution.check(resolved(model__disabled_kernels=plain))
    known = ", ".join(cpu_kernels.KERNELS["cpu"])
    assert (
        refused("atuo")
        == f"config.model.disabled_kernels = 'atuo': expected one of auto, {known}; did you mean 'auto'?"
    )
    assert refused("gelu,recurence") == (
        f"config.model.disabled_kernels = 'recurence': expected one of {known}; did you mean 'recurrence'?"
    )
    assert refused("auto,gelu").startswith("config.model.disabled_kernels = 'auto': expected one of matmul")


def test_what_is_left_out_is_not_taken():
    model = small_config().model
    assert cpu_kernels.uses_kernel(model, "gelu") and cpu_kernels.uses_kernel(
        dataclasses.replace(model, disabled_kernels="matmul"), "gelu"
    )
    assert not cpu_kernels.uses_kernel(dataclasses.replace(model, disabled_kernels="matmul,gelu"), "gelu")
    assert fields.fingerprint(resolved(model__disabled_kernels="gelu")) == fields.fingerprint(resolved())


def test_a_sweep_has_one_answer_for_each_kind_of_model(home, stopwatch, monkeypatch, capsys, tmp_path):
    stopwatch.worth = {"recurrence": SLOW}
    asked = []

    class Here:
        def call(self, function, item):
            asked.append(item[2])
            return function(item)

        def close(self):
            pass

    def ended(*_):
        raise subprocess_worker.WorkerEnded("it was ended")

    monkeypatch.setattr(subprocess_worker, "SubprocessWorker", Here)
    monkeypatch.setattr(kernel_choice, "list_cores", lambda: [0, 1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: None)
    workdirs = iter(range(99))
    points = [
        dataclasses.replace(cfg, workdir=str(tmp_path / str(next(workdirs))))
        for cfg in (RNN, resolved(), RNN, resolved(model__disabled_kernels="gelu"), resolved(model__family="rnn"))
    ]
    made = kernel_choice.resolve_sweep_kernels(points, 2)
    assert [cfg.model.disabled_kernels for cfg in made] == ["recurrence", "", "recurrence", "gelu", "recurrence"]
    assert [dataclasses.replace(cfg, model=old.model) for cfg, old in zip(made, points, strict=True)] == points
    assert asked == [[0]] * 3  # a worker's core of two
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["kernels of gru", "kernels of transformer", "kernels of lstm"]
    with monkeypatch.context() as kept:
        kept.setattr(subprocess_worker, "SubprocessWorker", None)
        assert kernel_choice.resolve_sweep_kernels(points, 2) == made  # by what is kept
    with monkeypatch.context() as broken:
        broken.setattr(kernel_autotune, "read_result", lambda *_: None)
        broken.setattr(Here, "call", ended)
        capsys.readouterr()
        assert [cfg.model.disabled_kernels for cfg in kernel_choice.resolve_sweep_kernels(points, 2)] == [
            "",
            "",
            "",
            "gelu",
            "",
        ]
        assert capsys.readouterr().out == "kernels: all enabled, since measuring them failed: it was ended\n"
    before = list(stopwatch.inputs)
    assert kernel_choice.resolve_sweep_kernels(points, 2, autotune=True) == made and stopwatch.inputs == 2 * before


@pytest.mark.slow
def test_a_run_says_what_it_takes_and_keeps_it(home, stopwatch, tmp_path, monkeypatch, capsys):
    """The first start finds in the user's cache that gelu is slower, and so trains; all later ones measure nothing."""
    changes = {
        "model.num_layers": 1,
        "model.width": 16,
        "model.mlp_dim": 16,
        "model.num_heads": 2,
        "pack.seq_len": 16,
        "data.language.train_documents": 64,
        "data.language.validation_documents": 8,
        "train.steps": 4,
        "train.batch_size": 8,
        "eval.batch_size": 8,
        "train.log_every": 1,
        "model.max_positions": 32,
        "data.cache_dir": str(tmp_path / "rows"),
    }
    here = environment(
        **process_environment.compilation_cache_settings()
        | {"JAX_COMPILATION_CACHE_DIR": os.environ["JAX_COMPILATION_CACHE_DIR"]}
    )
    with monkeypatch.context() as of_the_run:
        of_the_run.setenv("XLA_FLAGS", here["XLA_FLAGS"])
        stopwatch.worth = {"gelu": SLOW}
        cfg = resolution.resolve(config.Config(), changes | {"workdir": str(tmp_path / "run")})
        kernel_autotune.autotune(cfg, home, CORES)
    command = [
        sys.executable,
        "-m",
        "mlm",
        "train",
        *(f"--config.{name}={value}" for name, value in changes.items()),
        f"--config.workdir={cfg.workdir}",
    ]
    run = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("kernels")]
    assert line.startswith(
        "kernels: matmul, attention, cross_entropy enabled; gelu disabled (0.50 times as fast as the "
        f"plain formula); measured here before, saved in {home}"
    )
    assert directory.read_identity(cfg.workdir)["config"]["model.disabled_kernels"] == "gelu"

    monkeypatch.setattr(kernel_autotune, "autotune", None)
    for more in ({}, {"train.steps": 9}):
        assert kernel_choice.resolve_kernels(fields.override(cfg, more)).model.disabled_kernels == "gelu"
    assert (
        kernel_choice.resolve_kernels(kernel_choice.disable_kernels(cfg, "attention")).model.disabled_kernels
        == "attention"
    )  # who says so has it so
    assert capsys.readouterr().out == ""
    saved = directory.read_identity(cfg.workdir)
    del saved["config"]["model.disabled_kernels"]  # a run from before there was a choice took all there were
    files.write_json_with_digest(Path(cfg.workdir, "config.json"), saved)
    assert kernel_choice.resolve_kernels(cfg).model.disabled_kernels == "native"

    other = dataclasses.replace(cfg, workdir=str(tmp_path / "other"))
    monkeypatch.setenv(kernel_choice.AUTOTUNE_VARIABLE, "0")
    assert kernel_choice.resolve_kernels(other).model.disabled_kernels == ""
    loop.train(kernel_choice.disable_kernels(other, "matmul,attention,cross_entropy"))  # just those that the run took
    for one, two in zip(*(losses(workdir) for workdir in (cfg.workdir, other.workdir)), strict=True):
        assert one == pytest.approx(two, rel=1e-5)  # whatever is picked


def losses(workdir) -> list[float]:
    records = files.read_records(Path(workdir, "metrics.jsonl"))
    found = [value for record in records for name, value in record.items() if name in ("loss", "eval_loss")]
    assert len(found) >= 4
    return found
