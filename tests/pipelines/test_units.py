"""Households and baskets as the unit of privacy, as a user meets them: data, runs, streams, selections, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.budget import budget, population
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.clicks import journey
from pipelines.data.clicks.packaged import DAY, Package, Slices
from pipelines.data.dataset import Dataset
from pipelines.data.rows import RECORD, JoinedRows, Rows
from pipelines.data.stream import Stream
from pipelines.data.units import histogram, identifiers
from pipelines.preprocess import preprocess
from pipelines.runs.identity import run_hash
from pipelines.runs.release import checked
from pipelines.select import Selection, cost_summary
from pipelines.train import make_run

SMALL = ("profile=smoke", "model.hidden=[8]", "privacy.noise_seed=5", f"data.vocabulary.sizes={[60] * 8}")
PLAIN, STREAM = "data=journey", ("data=journey_stream", "data.days=4", "stream.train_days=3", "stream.period=2")


@pytest.fixture(scope="module", autouse=True)
def few_households() -> Iterator[None]:
    """Every fiftieth household, each tenth line of it: 49 households, about 3,000 lines."""
    few = (pl.col("household_id") % 50 == 7) & (pl.col("index") % 10 == 0)
    whole = journey.lines(journey.JOURNEY.package).with_row_index().filter(few).drop("index")

    def lines(package: Package, slices: Slices) -> pl.DataFrame:
        return slices.mine(whole.with_columns(slices.of(pl.col("week") - 1).alias(DAY)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journey, "lines", lines)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, calibrations: Path) -> Any:
    data, runs = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("runs")
    (runs / ".calibration").symlink_to(calibrations)

    def of(*more: str) -> Config:
        return typed(Composer().compose([*SMALL, f"paths.data={data}", f"paths.runs={runs}", *more]))

    return of


def test_units_that_were_damaged_are_made_again_and_never_used(config: Any) -> None:
    """Another assignment of as many rows would leave no guarantee for a household, and no other trace."""
    settings = config(PLAIN, "privacy.unit=household_id")
    stream = Stream.open(preprocess(settings))
    (whole,) = identifiers(stream.days, "household_id")
    whole = np.array(whole)
    file = stream.days[0].folder / "train.household_id.npy"
    np.save(file, np.random.default_rng(0).permutation(whole))
    with pytest.raises(UserError, match=r"train\.household_id\.npy is damaged: `dpfest preprocess"):
        identifiers(stream.days, "household_id")
    file.unlink()
    with pytest.raises(UserError, match="these data were prepared without household_id as a unit: `dpfest preprocess"):
        identifiers(stream.days, "household_id")
    preprocess(settings)
    assert np.array_equal(identifiers(stream.days, "household_id")[0], whole)


# All 49 households in every batch: without sampling, noise is calibrated in no time.
HOUSEHOLD = ("privacy.unit=household_id", "train.batch_size=49", "unit.max_examples=6")


def test_each_training_row_has_the_unit_of_its_line(config: Any) -> None:
    """The first feature is a hash of the household: equal units have equal rows there. The data stay where they are."""
    by_line, by_household, by_basket = (
        Stream.open(preprocess(config(PLAIN, f"privacy.unit={unit}")))
        for unit in ("example", "household_id", "basket_id")
    )
    assert by_line.folder == by_household.folder == by_basket.folder
    (households,), (baskets,) = (identifiers(by_line.days, name) for name in ("household_id", "basket_id"))
    (day,) = by_line.days
    rows = day.split("train").gather(np.arange(day.examples)).categorical[:, 0]
    assert set(households % 50) == {7} and len(np.unique(households)) == 49 < len(np.unique(baskets)) < day.examples
    assert len(np.unique(np.stack([households, rows]), axis=1).T) == 49
    assert len(np.unique(np.stack([households, baskets]), axis=1).T) == len(np.unique(baskets))


def test_rows_are_gathered_in_the_order_of_units() -> None:
    class File:
        def __len__(self) -> int:
            return 10

        def gather(self, indices: Any) -> Any:
            assert (np.diff(indices) > 0).all()
            records = np.zeros(len(indices), RECORD)
            records["day"] = indices
            return Rows.of(records)

    rows = JoinedRows([File(), File()])  # type: ignore[list-item]
    assert rows.gather(np.array([15, 3, 12, 4])).days.tolist() == [5, 3, 2, 4]


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param("nonprivate", marks=pytest.mark.slow),
        "dpsgd algorithm.noise=lazy",
        "adafest algorithm.threshold=1",
        "fest algorithm.selection.rows=80",
    ],
)
def test_a_run_by_household_says_so_wherever_it_says_epsilon(config: Any, algorithm: str) -> None:
    asked = config(PLAIN, *HOUSEHOLD, *f"algorithm={algorithm}".split())
    run = make_run(asked)
    assert run.summary["examples"] == 49 and run.summary["hyperparameters"]["unit"]["max_examples"] == 6
    ledger = json.loads((run.path / "release" / "ledger.json").read_text())
    assert ledger["neighbours"] == "add or remove one household"
    if algorithm != "nonprivate":
        assert run.summary["privacy"]["unit"] == "household" and run.summary["privacy"]["delta"] == 1 / 49
        assert "all training examples of one household" in ledger["statements"][0]
    released = checked(run.path)
    assert released.config["unit"] == {"max_examples": 6, "combine": "mean"}
    assert released.config["privacy"]["unit"] == "household_id"


def test_runs_by_example_keep_their_names_and_their_release(config: Any) -> None:
    hashes = {
        run_hash(config(PLAIN, *more))
        for more in ((), ("unit.max_examples=1",), HOUSEHOLD[:1], (*HOUSEHOLD[:1], "unit.combine=sum"))
    }
    assert len(hashes) == 4
    released = checked(make_run(config(PLAIN, "algorithm=nonprivate")).path)
    assert "unit" not in released.config and "unit" not in released.config["privacy"]


@pytest.mark.slow
def test_a_stream_composes_the_periods_and_the_days_counted(config: Any) -> None:
    sampled = ("train.batch_size=10", "algorithm=fest", "algorithm.selection.rows=80", "privacy.epsilon=3")
    run = make_run(config(*STREAM, *HOUSEHOLD, *sampled))
    events = json.loads((run.path / "release" / "ledger.json").read_text())["events"]
    assert all(event["part"] == [] for event in events)
    assert sum(event["count"] for event in events if event["what"] == "row selection") == 3
    assert len({event["noise_multiplier"] for event in events if event["what"] == "training step"}) == 1
    assert run.summary["examples"] == 49 >= max(period["examples"] for period in run.summary["periods"])
    assert run.summary["privacy"]["epsilon"] <= 3


class Without:
    """A day without some of its training rows."""

    def __init__(self, day: Dataset, kept: Any) -> None:
        self.vocabulary_sizes = day.vocabulary_sizes
        self._rows = day.split("train").gather(np.arange(day.examples)).where(kept)

    def split(self, name: str) -> Without:
        return self

    def chunks(self, size: int) -> Iterator[Any]:
        yield self._rows


def test_a_households_rows_move_a_histogram_by_its_bound_at_most(config: Any) -> None:
    """On one day and on several together: a household's lines leave, and no feature changes in more than six rows."""
    stream = Stream.open(preprocess(config(*STREAM, *HOUSEHOLD)))
    for days in (stream.days[:1], stream.days[:3]):
        units = identifiers(days, "household_id")
        one = units[0][0]
        most = [6] * len(days[0].vocabulary_sizes)
        found = histogram(days, units, most)
        assert [len(counts) for counts in found] == days[0].vocabulary_sizes
        without = [cast(Dataset, Without(day, unit != one)) for day, unit in zip(days, units, strict=True)]
        for counts, others in zip(found, histogram(without, [unit[unit != one] for unit in units], most), strict=True):
            assert counts.max() <= 49
            moved = counts - others
            assert set(moved.tolist()) <= {0, 1} and 1 <= moved.sum() <= 6


