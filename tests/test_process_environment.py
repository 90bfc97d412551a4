"""What a command sets before libraries load: kept programs, and how memory is held."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small import environment

from mlm.cli import process_environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PRINT = (
    "import json, os; from mlm.cli import process_environment as own; "
    "own.restart_process(own.compilation_cache_settings() | own.ALLOCATOR); print(json.dumps(dict(os.environ)))"
)


def test_a_restart_sets_what_is_missing_and_leaves_what_is_given(tmp_path):
    ours = process_environment.ALLOCATOR.keys() | process_environment.compilation_cache_settings().keys()
    given = {name: value for name, value in os.environ.items() if name not in ours}
    given |= {"MALLOC_ARENA_MAX": "7", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PRINT], cwd=ROOT, env=given, capture_output=True, check=True)
    found = json.loads(done.stdout)
    expected = process_environment.ALLOCATOR | given | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "mlm" / "compiled")}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(("flags", "arena"), [((), "1"), (("--no-tune_malloc",), None)])
def test_a_command_has_its_environment_before_it_imports_what_is_slow(tmp_path, flags, arena):
    (tmp_path / "tells.py").write_text(
        "import os, sys\ndef get_config():\n    raise ValueError(os.environ.get("
        "'MALLOC_ARENA_MAX'), {'numpy', 'jax'} & sys.modules.keys())\n"
    )
    given = {name: value for name, value in environment().items() if name not in process_environment.ALLOCATOR}
    done = subprocess.run(
        [sys.executable, "-m", "mlm", "train", f"--config={tmp_path}/tells.py", *flags],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"ValueError: ({arena!r}, set())" in done.stderr and done.returncode == 2


def test_a_second_start_compiles_nothing(tmp_path):
    (tmp_path / "text").write_text("\n\n".join(f"the {n} cats sat on the {n} mats ." for n in range(200)))

    def start(workdir):
        fields = {
            "data.path": tmp_path / "text",
            "data.document_boundary": "blank_line",
            "data.cache_dir": tmp_path / "cache",
            "tokenizer.kind": "words",
            "tokenizer.vocab_size": 100,
            "pack.seq_len": 16,
            "model.num_layers": 1,
            "model.width": 16,
            "model.mlp_dim": 16,
            "model.num_heads": 1,
            "train.steps": 2,
            "train.batch_size": 8,
            "eval.batch_size": 8,
            "workdir": workdir,
        }
        done = subprocess.run(
            [sys.executable, "-m", "mlm", "train", *(f"--config.{name}={value}" for name, value in fields.items())],
            cwd=ROOT,
            env=environment(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "compiled")),
            capture_output=True,
            text=True,
            check=True,
        )
        assert "done:" in done.stdout
        return {path.name for path in (tmp_path / "compiled").iterdir()}

    first = start(tmp_path / "a")
    assert any("train_step" in name for name in first)
    assert start(tmp_path / "b") == first


@pytest.mark.parametrize("platform", ["cuda", "nowhere"])
def test_a_device_that_is_not_there_is_one_line(tmp_path, platform):
    command = [sys.executable, "-m", "mlm", "train", "workdir=run"]
    variables = environment(JAX_PLATFORMS=platform, CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: JAX_PLATFORMS = '{platform}': expected a device that is there and free (")
