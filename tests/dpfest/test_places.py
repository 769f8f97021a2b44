"""Noise by place under `chacha20/1`: the words it is said to come from, one law, and nothing of lists or parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpfest.gradients.draws import ExampleDraws
from dpfest.gradients.tables import Survivors, TableLayout
from dpfest.noise import gaussian as module
from dpfest.noise import places
from dpfest.noise.box_muller import BLOCK
from dpfest.noise.gaussian import add_gaussian, draw_units, gaussian_grid
from dpfest.noise.key import CHACHA, CIPHERS, NoiseKey
from dpfest.noise.placed_keystream import ChaCha
from dpfest.noise.places import DensePlaces, MapPlaces, Places, RowPlaces
from dpfest.selection import survivors
from dpfest.selection.survivors import surviving_rows
from dpfest.selection.thresholding import keep_long_rows, radius_of, row_norms
from dpfest.step.lazy import LazyNoise
from tests.dpfest import placed

KEY = NoiseKey.from_seed(6, cipher=CHACHA)
FALSE_ALARM = 1e-4
LAYOUT = TableLayout(("a", "b", "c"), (700, 4000, 60), (3, 16, 21))


def stream(purpose: str = "row noise", step: int = 2) -> ChaCha:
    found = KEY.stream(purpose, step)
    assert isinstance(found, ChaCha)
    return found


def noise(at: Places | None, count: int, deviation: float = 0.7, given: ChaCha | None = None) -> np.ndarray:
    return draw_units(given or stream(), count, deviation, at) * gaussian_grid(deviation)


def rows_of(rows: list[int]) -> Survivors:
    return Survivors(LAYOUT, torch.tensor(rows))


def by_row(rows: torch.Tensor | None, drawn: np.ndarray) -> dict[int, np.ndarray]:
    """Values of each global row."""
    chosen = Survivors(LAYOUT, rows)
    numbers = range(LAYOUT.total_rows) if rows is None else rows.tolist()
    dims = [dim for count, dim in chosen.shapes for _ in range(count)]
    return dict(zip(numbers, np.split(drawn, np.cumsum(dims)[:-1]), strict=True))


# Words


@pytest.mark.usefixtures("loops")
def test_every_layout_reads_the_words_that_it_is_said_to() -> None:
    chosen, far = [0, 5, 699, 700, 2999, 4700, 4759], [(2**33 + 5, 9), (2**47 + 1, 9)]
    given = rows_of(chosen)
    rows = [(row, LAYOUT.dims[table]) for row, table in zip(chosen, (0, 0, 0, 1, 1, 2, 2), strict=True)]
    got = noise(RowPlaces(given.rows, given.shapes), sum(dim for _, dim in rows))
    assert np.array_equal(got, placed.on_rows(KEY, 2, rows, 0.7))
    got = noise(RowPlaces(torch.tensor([row for row, _ in far]), [(2, 9)]), 18)
    assert np.array_equal(got, placed.on_rows(KEY, 2, far, 0.7))
    wanted = [0, 1, 127, 128, 1023, 1024, 5000, 70_000, 140_001]
    got = noise(DensePlaces(), 140_002, given=stream("dense noise"))
    assert np.array_equal(got[wanted], placed.on_dense(KEY, 2, wanted, 0.7))
    numbers = [0, 7, 8, 100, 70_001]
    got = noise(MapPlaces(np.array(numbers)), 5, given=stream("map"))
    assert np.array_equal(got, placed.on_map(KEY, 2, numbers, 0.7))
    assert np.array_equal(noise(MapPlaces(None), 70_002, given=stream("map"))[numbers], got)


@pytest.mark.usefixtures("loops")
def test_undecided_variates_are_decided_by_the_bits_of_their_own_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 decides of none, and nothing changes."""
    given = rows_of(list(range(690, 720)))
    at, count = RowPlaces(given.rows, given.shapes), 10 * 3 + 20 * 16
    fast = noise(at, count)
    monkeypatch.setattr("dpfest.noise.box_muller._TOLERANCE", 2.0**-26)
    monkeypatch.setattr("dpfest.noise.box_muller._error", lambda logarithm: math.inf)
    assert np.array_equal(fast, noise(at, count))


