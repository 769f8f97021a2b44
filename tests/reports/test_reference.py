"""Whether runs agree with the reference's: false alarms at the stated rate, real differences found, and both said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reports import reference as module
from reports.build import build
from reports.comparison import populations
from reports.reading import load_runs
from reports.reference import ALARM, MEASURES, Pair, compare
from reports.setting import Setting
from tests.reports.synthetic import write_audit, write_cards_of, write_run

pytestmark = pytest.mark.usefixtures("undrawn")

SETTINGS, SEEDS, SPREAD = 20, 5, 0.004


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, "adafest", test=0.7, settings={"threshold": 5.0})
    (population,) = populations(load_runs(folder)[0])
    return Pair(population, population.settings[0], population.settings[0])


def drawn(pair: Pair, rng: np.random.Generator, own_seeds: int, spreads: np.ndarray, shift: float = 0.0) -> list[Pair]:
    """An artifact of many settings, of which the first of these runs lies `shift` off the reference."""

    def setting(mean: float, spread: float, seeds: int) -> Setting:
        runs = [replace(pair.own.runs[0], seed=i, test=rng.normal(mean, spread)) for i in range(seeds)]
        return Setting("", tuple(runs))

    pairs = []
    for place, spread in enumerate(spreads):
        mean = rng.uniform(0.6, 0.8)
        own = setting(mean + shift * (place == 0), spread, own_seeds)
        pairs.append(replace(pair, own=own, reference=setting(mean, spread, SEEDS)))
    return pairs


def alarms(pair: Pair, own_seeds: int, spreads: np.ndarray, shift: float = 0.0, artifacts: int = 400) -> Iterator[bool]:
    rng = np.random.default_rng(7)
    for _ in range(artifacts):
        made = compare(drawn(pair, rng, own_seeds, spreads, shift), MEASURES[0], of=SETTINGS)
        yield any(comparison.share > 1 for comparison in made)


@pytest.mark.parametrize("own_seeds", [1, 3])
def test_false_alarms_are_as_rare_as_stated(pair: Pair, own_seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a rate of 0.2 an artifact, which 400 artifacts can measure; a rate without Bonferroni would be near 1."""
    monkeypatch.setattr(module, "ALARM", 0.2)
    rate = np.mean(list(alarms(pair, own_seeds, np.full(SETTINGS, SPREAD))))
    assert 0.05 < rate < 0.25  # below the nominal rate, since a setting's own scatter counts where it is larger


def test_settings_that_scatter_more_than_others_raise_few_alarms(pair: Pair) -> None:
    """Every fifth scatters three times as much: pooling alone would be wrong in 0.19 of all artifacts."""
    spreads = np.where(np.arange(SETTINGS) % 5 == 0, 3 * SPREAD, SPREAD)
    assert np.mean(list(alarms(pair, 3, spreads))) <= 5 * ALARM


def test_runs_of_one_seed_count_once(pair: Pair) -> None:
    """Repeated under other noise keys they share the seed's scatter."""
    one, other = (replace(run, seed=seed, test=test) for seed, test in ((0, 0.7), (1, 0.8)) for run in pair.own.runs)
    repeated = replace(pair, own=Setting("", (one, replace(one, test=0.72), other)))
    assert repeated.samples(MEASURES[0])[0] == pytest.approx([0.71, 0.8])


def test_a_difference_of_eight_standard_deviations_in_one_setting_is_found(pair: Pair) -> None:
    assert np.mean(list(alarms(pair, 1, np.full(SETTINGS, SPREAD), shift=8 * SPREAD, artifacts=100))) > 0.9
    assert np.mean(list(alarms(pair, 3, np.full(SETTINGS, SPREAD), shift=-8 * SPREAD, artifacts=100))) > 0.95


def write_setting(runs: Path, threshold: float, tests: list[float], coordinates: list[float], seed: int = 0) -> None:
    for place, (test, size) in enumerate(zip(tests, coordinates, strict=True)):
        settings = {"threshold": threshold}
        write_run(runs, "adafest", test=test, coordinates=size, seed=seed + place, settings=settings)


SCATTER = [0.711, 0.713, 0.709, 0.712, 0.710]
SIZES = [1000.0, 1010.0, 990.0, 1005.0, 995.0]


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    for threshold in (5.0, 10.0, 20.0):
        write_setting(tmp_path / "theirs", threshold, [test - threshold / 1e4 for test in SCATTER], SIZES)
    return write_cards_of(tmp_path / "theirs", tmp_path / "reference" / "flights.jsonl.xz")


def verdicts(report: Path) -> dict[str, tuple[str, int, int, int]]:
    said = json.loads((report / "report.json").read_text(encoding="utf-8"))["reference"]["artifacts"]
    return {one["artifact"]: (one["verdict"], one["own"], one["compared"], one["differ"]) for one in said}


def test_runs_with_other_seeds_agree_and_settings_that_the_reference_lacks_are_counted(
    tmp_path: Path, reference: Path
) -> None:
    write_setting(tmp_path / "runs", 5.0, [0.7118], [1004.0], seed=77)
    write_setting(tmp_path / "runs", 6.0, [0.2], [1.0])
    built = build(tmp_path / "runs", tmp_path / "report", only=["frontier"], reference=reference)
    found = verdicts(tmp_path / "report")
    assert found["fig8"] == found["fig9"] == ("agrees", 2, 1, 0)
    assert found["fig1b"] == ("not compared", 0, 0, 0)  # of non-private runs
    assert "audit" not in found
    (line,) = [line for line in str(built).splitlines() if line.startswith("reference: fig8 ")]
    assert line.endswith("agrees: 1 setting of 2 (the reference lacks 1) within the scatter over seeds")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert 'id="reference"' in page and "lacks 1) within the scatter over seeds. Largest relative to" in page
    assert "the reference lacks 1) within the scatter" in (tmp_path / "report" / "index.md").read_text(encoding="utf-8")
    # Without a reference the page has no such section, and nothing of it is left.
    again = build(tmp_path / "runs", tmp_path / "report", only=["frontier"])
    assert "reference: no reference to compare with" in str(again).splitlines()
    assert 'id="reference"' not in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert not list((tmp_path / "report" / "tables").glob("reference*"))


