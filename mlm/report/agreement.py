"""Do two corpora agree on what changes are worth? Measures over changes, with bootstrap intervals, and their picture.

Letters in array names: N changes, P pairs of corpora, R resamples.
"""

from collections.abc import Sequence

import numpy as np

from mlm.base.estimates import Estimate
from mlm.report import compare, specs

NEAR_ZERO = 0.02  # nats up to which the picture's axes are linear; logarithmic beyond
SIDE = 480  # CSS pixels of the picture, which names each change
TICKS = [-1, -0.3, -0.1, -0.03, 0, 0.03, 0.1, 0.3, 1]


class ChangeInterval(Estimate):
    """A measure of agreement, with changes resampled."""

    __slots__ = ()
    bounds_title, bounds_method = "95% interval over changes", "bootstrap"


def compute_measures(x_PxN: np.ndarray, y_PxN: np.ndarray) -> dict[str, ChangeInterval]:
    """How far differences on two corpora agree: each measure the mean over pairs, with the pairs' changes resampled
    together.

    Args:
        x_PxN: the difference of each change on the first corpus of each pair.
        y_PxN: that on the second corpus.

    Returns:
        "agreement", the share of changes with one sign on both; "tau", Kendall's tau-b; "slope", of y on x by least
        squares through 0.
    """
    count_RxN = compare.draw_counts(np.random.default_rng(0), x_PxN.shape[1], compare.RESAMPLES)
    count_RxN = np.concatenate([np.ones_like(count_RxN[:1]), count_RxN])  # first, each change once
    totals: dict[str, np.ndarray] = {}
    for x_N, y_N in zip(x_PxN, y_PxN, strict=True):
        order_x_NxN, order_y_NxN = (np.sign(values_N[:, None] - values_N) for values_N in (x_N, y_N))
        both_R, x_R, y_R = (
            ((count_RxN @ product_NxN) * count_RxN).sum(1)
            for product_NxN in (order_x_NxN * order_y_NxN, order_x_NxN**2, order_y_NxN**2)
        )
        pairs_R = np.sqrt(x_R * y_R)  # 0 where a resample has one change alone
        measures = {
            "agreement": count_RxN @ (np.sign(x_N) == np.sign(y_N)) / x_N.size,
            "tau": np.divide(both_R, pairs_R, out=np.zeros_like(both_R), where=pairs_R > 0),
            "slope": count_RxN @ (x_N * y_N) / (count_RxN @ x_N**2),
        }
        totals = {name: totals.get(name, 0.0) + value_R / len(x_PxN) for name, value_R in measures.items()}
    return {
        name: ChangeInterval(float(value_R[0]), *np.quantile(value_R[1:], (0.025, 0.975)).tolist())
        for name, value_R in totals.items()
    }


def draw_differences(rows: Sequence[dict]) -> dict:
    """The spec of differences on texts (x) and on languages (y), with intervals both ways and the line of equal ones.

    rows: each with "language", "change", "half", and the estimates "text" and "difference".
    """
    values = [
        {name: row[name] for name in ("language", "change", "half")}
        | {f"x_{end}": value for end, value in row["text"]._asdict().items()}
        | {f"y_{end}": value for end, value in row["difference"]._asdict().items()}
        for row in rows
    ]
    ends = [value for row in values for name, value in row.items() if name[:2] in ("x_", "y_") and value is not None]
    domain = [min(ends), max(ends)]
    scale = {"type": "symlog", "constant": NEAR_ZERO, "nice": False, "padding": 10, "domain": domain}
    kind = {"type": "quantitative", "scale": scale, "axis": {"values": TICKS, "format": "+~g"}}

    def at(name):
        title = "on texts (nats)" if name.startswith("x") else "on a language (nats)"
        return {"field": name, "title": title, **kind}

    color = {
        "field": "language",
        "sort": None,
        "scale": {"range": specs.COLORS},
        "legend": {"title": None, "orient": "top"},
    }
    halves = {"field": "half", "legend": None, "scale": {"domain": ["report", "choose"], "range": ["circle", "cross"]}}
    mean, rule = {"x": at("x_mean"), "y": at("y_mean")}, {"type": "rule", "opacity": 0.35}
    text = {"type": "text", "align": "left", "dx": 7, "fontSize": 9, "color": specs.SOFT}
    equal = [{"x_mean": end, "y_mean": end} for end in domain]
    dashes = {"type": "line", "strokeDash": [4, 4], "color": specs.SOFT}
    return {
        "title": {
            "text": "Held-out loss with a change minus without",
            "subtitle": "circles: changes that are reported, crosses: those that fields may be chosen by",
        },
        "data": {"values": values},
        "height": SIDE,
        "layer": [
            {"data": {"values": equal}, "mark": dashes, "encoding": mean},
            {"mark": rule, "encoding": mean | {"x": at("x_low"), "x2": {"field": "x_high"}, "color": color}},
            {"mark": rule, "encoding": mean | {"y": at("y_low"), "y2": {"field": "y_high"}, "color": color}},
            {"mark": {"type": "point", "size": 45}, "encoding": mean | {"color": color, "shape": halves}},
            {"mark": text, "encoding": mean | {"text": {"field": "change"}}},
        ],
    }
