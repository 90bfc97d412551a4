"""The style of series in figures and on pages: eight colors, twelve markers, five kinds of dashes.

Any two colors for a background have a distance of at least 0.12 in OKLab, a perceptually uniform space, both in normal
vision and in each kind of color blindness. Each has a contrast of at least 3 to the background.
"""

from typing import NamedTuple

LIGHT = ("#1b5bd5", "#e96908", "#17a77f", "#ad3289", "#715b09", "#1a111c", "#9d7fd6", "#69222a")  # on white
DARK = ("#4b6dec", "#f37a22", "#1eb68c", "#d886ed", "#eace4e", "#f7f7d3", "#add8f7", "#be3e5f")  # on DARK_BACKGROUND
DARK_BACKGROUND = "#16191e"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")  # matplotlib's names
DASHES = ((), (6, 2), (1.5, 1.5), (6, 2, 1.5, 2), (10, 3))  # lengths in line widths: on, off, ...


class Style(NamedTuple):
    """Indices into LIGHT and DARK, MARKERS and DASHES."""

    color: int
    marker: int
    dashes: int


def select_style(index: int) -> Style:
    """The style of the series with this index; figures with the same series in the same order look alike."""
    return Style(index % len(LIGHT), index % len(MARKERS), index % len(DASHES))