def test_budget_and_selection_count_units(config: Any) -> None:
    asked = config(PLAIN, *HOUSEHOLD, "algorithm=fest", "algorithm.selection.rows=80")
    stream = Stream.open(preprocess(asked))
    assert population(asked, stream) == 49
    text = str(budget(asked))
    assert "add-or-remove-one household adjacency" in text and "units N (household)" in text
    words = cost_summary(asked, stream)
    assert "at most 6 rows of a feature for a household" in words and "at delta 0.0204" in words


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((PLAIN, "privacy.unit=houshold_id"), r"privacy\.unit=houshold_id .* did you mean privacy\.unit=household_id"),
        (("data=nycflights", "privacy.unit=household_id"), "data=nycflights, which has none: leave it at example"),
        (("data=text_synthetic", "privacy.unit=household_id"), "data=text_synthetic, which has none"),
        ((PLAIN, *HOUSEHOLD, "privacy=paper"), r"privacy\.unit=household_id needs privacy=rigorous"),
        ((PLAIN, *HOUSEHOLD, "unit.max_examples=0"), r"unit\.max_examples must be a whole number from 1"),
        ((PLAIN, *HOUSEHOLD, "unit.combine=max"), r"unit\.combine"),
        (
            (PLAIN, *HOUSEHOLD, "train.micro_batch_size=5"),
            r"train\.micro_batch_size=5 must be at least unit\.max_examples=6",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_by_its_key(more: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        typed(Composer().compose(["profile=smoke", *more]))


def test_a_number_of_examples_is_no_stream_of_units(config: Any) -> None:
    with pytest.raises(UserError, match="does not say which units are in which days"):
        budget(config(*STREAM, *HOUSEHOLD, "budget.examples=1000"))


def test_a_selection_whose_noise_drowns_every_count_says_so(config: Any, capfd: pytest.CaptureFixture[str]) -> None:
    asked = config(PLAIN, *HOUSEHOLD, "algorithm=fest", "algorithm.selection.rows=80", "unit.max_examples=1000000")
    Selection(asked, Stream.open(preprocess(asked))).release()
    assert re.search(
        r"warning: .* \(438\.2\) is as large as the number of households counted \(49\): rows are selected at random\. "
        r"For less noise lower unit\.max_examples",
        capfd.readouterr().err,
    ), "20 · √(8 features · 60 rows), since no feature has more than 60"
    quiet = config(PLAIN, *HOUSEHOLD, "algorithm=fest", "algorithm.selection.noise_multiplier=1")
    Selection(quiet, Stream.open(preprocess(quiet))).release()
    assert "warning" not in capfd.readouterr().err
