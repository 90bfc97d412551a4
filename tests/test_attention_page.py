"""The page of what a model looks at, in a browser: it shows the weights, and no token is more than text."""

import numpy as np
import pytest

from mlm.inference import attention_maps
from mlm.report.pages import attention

K, H = 2, 3
TOKENS = [
    "[CLS]",
    "the",
    "</script><script>alert(1)</script>",
    "\"'`<b>&amp;",
    "\u202eright",
    "\u05e9\u05dc",
    "##\u0301",
    "\u200b",
    "\U0001f469\u200d\U0001f469",
    "x" * 300,
    "[SEP]",
]
T = len(TOKENS)


def weights(layers, heads, size):
    return np.random.default_rng(0).dirichlet(np.full(size, 0.3), (layers, heads, size)).astype(np.float32)


@pytest.fixture(scope="module")
def maps():
    weights_KxHxTxT = weights(K, H, T)
    slope_TxT = np.random.default_rng(1).exponential(size=(T, T)) * ~np.eye(T, dtype=bool)
    slope_TxT[1] = 0
    return {
        "attention_KxHxTxT": weights_KxHxTxT,
        "rollout_KxTxT": attention_maps.compute_rollout(weights_KxHxTxT),
        "saliency_TxT": slope_TxT,
    }


@pytest.fixture(scope="module")
def written(maps, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(
        attention.render_page("</title><i>run", " ".join(TOKENS), TOKENS, predictions=[("</b>", 0.25)] * T, **maps)
    )
    return path


def numbers(tab):
    """The table of numbers, as shares."""
    rows = tab.locator(".numbers tbody tr").evaluate_all(
        "all => all.map(row => [...row.cells].map(one => one.innerText))"
    )
    return np.array([[float(cell.rstrip("%")) / 100 for cell in row[1:]] for row in rows])


def test_the_numbers_are_the_weights_of_the_layer_and_heads_that_are_chosen(tab, maps):
    tab.locator(".numbers summary").click()
    tab.locator(".numbers tbody tr").first.wait_for()  # the page fills the table once it has opened it
    np.testing.assert_allclose(numbers(tab), maps["attention_KxHxTxT"][0].mean(0), atol=0.008)
    tab.get_by_role("button", name="layer 2, head 3").click()
    np.testing.assert_allclose(numbers(tab), maps["attention_KxHxTxT"][1, 2], atol=0.01)
    assert tab.get_by_role("heading", name="Attention, layer 2, head 3").is_visible()
    assert tab.locator(".grid [aria-pressed=true]").count() == 1 and tab.locator(".layer select").input_value() == "1"
    tab.get_by_role("button", name="head 1", exact=True).click()
    np.testing.assert_allclose(numbers(tab), maps["attention_KxHxTxT"][1, [0, 2]].mean(0), atol=0.01)
    tab.get_by_role("button", name="Rollout").click()
    np.testing.assert_allclose(numbers(tab), maps["rollout_KxTxT"][1], atol=0.01)
    tab.locator(".layer select").select_option(label="1")
    np.testing.assert_allclose(numbers(tab), maps["rollout_KxTxT"][0], atol=0.01)
    tab.get_by_role("button", name="Gradient saliency").click()
    share_TxT = maps["saliency_TxT"] / np.maximum(maps["saliency_TxT"].sum(-1, keepdims=True), 1e-9)
    np.testing.assert_allclose(numbers(tab), share_TxT, atol=0.01)
    assert not tab.locator(".layer").first.is_visible() and not tab.locator(".overview").is_visible()


COPY = """canvas => {  // to read pixels of; the page itself never does
    const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    const pen = copy.getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
"""
INK = (
    COPY
    + """  // the rows of tokens at whose height something is drawn, at the canvas's left and right edge
    const count = document.querySelector(".tokens").children.length;
    return [2, canvas.width - 3].map(x => [...Array(count).keys()].filter(at =>
        pen.getImageData(x, Math.round((at + 0.5) * canvas.height / count), 1, 1).data[3] > 0));
}"""
)


def test_a_token_shows_its_own_lines_and_shares_by_pointer_and_by_keys(tab, maps):
    lines, (left, right) = tab.locator(".columns canvas"), tab.locator(".tokens").all()
    tab.get_by_role("button", name="layer 1, head 2").click()
    assert len(lines.evaluate(INK)[0]) > 5
    mine_T = maps["attention_KxHxTxT"][0, 1, 3]
    left.locator("button").nth(3).hover()
    assert lines.evaluate(INK)[0] == [3] and int(mine_T.argmax()) in lines.evaluate(INK)[1]
    shares = right.locator(".share").all_inner_texts()
    np.testing.assert_allclose([float(text.rstrip("%") or 0) / 100 for text in shares], mine_T, atol=0.01)
    told = tab.get_by_role("status")
    assert told.locator("b").all_inner_texts()[0].startswith("\"'`<b>&amp;")
    best = told.locator("b").nth(1).inner_text()
    assert best == attention.make_visible(TOKENS[int(mine_T.argmax())]) and "layer 1, head 2" in told.inner_text()
    tab.mouse.move(0, 0)
    assert len(lines.evaluate(INK)[0]) > 5
    left.locator("button").first.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        tab.keyboard.press(key)
    tab.mouse.move(0, 0)
    assert right.locator("[aria-pressed=true]").count() == 1 and lines.evaluate(INK)[1] == [1]
    assert told.inner_text().startswith("the is attended to by")
    tab.keyboard.press("Escape")
    assert tab.locator(".tokens [aria-pressed=true]").count() == 0
    tab.locator(".square canvas").focus()
    for key in ("ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    assert f"{100 * maps['attention_KxHxTxT'][0, 1, 1, 1]:.0f}" in told.inner_text()


def test_what_tokens_say_is_text_and_can_be_told_apart(tab):
    shown = tab.locator(".tokens").first.locator("bdi").all_text_contents()
    assert shown == [attention.make_visible(token) for token in TOKENS] and len({*shown}) == T
    assert shown[2] == TOKENS[2] and shown[6] == "##\u25cc\u0301" and shown[7] == "U+200B"
    assert tab.locator("script").count() == 2 and tab.locator("i, b").count() == 0
    assert tab.title().startswith("Attention in </title><i>run: [CLS] the </script>")
    tab.get_by_role("button", name="Gradient saliency").click()
    tab.locator(".token").nth(4).hover()
    assert "</b> (25%)" in tab.get_by_role("status").inner_text()
