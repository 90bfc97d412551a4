"""The page of models side by side: it answers what the models do, and shows what it is given as text."""

import asyncio
import contextlib
import dataclasses
import re
import signal
import socket

import numpy as np
import pytest
import uvicorn
from serving import IMAGE, LINES, SCRIPT, ask, get, models, serve_models
from small import get_refusal

from mlm.base import config, errors
from mlm.data.language import diffusion_bound, grammar
from mlm.inference import attention_maps, neighbors, pretrained_io
from mlm.serve import app, panels

HALF = b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"


@pytest.fixture(scope="module")
def opened_models(tmp_path_factory):
    made = models(tmp_path_factory.mktemp("hub"))
    return made | {"<i>hub</i>": made["hub"]}


@pytest.fixture(scope="module")
def server(opened_models):
    with serve_models(opened_models, "fills", "reads", "<i>hub</i>") as made:
        yield made


def test_answers_are_those_of_the_opened_models(server, opened_models):
    text = "the [MASK] is [MASK] ."
    for run, name in ((0, "fills"), (2, "<i>hub</i>")):
        status, _, said = ask(server, {"run": run, "what": "fill_mask", "text": text})
        model = opened_models[name]
        expected = model.fill_mask(text, min(panels.TOP_K, model.tokenizer.vocab_size))
        assert status == 200 and [[one["token"] for one in best] for best in said["answer"]] == [
            [one.token for one in best] for best in expected
        ]
        np.testing.assert_allclose(
            [one["probability"] for best in said["answer"] for one in best],
            [one.probability for best in expected for one in best],
            rtol=1e-5,
        )
    for run, name in enumerate(("fills", "reads")):
        _, _, said = ask(server, {"run": run, "what": "similar", "text": "the red tree"})
        near = opened_models[name].similar("the red tree", LINES, top_k=4)
        assert [one["line"] - 1 for one in said["answer"]["near"]] == [one.index for one in near]
        np.testing.assert_allclose(
            [one["cosine"] for one in said["answer"]["near"]], [one.cosine for one in near], atol=1e-5
        )
        assert said["answer"]["words"] == ["the", "red", "tree"]
        _, _, said = ask(server, {"run": run, "what": "word", "text": "the red tree the", "word": "the", "which": 2})
        near = neighbors.find_neighbors(opened_models[name], "the red tree the", "4", LINES, top=panels.TOP_K)
        assert [(one["line"] - 1, one["word"]) for one in said["answer"]["near"]] == [
            (one.line, one.word) for one in near
        ]
        for one in said["answer"]["near"]:
            assert one["before"] + one["word"] + one["after"] == LINES[one["line"] - 1]


def test_predictions_are_those_of_the_opened_model(opened_models):
    """Of a text, and of a pair, which stands apart by a sign that can be typed."""
    for text, given in (("the apple", "the apple"), ("the apple | is red", ("the apple", "is red"))):
        column = panels.ModelPanel("tells", opened_models["tells"], {}, {})
        (said,) = panels.answer_request(column, panels.PanelRequest(0, "predict", text))
        best = opened_models["tells"].predict([given])[0]
        assert said == {
            "text": text,
            "label": best.label,
            "probability": pytest.approx(best.probability),
            "probabilities": pytest.approx(best.probabilities),
        }


def test_a_mask_is_filled_in_before_texts_are_compared(server, opened_models):
    _, _, said = ask(server, {"run": 0, "what": "similar", "text": "the [MASK] is [MASK] ."})
    first = opened_models["fills"].fill_mask("the [MASK] is [MASK] .", 1)[0][0].text
    assert said["answer"]["text"] == opened_models["fills"].fill_mask(first, 1)[0][0].text