@pytest.mark.usefixtures("loops")
def test_rows_have_deviations_and_grids_of_their_own() -> None:
    rows, deviations = torch.tensor([3, 9, 700, 3000]), torch.tensor([0.3, 7.0, 1e-5, 0.3], dtype=torch.float64)
    values = torch.zeros(4, 9, dtype=torch.float64)
    add_gaussian(values, stream(), deviations, RowPlaces(rows, [(4, 9)]))
    want = [placed.on_rows(KEY, 2, [(int(row), 9)], float(own)) for row, own in zip(rows, deviations, strict=True)]
    assert np.array_equal(values.numpy(), np.stack(want))


# No matter with which others


def test_a_rows_noise_is_its_own_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among all rows, in a subset, alone, in several parts, in another order, and by any number of threads."""
    every = noise(RowPlaces(None, Survivors(LAYOUT, None).shapes), LAYOUT.coordinates)
    whole = by_row(None, every)
    generator = np.random.default_rng(0)
    chosen = torch.from_numpy(np.sort(generator.choice(LAYOUT.total_rows, 900, replace=False)))
    for part in (chosen, chosen[:400], chosen[400:], chosen[7:8]):
        given = Survivors(LAYOUT, part)
        got = by_row(part, noise(RowPlaces(part, given.shapes), sum(map(math.prod, given.shapes))))
        assert all(np.array_equal(got[row], whole[row]) for row in part.tolist())
    mixed = torch.from_numpy(generator.permutation(700))
    got = noise(RowPlaces(mixed, [(700, 3)]), 2100).reshape(700, 3)
    assert all(np.array_equal(got[place], whole[row]) for place, row in enumerate(mixed.tolist()))
    monkeypatch.setattr(module, "_PER_THREAD", 1)
    assert np.array_equal(noise(RowPlaces(None, Survivors(LAYOUT, None).shapes), LAYOUT.coordinates), every)
    assert LAYOUT.coordinates > BLOCK, "or there is one part alone"


def test_another_purpose_step_key_or_layout_has_other_noise() -> None:
    rows, shape = torch.arange(3), [(3, 8)]
    keys = [KEY, KEY.derive("shard", 0), KEY.derive("shard", 1), NoiseKey.from_seed(7, cipher=CHACHA)]
    drawn = [
        draw_units(key.stream(purpose, step), 24, 1.0, at)
        for key in keys
        for purpose in ("row noise", "lazy noise")
        for step in (0, 1)
        for at in (RowPlaces(rows, shape), DensePlaces(), MapPlaces(None), None)
    ]
    assert len(np.unique(np.concatenate(drawn))) > 0.99 * 24 * len(drawn)


def test_dense_noise_is_cut_anywhere() -> None:
    whole = noise(DensePlaces(), 200_000)
    for first, count in ((0, 5), (1000, 100), (65_536, 65_536), (1023, 130_000)):
        assert np.array_equal(noise(DensePlaces(first), count), whole[first : first + count])


def test_lists_follow_one_another_and_places_stay() -> None:
    given = stream()
    lists = [draw_units(given, 1001, 1.0) for _ in range(2)]
    assert not np.intersect1d(*lists).size and given.position == 2016
    at = MapPlaces(None)
    assert np.array_equal(draw_units(given, 9, 1.0, at), draw_units(given, 9, 1.0, at)) and given.position == 2016


def test_rows_and_dimensions_beyond_the_counter_are_refused() -> None:
    for rows, shape in ((torch.tensor([2**48]), (1, 3)), (torch.tensor([0]), (1, 2**16 + 1))):
        with pytest.raises(ValueError, match="chacha20/1 numbers up to"):
            RowPlaces(rows, [shape])


# Laws


@pytest.mark.parametrize(
    "at",
    [RowPlaces(None, [(30_000, 5)]), RowPlaces(None, [(9_000, 16)]), DensePlaces(), MapPlaces(None), None],
    ids=["narrow rows", "rows", "dense", "map", "a list"],
)
def test_noise_is_normal_and_a_wrong_deviation_is_rejected(at: Places | None) -> None:
    sample = noise(at, 144_000, 3.0) / 3
    n = len(sample)
    assert stats.kstest(sample, "norm").pvalue > FALSE_ALARM
    assert stats.chi2.sf((sample**2).sum(), n) > FALSE_ALARM < stats.chi2.cdf((sample**2).sum(), n)
    for wrong in (0.98, 1.02):
        other = (sample**2).sum() / wrong**2
        assert min(stats.chi2.sf(other, n), stats.chi2.cdf(other, n)) < 1e-6
    for lag in (1, 2, 3, 4, 7, 8, 128, 1024):
        assert abs((sample[lag:] * sample[:-lag]).mean()) * math.sqrt(n - lag) < stats.norm.isf(FALSE_ALARM / 16)


@pytest.mark.parametrize("universe", [1000, 200_003])
def test_survivors_are_those_of_the_noise_of_all_rows(universe: int) -> None:
    """Row by row; and as many as their law says, and not as another threshold's."""
    touched = torch.tensor([0, 3, 7, 500, 999])
    sums = torch.tensor([9.0, -9.0, 1.0, 0.5, 2.0], dtype=torch.float64)
    expected, count, steps = 0.0, 0, 5
    for step in range(steps):
        noised = noise(MapPlaces(None), universe, 1.3, stream("map", step))
        noised[touched.numpy()] += sums.numpy()
        want = np.flatnonzero(noised >= 2.1)
        law = {"universe": universe, "threshold": 2.1, "deviation": 1.3}
        assert np.array_equal(surviving_rows(touched, sums, stream("map", step), **law).numpy(), want)
        none = touched[:0], sums[:0]
        found = surviving_rows(*none, stream("map", step), **law)
        expected, count = expected + universe * stats.norm.sf(2.1 / 1.3), count + len(found)
    spread = math.sqrt(expected * (1 - stats.norm.sf(2.1 / 1.3)))
    assert abs(count - expected) / spread < stats.norm.isf(FALSE_ALARM / 2)
    if universe > 10**5:
        assert abs(count - steps * universe * stats.norm.sf(2.2 / 1.3)) / spread > 6


