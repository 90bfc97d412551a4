"""Models that nothing has trained, and a server of their page, for the tests to share."""

import contextlib
import dataclasses
import http.client
import json
import logging
import threading
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hub_folders import make_folders, make_head_folder
from small import small_config

import mlm
from mlm.base import config
from mlm.data.tokenizers import kinds
from mlm.inference import batching, pretrained_io
from mlm.serve import app, panels

SCRIPT = "<script>document.title='bad'</script>"
IMAGE = "<img/src=x/onerror=document.title='bad'>"
LINES = ["the apple is red .", f"the sky {IMAGE} is {SCRIPT}", "a tree .", "the red tree is the apple ."]
NUMBERED = dict(enumerate(LINES, 1))


def models(folder) -> dict:
    """One that fills in, one that reads from the left, and two Hugging Face folders, one with a head of labels."""
    tokenizer = kinds.train_tokenizer(config.Tokenizer("words", 0), LINES)
    theirs = make_folders(folder)
    small = {"model__num_layers": 1}
    made = {
        "hub": mlm.load(theirs["bert"]),
        "tells": mlm.load(make_head_folder(theirs, folder / "heads", "bert-classify")),
    }
    for name, cfg in {
        "fills": small_config(**small),
        "reads": small_config("rnn", "gru", objective="causal", **small),
    }.items():
        model, rng = pretrained_io.build_language_model(cfg, tokenizer, {}), np.random.default_rng(0)
        params = jax.tree.map(
            lambda x, rng=rng: 0.5 * rng.normal(size=x.shape).astype(np.float32),
            jax.eval_shape(model.model.init, jax.random.key(0)),
        )
        made[name] = dataclasses.replace(model, params={"model": params, "objective": {}})
    return {name: dataclasses.replace(model, length=16) for name, model in made.items()}


class Served(NamedTuple):
    server_address: tuple[str, int]

    @property
    def server_port(self) -> int:
        return self.server_address[1]


@contextlib.contextmanager
def serve_models(opened, *names):
    """A server of the models of these names, which waits a second for a body."""
    with pytest.MonkeyPatch.context() as patch, app.bind_socket("127.0.0.1", 0) as bound:
        patch.setattr(panels, "TOP_K", 20)  # the whole vocabulary of words
        patch.setattr(app, "TIMEOUT_SECONDS", 1)
        asks = app.ModelServer([panels.prepare_panel(name, opened[name], NUMBERED) for name in names], ["a [MASK] ."])
        server = app.make_server(asks.routes(), "127.0.0.1")
        address = bound.getsockname()
        bound.listen()
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        yield Served(address)
        server.should_exit = True
        thread.join()
        batching.LOGGER.setLevel(logging.NOTSET)


def ask(server, question, **headers):
    """Status, headers and what is said."""
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    body = question if isinstance(question, bytes) else json.dumps(question)
    line.request("POST", "/ask", body, {"Content-Type": "application/json"} | headers)
    answer = line.getresponse()
    found = answer.status, answer.headers, json.loads(answer.read())
    line.close()
    return found


def get(server, path):
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    line.request("GET", path)
    answer = line.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    line.close()
    return found
