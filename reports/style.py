"""The style of all figures: print size, embedded fonts, no LaTeX; colours and markers come from `algorithms`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports.algorithms import algorithm

WIDTH = 6.8
"""Inches: the text width of a one-column paper."""

NOTE_COLOUR = "#B02A00"
FOOTER_COLOUR = "#555555"
SHADE = "#EEEEEE"
SEQUENTIAL = "viridis"

_STYLE = Path(__file__).with_name("figures.mplstyle")


@contextmanager
def style() -> Iterator[None]:
    """Draw and save figures in this context: matplotlib's defaults and ours, independent of the user's settings."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))
        yield


class Drawing(Figure):
    """A figure, its size in inches, with tooltips of its markers by the id of their artist, the height of its footer in
    inches, and a sentence on where its values are, for screen readers."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        self.hovers: dict[str, list[str]] = {}
        self.footer = 0.0
        self.values = "Its values are in the table below."


def hover(artist: Artist, words: Sequence[str]) -> None:
    """Set the tooltips in the SVG for the markers of an artist, one each."""
    figure = artist.get_figure(root=True)
    assert isinstance(figure, Drawing)
    name = f"values_{len(figure.hovers) + 1}"
    artist.set_gid(name)
    figure.hovers[name] = list(words)


def key(words: str, name: str | None = None, **look: Any) -> Line2D:
    """Return a legend entry in the style of an algorithm; without one, the hollow marker of "worse than frozen"."""
    own: dict[str, Any] = {"color": "#333333", "marker": "o", "markerfacecolor": "none", "linestyle": "none"}
    if name is not None:
        own = {"color": algorithm(name).colour, "marker": algorithm(name).marker}
    return Line2D([], [], label=words, **({"markersize": 4.6, "linewidth": 1.0} | own | look))


def dashed(name: str) -> dict[str, Any]:
    """Return the style of a reference's line."""
    return {"color": algorithm(name).colour, "linestyle": algorithm(name).dashes, "linewidth": 1.0}


def scale_bar(axes: Axes, half: float | None, words: str) -> None:
    """Draw a bar of ± `half` at the lower left, as a scale for heights; None draws nothing."""
    bottom, top = axes.get_ylim()
    if half is None or 2 * half > 0.8 * (top - bottom):
        return
    middle = bottom + half + 0.04 * (top - bottom)
    across = axes.get_yaxis_transform()
    look: dict[str, Any] = {
        "color": FOOTER_COLOUR,
        "elinewidth": 1.0,
        "capsize": 2.5,
        "fmt": "none",
        "transform": across,
    }
    axes.errorbar([0.03], [middle], yerr=[half], **look)
    axes.text(0.05, middle, words, transform=across, va="center", fontsize=7.5, color=FOOTER_COLOUR)


def log_axis(axes: Axes, axis: str) -> None:
    """Make an axis logarithmic, with at most seven labelled decades and plain multiples (1×, 10×, 10⁵×).

    A range between two decades is widened to both, since no tick within it would be labelled.
    """
    (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
    which = axes.xaxis if axis == "x" else axes.yaxis
    low, high = sorted(axes.get_xlim() if axis == "x" else axes.get_ylim())
    if low > 0 and math.floor(math.log10(high)) < math.log10(low):
        axes.set(**{f"{axis}lim": (10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)))})
    which.set_major_locator(LogLocator(numticks=7))
    which.set_major_formatter(FuncFormatter(decade))
    which.set_minor_formatter(NullFormatter())


def decade(value: float, position: int | None = None) -> str:
    """Format a tick of a logarithmic axis: 1, 10, 100, 1,000, then powers of ten."""
    if 1 <= value < 1e4:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.0e}".split("e")
    power = f"10$^{{{int(exponent)}}}$"
    return power if mantissa == "1" else f"{mantissa}·{power}"


def dress(figure: Drawing, footer: str, notes: list[str]) -> None:
    """Add the footer (data, ε) and notes on missing runs below the panels."""
    columns = int(figure.get_figwidth() * 16)  # of 8 pt type
    narrower = int(0.86 * columns)  # bold type is wider
    blocks = [(wrapped(note, narrower), NOTE_COLOUR, "bold") for note in notes]
    if footer:
        blocks.append((wrapped(footer, columns), FOOTER_COLOUR, "normal"))
    if not blocks:
        return
    line = 0.145  # inches a line of 8 pt text
    lines = sum(len(text) for text, _, _ in blocks)
    width, height = figure.get_size_inches()
    extra = lines * line + 0.1
    figure.set_size_inches(width, height + extra)
    figure.footer = extra
    share = extra / (height + extra)
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0, share, 1, 1 - share)))
    y = (lines * line + 0.03) / (height + extra)
    for number, (text, colour, weight) in enumerate(blocks):
        words = figure.text(0.012, y, "\n".join(text), fontsize=8, color=colour, weight=weight, va="top")
        # Drawn last, so that removing the footer from an SVG removes nothing that the rest refers to.
        words.set(linespacing=1.15, gid=f"footer_{number}", zorder=100)
        y -= len(text) * line / (height + extra)


def settle(figure: Figure) -> None:
    """Lay out the panels once for all formats, rounded so that rounding errors of the layout solver do not matter."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(float(value), 5) for value in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def wrapped(text: str, columns: int) -> list[str]:
    return [line for part in text.split("\n") for line in textwrap.wrap(part, columns, break_on_hyphens=False) or [""]]
