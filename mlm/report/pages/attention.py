"""What a model looks at in a text, on one page: a single HTML file that needs no network.

Letters in array names: T tokens, K layers of H heads. Row i of a map is of token i, column j what it has of token j.
"""
import base64
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm.report.pages import template

TITLE = 120  # characters of the text in the title of the window
STEPS = 255  # of the root of a weight: a byte holds small weights and large ones to within a few per cent


class Map(NamedTuple):
    """A map as the page's script has it; its weights are bytes, base64: the roots of weight_KxHxTxT in STEPS."""

    name: str
    of: str           # heads the tokens whose rows these are,
    to: str           # and those whose columns they are; "of TOKEN to TOKEN" is a sentence,
    given: str        # and so is "TOKEN given TOKEN", the other way about
    answered: bool    # whether its rows are of answers
    note: str
    layers: int
    heads: int
    roots: str


def page(name: str, text: str, tokens: Sequence[str], attention_KxHxTxT: np.ndarray | None = None,
         rollout_KxTxT: np.ndarray | None = None, saliency_TxT: np.ndarray | None = None,
         answers: Sequence[tuple[str, float]] | None = None, hidden: bool = True) -> str:
    """The page of one text, as HTML; at least one of the maps is there.

    name: the model's. Rows of attention and rollout sum to 1; of saliency the page shows each one's share of its row.
    answers: the likeliest entry at each token's place, with its probability, whose gradients saliency has. hidden:
    whether the token was hidden then; else the answer is the next token.
    """
    maps, answers = [], [*(answers or ())]
    if attention_KxHxTxT is not None:
        maps.append(made("Attention", "token", "attends to", "is attended to by", ATTENTION, attention_KxHxTxT))
    if rollout_KxTxT is not None:
        maps.append(made("Rollout", "state of", "is made of", "is in the states of", ROLLOUT, rollout_KxTxT[:, None]))
    if saliency_TxT is not None:
        sum_Tx1 = saliency_TxT.sum(-1, keepdims=True)
        share_TxT = np.divide(saliency_TxT, sum_Tx1, out=np.zeros(saliency_TxT.shape), where=sum_Tx1 > 0)
        where = "at" if hidden else "after"
        maps.append(made("Gradient saliency", f"answer {where}", "follows", f"is followed by answers {where}",
                         SALIENCY[hidden], share_TxT[None, None], answered=bool(answers)))
    data = {"tokens": [visible(token) for token in tokens], "maps": [one._asdict() for one in maps], "steps": STEPS,
            "answers": [[visible(token), f"{share:.0%}"] for token, share in answers]}
    short = text if len(text) <= TITLE else f"{text[:TITLE]}…"
    return template.filled("attention.html", name=valid(name), text=valid(text), short=valid(short), maps=maps,
                           data=data)


ATTENTION = ("The weights with which each token (left) takes of the others (right), layer by layer and head by head. A "
             "weight says what is passed on there, not yet what the answer follows.")
ROLLOUT = ("Attention followed down through all layers up to the chosen one, half of each state staying as it is "
           "(Abnar & Zuidema 2020): how much of each token's embedding (right) is in a state (left).")
SALIENCY = {
    True: "Each token (left) is hidden and asked for: how steeply the log-probability of the likeliest answer follows "
          "the embedding of each other token (right), by the norm of its gradient (Simonyan et al. 2014; Li et al. "
          "2016), as a share of the row.",
    False: "Each token (left) is asked for the next one: how steeply the log-probability of the likeliest answer "
           "follows the embedding of each token (right), by the norm of its gradient (Simonyan et al. 2014; Li et al. "
           "2016), as a share of the row.",
}


def made(name: str, of: str, to: str, given: str, note: str, weight_KxHxTxT: np.ndarray,
         answered: bool = False) -> Map:
    roots = np.rint(STEPS * np.sqrt(np.clip(weight_KxHxTxT, 0, 1))).astype(np.uint8)
    return Map(name, of, to, given, answered, note, *roots.shape[:2], base64.b64encode(roots.tobytes()).decode())


def visible(token: str) -> str:
    """A token as it can be read: a mark that joins to what stands before it has a circle to join to, and one without
    any ink is named by its code points."""
    kinds = [unicodedata.category(sign) for sign in token]
    if all(kind[0] in "ZC" for kind in kinds):
        return " ".join(f"U+{ord(sign):04X}" for sign in token) or "∅"
    rest = token.removeprefix("##")
    if rest and unicodedata.category(rest[0])[0] == "M":
        token = f"{token[:len(token) - len(rest)]}◌{rest}"
    return valid(token)


def valid(text: str) -> str:
    """A text that UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
