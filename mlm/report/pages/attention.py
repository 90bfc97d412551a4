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
        maps.append(build_map("Attention", attention_KxHxTxT))
    if rollout_KxTxT is not None:
        maps.append(build_map("Rollout", rollout_KxTxT[:, None]))
    if saliency_TxT is not None:
        sum_Tx1 = saliency_TxT.sum(-1, keepdims=True)
        share_TxT = np.divide(saliency_TxT, sum_Tx1, out=np.zeros(saliency_TxT.shape), where=sum_Tx1 > 0)
        maps.append(build_map("Gradient saliency", share_TxT[None, None]))
    data = {
        "tokens": [make_visible(token) for token in tokens],
        "maps": maps,
        "levels": WEIGHT_LEVELS,
        "is_masked": is_masked,
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


def build_map(name: str, weight_KxHxTxT: np.ndarray) -> dict:
    """A map for the page's script, which has its words, and gets the square roots of the weights as bytes in base64."""
    roots_KxHxTxT = np.rint(WEIGHT_LEVELS * np.sqrt(np.clip(weight_KxHxTxT, 0, 1))).astype(np.uint8)
    roots = base64.b64encode(roots_KxHxTxT.tobytes()).decode()
    return {"name": name, "layers": len(roots_KxHxTxT), "heads": roots_KxHxTxT.shape[1], "roots": roots}


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
