"""Which figures a sweep's finished runs allow, all written into its folder."""
from collections.abc import Sequence
from pathlib import Path

from mlm.report import figures, series


def write(root: Path, results: Sequence[dict]) -> list[Path]:
    """Learning curves; on the built-in language accuracy by distance; where rates were asked for, the loss by rate.

    Returns the paths without ending: each is there as .png, .svg and .csv.
    """
    made = []
    if lines := series.curves(root, results):
        floor = results[0]["evaluation"].get("floor")
        made.append(figures.learning_curves(root / "learning_curves", lines, floor=floor))
    for name, axis, chance in (("agreement", "words between subject and verb", 0.5),
                               ("recall", "sentence ends between two mentions of a name", None)):
        lines, optimum = series.by_class(results, name)
        if lines:
            made.append(figures.by_class(root / f"{name}_by_distance", lines, optimum, x=axis, y=f"{name} accuracy",
                                         chance=chance))
    lines, floor = series.by_rate(results)
    if lines:
        made.append(figures.by_rate(root / "loss_by_rate", lines, floor))
    return made
