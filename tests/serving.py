"""Models that nothing has trained, and a server of their page, for the tests to share."""
import contextlib
import http.client
import json
import re
import socket
import threading

import jax
import numpy as np
import pytest
from hub_folders import folders_of
from small import small_config

import mlm
from launch import columns, serve, web
from mlm.base import config
from mlm.data.tokenizers import kinds
from mlm.judge import folders

SCRIPT = "<script>document.title='bad'</script>"
IMAGE = "<img/src=x/onerror=document.title='bad'>"
LINES = ["the apple is red .", f"the sky {IMAGE} is {SCRIPT}", "a tree .", "the red tree is the apple ."]


def models(folder) -> dict:
    """One that fills in, one that reads from the left, and a Hugging Face folder."""
    tokenizer = kinds.train(config.Tokenizer("words", 0), LINES)
    made = {"hub": mlm.open(folders_of(folder)["bert"])}
    for name, cfg in {"fills": small_config(), "reads": small_config("rnn", "gru", objective="causal")}.items():
        model, rng = folders.joined(cfg, tokenizer, {}), np.random.default_rng(0)
        params = jax.tree.map(lambda x, rng=rng: 0.5 * rng.normal(size=x.shape).astype(np.float32),
                              jax.eval_shape(model.model.init, jax.random.key(0)))
        made[name] = model._replace(params={"model": params, "objective": {}})
    return {name: model._replace(length=16) for name, model in made.items()}


@contextlib.contextmanager
def served(opened, *names, lines=LINES):
    """A server of the models of these names, which lets nobody take longer than a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlm, "open", opened.get)
        patch.setattr(web, "SECONDS", 1.0)
        patch.setattr(web.Handler, "timeout", 1.0)
        asks = serve.Asks([columns.prepared(name, name, lines) for name in names], "a [MASK] .")
        made = web.Server("127.0.0.1", 0, asks.answers())
        made.server_activate()
        thread = threading.Thread(target=made.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        made.server_close()
        thread.join()


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


def exchanged(server, sent) -> list[tuple[int, bytes]]:
    """What all of it is answered with: statuses and bodies. AssertionError where that is no HTTP."""
    with socket.create_connection(server.server_address, timeout=20) as line:
        try:
            line.sendall(sent)
            line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the answer is there already
        came = b"".join(iter(lambda: line.recv(2 ** 16), b""))
    found = []
    while came:
        head, _, came = came.partition(b"\r\n\r\n")
        status, size = re.match(rb"HTTP/1\.1 (\d+) ", head), re.search(rb"Content-Length: (\d+)", head)
        if int(status[1]) != 100:
            size = min(int(size[1]), len(came)) if sent.startswith(b"HEAD") else int(size[1])
            assert b"nosniff" in head and len(came) >= size, head
            found.append((int(status[1]), came[:size]))
            came = came[size:]
    return found
