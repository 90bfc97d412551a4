"""Tests run on the CPU, with four simulated devices. Programs that many tests start are compiled once, and quickly."""

import atexit
import functools
import gc
import logging
import os
import sys

import pytest
import quickly

from mlm.cli import command, entry

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX_PLATFORMS=cuda: for tests/test_cudnn_attention.py
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=4 {quickly.FLAGS}"
# Each device may wait for the others in two groups at once (several slices): with XLA's default, as many threads as
# devices, all may wait for ever, and the process aborts.
os.environ.setdefault("NPROC", str(max(12, os.cpu_count() or 1)))
os.environ |= entry.compilation_cache_settings() | dict(os.environ)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process that a test starts compiles all of mlm's source
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # no program is asked which line its parts come from
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # what one process compiles in no time, others do not
gc.set_threshold(2**17)  # as the command does: what a trace makes lives on, and a tenth of the time went to gc


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """The folder of a vocabulary of the words w0 to w39."""
    from mlm.base import config
    from mlm.data.tokenizers import kinds

    folder = tmp_path_factory.mktemp("tokenizer")
    kinds.train_tokenizer(config.Tokenizer("words", 0), [" ".join(f"w{i}" for i in range(40))]).save(folder)
    return str(folder)


@pytest.fixture(scope="session", autouse=True)
def estimated_flops():
    """The runs of this process write an estimate of their FLOPs, since a count traces each program a second time.

    Counts themselves, and plans and budgets made of them, are XLA's here too; so is that of a run in a process of its
    own (tests/test_run.py).
    """
    import types

    import jax

    from mlm.training.compilation import cost
    from mlm.training.run import log
    from mlm.training.step import program

    def estimate_step_flops(cfg, vocab_size):
        params = cost.make_abstract_state(program.make_static_config(cfg), vocab_size).params["model"]
        return 6.0 * cfg.train.batch_size * cfg.pack.seq_len * sum(leaf.size for leaf in jax.tree.leaves(params))

    estimates = types.SimpleNamespace(**vars(cost) | {"count_step_flops": estimate_step_flops})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "cost", estimates)
        yield


@pytest.fixture(scope="session", autouse=True)
def programs():
    """A process traces each program once, whichever file's tests build it, and wherever their text lies."""
    from mlm.base import fields
    from mlm.training.step import program

    build = functools.lru_cache(maxsize=128)(program._build_cached.__wrapped__)

    def build_shared(cfg, *args):
        return build(fields.override(cfg, {"data.path": "", "data.cache_dir": ""}), *args)

    build_shared.__wrapped__ = program._build_cached.__wrapped__  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "_build_cached", build_shared)
        yield


@pytest.fixture(scope="module")
def quick_to_compile():
    """The file's programs are compiled without most of XLA's optimizations."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The hub's folders that fixtures/hub.py describes, by name."""
    from hub_folders import make_folders

    return make_folders(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def folders(plain):
    return plain


@pytest.fixture(scope="module")
def models(folders):
    """The model of each folder, which is loaded when a test first reads it."""
    import mlm

    class Models(dict):
        def __missing__(self, name):
            return self.setdefault(name, mlm.load(folders[name]))

    return Models()


@pytest.fixture(scope="module")
def chromium():
    import pages

    with pages.chromium() as browser:
        yield browser


@pytest.fixture
def tab(chromium, written):
    """The page `written` in a tab."""
    import pages

    with pages.open_page(chromium, written) as tab:
        yield tab


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Slurm's commands, recorded."""
    import own_slurm

    return own_slurm.record_commands(tmp_path / "tools", monkeypatch)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="also run the tests that are marked as exhaustive")


def is_left_out(item) -> bool:
    """Whether a test is exhaustive, and its parameters are none of those that the marker leaves in: but=(ID, ...)."""
    mark = item.get_closest_marker("exhaustive")
    return mark is not None and not (hasattr(item, "callspec") and item.callspec.id in mark.kwargs.get("but", ()))


def pytest_collection_modifyitems(config, items):
    """Leaves out exhaustive tests unless --all is set. Files with slow tests come first, those with most of them before
    the others: no worker is left with one at the end."""
    if not config.getoption("--all"):
        config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
        items[:] = [item for item in items if not is_left_out(item)]
    slow = {}
    for item in items:
        slow[item.path] = slow.get(item.path, 0) + (item.get_closest_marker("slow") is not None)
    items.sort(key=lambda item: -slow[item.path])
    gc.freeze()


def pytest_sessionfinish(session, exitstatus):
    """A process ends at once: to take apart all that it traced and compiled would take as long as a minute."""
    atexit.register(end_process, int(exitstatus))


def end_process(status):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@pytest.fixture(autouse=True)
def no_command_s_log():
    """A command that ran in the test's own process leaves no handler, whose stream ends with the test."""
    yield
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler.formatter, command.LogFormatter)]