def test_data_of_ones_own_are_compared_with_no_reference(tmp_path: Path, reference: Path) -> None:
    """Not a line for every figure that has nothing to compare."""
    write_run(tmp_path / "runs", "adafest", test=0.7, dataset="mine")
    built = build(tmp_path / "runs", tmp_path / "report", only=["frontier"], reference=reference)
    said = [line for line in str(built).splitlines() if line.startswith("reference: ")]
    assert said == ["reference: no reference to compare with"]
    assert json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))["reference"] is None
    assert 'id="reference"' not in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("test", "size", "words"),
    [
        (0.690, 1000.0, "test AUC 0.6900 against 0.7105 (−0.0205; allowed ±0.00"),
        (0.7105, 1200.0, "gradient size 1,200 against 1,000 (+20%; allowed ±"),
        (0.7105, 0.0, "gradient size 0 against 1,000"),
    ],
)
def test_a_difference_of_utility_or_of_gradient_size_is_named(
    tmp_path: Path, reference: Path, test: float, size: float, words: str
) -> None:
    write_setting(tmp_path / "runs", 5.0, [test], [size])
    write_setting(tmp_path / "runs", 10.0, [0.7105], [1000.0])
    built = build(tmp_path / "runs", tmp_path / "report", only=["frontier"], reference=reference)
    assert verdicts(tmp_path / "report")["fig8"] == ("differs", 2, 2, 1)
    (line,) = [line for line in str(built).splitlines() if line.startswith("reference: fig8 ")]
    assert "nycflights, DP-AdaFEST (τ=5) at ε = 1: " + words in line


def test_other_data_other_lengths_and_single_seeds_are_not_compared(tmp_path: Path, reference: Path) -> None:
    data, draw = {"dataset": "journey"}, {"data": {"seed": 1}}
    for change in ({"examples": 9}, {"steps": 64}, {"epsilon": 3.0}, {"model": "other"}, data, draw):
        write_run(tmp_path / "runs", "adafest", test=0.1, coordinates=1.0, settings={"threshold": 5.0}, **change)
    build(tmp_path / "runs", tmp_path / "report", only=["frontier"], reference=reference)
    assert verdicts(tmp_path / "report")["fig8"] == ("not compared", 6, 0, 0)
    write_setting(tmp_path / "once", 5.0, [0.7], [1000.0])
    one = write_cards_of(tmp_path / "once", tmp_path / "one_seed" / "all.jsonl")
    write_setting(tmp_path / "again", 5.0, [0.1], [1000.0], seed=1)
    build(tmp_path / "again", tmp_path / "report", only=["frontier"], reference=one)
    said = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))["reference"]["artifacts"]
    assert {one["evidence"] for one in said if one["own"]} == {"too few seeds to tell for 1."}


def test_settings_of_too_few_seeds_are_told_from_those_that_the_reference_lacks(tmp_path: Path) -> None:
    """One seed of DP-SGD on both sides: however large, its difference has no scatter to be compared with."""
    write_setting(tmp_path / "theirs", 5.0, SCATTER, SIZES)
    write_run(tmp_path / "theirs", "dpsgd", test=0.72)
    theirs = write_cards_of(tmp_path / "theirs", tmp_path / "reference" / "all.jsonl")
    write_setting(tmp_path / "runs", 5.0, [0.711], [1000.0])
    write_run(tmp_path / "runs", "dpsgd", test=0.50)
    for threshold in (6.0, 7.0):
        write_setting(tmp_path / "runs", threshold, [0.7], [1000.0])
    built = build(tmp_path / "runs", tmp_path / "report", only=["frontier"], reference=theirs)
    (line,) = [line for line in str(built).splitlines() if line.startswith("reference: fig8 ")]
    assert "1 setting of 4 (the reference lacks 2; too few seeds to tell for 1) within the scatter" in line


def test_the_reference_is_not_compared_with_itself(tmp_path: Path, reference: Path) -> None:
    write_audit(reference)
    for runs in (reference, reference / "flights.jsonl.xz"):
        build(runs, tmp_path / "report", only=["frontier"], reference=reference)
        assert json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))["reference"] is None


@pytest.mark.parametrize(("size", "verdict"), [(1040.0, "agrees"), (1060.0, "differs")])
def test_sizes_of_a_selection_that_all_seeds_share_have_room_for_another(
    size: float, verdict: str, tmp_path: Path
) -> None:
    """One noisy selection under one noise seed: another one has other rows, hence another size, by no fault."""
    selection = {"selection": {"mechanism": "gaussian", "rows": 300, "split": "joint"}}
    for folder, coordinates, tests in (("theirs", 1000.0, SCATTER), ("runs", size, [0.7112])):
        for seed, test in enumerate(tests):
            write_run(tmp_path / folder, "fest", test=test, coordinates=coordinates, seed=seed, settings=selection)
    reference = write_cards_of(tmp_path / "theirs", tmp_path / "reference" / "flights.jsonl.xz")
    build(tmp_path / "runs", tmp_path / "report", only=["frontier"], reference=reference)
    assert verdicts(tmp_path / "report")["fig8"][0] == verdict
