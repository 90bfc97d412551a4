"""What a command sets before libraries load: kept programs, and how memory is held."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small import environment, make_run_config, run_mlm

from mlm.base import fields
from mlm.cli import entry

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PRINT = """
import json, os, resource
from mlm.base import fields
from mlm.cli import entry
entry.tune_malloc()
faults = []
for _ in range(3):
    b"x" * 2**26
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(json.dumps([dict(os.environ), faults]))
"""


@pytest.mark.parametrize("given", [{}, {"MALLOC_ARENA_MAX": "7", "MALLOC_MMAP_MAX_": "65536"}])
def test_malloc_keeps_what_is_freed_unless_the_environment_says_otherwise(given):
    given = {name: value for name, value in os.environ.items() if name not in entry.ALLOCATOR} | given
    done = subprocess.run([sys.executable, "-c", PRINT], cwd=ROOT, env=given, capture_output=True, check=True)
    found, (_, before, after) = json.loads(done.stdout)
    expected = entry.ALLOCATOR | given
    assert {name: found[name] for name in expected} == expected
    assert (after - before > 1000) == ("MALLOC_MMAP_MAX_" in given)


@pytest.mark.parametrize(("flags", "arena"), [((), "1"), (("--no-tune_malloc",), None)])
def test_a_command_has_its_environment_before_it_imports_what_is_slow(tmp_path, flags, arena):
    (tmp_path / "tells.py").write_text(
        "import os, sys\ndef get_config():\n    raise ValueError(os.environ.get("
        "'MALLOC_ARENA_MAX'), {'numpy', 'jax'} & sys.modules.keys())\n"
    )
    given = {name: value for name, value in environment().items() if name not in entry.ALLOCATOR}
    done = subprocess.run(
        [sys.executable, "-m", "mlm", "train", f"--config={tmp_path}/tells.py", *flags],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"ValueError: ({arena!r}, set())" in done.stderr and done.returncode == 2


@pytest.mark.exhaustive
def test_a_second_start_compiles_nothing(tmp_path):
    def start(workdir):
        changes = fields.find_changes(make_run_config(tmp_path / "cache", workdir, train__steps=2))
        words = (f"--config.{name}={value}" for name, value in changes.items())
        done = run_mlm("train", *words, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "compiled"))
        assert "done:" in done.stdout
        return {path.name for path in (tmp_path / "compiled").iterdir()}

    first = start(tmp_path / "a")
    assert any("train_step" in name for name in first)
    assert start(tmp_path / "b") == first


def test_what_needs_no_jax_to_be_found_wrong_is_said_before_its_import(tmp_path):
    (tmp_path / "texts.txt").write_text("a b")
    cases = {
        "train data.path=nowhere/*.txt": "no file matches",
        "train data.path=texts.txt data.validation_path=nowhere": "config.data.validation_path",
        "train tokenizer.kind=wrod": "did you mean 'words'",
        "train mask.rate=2": "config.mask.rate = 2.0: expected 0 < value < 1",
        "train tokenizer.path=nowhere": "config.tokenizer.path",
        "finetune run eval.sts=nowhere": "config.eval.sts",
        "similar run text": "--file = ''",
        "similar run text --file=nowhere": "--file = 'nowhere'",
        "embed run text --out=a.txt": "--out = 'a.txt'",
        "fill run text --out=nowhere/a.csv": "--out = 'nowhere/a.csv'",
        "attention run text --out=page.md": "--out = 'page.md'",
        "export run .": "export = '.'",
        "evaluate run --blmp=pairs": "did you mean --blimp",
        "evaluate run --few_steps=10": "expected --few_shot with it",
    }
    code = f"""
import sys
sys.modules["jax"] = None  # an import of it fails
from mlm.base import errors
from mlm.base import fields
from mlm.cli import entry
for words, line in {cases!r}.items():
    try:
        sys.exit(entry.run_command(words.split()) or words)
    except errors.ConfigError as error:
        assert line in str(error), (words, error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("platform", ["cuda", "nowhere"])
def test_a_device_that_is_not_there_is_one_line(tmp_path, platform):
    done = run_mlm("train", f"workdir={tmp_path}/run", JAX_PLATFORMS=platform, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: JAX_PLATFORMS = '{platform}': expected a device that is there and free (")
