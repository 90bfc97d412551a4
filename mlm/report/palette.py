"""How series look in every figure and on the page: eight colours, twelve markers, five kinds of dashes.

The eight colours of a background lie at least 0.12 apart in OKLab, the space of even steps to the eye, for people of
normal sight and of each kind of colour blindness, and have a contrast of at least 3 to the background.
"""
from typing import NamedTuple

LIGHT = ("#1b5bd5", "#e96908", "#17a77f", "#ad3289", "#715b09", "#1a111c", "#9d7fd6", "#69222a")  # on white
DARK = ("#4b6dec", "#f37a22", "#1eb68c", "#d886ed", "#eace4e", "#f7f7d3", "#add8f7", "#be3e5f")   # on DARK_GROUND
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
