"""README's results are of the cards, and written where they belong."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dpfest.errors import UserError
from reports import at_size
from reports.readme import BEGIN, CLAIMS, DIGEST, END, MAP, PICTURE, RESULTS, Results, digest, split, write
from reports.text import markdown
from tests.once import Once
from tests.reports.synthetic import write_bench, write_cards_of, write_comparison, write_map, write_run, write_streaming


@pytest.fixture(scope="module")
def reference(once: Once) -> Path:
    def make(folder: Path) -> None:
        runs = folder / "runs"
        write_comparison(runs, epsilons=(1.0,), seeds=(0, 1, 2), dataset="journey")
        write_streaming(runs, periods=(1, 4))
        write_map(runs)
        write_run(runs, "dpsgd", test=0.123, dataset="criteo_synthetic")  # on which nothing can be tested
        write_run(runs, "dpsgd", test=0.124, dataset="journey", fidelity="paper")
        for name in ("dpsgd", "fest"):
            write_run(runs, name, test=0.8, coordinates=9.0, dataset="journey", epsilon=3.0)  # the table is of ε = 1
        write_cards_of(runs, folder / "docs" / "reference" / "all.jsonl.xz")

    return once("report-readme", make) / "docs" / "reference"


@pytest.fixture(scope="module")
def results(reference: Path) -> Results:
    return Results.read(reference)


@pytest.fixture(scope="module")
def text(results: Results) -> str:
    return results.text


def raw(reference: Path) -> list[dict[str, Any]]:
    lines = lzma.decompress((reference / "all.jsonl.xz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines[1:]]


def of(reference: Path, **wanted: Any) -> dict[str, list[dict[str, Any]]]:
    """Summaries by their settings, of the cards with these values and at ε = 1 or without privacy; those of correlated
    noise are of another algorithm."""
    found = defaultdict(list)
    for card in raw(reference):
        summary, privacy = card["summary"], card["summary"]["privacy"]
        if privacy is not None and (privacy["fidelity"], privacy["epsilon"]) != ("rigorous", 0.9995):
            continue
        if summary["hyperparameters"]["algorithm"].get("bands"):
            continue
        if all(summary[key] == value for key, value in wanted.items()):
            found[json.dumps(summary["hyperparameters"], sort_keys=True)].append(summary)
    return found


def mean(summaries: list[dict[str, Any]], split: str) -> float:
    return statistics.fmean(summary["utility"][split] for summary in summaries)


def said(summaries: list[dict[str, Any]]) -> str:
    tests = [summary["utility"]["value"] for summary in summaries]
    return f"{mean(summaries, 'value'):.4f}" + (f" ± {statistics.stdev(tests):.4f}" if len(tests) > 1 else "")


def best(settings: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return max(settings.values(), key=lambda summaries: mean(summaries, "validation"))


def test_every_number_of_the_references_is_that_of_the_cards(reference: Path, results: Results) -> None:
    references, reductions = re.findall(r"(?:^\|.*\n?)+", results.results, flags=re.M)
    found: dict[tuple[str, str], dict[str, str]] = {}
    for table in (references, reductions):
        head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
        for row in rows:
            found.setdefault((row[0], row[1]), {}).update(zip(head, row, strict=True))
    journey = found["journey", "1"]
    assert journey["seeds"] == "0, 1, 2"
    for name, column in (("nonprivate", "Non-private"), ("dpsgd", "DP-SGD"), ("frozen", "Frozen embeddings")):
        assert journey[column] == said(best(of(reference, dataset="journey", algorithm=name)))
    stream = found["nycflights_stream, period of 1 day", "1"]
    assert stream["DP-SGD"] == "0.7110"
    assert found["nycflights_stream", "1"]["Exponential selection"] == "—"


def test_what_says_nothing_is_not_told_and_all_cards_are_counted(reference: Path, text: str) -> None:
    assert f"[{len(raw(reference))} run cards](docs/reference)" in " ".join(text.split())
    assert "criteo_synthetic" not in text and not re.search(r"0\.12[34]\d", text)
    assert max(len(line) for line in text.splitlines() if line[:1] != "|") <= 120
    heading, picture, *_ = text.split("\n\n")
    assert heading == "## What we found" and picture.endswith("](docs/frontiers.png)")
    assert "That leaves 19 of 9.6 million coordinates a step" in " ".join(text.split())
    assert "- **Is DP-AdaFEST ahead of DP-FEST?** " in text
    assert "| journey (" in text and "| nycflights_stream (" in text


def test_what_the_sparsest_run_at_criteos_size_has_is_that_of_its_cards(tmp_path: Path) -> None:
    """Of those where numbers carry least of the signal, and most of it; without cards nothing is said."""
    file, auc, cuts = Path(__file__).parents[2] / at_size.FILE, dict[tuple[str, float], float](), set()
    for line in lzma.decompress(file.read_bytes()).splitlines()[1:]:
        card = json.loads(line)
        algorithm, summary = card["config"]["algorithm"], card["summary"]
        if algorithm.get("threshold", 1000) == 1000:
            auc[algorithm["name"], card["config"]["data"]["numeric_share"]] = summary["utility"]["value"]
        if algorithm.get("threshold") == 1000:
            cuts.add(round(summary["embedding_gradient"]["reduction"], -3))
    few, many = (
        f"{auc['adafest', at]:.3f} (frozen {auc['frozen', at]:.3f}, DP-SGD {auc['dpsgd', at]:.3f})"
        for at in (0.19, 0.95)
    )
    assert cuts == {480_000} and at_size.said(tmp_path / "none") == ""
    said = f"DP-AdaFEST has, at 4.80·10⁵×, an AUC of {few}; if the tables carry 5% of the signal, {many}"
    assert at_size.said(file) == said


def test_the_time_of_a_step_is_that_of_the_benchmark(reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path, dirs_exist_ok=True)
    assert "a step of DP-SGD takes" not in Results.read(tmp_path).text
    times = {("adafest", 10**6): 0.002, ("dpsgd", 10**6): 0.5, ("dpsgd lazy", 10**6): 0.0025}
    larger = {("adafest", 10**7): 0.002, ("dpsgd lazy", 10**7): 0.003}  # at which dense noise was not timed
    write_bench(tmp_path, "embedding", {**times, **larger}, "adafest")
    said = " ".join(Results.read(tmp_path).text.split())
    assert "At 1,000,000 rows a step of DP-SGD takes 250 times as long as one of DP-AdaFEST" in said
    assert "but only 1.25 times as long with lazily drawn noise, which has the same distribution." in said


def test_a_number_that_changes_in_one_card_changes_the_text_and_the_picture(
    reference: Path, results: Results, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(reference.parents[1] / "runs", runs)
    for summary in (runs / "journey" / "dpsgd").glob("*/release/summary.json"):
        written = json.loads(summary.read_text(encoding="utf-8"))
        written["utility"]["value"] += 0.001
        summary.write_text(json.dumps(written))
    other = Results.read(write_cards_of(runs, tmp_path / "cards" / "all.jsonl"))
    assert other.text != results.text
    digests = [{file: digest(values) for file, (_, values, _) in one.pictures.items()} for one in (results, other)]
    assert digests[0][PICTURE] != digests[1][PICTURE]


def test_readme_is_rewritten_between_its_two_lines_alone(reference: Path, results: Results, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{BEGIN}\n\nold 0.7\n\n{END}\n\nThe rest.\n", encoding="utf-8")
    (tmp_path / "docs").mkdir()
    write(readme, reference)
    once = readme.read_text(encoding="utf-8")
    assert split(once) == (f"# Title\n\n{BEGIN}\n", results.text, f"{END}\n\nThe rest.\n") and "old 0.7" not in once
    assert set(results.pictures) == {PICTURE, MAP}
    for file, (_, values, _) in results.pictures.items():
        assert Image.open(tmp_path / file).text[DIGEST] == digest(values)
    assert (tmp_path / RESULTS).read_text(encoding="utf-8") == results.results
    claims = (tmp_path / CLAIMS).read_text(encoding="utf-8")
    for claim in results.judged:
        section = claims.partition(f"## {claim['id']}\n")[2].partition("\n## ")[0]
        without = [name for name, one in claim["datasets"].items() if one["without_runs"]]
        assert all(re.search(r"\bNo\b.* yet|\bNo .* runs\b", claim["datasets"][name]["evidence"]) for name in without)
        for name, one in claim["datasets"].items():
            assert (f"- **{name}: {one['verdict']}" in section) != one["without_runs"]
            if not (one["without_runs"] or one["panels"]):
                assert markdown(one["alone"]) in section
    write(readme, reference)
    assert readme.read_text(encoding="utf-8") == once
    readme.write_text("no lines\n", encoding="utf-8")
    with pytest.raises(UserError, match="README has no results to replace"):
        write(readme, reference)


def test_a_damaged_card_or_none_on_clicks_is_an_error(reference: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "dpsgd", test=0.7, dataset="criteo_synthetic")
    with pytest.raises(UserError, match="no cards of private runs on real clicks"):
        Results.read(write_cards_of(tmp_path / "runs", tmp_path / "cards" / "one.jsonl"))
    (tmp_path / "cards" / "two.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"two\.jsonl, line 1 cannot be used"):
        Results.read(tmp_path / "cards")