def test_what_a_model_cannot_do_is_said_in_its_column(server):
    status, _, said = ask(server, {"run": 1, "what": "fill_mask", "text": "the [MASK]"})
    assert status == 400 and said["error"].startswith(
        "fill_mask: needs a run that was trained to predict masked tokens"
    )
    _, _, page = get(server, "/")
    assert said["error"].removeprefix("fill_mask: ") in page and "a [MASK] ." in page
    status, headers, page = get(server, "/attention?run=1&text=the+tree")
    assert status == 200 and "saliency" in page and "sandbox allow-scripts" in headers["Content-Security-Policy"]


def test_a_column_says_what_the_model_itself_refuses(opened_models):
    calls = {
        "fill_mask": lambda model: model.fill_mask("the [MASK]"),
        "predict": lambda model: model.predict("the tree"),
        "attend": lambda model: attention_maps.compute_attention_maps(model, "the tree"),
    }
    tells, reads = opened_models["tells"], opened_models["reads"]
    tells = dataclasses.replace(tells, length=tells.config.pack.seq_len)
    for model in (tells, reads, dataclasses.replace(reads, has_lm_head=False)):
        unsupported = panels.prepare_panel("a", model, {}).unsupported
        for what, call in calls.items():
            if what in unsupported:
                assert get_refusal(call, model).partition(": expected ")[2] == unsupported[what].removeprefix("needs ")
            else:
                call(model)


