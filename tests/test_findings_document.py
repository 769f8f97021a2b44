"""docs/FINDINGS.md: reductions, and AUCs beside them, are those of the run cards of the data sets that the same item of
the list names; tables are those of their cards. Documents: all run cards are read."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

import pytest

from dpfest.accounting.bands import strategy
from pipelines.runs.cards import Card, read_cards
from reports.artifacts import correlated
from reports.artifacts.private_search import cost
from reports.comparison import by_epsilon, populations
from reports.costs import Costs
from reports.frontiers import Frontier
from reports.reading import load_runs
from reports.readme import Results
from reports.setting import Setting

pytestmark = pytest.mark.documents
DOCS = Path(__file__).parents[1] / "docs"
ROUND = {"10", "500,000"}  # bounds, not results
UNITS = {"example": "line", "basket_id": "basket", "household_id": "household"}


@pytest.fixture(scope="module")
def items() -> list[tuple[str, list[Setting]]]:
    """The items of the list, each with the settings of the data sets that it names."""
    groups = Results.read(DOCS / "reference").groups
    text = (DOCS / "FINDINGS.md").read_text(encoding="utf-8")
    found = text.partition("\n## What stands out\n")[2].partition("\n## ")[0]
    said = [" ".join(item.split()) for item in re.split(r"\n *- ", found)[1:]]
    return [(item, [s for group in groups if f"`{group.dataset}`" in item for s in group.settings]) for item in said]


def _rounds_to(value: float, said: str) -> bool:
    """Whether a value is as said, within half a unit of its last digit; from 1,000 on, of its third."""
    number = float(said.replace(",", ""))
    decimals = len(said.partition(".")[2])
    unit = 10.0**-decimals if number < 1000 else 10.0 ** (math.floor(math.log10(number)) - 2)
    return abs(value - number) <= unit / 2 * (1 + 1e-9)


def test_every_reduction_is_that_of_a_setting(items: list[tuple[str, list[Setting]]]) -> None:
    said = [(times, settings) for item, settings in items for times in re.findall(r"([\d,]*\.?\d+)×", item)]
    assert len(said) > 50
    unknown = [times for times, settings in said if not any(_rounds_to(s.reduction, times) for s in settings)]
    assert set(unknown) <= ROUND


def test_utility_and_reduction_named_together_are_those_of_one_setting(items: list[tuple[str, list[Setting]]]) -> None:
    said = [
        (pair, settings)
        for item, settings in items
        for pair in (
            *re.findall(r"(0\.\d{3}) at ([\d,]*\.?\d+)×", item),
            *((auc, times) for times, auc in re.findall(r"([\d,]*\.?\d+)×(?: \(| at )(0\.\d{3})", item)),
        )
    ]
    assert len(said) > 30

    def known(auc: str, times: str, settings: list[Setting]) -> bool:
        return any(_rounds_to(s.reduction, times) and _rounds_to(s.test, auc) for s in settings)

    assert [pair for pair, settings in said if not known(*pair, settings)] == []


def test_the_cost_of_all_runs_on_journey_and_of_a_private_search_is_theirs() -> None:
    text = " ".join((DOCS / "FINDINGS.md").read_text(encoding="utf-8").split())
    said = re.search(
        r"The (\d+) runs .{,50}`journey` at ε = 1, for example, cost (\S+) if .{,20} released, and (\S+) as", text
    )
    assert said is not None
    journey = next(group for group in Results.read(DOCS / "reference").groups if group.dataset == "journey")
    runs = [run for run in journey.runs if run.target_epsilon == 1.0]
    composed, searched = cost(journey, runs, Costs())
    assert (len(runs), f"{composed:.1f}", f"{searched:.2f}") == (int(said[1]), said[2], said[3])


def test_the_table_of_clipping_norms_and_what_mends_nothing_are_those_of_the_cards() -> None:
    cards, damaged = read_cards(DOCS / "search" / "clipping.jsonl.xz")
    assert len(cards) == 45 and not damaged
    of: dict[tuple[float, float, bool], list[Card]] = {}
    for card in cards:
        settings = card.summary["hyperparameters"]
        optimizer, norm = settings["optimizer"], settings["algorithm"]["clipping_norm"]
        plain = (optimizer["average"], optimizer["schedule"], optimizer["dense"]["learning_rate"]) == (None, None, 0.01)
        of.setdefault((norm, optimizer["tables"]["learning_rate"], plain), []).append(card)

    def mean(cards: list[Card], *names: str) -> float:
        values = [card.summary["utility"] for card in cards]
        for name in names:
            values = [value[name] for value in values]
        return statistics.fmean(values)

    text = (DOCS / "FINDINGS.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    assert len(table) == 5
    keys = (("value",), ("loss",), ("calibration", "scale"), ("calibrated_loss",))
    for norm, rate, *said in table:
        own = of[float(norm), float(rate), True]
        assert len(own) == 3
        assert [f"{mean(own, *key):.{len(one) - 2}f}" for key, one in zip(keys, said, strict=True)] == said
    others = [cards for (norm, rate, plain), cards in of.items() if norm == 1 and not (plain and rate == 100)]
    scales = [card.summary["utility"]["calibration"]["scale"] for cards in others for card in cards]
    assert len(scales) == 24 and min(scales) > 0.27 and max(scales) < 0.345
    assert f"{mean(cards, 'constant_loss'):.4f}" == "0.6931"


def test_the_table_of_units_is_that_of_the_cards() -> None:
    cards, damaged = read_cards(DOCS / "reference" / "units.jsonl.xz")
    assert cards and not damaged
    text = (DOCS / "FINDINGS.md").read_text(encoding="utf-8").partition("\n## The unit of privacy\n")[2]
    table = re.findall(r"^\| (\w+) \(([\d,]+)\) \| (\d) \|((?: [^|\n]+\|){4})$", text, re.M)
    assert len(table) == 7
    of: dict[tuple[str, float, str], list[Card]] = {}
    for card in cards:
        unit = UNITS.get(card.config["privacy"].get("unit", "example"))
        if unit is not None and card.summary["privacy"] is not None:
            of.setdefault((unit, card.config["privacy"]["epsilon"], card.config["algorithm"]["name"]), []).append(card)
    for unit, count, epsilon, cells in table:
        said = dict(zip(("frozen", "dpsgd", "threshold", "adafest"), cells.split("|"), strict=False))
        found = {name: of[unit, float(epsilon), name] for name in said}
        assert {len(each) for each in found.values()} == {3}
        assert {f"{card.summary['examples']:,}" for each in found.values() for card in each} == {count}
        means = {
            name: statistics.fmean(one.summary["utility"]["value"] for one in each) for name, each in found.items()
        }
        assert {name: cell.strip(" *") for name, cell in said.items()} == {n: f"{m:.3f}" for n, m in means.items()}
        assert ("**" in said["adafest"]) == (means["adafest"] > means["dpsgd"])


def test_what_training_word_embeddings_gains_is_what_the_cards_say() -> None:
    """In docs/TEXTS.md; constant learning rates, and frozen embeddings at the same steps."""
    text = (DOCS / "TEXTS.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \| (\d) \| (\d+) \| ([\d.]+) \| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", text, re.M)
    assert len(table) == 11
    for data, epsilon, steps, rate, pairs, *said in table:
        of: dict[str, dict[int, float]] = {"dpsgd": {}, "frozen": {}}
        for card in read_cards(DOCS / "reference" / f"{data}.jsonl.xz")[0]:
            name, summary = card.config["algorithm"]["name"], card.summary
            asked = (card.config["privacy"]["epsilon"], summary["steps"]) == (float(epsilon), int(steps))
            optimizer = summary["hyperparameters"]["optimizer"]
            tuned = name == "frozen" or optimizer["tables"]["learning_rate"] == float(rate)
            if name in of and asked and tuned and optimizer.get("schedule") is None:
                of[name][summary["seed"]] = summary["utility"]["value"]
        seeds = of["dpsgd"].keys() & of["frozen"].keys()
        both = [[scores[seed] for seed in seeds] for scores in of.values()]
        found = [f"{statistics.fmean(scores):.4f} ({statistics.stdev(scores):.4f})" for scores in both]
        gain = statistics.fmean(both[0]) - statistics.fmean(both[1])
        assert (len(seeds), [*found, f"{gain:+.4f}".replace("-", "−")]) == (int(pairs), said)


def test_what_correlated_noise_gains_is_what_the_report_says_of_the_cards() -> None:
    text = (DOCS / "FINDINGS.md").read_text(encoding="utf-8").partition("\n## Correlated noise\n")[2]
    table = re.findall(r"^\| `(\w+)`([^|]*) \| (\d+) \| ([\d.]+) \| (\d+) \|((?: [^|\n]+\|){5})$", text, re.M)
    groups = {group.dataset: group for group in Results.read(DOCS / "reference").groups}
    measured = {("journey", ""): "138", ("names", ""): "138", ("nycflights", ""): "138", ("promotions", ""): "138"}
    measured |= {("journey_stream", f", periods of {days}"): "1" for days in ("1 day", "6 days", "18 days")}
    measured |= {("journey", ", DP-FEST, k = 30,000"): "1"}
    assert [(data, of, epsilon) for data, of, epsilon, *_ in table] == [
        (data, of, epsilon) for (data, of), each in measured.items() for epsilon in each
    ]
    for data, of, epsilon, independent, seeds, said in table:
        days = re.search(r"\d+(?= days?)", of)
        group = groups[data].at(int(days[0])) if days else groups[data]
        rule = "fest" if "FEST" in of else "dpsgd"
        first, *others = correlated.compared(group, float(epsilon), rule)
        gains = {bands: (str(gain), f" ({noise:.2f})") for bands, _, gain, noise, _ in others}
        assert (f"{first[1].test:.4f}", {len(row[1].by_seed) for row in others}) == (independent, {int(seeds)})
        assert "FEST" not in of or first[1].parameter("selection.rows") == 30_000
        cells = [cell.strip() for cell in said.split("|")[:-1]]
        found = ["".join(gains[bands]) if bands in gains else "—" for bands in (2, 4, 8, 16, 32)]
        assert [cell.replace("**", "") for cell in cells] == found
        chosen, gain = correlated.gain(group, float(epsilon), rule) or pytest.fail("nothing to choose from")
        shown = ["**{}**{}".format(*gains[chosen])] if gain.low > 0 else []
        assert [cell for cell in cells if "**" in cell] == shown


def test_the_table_of_bands_at_criteos_size_is_that_of_the_cards() -> None:
    text = (
        (DOCS / "FINDINGS.md").read_text(encoding="utf-8").partition("\n## Correlated noise\n")[2].partition("\n## ")[0]
    )
    (rates,) = re.findall(r"^\| bands \| accumulated noise \|((?: rate \d+ \|)+)$", text, re.M)
    rows = re.findall(r"^\| (\d+|none) \| ([\d.]+) \|((?: [\d.—]+ \|)+)$", text, re.M)
    rows = [(bands.replace("none", "1"), *others) for bands, *others in rows]
    found, noise = {}, {}
    for card in read_cards(DOCS / "search" / "correlated_at_size.jsonl.xz")[0]:
        bands, summary = card.config["algorithm"].get("bands") or 1, card.summary
        found[bands, card.config["optimizer"]["tables"]["learning_rate"]] = summary["utility"]["value"]
        sigma, steps = summary["privacy"]["noise_multiplier"], summary["steps"]
        noise[bands] = sigma * (strategy(bands, steps).accumulated(steps) if bands > 1 else 1.0)
    said = {
        (int(bands), float(rate)): cell
        for bands, _, cells in rows
        for rate, cell in zip(re.findall(r"\d+", rates), cells.strip(" |").split(" | "), strict=True)
    }
    assert {of: f"{auc:.4f}" for of, auc in found.items()} == {of: cell for of, cell in said.items() if cell != "—"}
    assert [(int(bands), times) for bands, times, _ in rows] == [
        (bands, f"{noise[bands] / noise[1]:.2f}") for bands in sorted(noise)
    ]


def test_the_table_of_criteos_size_is_that_of_the_cards() -> None:
    text = (
        (DOCS / "FINDINGS.md").read_text(encoding="utf-8").partition("\n## At Criteo's size\n")[2].partition("\n## ")[0]
    )
    shares = [
        int(share) / 100 for share in re.findall(r" (\d+)% ", text.partition("|---|")[0].rpartition("coordinates |")[2])
    ]
    table = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d,]+) \|((?: [\d.]+ \|)+)$", text, re.M)
    assert shares and len(table) == 11
    cards, damaged = read_cards(DOCS / "search" / "criteo_size.jsonl.xz")
    assert len(cards) == len(table) * len(shares) and not damaged
    of = {(_sized_name(card), card.config["data"]["numeric_share"]): card.summary for card in cards}
    for name, reduction, coordinates, aucs in table:
        for share, auc in zip(shares, aucs.strip(" |").split(" | "), strict=True):
            summary = of[name, share]
            gradient = summary["embedding_gradient"]
            assert f"{summary['utility']['value']:.4f}" == auc
            if share == shares[0]:
                assert f"{gradient['coordinates_mean']:,.0f}" == coordinates
                assert (
                    (reduction == "—")
                    if gradient["reduction"] is None
                    else _rounds_to(gradient["reduction"], reduction[:-1])
                )
            elif gradient["reduction"] is not None:
                assert gradient["reduction"] == pytest.approx(
                    of[name, shares[0]]["embedding_gradient"]["reduction"], rel=0.02
                )


def test_what_more_examples_change_is_what_the_cards_say() -> None:
    text = (DOCS / "FINDINGS.md").read_text(encoding="utf-8").partition("\n## More examples\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) / ([\d.]+) \|((?: [^|\n]+ \|){3})$", text, re.M)
    runs = load_runs(DOCS / "search" / "more_examples.jsonl.xz")[0]
    reference = [one for one in Results.read(DOCS / "reference").groups if one.dataset == "promotions"]
    groups = {group.runs[0].examples: group for group in (*populations(runs), *reference)}
    assert sorted(groups) == [int(examples.replace(",", "")) for examples, *_ in table]
    for examples, seeds, dpsgd, frozen, cells in table:
        group = groups[int(examples.replace(",", ""))]
        drawn = Frontier(by_epsilon(group, [1.0])[0])
        assert [f"{auc:.3f}" for auc in drawn.controls if auc is not None] == [dpsgd, frozen]
        found = [drawn.cell(name).partition(" (")[0] for name in ("fest", "fest_equal", "adafest")]
        assert [cell.strip() for cell in cells.split("|")[:-1]] == found
        assert int(seeds) == min(len(setting.by_seed) for setting in group.of("adafest", 1.0))


def _sized_name(card: Card) -> str:
    """Name a run as the table does."""
    settings = card.config["algorithm"]
    if settings["name"] == "adafest":
        return f"DP-AdaFEST, τ = {settings['threshold']:,.0f}"
    if settings["name"] == "fest":
        selection = settings["selection"]
        return f"DP-FEST, k = {selection['rows']:,}" + ", k/p a table" * (selection["split"] == "equal")
    return {"dpsgd": "DP-SGD", "frozen": "frozen"}[settings["name"]]
