"""Models that nothing has trained, and a server of their page, for the tests to share."""

import contextlib
import dataclasses
import http.client
import json
import logging
import re
import socket
import threading
import urllib.parse
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
from mlm.serve import app, http_server, panels

SCRIPT = "<script>document.title='bad'</script>"
IMAGE = "<img/src=x/onerror=document.title='bad'>"
LINES = ["the apple is red .", f"the sky {IMAGE} is {SCRIPT}", "a tree .", "the red tree is the apple ."]
NUMBERED = dict(enumerate(LINES, 1))


def models(folder) -> dict:
    """One that fills in, one that reads from the left, and two Hugging Face folders, one with a head of labels."""
    tokenizer = kinds.train_tokenizer(config.Tokenizer("words", 0), LINES)
    theirs = make_folders(folder)
    made = {
        "hub": mlm.load(theirs["bert"]),
        "tells": mlm.load(make_head_folder(theirs, folder / "heads", "bert-classify")),
    }
    for name, cfg in {"fills": small_config(), "reads": small_config("rnn", "gru", objective="causal")}.items():
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
    with pytest.MonkeyPatch.context() as patch, http_server.bind_socket("127.0.0.1", 0) as bound:
        patch.setattr(panels, "TOP_K", 20)  # the whole vocabulary of words
        patch.setattr(http_server, "TIMEOUT_SECONDS", 1)
        asks = app.ModelServer([panels.prepare_panel(name, opened[name], NUMBERED) for name in names], "a [MASK] .")
        server = http_server.make_server(asks.routes(), "127.0.0.1")
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


def exchange(server, sent) -> list[tuple[int, bytes]]:
    """What all of it is answered with: statuses and bodies. AssertionError where that is no HTTP."""
    came = b""
    with socket.create_connection(server.server_address, timeout=0.3) as line, contextlib.suppress(OSError):
        line.sendall(sent)
        while part := line.recv(2**16):
            came += part
    found = []
    while came:
        head, _, came = came.partition(b"\r\n\r\n")
        status, size = re.match(rb"HTTP/1\.1 (\d+) ", head), re.search(rb"(?i)content-length: (\d+)", head)
        if size is None:  # uvicorn's own words, the last on a connection
            assert int(status[1]) in (100, 400), head
            if int(status[1]) == 400:
                found.append((400, came))
                break
            continue
        size = min(int(size[1]), len(came)) if sent.startswith(b"HEAD") else int(size[1])
        assert b"nosniff" in head and b"default-src 'none'" in head and len(came) >= size, head
        found.append((int(status[1]), came[:size]))
        came = came[size:]
    return found


def raw(draw, port) -> bytes:
    """What somebody might send: right, nearly right, or not at all."""
    texts = ["the [MASK] is red .", SCRIPT, "\u2603 \x00 \ud83d", "a " * draw.randint(1, 700), "[MASK]" * 12, ""]
    value = draw.choice([*texts, None, -1, 2**70, True, 1.5, [[]], {"text": {}}])
    question = {
        "run": draw.choice([0, 1, 2, value]),
        "what": draw.choice([*panels.PANEL_TASKS, value]),
        "text": draw.choice(texts),
        "word": draw.choice(["the", value]),
        "which": draw.choice([1, value]),
    }
    if draw.random() < 0.4:
        question = {"run": 0, "what": draw.choice(["fill_mask", "similar", "attend"]), "text": texts[0]}
    for name in draw.sample(list(question), draw.choice([0, 0, 1, 3])):
        if name in ("word", "which") or draw.random() < 0.3:
            del question[name]
    body = draw.choice(
        [json.dumps(question).encode()] * 20
        + [
            b"",
            b"{",
            b"[" * 9000,
            b'{"text":' * 1500,
            b"NaN",
            b"9" * 6000,
            b"\xff\xfe{}",
            b'{"run":0,"run":1}',
            draw.randbytes(99),
            b"x" * draw.choice([http_server.MAX_BODY_BYTES, http_server.MAX_BODY_BYTES + 1, 2**20]),
        ]
    )
    path = draw.choice(
        ["/ask"] * 20
        + [
            "/",
            "/serve.js",
            "/../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "//etc/passwd",
            "/serve.css/..%2fserve.py",
            "http://127.0.0.1/",
            "*",
            "/ask?" + "a=b&" * 20,
            "/?%ff",
            "/\xe9",
            "/" + "a" * 70000,
            "/a b",
            "/\x00",
            "/attention?run=0&text=" + urllib.parse.quote(draw.choice(texts), errors="replace"),
            "/attention?text=a&run=" + draw.choice(["..", "1e9", "\xd9\xa1", "9" * 99]),
        ]
    )
    method = draw.choice(
        [["GET", "POST"][path == "/ask"]] * 70
        + ["GET", "POST", "HEAD", "PUT", "OPTIONS", "TRACE", "CONNECT", "get", "G\x00T", "A" * 999]
    )
    lines = [
        f"{method} {path} HTTP/{draw.choice(['1.1'] * 30 + ['1.0', '2.0', '9.9.9', 'x'])}",
        *draw.choice([[f"Host: 127.0.0.1:{port}"]] * 30 + [[], ["Host: evil.example"], ["Host: a", "Host: localhost"]]),
    ]
    if method == "POST" or draw.random() < 0.1:
        size = draw.choice([len(body)] * 40 + [len(body) + 7, -1, "+3", "1e3", 10**20, "", "0x10", "\u0663"])
        lines += [f"Content-Length: {size}"] * draw.choice([1] * 40 + [0, 2])
        lines += [f"Content-Type: {kind}" for kind in draw.choice([["application/json"]] * 9 + [[], ["text/html"]])]
    lines += draw.choice(
        [[]] * 50
        + [
            ["Transfer-Encoding: chunked"],
            ["Expect: 100-continue"],
            ["a: b"] * 300,
            ["no colon"],
            [" folded: a"],
            ["X: " + "a" * 70000],
            ["Connection: upgrade", "Upgrade: h2c"],
        ]
    )
    sent = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + (body if method == "POST" else b"")
    if draw.random() < 0.2:  # and a byte, or more, of it otherwise
        at = draw.randrange(len(sent))
        sent = sent[:at] + draw.randbytes(draw.randint(0, 3)) + sent[at + draw.randint(0, 9) :]
    return draw.choice(
        [sent] * 30
        + [
            draw.randbytes(300),
            b"\x16\x03\x01\x02\x00\x01",
            b"PRI * HTTP/2.0\r\n\r\nSM",
            sent[: draw.randrange(len(sent))],
            b"GET /\r\n\r\n",
        ]
    )
