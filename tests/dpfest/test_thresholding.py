"""Rows kept by their noised norm: the sparse sampler has the law of the dense computation, to the last grid point.

Statistical tests have fixed seeds; each accepting one would raise a false alarm for one seed in 10^4.
"""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpfest import DPSGD, Threshold
from dpfest.gradients.tables import Survivors, TableLayout
from dpfest.noise.gaussian import add_gaussian
from dpfest.noise.key import NoiseKey
from dpfest.noise.keystream import Keystream
from dpfest.noise.normal_rows import NormalRows
from dpfest.noise.precise import precise
from dpfest.selection import thresholding
from dpfest.selection.thresholding import keep_long_rows, long_rows, radius_of, row_norms, tail, untouched_rows
from tests.dpfest.steps import by_batch, engine_with, released
from tests.dpfest.test_engine import losses_of, tabular
from tests.dpfest.test_training import STEPS, take, training, weights

FALSE_ALARM = 1e-4
KEY = NoiseKey.from_seed(3)


def stream(step: int = 0, purpose: str = "rows") -> Keystream:
    return KEY.stream(purpose, step)


# The parts


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 63, 768])
def test_the_tail_is_that_of_the_chi_distribution(dim: int) -> None:
    for probability in (0.7, 0.1, 1e-3, 1e-9, 1e-30):
        radius = radius_of(probability, dim, 1.0)
        assert tail(dim, radius, 1.0) == pytest.approx(probability, rel=1e-10)
        with mpmath.workprec(200):
            exact = mpmath.gammainc(mpmath.mpf(dim) / 2, mpmath.mpf(radius) ** 2 / 2, mpmath.inf, regularized=True)
            assert abs(tail(dim, radius, 1.0) / exact - 1) < 2.0**-52
    assert tail(dim, 0.0, 1.0) == 1 and radius_of(1.0, dim, 2.0) == 0


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_rounded_rows_are_those_whose_norm_is_told(dim: int) -> None:
    rows = NormalRows(stream(), 40, dim, 3.0)
    fine = NormalRows(stream(), 40, dim, 3.0 * 2**23)
    assert np.array_equal(rows.rounded, np.rint(fine.rounded / 2**23))
    for row in range(40):
        with precise() as mp:
            norm = float(mp.sqrt(rows.squared_norm(mp, row)))
        assert abs(norm - np.linalg.norm(rows.rounded[row])) <= math.sqrt(dim) / 2
        assert norm == pytest.approx(float(np.linalg.norm(fine.rounded[row])) / 2**23, rel=1e-5)


