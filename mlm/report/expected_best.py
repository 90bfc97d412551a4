"""The expected best of k trials of a search, from the trials that were made (Dodge et al. 2019, arXiv:1909.03004).

What one recipe reached after 16 trials is not to be compared with what another reached after four. The curve says what
so many trials would have reached, on the split that the search chose by. A search is that of
mlm/experiment/searches.py. Letters in array names: T trials, K numbers of trials from 1 on.
"""

import math
from collections.abc import Sequence

import numpy as np

from mlm.base.estimates import UNBOUNDED, Estimate
from mlm.report.charts import LineChart
from mlm.report.series import Series
from mlm.report.table import Column

TOPIC = "Expected best of k trials"
NOTE = (
    "Expected best of k trials: of draws with replacement from the row's trials (Dodge et al. 2019), on the search's "
    "own split. A pruned trial counts with the score of its last rung, which more training would improve, and one "
    "that diverged with the worst of its row: the curve shows few trials rather too bad than too good."
)


class TrialSpread(Estimate):
    """The expected best of k trials, with the spread over draws of k trials."""

    __slots__ = ()
    bounds_title, bounds_method = "one standard deviation over draws of k trials", "from the trials made"


def compute_expected_best(score_T: Sequence[float] | np.ndarray, better: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the standard deviation of the best of k draws from the trials, for k from 1 to their number.

    The best of k draws with replacement from T trials is at most the i-th worst with probability (i / T)^k.
    """
    sorted_T = np.sort(better * np.asarray(score_T, np.float64))  # the best last
    count = len(sorted_T)
    share_KxT1 = (np.arange(count + 1) / count) ** np.arange(1, count + 1)[:, None]
    probability_KxT = np.diff(share_KxT1, axis=1)
    mean_K = probability_KxT @ sorted_T
    variance_K = (probability_KxT * (sorted_T - mean_K[:, None]) ** 2).sum(1)
    return better * mean_K, np.sqrt(variance_K)


def collect_scores(row, better: int) -> np.ndarray:
    """score_T: the last score of each trial of a row of a search; one that diverged has the worst of the others."""
    last = [trial.scores[-1] for trial in row.trials]
    worst = better * min(better * score for score in last if score is not None)
    return np.array([worst if score is None else score for score in last])


def build_table(search) -> tuple[list[dict], list[Column]]:
    """The table (rows, columns) of a search: trials, expected best of 1, 2, 4, ... of them, and the chosen values."""
    lengths = [len(row.trials) for row in search.rows.values()]
    counts, most = sorted({2**power for power in range(20)} | {*lengths}), max(lengths)
    table = []
    for name, row in search.rows.items():
        mean_K, _ = compute_expected_best(collect_scores(row, search.better), search.better)
        best = {f"best_of_{count}": float(mean_K[count - 1]) for count in counts if count <= len(mean_K)}
        chosen = {field: f"{value} ({row.ranges[field]})" for field, value in row.chosen.items()}
        table.append({"row": name, "trials": len(row.trials)} | best | chosen)
    title = f"{search.score.replace('_', ' ')}, expected best of"
    columns = [Column("row", "row"), Column("trials", "trials", ",d", note=NOTE)]
    columns += [Column(f"best_of_{count}", f"{title} {count}", ".3f") for count in counts if count <= most]
    fields = dict.fromkeys(field for row in search.rows.values() for field in row.chosen)
    return table, [*columns, *(Column(field, field) for field in fields)]


def build_chart(search) -> LineChart:
    """The curve of each row of a search by the number of trials."""
    lines = []
    for name, row in search.rows.items():
        mean_K, deviation_K = compute_expected_best(collect_scores(row, search.better), search.better)
        bounds_Kx3 = np.stack([mean_K, mean_K - deviation_K, mean_K + deviation_K], axis=-1)
        values: list[Estimate] = [TrialSpread(*bounds) for bounds in bounds_Kx3.tolist()]
        lines.append(Series(name, [*range(1, len(values) + 1)], values))
    y = f"{search.score.replace('_', ' ')}: expected best, on the search's split"
    limits = (0.0, math.inf) if search.score == "excess_loss" else UNBOUNDED
    return LineChart("expected_best", "trials", TOPIC, "trials", y, lines, band=True, limits=limits)