def test_every_answer_forbids_what_the_page_does_not_need(server):
    for path in ("/", "/serve.css", "/serve.js", "/attention?run=0&text=a", "/nothing"):
        _, headers, _ = get(server, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'") and "http" not in policy and "*" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in headers
        assert "unsafe" not in policy or "sandbox" in policy


BAD = {
    "no object": (["a"], "request = ['a']: expected an object"),
    "more": ({"run": 0, "what": "fill_mask", "text": "a", "layer": 1}, "request = 'layer': expected one of"),
    "no such run": ({"run": 3, "what": "fill_mask", "text": "a"}, "run = 3: expected 0 <= value <= 2"),
    "nothing to do": ({"run": 0, "what": "fill_msk", "text": "a"}, "did you mean 'fill_mask'?"),
    "no mask": ({"run": 0, "what": "fill_mask", "text": "a"}, "expected a text with [MASK] in it"),
    "long": ({"run": 0, "what": "similar", "text": "a " * 501}, "expected at most 1000 characters"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_question_is_refused_in_one_line(server, case):
    question, said = BAD[case]
    status, _, told = ask(server, question)
    assert status == 400 and said in told["error"] and "\n" not in told["error"]


def test_only_the_page_itself_may_ask(server):
    """No other page in the reader's browser, whatever name it has given to this machine's address."""
    question = {"run": 0, "what": "fill_mask", "text": "the [MASK]"}
    for name, status in (
        ("evil.example", 421),
        (f"evil.example:{server.server_port}", 421),
        ("", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost", 200),
        ("[::1]:1", 200),
        (f"LOCALHOST.:{server.server_port}", 200),
    ):
        assert ask(server, question, Host=name)[0] == status, name
    own = f"127.0.0.1:{server.server_port}"
    for origin, status in (
        ("http://evil.example", 403),
        ("null", 403),
        (f"https://{own}", 403),
        (f"http://{own}", 200),
    ):
        assert ask(server, question, Host=own, Origin=origin)[0] == status, origin
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert ask(server, question, **{"Content-Type": kind})[0] in (400, 415), kind


def test_runs_are_named_by_what_tells_them_apart():
    assert list(app.name_folders(["runs/a", "b"])) == ["a", "b"]
    assert list(app.name_folders(["x/a", "y/a/"])) == ["x/a", "y/a"]
    with pytest.raises(errors.ConfigError, match="expected each run once"):
        app.name_folders(["a", "./a"])


def test_connections_and_bodies_are_bounded_in_number_and_time(server):
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(server.server_address, 10)) for _ in range(31)]
        lines[0].sendall(HALF)
        assert lines[0].recv(99).startswith(b"HTTP/1.1 408")
        lines.append(stack.enter_context(socket.create_connection(server.server_address, 10)))
        lines[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert lines[-1].recv(99).startswith(b"HTTP/1.1 503")
    assert get(server, "/serve.js")[0] == 200


def test_an_error_of_the_server_is_a_line_in_its_terminal(server, monkeypatch, capfd):
    monkeypatch.setattr(panels, "answer_request", lambda *_: 1 / 0)
    status, headers, told = ask(server, {"run": 0, "what": "fill_mask", "text": "the [MASK]"})
    assert status == 500 and told == {"error": "the server failed; its terminal shows the error"}
    assert headers["Content-Security-Policy"] == app.CLOSED_POLICY
    assert get(server, "/serve.js")[0] == 200  # what else is logged is there by now
    assert capfd.readouterr().err == "error: ZeroDivisionError: division by zero\n"


def test_so_many_wait_and_no_more(server, monkeypatch):
    monkeypatch.setattr(app, "MAX_WAITING", 0)
    status, _, told = ask(server, {"run": 0, "what": "fill_mask", "text": "the [MASK]"})
    assert status == 429 and told["error"] == "too many requests at once; try again"
    assert get(server, "/serve.js")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_to_look_and_ends_at_a_signal(opened_models, monkeypatch, capsys, number):
    """Whatever is open: an idle connection is no reason to wait."""

    async def interrupt(self):
        self.client = await asyncio.open_connection(*self.servers[0].sockets[0].getsockname())
        signal.raise_signal(number)

    async def wait(self):
        waited_for.extend(self.server_state.tasks)

    class Terminated(Exception):
        pass

    waited_for = []

    def terminate(*_):
        raise Terminated

    monkeypatch.setattr(pretrained_io, "load_model", lambda folder: opened_models[folder])
    monkeypatch.setattr(uvicorn.Server, "main_loop", interrupt)
    monkeypatch.setattr(uvicorn.Server, "_wait_tasks_to_complete", wait)
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Terminated):
            app.serve_models(["fills"], {}, "localhost", 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert waited_for == []
    *_, said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"ready: open http://127\.0\.0\.1:\d+/ in a browser; Ctrl-C ends", said), said


@contextlib.contextmanager
def tab_of(browser, server, logged=(), **settings):
    """The page in a tab, its first question answered; AssertionError if it logs anything else, or asks another server."""
    said, asked = [], []
    tab = browser.new_page(**settings)
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"http://127.0.0.1:{server.server_port}/")
    wait_for_answer(tab)
    yield tab
    tab.close()
    assert said == [*logged]
    assert {url.split("/")[2] for url in asked if not url.startswith("data:")} == {f"127.0.0.1:{server.server_port}"}


def wait_for_answer(tab):
    tab.locator("#ask:not([aria-busy])").wait_for()


def test_what_looks_like_a_script_is_shown_as_text(chromium, server):
    """In the text, in the vocabulary, in the lines of the file, and in a model's name."""
    with tab_of(chromium, server) as tab:
        tab.locator("#text").fill(f"the [MASK] {SCRIPT} {IMAGE}")
        tab.keyboard.press("Enter")
        wait_for_answer(tab)
        for what in ("fill_mask", "similar"):
            place = tab.locator(f"section[data-run='0'] [data-what={what}]")
            for one in (SCRIPT, IMAGE):
                assert place.get_by_text(one).count() > 0, what
        tab.locator("section[data-run='0'] summary").click()
        frame = tab.frame_locator("section[data-run='0'] iframe")
        frame.get_by_text(SCRIPT).first.wait_for()
        assert tab.get_by_role("heading", name="<i>hub</i>").count() == 1
        assert tab.title() == "fills, reads, <i>hub</i>" and SCRIPT in frame.locator("title").inner_text()


def test_the_page_is_asked_by_keys_and_by_clicks(chromium, server, opened_models):
    with tab_of(chromium, server, viewport={"width": 375, "height": 800}) as tab:
        field, first = tab.locator("#text"), tab.locator("section[data-run='0']")
        assert field.input_value() == "a [MASK] ." and tab.locator(":focus").get_attribute("id") == "text"
        best = opened_models["fills"].fill_mask("a [MASK] .", 1)[0][0]
        filling = first.locator(".filling").first
        assert filling.inner_text().split() == [best.token, f"{best.probability:.1%}"]
        assert "needs a run that was trained to predict" in tab.locator("section[data-run='1']").inner_text()
        filling.click()
        wait_for_answer(tab)
        assert field.input_value() == best.text and "Put [MASK] where" in first.inner_text()
        field.fill("the red tree")
        field.press("Enter")
        wait_for_answer(tab)
        tab.locator("#words button", has_text="tree").click()
        tab.locator("section[data-run='2'] [data-what=word] b").first.wait_for()
        near = neighbors.find_neighbors(opened_models["fills"], "the red tree", "tree", LINES, 1)
        assert first.locator("[data-what=word] b").first.inner_text() == near[0].word
        assert tab.locator("body").evaluate("body => document.documentElement.scrollWidth") <= 375
        field.fill(" ")
        field.press("Enter")
        assert tab.locator("#status").inner_text() == "Type a sentence first."


def test_a_port_that_is_taken_is_said_in_a_line(server):
    address = "127.0.0.1", server.server_port
    with pytest.raises(errors.ConfigError, match=f"--port = {server.server_port}: expected .* a free port"):
        app.serve_models(["a"], {}, *address)
    for lines, said in (
        (dict.fromkeys(range(2001), "a"), "2001: expected at most 2,000 lines"),
        ({1: "a" * 300_001}, "300001: expected at most 300,000 characters"),
    ):
        with pytest.raises(errors.ConfigError, match=f"^--file = {said}"):
            app.serve_models(["a"], lines, *address)


def test_the_optimum_is_the_exact_posterior():
    """Against the sum over all words in the place of the mask, of documents' exact probabilities."""
    language = dataclasses.replace(config.Language(), max_words=16)
    best = panels.OptimumPanel(language)
    (found,) = panels.answer_request(best, panels.PanelRequest(0, "fill_mask", "the [MASK] milks the old cow ."))
    texts = [f"the {word} milks the old cow ." for word in grammar.build_grammar(language).words]
    prob_W = np.exp(diffusion_bound.compute_document_log_probs(language, texts))
    expected = dict(zip(texts, prob_W / prob_W.sum(), strict=True))
    np.testing.assert_allclose(
        [one["probability"] for one in found], sorted(expected.values())[::-1][: len(found)], rtol=1e-4
    )
    assert all(one["probability"] == pytest.approx(expected[one["text"]], rel=1e-4) for one in found)
    for text in ("the [MASK] zebra .", "the the [MASK] the ."):
        with pytest.raises(errors.ConfigError, match="of the built-in language"):
            panels.answer_request(best, panels.PanelRequest(0, "fill_mask", text))


@pytest.mark.exhaustive
def test_a_link_has_the_text_and_differences_are_marked(chromium, server, opened_models):
    with tab_of(chromium, server) as tab:
        tab.goto(f"http://127.0.0.1:{server.server_port}/?text=the+[MASK]+is+red")
        wait_for_answer(tab)
        assert tab.locator("#text").input_value() == "the [MASK] is red"
        first = [opened_models[name].fill_mask("the [MASK] is red", 1)[0][0].token for name in ("fills", "<i>hub</i>")]
        assert tab.locator(".differs").count() == (first[0] != first[1])
        tab.locator("#text").fill("the [MASK]")
        tab.keyboard.press("Enter")
        wait_for_answer(tab)
        assert tab.url.endswith("?text=the+%5BMASK%5D")
        tab.go_back()
        wait_for_answer(tab)
        assert tab.locator("#text").input_value() == "the [MASK] is red"
