"""Bags in runs: the model's look-ups, each algorithm's step against the reference, and every path of a run."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpfest.errors import UserError
from dpfest.gradients.reading import MicroBatch
from dpfest.noise.key import NoiseKey
from pipelines.budget import budget
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.rows import Rows
from pipelines.data.stream import Stream
from pipelines.preprocess import preprocess
from pipelines.runs.release import checked
from pipelines.select import Selection, cost_summary, rows_counted, select
from pipelines.tasks.click_model import ClickModelConfig
from pipelines.tasks.clicks import ClickTask
from pipelines.tasks.deepfm import DeepfmConfig
from pipelines.tasks.dlrm import DlrmConfig
from pipelines.tasks.pctr import PctrConfig, PctrModel
from pipelines.tasks.sequence import SequenceConfig
from pipelines.tasks.smaller_tables import SmallerTables
from pipelines.train import make_run
from tests.dpfest.ranks import small
from tests.dpfest.ranks.test_steps import assert_a_step_of_one_process
from tests.dpfest.reference import reference_gradient
from tests.dpfest.steps import by_batch, engine_with
from tests.dpfest.test_engine import CASES, dense, losses_of
from tests.pipelines.by_hand import noise_by_hand
from tests.pipelines.data.clicks.test_bags import lists_of
from tests.pipelines.data.clicks.test_table import written
from tests.pipelines.ranks import train_on_ranks

ROWS, MOST = 600, 3
BAGS = "data.categorical={user: 20, genres: {rows: 24, most: 3}, tags: {rows: 9, most: 2, combiner: sum}}"
QUICK = ("model.hidden=[6]", "train.batch_size=60", "train.steps=3", "privacy.noise_seed=4", "privacy.epsilon=50")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    noise_by_hand(monkeypatch, 3.0)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, calibrations: Path) -> list[str]:
    here = tmp_path_factory.mktemp("bags")
    (here / "runs").mkdir()
    (here / "runs" / ".calibration").symlink_to(calibrations)
    table = written(here, lists_of(ROWS))
    return [
        "data=table", f"data.path={table}", "data.label=clicked", BAGS, "data.numeric={price: log1p}",
        "data.unit=[household]", f"paths.data={here}/data", f"paths.runs={here}/runs", *QUICK,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def config(line: list[str]) -> Callable[..., Config]:
    return lambda *more: typed(Composer().compose([*line, *more]))


def pctr() -> PctrModel:
    model = PctrModel([7, 40, 9, 12], 2, PctrConfig(hidden=[5]), 1, bags=["mean", "sum"])
    with torch.no_grad():  # gradients on both sides of the clipping norm
        for table in model.tables:
            table.weight.mul_(20)
    return model.double()


def some_rows(examples: int, widths: tuple[int, int] = (5, 4)) -> Rows:
    """Clicks with bags of 0 to so many rows."""
    rng = np.random.default_rng(2)
    bags = []
    for width, size in zip(widths, (9, 12), strict=True):
        order = np.argsort(rng.random((examples, size)), axis=1)[:, :width].astype(np.int32)
        lengths = rng.integers(0, width + 1, examples)
        lengths[:2] = width, 0
        order[np.arange(width) >= lengths[:, None]] = -1
        bags.append(order)
    singles = np.stack([rng.integers(0, 7, examples), rng.integers(0, 40, examples)], axis=1).astype(np.int32)
    labels = rng.integers(0, 2, examples).astype(np.float32)
    return Rows(
        labels, labels.astype(np.int32), rng.normal(size=(examples, 2)).astype(np.float32), singles, tuple(bags)
    )


def batch_of(model: nn.Module, rows: Rows) -> Any:
    task = ClickTask.__new__(ClickTask)
    task.device, task.model = torch.device("cpu"), model
    numeric, categorical, bags, labels = task.to_device(rows)
    return numeric.double(), categorical, bags, labels.double()


SEQUENCE = SequenceConfig(dimension=4, length=4, heads=2, hidden=[5], embedding_scale=0.5)


def sequence(seed: int = 1, smaller: SmallerTables | None = None) -> Any:
    return SEQUENCE.make([7, 40, 9, 12], 2, seed, bags=["mean", "sum"], smaller=smaller).double()


def test_a_list_is_read_in_its_order_up_to_its_last_values_and_an_empty_one_as_zeros() -> None:
    """Of five values the first is not read; what follows in the batch, and padding, change nothing."""
    model, rows = sequence(), some_rows(12)
    *features, _ = batch_of(model, rows)
    whole = model(*features)
    alone = torch.cat([model(*batch_of(model, rows.where(np.array([one])))[:-1]) for one in range(12)])
    torch.testing.assert_close(whole, alone)

    def of(values: list[int]) -> torch.Tensor:
        return model.embed_bag(0, model.tables[2], torch.tensor(values, dtype=torch.int64), torch.tensor([0]))[0]

    assert torch.equal(of([]), torch.zeros(4).double())
    assert torch.equal(of([5, 1, 2, 3, 4]), of([1, 2, 3, 4])) and not torch.allclose(of([1, 2, 3]), of([2, 1, 3]))
    assert torch.equal(of([8]), of([7])) and not torch.allclose(of([7]), of([6]))  # the last row pads


@pytest.mark.parametrize("case", ["dpsgd", "fest", "adafest"])
def test_a_step_of_sequences_equals_the_dense_reference(case: str) -> None:
    algorithm, settings = CASES[case]
    rows, model, key = some_rows(17, (4, 4)), sequence(), NoiseKey.from_seed(3)
    touched = [[{int(row)} for row in column] for column in rows.categorical.T]
    last = [7, 10]  # of each table but for the row that pads
    touched += [
        [{min(row, most) for row in bag if row >= 0} for bag in bags.tolist()]
        for bags, most in zip(rows.bags, last, strict=True)
    ]
    selected = settings.get("selected")
    chosen = {**settings, "selected": None if selected is None else torch.from_numpy(selected)}
    engine = engine_with(model, algorithm, by_batch(losses_of(model)), key, expected_batch_size=10.0, **chosen)
    got = dense(engine, [batch_of(model, rows)], step=5)
    want = reference_gradient(
        model, algorithm, losses_of(model), batch_of(model, rows), touched, key, 5, divisor=10.0, **settings
    )
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-8, atol=1e-10)


def test_sequences_need_lists() -> None:
    with pytest.raises(UserError, match="model=sequence reads columns of lists, and these data have none"):
        SEQUENCE.make([7, 40], 2, 0)
    with pytest.raises(ValueError, match=r"model.dimension=50 must be a multiple of model.heads=3"):
        SequenceConfig(heads=3)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cuts", [[17], [6, 5, 0, 6]])
def test_a_step_with_bags_equals_the_dense_reference(case: str, cuts: list[int]) -> None:
    """A contribution map of up to 2 + 5 + 4 rows, clipped to C1; a bag's mean and sum; micro-batches, one of none."""
    algorithm, settings = CASES[case]
    rows, model, key = some_rows(17), pctr(), NoiseKey.from_seed(3)
    of_batch = losses_of(model)
    touched = [[{int(row)} for row in column] for column in rows.categorical.T]
    touched += [[{row for row in bag if row >= 0} for bag in bags.tolist()] for bags in rows.bags]
    assert max(sum(len(table[example]) for table in touched) for example in range(17)) == 11
    selected = settings.get("selected")
    chosen = {**settings, "selected": None if selected is None else torch.from_numpy(selected)}
    engine = engine_with(model, algorithm, by_batch(of_batch), key, expected_batch_size=10.0, **chosen)
    parts = np.split(np.arange(17), np.cumsum(cuts)[:-1])
    got = dense(engine, [batch_of(model, rows.where(part)) for part in parts], step=5)
    want = reference_gradient(
        model, algorithm, of_batch, batch_of(model, rows), touched, key, 5, divisor=10.0, **settings
    )
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("smaller", [None, SmallerTables(max_rows=6)])
def test_the_model_reads_the_mean_or_the_sum_of_a_bags_rows_and_zeros_of_none(smaller: SmallerTables | None) -> None:
    model = PctrModel([7, 40, 9, 12], 2, PctrConfig(hidden=[5]), 1, bags=["mean", "sum"], smaller=smaller)
    rows = some_rows(30)
    task = ClickTask.__new__(ClickTask)
    task.device = torch.device("cpu")
    *features, _ = task.to_device(rows)
    size = [len(table.weight) for table in model.tables]
    wanted = []
    for example in range(30):
        values = [table.weight[rows.categorical[example, f] % size[f]] for f, table in enumerate(model.tables[:2])]
        for bag, table, mean in zip(rows.bags, model.tables[2:], (True, False), strict=True):
            held = [int(row) % len(table.weight) for row in bag[example] if row >= 0]
            total = sum((table.weight[row] for row in held), torch.zeros(table.weight.shape[1]))
            values.append(total / max(len(held), 1) if mean else total)
        wanted.append(torch.cat([torch.from_numpy(rows.numeric[example]), *values]))
    assert any(bool((bag[:, 0] < 0).any()) for bag in rows.bags)
    expected = model.network(torch.stack(wanted)).squeeze(1)
    torch.testing.assert_close(model(*features), expected, rtol=1e-5, atol=1e-6)


