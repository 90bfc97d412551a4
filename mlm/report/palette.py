"""The style of series in figures and on pages: eight colors, twelve markers, five kinds of dashes.

Any two colors for a background have a distance of at least 0.12 in OKLab, a perceptually uniform space, both in normal
vision and in each kind of color blindness. Each has a contrast of at least 3 to the background.
"""

from collections.abc import Iterable
from typing import NamedTuple

LIGHT = ("#1b5bd5", "#e96908", "#17a77f", "#ad3289", "#715b09", "#1a111c", "#9d7fd6", "#69222a")  # on white
DARK = ("#4b6dec", "#f37a22", "#1eb68c", "#d886ed", "#eace4e", "#f7f7d3", "#add8f7", "#be3e5f")  # on DARK_BACKGROUND
DARK_BACKGROUND = "#16191e"
MARKERS = (  # SVG paths between -1 and 1
    "M.8 0A.8 .8 0 1 1-.8 0A.8 .8 0 1 1 .8 0Z",
    "M-.75-.75H.75V.75H-.75Z",
    "M0-1L.9 .7H-.9Z",
    "M0-1.05L1.05 0L0 1.05L-1.05 0Z",
    "M0 1L.9-.7H-.9Z",
    "M-1-.35H-.35V-1H.35V-.35H1V.35H.35V1H-.35V.35H-1Z",
    "M0-.5L.55-1.05L1.05-.55L.5 0L1.05 .55L.55 1.05L0 .5L-.55 1.05L-1.05 .55L-.5 0L-1.05-.55L-.55-1.05Z",
    "M-1 0L.7-.9V.9Z",
    "M1 0L-.7-.9V.9Z",
    "M0-1L.95-.31L.59 .81H-.59L-.95-.31Z",
    "M0-1L.87-.5V.5L0 1L-.87 .5V-.5Z",
    "M0-1.1L.3-.4L1.05-.34L.48 .15L.65 .89L0 .5L-.65 .89L-.48 .15L-1.05-.34L-.3-.4Z",
)
DASHES = ((), (12, 4), (3, 3), (12, 4, 3, 4), (20, 6))  # lengths in pixels: on, off, ...
REFERENCE_DASHES = ((1.5, 2.5), (8, 4), (8, 3, 2, 3))


class Style(NamedTuple):
    """The look of a series; a reference, which is no model, has neither color nor marker."""

    color: int | None  # an index into LIGHT and DARK
    marker: str  # one of MARKERS
    dashes: tuple[float, ...]


def assign_styles(series: Iterable[str], references: Iterable[str]) -> dict[str, Style]:
    """The style of each series and reference by its name; the same names in the same order look alike everywhere."""
    styles = {
        name: Style(index % len(LIGHT), MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)])
        for index, name in enumerate(dict.fromkeys(series))
    }
    for index, name in enumerate(dict.fromkeys(references)):
        styles[name] = Style(None, "", REFERENCE_DASHES[index % len(REFERENCE_DASHES)])
    return styles
