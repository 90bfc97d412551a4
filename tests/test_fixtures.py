"""The files in fixtures/ hold what torch and transformers still say, where those are installed."""

import importlib

import numpy as np
import pytest
from small import load_arrays


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "hub", "hub_heads", "hub_modern", "hub_variants", "transformers_heads"])
def test_a_file_is_what_they_say(name):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    theirs = importlib.import_module(f"fixtures.{name}")
    saved = load_arrays(theirs.PATH)
    made = {key: value for key, value in theirs.make().items() if not name.startswith("hub") or ":" in key}
    for key, value in made.items():
        if not key.startswith("folder/"):
            np.testing.assert_allclose(saved[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
