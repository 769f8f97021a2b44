"""SVG files: ids of their own, words on markers, and the form in which they stand in a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from reports.style import Drawing, dress, hover, style
from reports.svg import inline
from reports.write import Draft, put_figure


@pytest.fixture
def svg(tmp_path: Path) -> Path:
    with style():
        figure = Drawing(4, 3)
        axes = figure.subplots()
        (line,) = axes.plot([1, 2, 3], [3, 1, 2], "o-")
        hover(line, ["first", "2 < 3 & so on", "third"])
        (odd,) = axes.plot([1, 2], [1, 1], "s")
        hover(odd, ["one word for two markers"])
        axes.imshow([[1, 2]])
        dress(figure, "the footer", ["Incomplete."])
        draft = Draft(tmp_path)
        put_figure(draft, "fig0", figure)
    draft.publish()
    return tmp_path / "figures" / "fig0.svg"


def test_every_id_is_the_figures_own_and_every_reference_is_to_one(svg: Path) -> None:
    text = svg.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert ids == [f"fig0-{number}" for number in range(1, len(ids) + 1)]
    referred = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert referred and {a or b for a, b in referred} <= set(ids)


def test_each_marker_says_its_own_words_and_a_miscount_says_nothing(svg: Path) -> None:
    marked = [use for use in ElementTree.parse(svg).iter() if use.tag.endswith("}use") and len(use)]
    assert [use[0].text for use in marked] == ["first", "2 < 3 & so on", "third"]
    assert float(marked[0].get("x", "")) < float(marked[1].get("x", "")) < float(marked[2].get("x", ""))


def test_a_page_gets_the_panels_without_footer_and_without_rules_for_the_whole_page(svg: Path) -> None:
    whole, part = ElementTree.parse(svg).getroot(), ElementTree.fromstring(inline(svg.read_text(), 'A "label"'))
    height = [float(root.get("viewBox", "").split()[3]) for root in (whole, part)]
    assert height[0] - height[1] == pytest.approx(72 * (3 * 0.145 + 0.1) - 72 * 0.145, abs=0.1)
    assert (part.get("role"), part.get("aria-label")) == ("img", 'A "label"')
    assert "footer" in svg.read_text() and "footer" not in inline(svg.read_text(), "")
    assert 'id="fig0-1"' in svg.read_text() and 'id="fig0-1"' not in inline(svg.read_text(), "")  # nothing refers to it
    assert not re.search(r">\s+<", inline(svg.read_text(), ""))
    assert "<style" not in inline(svg.read_text(), "") and 'width="288' not in inline(svg.read_text(), "")


class Shaky(ConstrainedLayoutEngine):
    """The usual layout, off by `shift`."""

    shift = 0.0

    def execute(self, fig: Figure) -> None:
        super().execute(fig)
        for axes in fig.axes:
            axes.set_position(axes.get_position().translated(self.shift, self.shift))
            axes.set_in_layout(True)


def test_the_last_bits_of_the_layout_do_not_show(tmp_path: Path) -> None:
    """The layout's solver is free in the order of its sums; files must not tell."""

    def drawn(shift: float) -> list[bytes]:
        with style():
            figure = Drawing(4, 3)
            figure.set_layout_engine(engine := Shaky())
            engine.shift = shift
            panels = figure.subplots(2, 2, sharex="col", sharey="row")
            panels[0, 0].plot([1, 2, 3])
            draft = Draft(tmp_path)
            names = put_figure(draft, "fig0", figure)
        draft.publish()
        return [(tmp_path / name).read_bytes() for name in names]

    exact, ulp, far = drawn(0.0), drawn(3e-16), drawn(1e-3)
    assert exact == ulp
    assert all(one != other for one, other in zip(exact, far, strict=True))
