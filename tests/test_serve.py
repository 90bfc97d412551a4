"""The page of models side by side: it answers what the models do, and shows what it is given as text."""
import numpy as np
import pytest
from serving import LINES, ask, get, models, served

from launch import columns, serve
from mlm.base import errors
from mlm.judge import neighbours


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return models(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def server(opened):
    with served(opened, "fills", "reads", "hub") as made:
        yield made


def test_answers_are_those_of_the_opened_models(server, opened):
    text = "the [MASK] is [MASK] ."
    for run, name in ((0, "fills"), (2, "hub")):
        status, _, said = ask(server, {"run": run, "what": "fill", "text": text})
        model = opened[name]
        expected = model.fill(text, min(columns.TOP, model.tokenizer.vocab_size))
        assert status == 200 and [[one["token"] for one in best] for best in said["answer"]] == [
            [one.token for one in best] for best in expected]
        np.testing.assert_allclose([one["probability"] for best in said["answer"] for one in best],
                                   [one.probability for best in expected for one in best], rtol=1e-5)
    for run, name in enumerate(("fills", "reads")):
        _, _, said = ask(server, {"run": run, "what": "similar", "text": "the red tree"})
        near = opened[name].similar("the red tree", LINES, top=4)
        assert [one["line"] - 1 for one in said["answer"]["near"]] == [line for line, _ in near]
        np.testing.assert_allclose([one["cosine"] for one in said["answer"]["near"]], [one for _, one in near],
                                   atol=1e-5)
        assert said["answer"]["words"] == ["the", "red", "tree"]
        _, _, said = ask(server, {"run": run, "what": "word", "text": "the red tree the", "word": "the", "which": 2})
        near = neighbours.nearest(opened[name], "the red tree the", "4", LINES, top=columns.TOP)
        assert [(one["line"] - 1, one["word"]) for one in said["answer"]["near"]] == [
            (one.line, one.word) for one in near]
        for one in said["answer"]["near"]:
            assert one["before"] + one["word"] + one["after"] == LINES[one["line"] - 1]


def test_a_mask_is_filled_in_before_texts_are_compared(server, opened):
    _, _, said = ask(server, {"run": 0, "what": "similar", "text": "the [MASK] is [MASK] ."})
    first = opened["fills"].fill("the [MASK] is [MASK] .", 1)[0][0].text
    assert said["answer"]["text"] == opened["fills"].fill(first, 1)[0][0].text


def test_what_a_model_cannot_do_is_said_in_its_column(server):
    status, _, said = ask(server, {"run": 1, "what": "fill", "text": "the [MASK]"})
    assert status == 400 and said["error"].startswith("fill = 'causal': expected a run that was trained to tell")
    _, _, page = get(server, "/")
    assert said["error"].replace("'", "&#39;") in page and "a [MASK] ." in page
    status, headers, page = get(server, "/attention?run=1&text=the+tree")
    assert status == 200 and "saliency" in page and "sandbox allow-scripts" in headers["Content-Security-Policy"]


def test_every_answer_forbids_what_the_page_does_not_need(server):
    for path in ("/", "/serve.css", "/serve.js", "/attention?run=0&text=a", "/nothing"):
        _, headers, _ = get(server, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'") and "http" not in policy and "*" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in headers
        assert "unsafe" not in policy or "sandbox" in policy


BAD = {
    "no object": (["a"], "question = ['a']: expected an object"),
    "too little": ({"run": 0}, "what, text, too"),
    "more": ({"run": 0, "what": "fill", "text": "a", "layer": 1}, "question = 'layer': expected one of"),
    "no such run": ({"run": 3, "what": "fill", "text": "a"}, "run = 3: expected 0 <= value <= 2"),
    "true": ({"run": True, "what": "fill", "text": "a"}, "run = True: expected a number"),
    "nothing to do": ({"run": 0, "what": "fil", "text": "a"}, "did you mean 'fill'?"),
    "no text": ({"run": 0, "what": "fill", "text": None}, "text = None: expected a text"),
    "empty": ({"run": 0, "what": "similar", "text": " \n"}, "expected a text"),
    "no mask": ({"run": 0, "what": "fill", "text": "a"}, "expected a text with [MASK] in it"),
    "long": ({"run": 0, "what": "similar", "text": "a " * 501}, "expected at most 1000 characters"),
    "many masks": ({"run": 0, "what": "fill", "text": "[MASK] " * 9}, "expected at most 8 [MASK]"),
    "half a character": ({"run": 0, "what": "similar", "text": "a \ud800"}, "expected whole characters"),
    "no word": ({"run": 0, "what": "word", "text": "the apple", "word": "sky"}, "expected a word of 'the apple'"),
    "no such word": ({"run": 0, "what": "word", "text": "the", "word": "the", "which": 2}, "which = 2: expected 1 <="),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_question_is_refused_in_one_line(server, case):
    question, said = BAD[case]
    status, _, told = ask(server, question)
    assert status == 400 and said in told["error"] and "\n" not in told["error"]


def test_only_the_page_itself_may_ask(server):
    """No other page in the reader's browser, whatever name it has given to this machine's address."""
    question = {"run": 0, "what": "fill", "text": "the [MASK]"}
    for name, status in (("evil.example", 421), (f"evil.example:{server.server_port}", 421), ("", 421),
                         ("127.0.0.1.evil.example", 421), ("localhost", 200), ("[::1]:1", 200),
                         (f"LOCALHOST.:{server.server_port}", 200)):
        assert ask(server, question, Host=name)[0] == status, name
    own = f"127.0.0.1:{server.server_port}"
    for origin, status in (("http://evil.example", 403), ("null", 403), (f"https://{own}", 403),
                           (f"http://{own}", 200)):
        assert ask(server, question, Host=own, Origin=origin)[0] == status, origin
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert ask(server, question, **{"Content-Type": kind})[0] in (400, 415), kind


def test_runs_are_named_by_what_tells_them_apart():
    assert list(serve.named(["runs/a", "b"])) == ["a", "b"]
    assert list(serve.named(["x/a", "y/a/"])) == ["x/a", "y/a"]
    with pytest.raises(errors.ConfigError, match="expected each run once"):
        serve.named(["a", "./a"])