def test_whether_a_row_survives_does_not_depend_on_other_rows() -> None:
    law = {"universe": 5000, "threshold": 2.0, "deviation": 1.0}
    one, two = torch.tensor([40]), torch.tensor([40, 41, 4000])
    sums = torch.tensor([1.0, 5.0, 5.0], dtype=torch.float64)
    alone = set(surviving_rows(one, sums[:1], stream("map"), **law).tolist())
    assert set(surviving_rows(two, sums, stream("map"), **law).tolist()) == alone | {41, 4000}


def test_beyond_the_most_values_touched_rows_keep_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    law = {"universe": 50_000, "threshold": 2.0, "deviation": 1.0}
    touched, sums = torch.arange(0, 2000, 2), torch.ones(1000, dtype=torch.float64)
    every = surviving_rows(touched, sums, stream("map"), **law).numpy()
    monkeypatch.setattr(survivors, "MOST_VALUES", 100)
    gaps = surviving_rows(touched, sums, stream("map"), **law).numpy()
    assert np.array_equal(*(np.intersect1d(found, touched.numpy()) for found in (every, gaps)))
    others = len(np.setdiff1d(gaps, touched.numpy()))
    p = stats.norm.sf(2.0)
    assert abs(others - 49_000 * p) / math.sqrt(49_000 * p) < stats.norm.isf(FALSE_ALARM / 2)


def test_long_rows_are_those_of_the_dense_release() -> None:
    """Of a threshold, bit by bit: all rows noised, touched ones with their sums, and the short ones dropped."""
    deviation, touched = 0.8, rows_of([1, 5, 702, 4705])
    whole = by_row(None, noise(RowPlaces(None, Survivors(LAYOUT, None).shapes), LAYOUT.coordinates, deviation))
    sums = {row: np.full_like(whole[row], 2.0) for row in (1, 702)}
    dense = {row: value + sums.get(row, 0.0) for row, value in whole.items()}
    given = [torch.from_numpy(np.stack(part)) for part in ([dense[1], dense[5]], [dense[702]], [dense[4705]])]
    kept, values = keep_long_rows(
        LAYOUT, touched, given, deviation, false_rate=0.01, shrink=False,
        stream=stream("untouched rows"), noise=stream(),
    )  # fmt: skip
    got = by_row(kept.rows, np.concatenate([table.reshape(-1).numpy() for table in values]))
    radii = [radius_of(0.01, dim, deviation) for dim in LAYOUT.dims]
    want = {
        row: value
        for row, value in dense.items()
        if row_norms(torch.from_numpy(value[None]), deviation) >= radii[LAYOUT.dims.index(len(value))]
    }
    assert got.keys() == want.keys() and {1, 702} <= want.keys() and len(want) > 20
    assert all(np.array_equal(got[row], want[row]) for row in want)