def cells(dim: int, deviation: float, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Every grid point of norm ``least`` or more that is not out of reach, and the probability of rounding to it."""
    reach = math.ceil(7 * deviation)
    line = np.arange(-reach, reach + 1)
    single = stats.norm.cdf((line + 0.5) / deviation) - stats.norm.cdf((line - 0.5) / deviation)
    points = np.array(list(itertools.product(line, repeat=dim)))
    mass = np.prod(single[points + reach], axis=1)
    long = np.linalg.norm(points, axis=1) >= least
    return points[long], mass[long]


@pytest.mark.parametrize(
    ("dim", "deviation", "least"),
    [
        *((1, 1.5, 2.0), (1, 1.5, 4.5), (2, 1.3, 0.0)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 1.1, 3.0), (3, 0.9, 2.5))),
    ],
)
def test_long_rows_have_the_conditional_law_of_the_rounded_gaussian(dim: int, deviation: float, least: float) -> None:
    """On a grid so coarse that every point can be counted, and that many digits decide of most rows."""
    n, radius = 4_000 if dim < 3 else 2_000, least + math.sqrt(dim) / 2
    drawn = long_rows(stream(), n, dim=dim, deviation=deviation, least=least)
    assert drawn.shape == (n, dim) and (np.rint(drawn) == drawn).all()
    kept = drawn[np.linalg.norm(drawn, axis=1) >= radius]
    mass = cells(dim, deviation, radius)[1]
    assert stats.binomtest(len(kept), n, mass.sum() / tail(dim, least, deviation)).pvalue > FALSE_ALARM

    def p_value(deviation: float) -> float:
        points, mass = cells(dim, deviation, radius)
        # In three dimensions, points that differ in signs and order are counted together.
        alike, found = (
            [tuple(sorted(map(abs, point)) if dim == 3 else point) for point in given.tolist()]
            for given in (points, kept)
        )
        place = {point: number for number, point in enumerate(sorted(set(alike)))}
        counts = np.bincount([place[point] for point in found], minlength=len(place))
        expected = np.bincount([place[point] for point in alike], weights=mass / mass.sum() * len(kept))
        rare = expected < 10
        counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
        used = expected > 0
        return float(stats.chisquare(counts[used], expected[used] / expected.sum() * counts.sum()).pvalue)

    assert p_value(deviation) > FALSE_ALARM
    assert p_value(1.3 * deviation) < 1e-6 and p_value(deviation / 1.3) < 1e-6


def test_what_float64_decides_is_what_many_digits_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a slack of 2^20 every row counts as undecided: the same rows must be drawn."""

    def draw(step: int) -> list[list[float]]:
        return long_rows(stream(step), 6, dim=3, deviation=1.4 * 2**24, least=4.5 * 2**24).tolist()

    sure = [draw(step) for step in range(4)]
    monkeypatch.setattr(thresholding, "_SLACK", 2.0**20)
    assert [draw(step) for step in range(4)] == sure


def test_a_norm_is_a_function_of_its_row_alone() -> None:
    rows = torch.randn(1000, 37, generator=torch.Generator().manual_seed(0))
    norms = row_norms(rows, 0.3)
    torch.testing.assert_close(norms, rows.double().norm(dim=1), rtol=1e-13, atol=0)
    for part in (slice(0, 1), slice(3, 10), slice(0, 1000, 7)):
        assert torch.equal(row_norms(rows[part].clone(), 0.3), norms[part])


def test_cost_does_not_grow_with_the_table() -> None:
    """10^12 rows: any O(rows) step would not return."""
    rows, noise = untouched_rows(np.array([5]), 10**12, 64, 0.1, radius_of(1e-11, 64, 0.1), stream())
    assert 0 < len(rows) < 60 and noise.shape == (len(rows), 64) and (np.diff(rows) > 0).all()


# The whole: tables of different widths, touched rows and others

LAYOUT = TableLayout(("narrow", "plain", "wide"), (6, 9, 5), (1, 2, 5))
TOUCHED = {1: 0.0, 4: 1.2, 7: 2.5, 14: 0.4, 16: 3.0}
"""Rows that the batch touched, and the length of their sum in deviations; the first has none, as an untouched row."""
DEVIATION, RATE, DRAWS = 0.7, 0.3, 3000


def sums() -> list[torch.Tensor]:
    survivors = Survivors(LAYOUT, torch.tensor(sorted(TOUCHED)))
    lengths = torch.tensor([TOUCHED[row] for row in sorted(TOUCHED)]) * DEVIATION
    parts = lengths.split([len(local) for local in survivors.local if local is not None])
    return [part.unsqueeze(1).repeat(1, dim) / math.sqrt(dim) for part, dim in zip(parts, LAYOUT.dims, strict=True)]


def kept(step: int, deviation: float = DEVIATION, shrink: bool = False) -> tuple[Survivors, list[torch.Tensor]]:
    noised, noise = sums(), stream(step, "noise")
    for table in noised:
        add_gaussian(table, noise, deviation)
    touched = Survivors(LAYOUT, torch.tensor(sorted(TOUCHED)))
    return keep_long_rows(
        LAYOUT,
        touched,
        noised,
        deviation,
        false_rate=RATE,
        shrink=shrink,
        stream=stream(step, "untouched"),
        noise=noise,
    )


@pytest.fixture(scope="module")
def sparse() -> np.ndarray:
    """Rows of many steps, padded to the widest: zero where they are not kept, ``[steps, rows, 5]``."""
    found = np.zeros((DRAWS, LAYOUT.total_rows, 5))
    for step in range(DRAWS):
        survivors, values = kept(step)
        assert survivors.rows is not None and bool((survivors.rows[1:] > survivors.rows[:-1]).all())
        for offset, local, table in zip(LAYOUT.offsets, survivors.local, values, strict=False):
            assert local is not None
            found[step, (local + offset).numpy(), : table.shape[1]] = table.double().numpy()
    return found


def dense(seed: int, deviation: float) -> np.ndarray:
    """The same the obvious way: noise on every row in float64, and rows that are too short set to zero."""
    generator, found = np.random.default_rng(seed), np.zeros((DRAWS, LAYOUT.total_rows, 5))
    lengths = np.zeros(LAYOUT.total_rows)
    lengths[list(TOUCHED)] = list(TOUCHED.values())
    for offset, size, dim in zip(LAYOUT.offsets, LAYOUT.rows, LAYOUT.dims, strict=False):
        rows = slice(offset, offset + size)
        values = lengths[rows, None] * DEVIATION / math.sqrt(dim) + deviation * generator.normal(
            size=(DRAWS, size, dim)
        )
        radius = DEVIATION * stats.chi.isf(RATE, dim)
        values[np.linalg.norm(values, axis=2) < radius] = 0
        found[:, rows, :dim] = values
    return found


def p_values(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """How well two samples of steps agree: how often rows are kept, alone and in pairs, and the values that are."""
    alive = [sample.any(2) for sample in (ours, theirs)]
    rates = [sample.mean(0) for sample in alive]
    pooled = (rates[0] + rates[1]) / 2
    z = (rates[0] - rates[1]) / np.sqrt(2 * pooled * (1 - pooled) / DRAWS)
    first, second = np.triu_indices(LAYOUT.total_rows, 1)
    centred = alive[0] - rates[0]
    pairs = (centred[:, first] * centred[:, second]).mean(0) * math.sqrt(DRAWS)
    pairs /= np.sqrt((rates[0] * (1 - rates[0]))[first] * (rates[0] * (1 - rates[0]))[second])
    found = {
        "rows": float(stats.chi2.sf((z**2).sum(), len(z))),
        "pairs": float(stats.chi2.sf((pairs**2).sum(), len(pairs))),
    }
    correlated = np.corrcoef(ours[:, :, 0].T)[first, second] * math.sqrt(DRAWS)
    found["values of pairs"] = float(stats.chi2.sf((correlated**2).sum(), len(correlated)))
    for number, (offset, size, dim) in enumerate(zip(LAYOUT.offsets, LAYOUT.rows, LAYOUT.dims, strict=False)):
        rest = [row for row in range(offset, offset + size) if TOUCHED.get(row, 0) == 0]
        norms, angles = [], []
        for sample in (ours, theirs):
            rows = sample[:, rest, :dim].reshape(-1, dim)
            rows = rows[rows.any(1)]
            norms.append(np.linalg.norm(rows, axis=1))
            angles.append(rows[:, 0] / norms[-1])
        found[f"norms {number}"] = float(stats.ks_2samp(*norms).pvalue)
        if dim > 1:
            found[f"directions {number}"] = float(stats.ks_2samp(*angles).pvalue)
    for row in (4, 7, 16):
        found[f"touched {row}"] = float(stats.ks_2samp(*(sample[:, row, 0] for sample in (ours, theirs))).pvalue)
    return found


def test_rows_and_values_have_the_law_of_the_dense_computation(sparse: np.ndarray) -> None:
    agreed = p_values(sparse, dense(0, DEVIATION))
    assert min(agreed.values()) > FALSE_ALARM / len(agreed), agreed


def test_another_deviation_is_another_law(sparse: np.ndarray) -> None:
    for wrong in (0.92 * DEVIATION, 1.08 * DEVIATION):
        found = p_values(sparse, dense(0, wrong))
        assert found["rows"] < 1e-6 and min(found[f"norms {table}"] for table in range(3)) < 1e-6


def test_rows_are_kept_as_often_as_the_chi_distributions_say(sparse: np.ndarray) -> None:
    """Exact probabilities; a touched row without a gradient is kept as often as one that nobody touched."""
    counts = sparse.any(2).sum(0)
    for offset, size, dim in zip(LAYOUT.offsets, LAYOUT.rows, LAYOUT.dims, strict=False):
        for row in range(offset, offset + size):
            length, bound = TOUCHED.get(row, 0.0), stats.chi2.isf(RATE, dim)
            right = stats.ncx2.sf(bound, dim, length**2) if length else RATE
            assert stats.binomtest(int(counts[row]), DRAWS, right).pvalue > FALSE_ALARM / LAYOUT.total_rows


def test_a_soft_threshold_shortens_the_same_rows_by_the_radius() -> None:
    for step in range(20):
        (hard, values), (soft, shortened) = kept(step), kept(step, shrink=True)
        assert torch.equal(hard.rows, soft.rows)
        for before, after, dim in zip(values, shortened, LAYOUT.dims, strict=True):
            radius = radius_of(RATE, dim, DEVIATION)
            norm = before.norm(dim=1, keepdim=True)
            torch.testing.assert_close(after, before * (1 - radius / norm), rtol=1e-5, atol=1e-5)


# In a step, and in training


def test_every_row_that_is_applied_reaches_the_norm_of_its_table() -> None:
    """So the rows that leave are told by the values that leave, and by nothing else."""
    model, batch, _ = tabular(30)
    engine = engine_with(
        model,
        Threshold(false_rate=0.2),
        by_batch(losses_of(model)),
        KEY,
        gradient_noise_multiplier=0.5,
        expected_batch_size=10.0,
    )
    shares = []
    for step in range(50):
        gradient = released(engine, [batch], step)
        for table, dim in zip(gradient.tables, engine.layout.dims, strict=True):
            radius = radius_of(0.2, dim, engine.noise.deviation) / 10
            assert bool((table.values.norm(dim=1) >= radius * (1 - 1e-12)).all())
        shares.append(sum(gradient.rows_per_table) / engine.layout.total_rows)
    assert 0.1 < np.mean(shares) < 0.7


def test_it_costs_what_dpsgd_does_and_trains() -> None:
    ours, theirs = training(Threshold(false_rate=0.05), epsilon=4.0), training(DPSGD(), epsilon=4.0)
    assert ours.plan.noise_multiplier == theirs.plan.noise_multiplier
    assert [repr(event) for event in ours.plan.events] == [repr(event) for event in theirs.plan.events]
    before = weights(ours)
    take(ours, STEPS)
    assert ours.epsilon() == pytest.approx(4.0, rel=1e-3) and not torch.equal(weights(ours), before)
    again = training(Threshold(false_rate=0.05), epsilon=4.0, micro_batch_size=7)
    take(again, STEPS)
    torch.testing.assert_close(weights(again), weights(ours), rtol=1e-4, atol=1e-5)


def test_momentum_and_other_optimisers_see_the_release_alone() -> None:
    """A table's gradient is sparse, and holds what was released."""
    model = nn.Sequential(nn.Embedding(30, 3), nn.Flatten(), nn.Linear(3, 1))
    engine = engine_with(
        model,
        Threshold(false_rate=0.1),
        lambda model, ids: model(ids).squeeze(1),
        KEY,
        gradient_noise_multiplier=1.0,
        expected_batch_size=5.0,
    )
    gradient = released(engine, [torch.tensor([3, 3, 8, 20])], 0)
    engine.fill(gradient)
    sparse_gradient = model[0].weight.grad
    assert sparse_gradient is not None and sparse_gradient.is_sparse
    assert torch.equal(sparse_gradient.indices()[0], gradient.tables[0].rows)
    assert torch.equal(sparse_gradient.values(), gradient.tables[0].values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"false_rate": 0.0}, "^false_rate=0.0 must be a probability from 1e-30 to 1$"),
        ({"false_rate": 1e-300}, "^false_rate=1e-300 must be a probability from 1e-30 to 1$"),
        ({"false_rate": "0.1"}, "^false_rate=0.1 must be a probability"),
        ({"false_rate": 1.5}, "^false_rate=1.5 must be a probability from 1e-30 to 1$"),
        ({"false_rate": float("nan")}, "^false_rate="),
        ({"rule": "firm"}, "^rule=firm must be hard or soft"),
        ({"clipping_norm": -1.0}, "^clipping_norm="),
    ],
)
def test_wrong_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Threshold(**settings)
