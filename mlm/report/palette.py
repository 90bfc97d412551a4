"""How series look in every figure and on the page: told apart by colour, by marker and by dashes, each alone.

The eight colours of a background lie at least 0.06 apart in OKLab, the space of even steps to the eye, for people of
normal sight and of each kind of colour blindness, and have a contrast of at least 3 to the background.
"""
from typing import NamedTuple

LIGHT = ("#1f5fbf", "#c8500a", "#0f9d78", "#b8408f", "#6b5200", "#1e1e1e", "#5a9bd8", "#7a1020")  # on white
DARK = ("#4f8df7", "#ef7d22", "#19b38a", "#f2a0d6", "#e3c94b", "#f4f4f4", "#a9d5ff", "#c0405f")   # on DARK_GROUND
DARK_GROUND = "#16191e"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")  # matplotlib's names
DASHES = ((), (6, 2), (1.5, 1.5), (6, 2, 1.5, 2), (10, 3))              # lengths in line widths: on, off, ...


class Style(NamedTuple):
    """Places in LIGHT and DARK, MARKERS and DASHES."""

    colour: int
    marker: int
    dashes: int


def style(index: int) -> Style:
    """The look of the series at this place: the same in all figures that show the same series in the same order."""
    return Style(index % len(LIGHT), index % len(MARKERS), index % len(DASHES))
