"""Tests run on the CPU, with four simulated devices. Programs that many tests start are compiled once, and quickly."""

import os

import pytest
import quickly

from mlm.cli import process_environment

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX_PLATFORMS=cuda: for tests/test_cudnn_attention.py
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=4 {quickly.FLAGS}"
os.environ |= process_environment.compilation_cache_settings() | dict(os.environ)
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # no program is asked which line its parts come from
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # what one process compiles in no time, others do not


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """The folder of a vocabulary of the words w0 to w39."""
    from mlm.base import config
    from mlm.data.tokenizers import kinds

    folder = tmp_path_factory.mktemp("tokenizer")
    kinds.train_tokenizer(config.Tokenizer("words", 0), [" ".join(f"w{i}" for i in range(40))]).save(folder)
    return str(folder)


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, those with most of them before the others: no worker is left with one at the
    end."""
    slow = {}
    for item in items:
        slow[item.path] = slow.get(item.path, 0) + (item.get_closest_marker("slow") is not None)
    items.sort(key=lambda item: -slow[item.path])
