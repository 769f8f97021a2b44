"""The page in a real browser: it fits, complains of nothing, fetches nothing, and does what its controls say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from reports.build import build
from tests.once import Once
from tests.reports.browser import CHROMIUM, Page, chromium
from tests.reports.conftest import draw_only
from tests.reports.synthetic import write_audit, write_benches, write_comparison, write_run

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")]

SHOWN = "[...document.querySelectorAll(`{}`)].filter(e => e.checkVisibility()).length"

# WCAG 2: the contrast of every element that has words of its own with the nearest painted background.
CONTRASTS = """
(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = numbers(colour).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (numbers(colour)[3] !== 0) return colour;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const poor = [];
  for (const e of document.body.querySelectorAll(":not(svg *)")) {
    const words = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!words || !e.checkVisibility() || e.closest("script")) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) poor.push(`${e.tagName} ${e.className} ${contrast.toFixed(2)} ${e.textContent.slice(0, 40)}`);
  }
  return poor;
})()
"""

# What sticks out of the window and does not lie in a region that scrolls by itself.
STICKING_OUT = """
[...document.body.querySelectorAll(":not(svg *)")]
  .filter((e) => !e.closest(".scroll > *, pre, .skip, caption") || matchMedia("print").matches && e.checkVisibility())
  .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map((e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`)
"""


@pytest.fixture(scope="module")
def url(once: Once) -> str:
    """A report with complete and incomplete artifacts, two data sets, two ε, a folder left out."""
    return (once("report-browser", _report) / "report" / "index.html").as_uri()


@pytest.fixture(scope="module")
def long(once: Once) -> str:
    """The same report, as a page that holds its figures and tables compressed."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("reports.page._PLAIN", 0)
            _report(folder)

    return (once("report-browser-long", make) / "report" / "index.html").as_uri()


def _report(folder: Path) -> None:
    runs, report = folder / "runs", folder / "report"
    write_comparison(runs, epsilons=(1.0, 3.0), seeds=(0,))
    write_run(runs, "dpsgd", test=0.7, dataset="nycflights_stream", period=1)
    write_run(runs, "dpsgd", test=0.7, dataset="criteo_kaggle")
    write_run(runs, "dpsgd", test=0.7, status="failed", settings={"clipping_norm": 7.0})
    write_audit(report)
    write_benches(report)
    with pytest.MonkeyPatch.context() as patch:
        draw_only(patch, "svg")  # the form in which figures stand on the page
        build(runs, report, only=["fig8", "frontier", "fig5", "tab_wallclock", "audit"])


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with chromium() as page:
        yield page


@pytest.mark.parametrize(("width", "dark"), [(320, False), (390, False), (390, True), (1400, True), (1600, False)])
def test_it_fits_and_complains_of_nothing(tab: Page, url: str, width: int, dark: bool) -> None:
    tab.open(url, width, dark=dark)
    assert tab.run("innerWidth") == width
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.run(STICKING_OUT) == []
    assert tab.complaints == []
    assert [request for request in tab.requests if not request.startswith("data:")] == [url]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_stand_out_from_what_they_are_written_on(tab: Page, url: str, dark: bool) -> None:
    tab.open(url, 1400, dark=dark)
    assert tab.run(CONTRASTS) == []
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
    filters = "[...document.querySelectorAll('.card svg')].map(e => getComputedStyle(e).filter)"
    assert set(tab.run(filters)) == {
        "invert(0.92) hue-rotate(180deg)" if dark else "none"
    }  # no white slabs in the dark


def test_the_menu_stays_where_there_is_room(tab: Page, url: str) -> None:
    tab.open(url, 1600)
    tab.run("scrollTo(0, document.body.scrollHeight)")
    assert tab.run("document.querySelector('nav').getBoundingClientRect().top") == 0
    left = "[...document.querySelectorAll('header, main')].map(e => e.getBoundingClientRect().left)"
    assert min(tab.run(left)) >= tab.run("document.querySelector('nav').getBoundingClientRect().right")


def test_words_in_figures_are_words(tab: Page, url: str) -> None:
    tab.open(url, 1400)
    words = "[...document.querySelectorAll('.card svg text')].map(e => e.textContent).join(' ')"
    assert "gradient size" in tab.run(words)


def test_a_long_page_holds_the_same_compressed_until_a_reader_comes_near(tab: Page, url: str, long: str) -> None:
    content = "[...document.querySelectorAll('.variant .scroll')].map(e => e.innerHTML)"
    tab.open(url, 1400)
    plain = tab.run(content)
    tab.open(long, 1400)
    sizes = [len(urlopen(page).read()) for page in (long, url)]
    assert sizes[0] < 0.6 * sizes[1]
    packed = "document.querySelectorAll('.packed').length"
    tab.run("document.querySelector('#audit').scrollIntoView()")
    tab.until(f"document.querySelectorAll('#audit .packed').length == 0 && {packed} > 0")
    tab.run("dispatchEvent(new Event('beforeprint'))")
    tab.until(f"{packed} == 0 && document.querySelectorAll('.scroll > script').length == 0")
    assert tab.run(content) == plain and tab.complaints == []


def test_the_filter_leaves_what_was_chosen(tab: Page, url: str) -> None:
    def choose(name: str, value: str) -> None:
        chosen = f"document.querySelector('select[name={name}]')"
        tab.run(f"{chosen}.value = '{value}'; {chosen}.dispatchEvent(new Event('change', {{bubbles: true}}))")

    tab.open(url, 1400)
    whole, rows = tab.run(SHOWN.format("article")), tab.run(SHOWN.format("#fig8 tbody tr"))
    assert tab.run("document.querySelector('output').textContent") == f"{whole} of {whole} figures and tables"
    choose("epsilon", "3")
    fewer = tab.run(SHOWN.format("#fig8 tbody tr"))
    assert 0 < fewer < rows
    assert tab.run(SHOWN.format("#fig8 tr[data-epsilon='1']")) == 0
    choose("dataset", "criteo_kaggle")
    choose("epsilon", "")
    left = tab.run(SHOWN.format("article"))
    assert tab.run("document.querySelector('output').textContent") == f"{left} of {whole} figures and tables"
    assert left < whole
    assert not tab.run("document.querySelector('nav a[href=\"#fig5\"]').checkVisibility()")
    assert not tab.run("document.getElementById('fig5').checkVisibility()")  # no streams of these data
    assert tab.run("document.getElementById('audit').checkVisibility()")  # of no data
    choose("dataset", "nycflights_stream")
    # What is shown leads nowhere that is hidden.
    dead = "[...document.querySelectorAll('a[href^=\"#\"]')].filter(e => e.checkVisibility())"
    dead += ".filter(e => document.getElementById(decodeURIComponent(e.hash.slice(1))).closest('[hidden]'))"
    assert tab.run(f"{dead}.map(e => e.hash)") == []
    claims = tab.run(SHOWN.format(".claims tbody tr"))
    choose("dataset", "")
    assert tab.run(SHOWN.format("article")) == whole and 0 < claims < tab.run(SHOWN.format(".claims tbody tr"))


def test_a_row_of_a_table_opens_its_run(tab: Page, url: str) -> None:
    tab.open(url, 1400)
    tab.open(tab.run("document.querySelector('#fig8 tbody th a').href"), 1400)
    assert tab.run("document.querySelector(':target').matches('.run[open]')")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1400, True)])
def test_a_run_opens_to_its_configuration_and_ledger(tab: Page, url: str, width: int, dark: bool) -> None:
    tab.open(url, width, dark=dark)
    tab.open(tab.run("document.querySelector('#runs ~ ul a, #runs ~ p + ul a').href"), width, dark=dark)
    inside = "document.querySelector('.run pre').checkVisibility()"
    assert not tab.run(inside)
    tab.run("document.querySelector('.run summary').click()")
    assert tab.run(inside)
    shown = tab.run("document.querySelector('.run pre').textContent")
    assert '"epsilon":' in shown and "noise_seed" not in shown, "as it may leave"
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.run(CONTRASTS) == [] and tab.complaints == []


def test_the_command_is_copied_or_left_selected(tab: Page, url: str) -> None:
    tab.open(url, 1400)
    tab.run("document.querySelector('#fig8 .command button').click()")
    tab.run("new Promise(done => setTimeout(done, 200))")
    said = tab.run("document.querySelector('#fig8 .command button').textContent")
    command = tab.run("document.querySelector('#fig8 .command code').textContent")
    assert said in ("Copied", "Selected") and command.startswith("dpfest sweep experiment=comparison")
    if said == "Selected":
        assert tab.run("getSelection().toString()") == command


def test_the_keyboard_reaches_the_results_first_and_every_region_has_a_name(tab: Page, url: str) -> None:
    tab.open(url, 1400)
    tab.press("Tab")
    assert tab.run("document.activeElement.className") == "skip"
    assert tab.run("document.activeElement.getBoundingClientRect().left >= 0")
    assert tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if "role" in node]
    roles = {role for role, _ in found}
    assert {"banner", "navigation", "main", "contentinfo", "table", "columnheader"} <= roles
    named = {"image", "region", "link", "button", "combobox", "table"}
    assert [role for role, name in found if role in named and not name] == []
    scrolling = "[...document.querySelectorAll('.scroll, pre')].filter(e => !(e.tabIndex === 0 && e.ariaLabel)).length"
    assert tab.run(scrolling) == 0


def test_print_shows_whole_tables_on_white_without_controls(tab: Page, url: str) -> None:
    tab.open(url, 718, dark=True, media="print")
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.run("document.querySelector('nav').checkVisibility()")
    assert tab.run(SHOWN.format("button, select")) == 0
    cut = "[...document.querySelectorAll('.scroll.table')].filter(e => e.clientHeight < e.scrollHeight - 1).length"
    assert tab.run(cut) == 0
    assert tab.run(STICKING_OUT) == []


def test_the_browser_tells_a_page_that_does_not_fit(tab: Page, tmp_path: Path) -> None:
    """The checks above can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'><body style='background:#fff'>"
        "<p style='width:500px;color:#999'>wide</p>"
        "<script>console.error('no')</script><img src='missing.png'>"
    )
    tab.open(bad.as_uri(), 390)
    assert tab.run("document.documentElement.scrollWidth") > 390
    assert tab.run(STICKING_OUT) and tab.run(CONTRASTS)
    assert len(tab.complaints) >= 2 and len(tab.requests) >= 2
