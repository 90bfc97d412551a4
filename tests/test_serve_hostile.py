"""Whatever is sent to the page's server, it goes on answering."""
import json
import random
import socket
import time
import urllib.parse
from collections import Counter

import pytest
from serving import SCRIPT, ask, exchanged, get, models, served

from launch import columns, web


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    opened = models(tmp_path_factory.mktemp("hub"))
    with served(opened, "fills", "reads") as made:
        yield made


def raw(draw, port) -> bytes:
    """What somebody might send: right, nearly right, or not at all."""
    texts = ["the [MASK] is red .", SCRIPT, "\u2603 \x00 \ud83d", "a " * draw.randint(1, 700), "[MASK]" * 12, ""]
    value = draw.choice([*texts, None, -1, 2 ** 70, True, 1.5, [[]], {"text": {}}])
    question = {"run": draw.choice([0, 1, 2, value]), "what": draw.choice([*columns.WHAT, value]),
                "text": draw.choice(texts), "word": draw.choice(["the", value]), "which": draw.choice([1, value])}
    for name in draw.sample(list(question), draw.randint(0, 3)):
        if draw.random() < 0.7 or name in ("word", "which"):
            del question[name]
    body = draw.choice([json.dumps(question).encode()] * 6 + [
        b"", b"{", b"[" * 9000, b'{"text":' * 1500, b"NaN", b"9" * 6000, b"\xff\xfe{}", b'{"run":0,"run":1}',
        draw.randbytes(99), b"x" * draw.choice([web.BODY, web.BODY + 1, 2 ** 20])])
    path = draw.choice(["/ask"] * 6 + [
        "/", "/serve.js", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/serve.css/..%2fserve.py",
        "http://127.0.0.1/", "*", "/ask?" + "a=b&" * 20, "/?%ff", "/\xe9", "/" + "a" * 70000, "/a b", "/\x00",
        "/attention?run=0&text=" + urllib.parse.quote(draw.choice(texts), errors="replace"),
        "/attention?text=a&run=" + draw.choice(["..", "1e9", "\xd9\xa1", "9" * 99])])
    method = draw.choice(["POST"] * 8 + ["GET"] * 4 + ["HEAD", "PUT", "OPTIONS", "TRACE", "CONNECT", "get",
                                                           "G\x00T", "A" * 999])
    lines = [f"{method} {path} HTTP/{draw.choice(['1.1'] * 9 + ['1.0', '2.0', '9.9.9', 'x'])}",
             *draw.choice([[f"Host: 127.0.0.1:{port}"]] * 9 + [
                 [], ["Host: evil.example"], ["Host: a", "Host: localhost"]])]
    if method == "POST" or draw.random() < 0.1:
        size = draw.choice([len(body)] * 12 + [len(body) + 7, -1, "+3", "1e3", 10 ** 20, "", "0x10", "\u0663"])
        lines += [f"Content-Length: {size}"] * draw.choice([1] * 12 + [0, 2])
        lines += [f"Content-Type: {kind}" for kind in draw.choice([["application/json"]] * 9 + [[], ["text/html"]])]
    lines += draw.choice([[]] * 20 + [["Transfer-Encoding: chunked"], ["Expect: 100-continue"], ["a: b"] * 300,
                         ["no colon"], [" folded: a"], ["X: " + "a" * 70000], ["Connection: upgrade", "Upgrade: h2c"]])
    sent = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + (body if method == "POST" else b"")
    if draw.random() < 0.2:  # and a byte, or more, of it otherwise
        at = draw.randrange(len(sent))
        sent = sent[:at] + draw.randbytes(draw.randint(0, 3)) + sent[at + draw.randint(0, 9):]
    return draw.choice([sent] * 30 + [draw.randbytes(300), b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM",
                                      sent[:draw.randrange(len(sent))], b"GET /\r\n\r\n"])


def test_500_random_and_hostile_requests_leave_the_server_answering(server, capfd):
    seed = random.randrange(2 ** 32)
    print(f"seed {seed}")
    draw, question = random.Random(seed), {"run": 0, "what": "fill", "text": "the [MASK] is red ."}
    right = ask(server, question)
    capfd.readouterr()
    slow = [socket.create_connection(server.server_address) for _ in range(20)]
    for line in slow:
        line.sendall(draw.choice([b"", b"G", b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"]))
    statuses = Counter()
    for number in range(500):
        sent = raw(draw, server.server_port)
        answers = exchanged(server, sent)
        assert answers or sent[:1] in b"\r\n " or not sent.strip() or b"\n" not in sent, (seed, number, sent[:300])
        for status, body in answers:
            assert status == 200 or 400 <= status < 500, (seed, number, sent[:300], status, body)
            assert b"root:" not in body and b"Traceback" not in body
        statuses.update(status for status, _ in answers)
    assert min(statuses[status] for status in (200, 400, 404, 405, 411, 413, 415, 421)) > 0, statuses
    assert ask(server, question)[::2] == right[::2]
    assert capfd.readouterr().err == ""
    for line in slow:  # each was let go
        line.settimeout(10)
        while line.recv(2 ** 16):
            pass
        line.close()


def test_questions_on_one_connection_are_answered_in_their_order(server):
    body = [json.dumps({"run": 0, "what": "fill", "text": text}).encode() for text in ("the [MASK]", "the", "[MASK] .")]
    sent = b"".join(b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(one), one) for one in body)
    answers = exchanged(server, sent + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert [status for status, _ in answers] == [200, 400, 200, 200]
    assert [body for _, body in answers[:3]] == [exchanged(server, sent.split(b"POST")[i].join([b"POST", b""]))[0][1]
                                                 for i in (1, 2, 3)]


def test_there_is_room_for_so_many_at_once(server):
    lines = [socket.create_connection(server.server_address) for _ in range(web.CONNECTIONS + 8)]
    time.sleep(0.3)
    for line in lines[web.CONNECTIONS:]:
        assert line.recv(99).startswith(b"HTTP/1.1 503")
    for line in lines:
        line.close()
    for _ in range(50):
        if get(server, "/")[0] == 200:
            return
        time.sleep(0.1)
    raise AssertionError("no room was given back")
