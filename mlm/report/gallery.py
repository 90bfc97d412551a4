"""The figures that a sweep's finished runs allow."""
from collections.abc import Sequence
from pathlib import Path

from mlm.report import charts, figures


def write(root: Path, results: Sequence[dict]) -> list[Path]:
    """Draws into root/figures; returns the paths without ending: each is there as .png, .svg and .csv."""
    return [figures.draw(root / "figures", chart).with_suffix("") for chart in charts.of(root, results, [], [])]