def test_without_bags_the_initial_model_is_as_it_was_and_its_tables_are_plain() -> None:
    one, other = (PctrModel([7, 40], 2, PctrConfig(hidden=[5]), 3, **more) for more in ({}, {"bags": []}))
    with_bag = PctrModel([7, 40, 9], 2, PctrConfig(hidden=[5]), 3, bags=["sum"])
    assert (
        all(type(table) is nn.Embedding for table in one.tables)
        and one.state_dict().keys() == other.state_dict().keys()
    )
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(one.tables, with_bag.tables[:2], strict=True))
    assert float(with_bag.tables[2].weight.detach().std()) == pytest.approx(0.05, rel=0.5)


ALGORITHMS = (
    "nonprivate",
    "dpsgd",
    "dpsgd algorithm.noise=lazy",
    "threshold",
    "threshold algorithm.rule=soft",
    "smaller_tables algorithm.max_rows=8",
    "frozen",
    "exponential algorithm.rows_per_step=9",
    "adafest algorithm.threshold=2",
    "adafest_plus algorithm.threshold=2 algorithm.selection.rows=30",
    *(
        f"fest algorithm.selection.rows=30 algorithm.selection.mechanism={mechanism} algorithm.selection.split={split} "
        "algorithm.selection.epsilon=0.2"
        for mechanism in ("gaussian", "laplace", "gumbel")
        for split in ("joint", "equal")
    ),
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_on_bags_and_its_release_is_complete(config: Any, algorithm: str) -> None:
    made = make_run(config(*f"algorithm={algorithm}".split()))
    release = checked(made.path)
    tables = release.summary["embedding_gradient"]["tables"]
    assert [table["name"] for table in tables] == ["user", "genres", "tags"]
    bag = release.config["data"]["categorical"]["genres"]
    assert bag == {"rows": 24, "most": 3, "combiner": "mean", "separator": None}
    assert 0 <= made.summary["utility"]["value"] <= 1


@pytest.mark.parametrize("algorithm", ["dpsgd", "adafest algorithm.threshold=2", "fest algorithm.selection.rows=30"])
def test_households_are_units_of_data_with_bags(config: Any, algorithm: str) -> None:
    unit = ("privacy.unit=household", "unit.max_examples=2", "train.batch_size=40")
    made = make_run(config(*f"algorithm={algorithm}".split(), *unit))
    assert made.summary["privacy"]["unit"] == "household" and checked(made.path)


def test_micro_batches_change_rounding_alone(config: Any, tmp_path: Path) -> None:
    """A batch cut apart has other offsets in its bags, and the same examples."""
    summaries = []
    for name, more in (("whole", ()), ("cut", ("train.micro_batch_size=7",))):
        asked = config("algorithm=adafest", "algorithm.threshold=1", *more, f"paths.runs={tmp_path}/{name}")
        summaries.append(make_run(asked).summary)
    one, other = summaries
    assert one["utility"]["value"] == pytest.approx(other["utility"]["value"], abs=1e-4)
    assert one["embedding_gradient"] == other["embedding_gradient"]


def test_a_selection_is_noised_for_what_an_example_can_move(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """user 1, genres 3, tags 2: √6 in l2. With households of two examples each twice that, within the tables' sizes."""
    asked = config("algorithm=fest", "algorithm.selection.rows=30")
    stream = Stream.open(preprocess(asked))
    (day,) = stream.days
    assert rows_counted(asked, day) == [1, 3, 2]
    said = cost_summary(asked, stream)
    assert f"standard deviation {20 * math.sqrt(6):,.4g} (multiplier 20)" in said
    assert "at most 3 rows of genres, 2 rows of tags and 1 of every other feature an example" in said
    (rows,) = day.split("train").chunks(ROWS)
    each = [[len(one.counted(feature, most)) for feature, most in enumerate((1, 3, 2))]
            for one in (rows.where(np.array([place])) for place in range(len(rows)))]  # fmt: skip
    assert np.max(each, axis=0).tolist() == [1, 3, 2]
    laplace = config("algorithm=fest", "algorithm.selection.mechanism=laplace", "algorithm.selection.epsilon=0.3")
    assert "Laplace noise of scale 30, less where fewer rows count" in cost_summary(laplace, stream)
    household = config("algorithm=fest", "privacy.unit=household", "unit.max_examples=2")
    preprocess(household)
    assert rows_counted(household, day) == [2, 6, 4]
    assert "3 rows of genres" not in cost_summary(household, stream)
    assert Selection(household, stream)._unit == {"unit": {"column": "household", "rows_per_unit": [2, 6, 4]}}
    assert select(asked).exists()
    capsys.readouterr()


def test_the_budget_counts_all_rows_that_an_example_may_touch(config: Any) -> None:
    map_, selection = (str(budget(config(f"algorithm={name}"))) for name in ("adafest", "fest"))
    plan = budget(config("algorithm=adafest"))
    sigma = plan.plan.step().map_noise_multiplier
    assert f"({math.sqrt(6) * sigma:,.1f} of a batch" in map_
    assert f"{20 * math.sqrt(6):,.0f} training examples" in selection


OVER_RANKS: dict[str, ClickModelConfig] = {
    "pctr": PctrConfig(hidden=[5]),
    "dlrm": DlrmConfig(dimension=3, bottom=[5], top=[6, 4]),
    "deepfm": DeepfmConfig(dimension=3, hidden=[5, 4]),
    "sequence": SEQUENCE,
}


def with_bags(name: str) -> Any:
    model = OVER_RANKS[name].make([7, 40, 9, 12], 2, 1, bags=["mean", "sum"])
    if name == "sequence":
        with torch.no_grad():  # as that of ranks, whose rows are drawn by shard
            for table in model.tables[2:]:
                table.weight[-1] = 0
    return model


def read(indices: np.ndarray, seed: bytes = b"") -> list[MicroBatch]:
    task = ClickTask.__new__(ClickTask)
    task.device = torch.device("cpu")
    return [MicroBatch(indices, task.to_device(some_rows(small.EXAMPLES).where(indices)))]


@pytest.mark.parametrize("name", OVER_RANKS)
def test_a_step_of_every_model_over_ranks_is_that_of_one_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_a_step_of_one_process("adafest", monkeypatch, partial(with_bags, name), read)


@pytest.mark.long("starts ranks three times, each a process that imports torch")
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.slow) for name in ("pctr", "dlrm", "deepfm", "sequence")]
)
def test_a_run_stopped_on_two_ranks_and_resumed_on_three_releases_the_bytes_of_one(
    line: list[str], model: str, tmp_path: Path, runs_in: Callable[[Path], Path]
) -> None:
    sized = [word for word in line if model != "dlrm" or not word.startswith("model.")]
    own = [*sized, f"model={model}", "algorithm=adafest", "algorithm.threshold=2", "train.steps=4"]
    releases = []
    for name, worlds in ("alone", (1,)), ("others", (2, 3)):
        words = [*own, f"paths.runs={runs_in(tmp_path / name)}"]
        for world in worlds[:-1]:
            assert all(train_on_ranks(words, world, signal_at=2, number=signal.SIGTERM))
        assert train_on_ranks(words, worlds[-1]) == [None] * worlds[-1]
        (folder,) = (tmp_path / name).glob("*/*/*/release")
        releases.append({path.name: path.read_bytes() for path in folder.iterdir()})
        assert checked(folder.parent).summary["utility"]["value"] is not None
    assert releases[0] == releases[1]