# Consumers


def lazy(rows: list[list[int]]) -> tuple[torch.Tensor, ...]:
    """Tables after reads of these rows of the second one, one after another, and a flush."""
    tables = nn.ModuleList([nn.Embedding(4, 3), nn.Embedding(6, 9)])
    for table in tables:
        nn.init.zeros_(table.weight)
    own = LazyNoise({"a": tables[0], "b": tables[1]}, tables)  # type: ignore[dict-item]
    own.use(KEY)
    own.pending = [0.25, 0.25]
    for part in rows:
        own.read(1, torch.tensor(part))
    read = tables[1].weight.detach().clone()
    own.flush()
    return read, *(table.weight.detach() for table in tables)


def test_lazy_noise_is_a_function_of_draw_row_and_coordinate() -> None:
    read, first, second = lazy([[5, 2], [3, 2]])
    want = placed.on_rows(KEY, 0, [(4 + 2, 9), (4 + 5, 9)], 0.5, "lazy noise").reshape(2, 9)
    assert np.array_equal(read[[2, 5]].numpy(), want.astype(np.float32)) and not read[[0, 1, 4]].any()
    want = placed.on_rows(KEY, 1, [(4 + 3, 9)], 0.5, "lazy noise")
    assert np.array_equal(read[3].numpy(), want.astype(np.float32))
    want = placed.on_rows(KEY, 2, [(row, 3) for row in range(4)], 0.5, "lazy noise")
    assert np.array_equal(first.numpy().ravel(), want.astype(np.float32))
    want = placed.on_rows(KEY, 3, [(4 + 4, 9)], 0.5, "lazy noise")
    assert np.array_equal(second[4].numpy(), want.astype(np.float32))
    assert torch.equal(lazy([[5, 2], [3, 2]])[2], second)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_forward_draws_are_by_example_and_uniform(cipher: str) -> None:
    def drawn(examples: list[int], length: int) -> torch.Tensor:
        with ExampleDraws(NoiseKey.from_seed(2, cipher=cipher), 3, np.array(examples)):
            return torch.rand(len(examples), length, 21, dtype=torch.float64)

    whole = drawn(list(range(100)), 30)
    part = drawn([7, 3], 11)
    assert torch.equal(part, whole[[7, 3], :11]) and len(whole.unique()) == whole.numel()
    assert stats.kstest(whole.numpy().ravel(), "uniform").pvalue > FALSE_ALARM


def test_a_rows_noise_in_a_step_is_the_same_with_other_survivors() -> None:
    """The same step under thresholds that let other rows survive: sums are 0, and the noise of common rows equal."""
    from dpfest.algorithms.adafest import AdaFEST
    from tests.dpfest.steps import engine_with, released

    def step(threshold: float) -> dict[int, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(400, 5, mode="sum"), nn.Linear(5, 1))
        losses = lambda model, batch: 0 * model(batch)[:, 0]  # noqa: E731
        engine = engine_with(
            model, AdaFEST(threshold=threshold), losses, KEY, gradient_noise_multiplier=1.0,
            map_noise_multiplier=1.0, expected_batch_size=1.0,
        )  # fmt: skip
        batch = torch.tensor([[1, 2], [3, 390]])
        rows = released(engine, [batch], 4).tables[0]
        assert rows.rows is not None
        return dict(zip(rows.rows.tolist(), rows.values, strict=True))

    many, few = step(1.0), step(1.8)
    assert set(few) < set(many) and len(few) > 5
    assert all(torch.equal(few[row], many[row]) for row in few)


def test_the_pieces_of_a_draw_are_no_larger_than_a_threads_arrays() -> None:
    for at, count in ((RowPlaces(None, [(70_000, 1), (100, 65_536)]), 70_000 + 100 * 65_536), (DensePlaces(5), 10**6)):
        assert sum(len(piece.variates) for piece in at.pieces(0, count)) == count
        assert max(8 * len(piece.counters) for piece in at.pieces(0, count)) <= BLOCK == 8 * places._MOST_BLOCKS
