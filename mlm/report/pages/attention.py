"""The attention maps of a model for one text, as a single HTML file that needs no network.

Letters in array names: T tokens, K layers of H heads. Entry (i, j) of a map is the weight of token j for token i.
"""

import base64
import math
import unicodedata
from collections.abc import Sequence

import numpy as np

from mlm.report import pages

MAX_TITLE = 120  # characters of the text in the window's title
WEIGHT_LEVELS = 255  # square roots of weights are stored as bytes, which is precise to a few per cent


def render_page(
    name: str,
    text: str,
    tokens: Sequence[str],
    attention_KxHxTxT: np.ndarray | None = None,
    rollout_KxTxT: np.ndarray | None = None,
    saliency_TxT: np.ndarray | None = None,
    predictions: Sequence[tuple[str, float]] | None = None,
    is_masked: bool = True,
    surprisal: Sequence[tuple[str, float]] | None = None,
) -> str:
    """The HTML page of one text, with at least one map; name: of the model.

    Attention weights and rollout have rows that sum to 1. Saliency, norms of gradients, is shown as shares of its row;
    it is that of the most probable token at each position, which `predictions` gives with its probability: of a masked
    token, or if it was not masked, of the next one. surprisal: the words of the text and their nats, NaN for none.
    """
    maps, predictions = [], predictions or ()
    if attention_KxHxTxT is not None:
        words = "token", "attends to", "is attended to by"
        maps.append(build_map("Attention", *words, ATTENTION_CAPTION, attention_KxHxTxT))
    if rollout_KxTxT is not None:
        words = "state of", "consists of", "contributes to the states of"
        maps.append(build_map("Rollout", *words, ROLLOUT_CAPTION, rollout_KxTxT[:, None]))
    if saliency_TxT is not None:
        sum_Tx1 = saliency_TxT.sum(-1, keepdims=True)
        share_TxT = np.divide(saliency_TxT, sum_Tx1, out=np.zeros(saliency_TxT.shape), where=sum_Tx1 > 0)
        where = "at" if is_masked else "after"
        words = f"prediction {where}", "depends on", f"influences predictions {where}"
        saliency = build_map("Gradient saliency", *words, SALIENCY_CAPTIONS[is_masked], share_TxT[None, None])
        maps.append(saliency | {"rows_are_predictions": bool(predictions)})
    data = {
        "tokens": [make_visible(token) for token in tokens],
        "maps": maps,
        "levels": WEIGHT_LEVELS,
        "predictions": [[make_visible(token), f"{share:.0%}"] for token, share in predictions],
    }
    short = text if len(text) <= MAX_TITLE else f"{text[:MAX_TITLE]}…"
    texts = {"name": make_valid(name), "text": make_valid(text), "short": make_valid(short)}
    words = format_surprisal(surprisal or ())
    return pages.render("attention.html", **texts, maps=maps, data=data, words=words, is_masked=is_masked)


def format_surprisal(words: Sequence[tuple[str, float]]) -> list[tuple[str, str, float]]:
    """Each word, its bits as text, and these as a share of the largest."""
    bits = [nats / math.log(2) for _, nats in words]
    largest = max([1.0, *(value for value in bits if math.isfinite(value))])
    shown = [("", 0.0) if math.isnan(value) else (f"{value:.1f}", min(value / largest, 1.0)) for value in bits]
    return [(make_visible(word), *parts) for (word, _), parts in zip(words, shown, strict=True)]


ATTENTION_CAPTION = (
    "The attention weights of each token (left) over all tokens (right), by layer and head. A weight says what a layer "
    "passes on, not what the prediction depends on."
)
ROLLOUT_CAPTION = (
    "Attention multiplied through all layers up to the selected one, with half of each state from the residual "
    "connection (Abnar & Zuidema 2020): how much of each token's embedding (right) is in a state (left)."
)
SALIENCY_CAPTIONS = {
    True: "Each token (left) is masked and predicted: the norm of the gradient of the most probable token's "
    "log-probability with respect to the embedding of each other token (right), as a share of the row (Simonyan et al. "
    "2014; Li et al. 2016).",
    False: "Each token (left) predicts the next one: the norm of the gradient of the most probable token's "
    "log-probability with respect to the embedding of each token (right), as a share of the row (Simonyan et al. 2014; "
    "Li et al. 2016).",
}


def build_map(
    name: str, subject: str, relation: str, inverse_relation: str, note: str, weight_KxHxTxT: np.ndarray
) -> dict:
    """A map in the format of the page's script, which gets the square roots of the weights as bytes in base64.

    "SUBJECT token RELATION token" is a sentence about a row, "token INVERSE_RELATION token" about a column.
    """
    roots_KxHxTxT = np.rint(WEIGHT_LEVELS * np.sqrt(np.clip(weight_KxHxTxT, 0, 1))).astype(np.uint8)
    return {
        "name": name,
        "subject": subject,
        "relation": relation,
        "inverse_relation": inverse_relation,
        "rows_are_predictions": False,
        "note": note,
        "layers": len(roots_KxHxTxT),
        "heads": roots_KxHxTxT.shape[1],
        "roots": base64.b64encode(roots_KxHxTxT.tobytes()).decode(),
    }


def make_visible(token: str) -> str:
    """A readable form of a token: a combining mark gets a dotted circle, an invisible token becomes its code points."""
    categories = [unicodedata.category(character) for character in token]
    if all(category[0] in "ZC" for category in categories):
        return " ".join(f"U+{ord(character):04X}" for character in token) or "∅"
    rest = token.removeprefix("##")
    if rest and unicodedata.category(rest[0])[0] == "M":
        token = f"{token[: len(token) - len(rest)]}◌{rest}"
    return make_valid(token)


def make_valid(text: str) -> str:
    """The text without characters that UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
