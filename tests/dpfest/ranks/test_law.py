"""Over two ranks every coordinate has one variate of the right law; engines that draw twice or by rank are told apart.

Batches have gradients of exactly zero, so a release is noise. False-alarm rate of each statistic: 10^-6; seeds are
fixed, so that the tests pass or fail for good.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.rules import DPSGD
from dpfest.gradients.parts import DenseSums, Shard
from dpfest.gradients.reading import MicroBatch
from dpfest.noise.gaussian import ROUNDING_ALLOWANCE, add_gaussian
from dpfest.noise.key import NoiseKey
from dpfest.ranks.group import Group
from dpfest.ranks.lazy import ShardLazyNoise
from dpfest.ranks.rows import RankRows
from dpfest.ranks.table import shard_tables
from dpfest.ranks.training import PartReader
from dpfest.selection.survivors import survival_probability
from dpfest.step.engine import PrivateEngine
from dpfest.step.step_noise import Independent
from tests.dpfest.ranks import small
from tests.dpfest.ranks.together import together
from tests.dpfest.steps import engine_with

ROWS, TOUCHED, WIDE, STEPS = 4000, 500, 1100, 12
SIGMA, SIGMA_1, THRESHOLD = 1.5, 1.0, 2.0
SURE, SHARDS = 1e-6, 8
ALGORITHM = AdaFEST(threshold=THRESHOLD, contribution_clipping_norm=1.0)


class Wide(nn.Module):
    """A table, and more dense parameters than a block of noise: two ranks draw a slice each."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense = nn.Embedding(ROWS, 2), nn.Linear(WIDE, 80)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(torch.ones(len(ids), WIDE)).sum(1) + self.table(ids).sum(1)


def nothing(model: nn.Module, ids: Tensor) -> Tensor:
    return 0.0 * model(ids)


class NoiseByRank(RankRows):
    def shard_key(self, shard: int) -> NoiseKey:
        return self.key.derive("rank", self.group.rank)


class SameKey(RankRows):
    def shard_key(self, shard: int) -> NoiseKey:
        return self.key.derive("shard", 0)


class SurvivorsTwice(AdaFEST):
    def survivors(self, shard: Shard, measured: Any, cost: Any, step: int) -> Tensor:
        found = [super(SurvivorsTwice, self).survivors(shard, measured, cost, each) for each in (step, step + 1000)]
        return torch.unique(torch.cat(found))  # type: ignore[arg-type]

    step_event = AdaFEST.step_event  # which does not cover it


class DenseTwice(Independent):
    def on_dense(self, sums: DenseSums, key: NoiseKey, step: int) -> None:
        super().on_dense(sums, key, step)
        super().on_dense(sums, key.derive("own", Group().rank), step)


class SameSlices(RankRows):
    def joined_dense(self, sums: DenseSums, divisor: float) -> dict[str, Tensor]:
        high = self._cuts[1]
        found = torch.cat([one.flatten() for one in super().joined_dense(sums, divisor).values()])
        return {"all": torch.cat([found[:high], found[: len(found) - high]])}


ROWS_OF: dict[str, type[RankRows]] = {"rank": NoiseByRank, "key": SameKey, "slices": SameSlices}


def releases(kind: str) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Of every step: dense gradient, own surviving global rows, and the noise on them."""
    group, model = Group(), Wide()
    places = shard_tables(model, SHARDS, group.world, group.rank)
    rows_in = partial(ROWS_OF.get(kind, RankRows), places=places, group=group, parts=2)
    engine = engine_with(
        model, SurvivorsTwice(**asdict(ALGORITHM)) if kind == "survivors" else ALGORITHM, nothing,
        NoiseKey.from_seed(1), rows=rows_in, gradient_noise_multiplier=SIGMA, map_noise_multiplier=SIGMA_1,
        expected_batch_size=1.0,
    )  # fmt: skip
    if kind == "dense":
        engine.noise = DenseTwice(engine.noise.deviation)
    rows = np.concatenate([places.local_rows(0, shard) for shard in places.own])
    dense, alive, noise = [], [], []
    for step in range(STEPS):
        mine = np.arange(TOUCHED)[np.arange(TOUCHED) % 2 % group.world == group.rank]
        parts = [MicroBatch(one, torch.from_numpy(one)) for one in (mine[mine % 2 == 0], mine[mine % 2 == 1])]
        release, _ = engine.gradient(parts, step)
        dense.append(torch.cat([one.flatten() for one in release.dense.values()]).numpy())
        alive.append(rows[release.tables[0].rows])
        noise.append(release.tables[0].values.numpy())
    return dense, alive, noise


def scaled(values: np.ndarray) -> float:
    """Two-sided p-value of the hypothesis that normal values have the standard deviation that is claimed."""
    chi = float((values.astype(float) ** 2).sum() / (SIGMA * (1 + ROUNDING_ALLOWANCE)) ** 2)
    return 2 * min(stats.chi2.cdf(chi, values.size), stats.chi2.sf(chi, values.size))


def verdicts(kind: str) -> dict[str, bool]:
    """Whether each law holds over two ranks."""
    (dense, *first), (_, *second) = together(releases, 2, kind)
    slices = np.concatenate(dense), [one[65_536:] for one in dense], [one[: len(one) - 65_536] for one in dense]
    correlated = float((np.concatenate(slices[1]) * np.concatenate(slices[2])).sum()) / SIGMA**2
    rows = [np.concatenate(pair) for pair in zip(first[0], second[0], strict=True)]
    noise = [np.concatenate(pair) for pair in zip(first[1], second[1], strict=True)]
    products = np.concatenate([_products(*step) for step in zip(rows, noise, strict=True)])
    deviation = SIGMA_1 * ALGORITHM.contribution_clipping_norm
    touched = sum(int((one < TOUCHED).sum()) for one in rows)
    untouched = sum(int((one >= TOUCHED).sum()) for one in rows)
    chance = survival_probability(THRESHOLD, deviation)
    return {
        "dense": scaled(slices[0]) > SURE,
        "rows": scaled(np.concatenate([*first[1], *second[1]])) > SURE,
        "independent": abs(correlated) < 6 * np.sqrt(sum(map(len, slices[1]))),
        "shards": abs(float(products.sum())) < 6 * SIGMA**2 * np.sqrt(products.size),
        "distinct": all(len(one) == len(np.unique(one)) for one in rows),
        "untouched": stats.binomtest(untouched, (ROWS - TOUCHED) * STEPS, chance).pvalue > SURE,
        "touched": stats.binomtest(touched, TOUCHED * STEPS, stats.norm.sf(THRESHOLD - 1)).pvalue > SURE,
        "one process": _bits(dense, rows) == _bits(*_alone(kind)),
    }


def _products(rows: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Products of variates that two neighbouring shards draw at the same place: mean zero if shards are independent."""
    by_shard = [noise[rows % SHARDS == shard].astype(float).ravel() for shard in range(SHARDS)]
    pairs = [(one[: len(other)], other[: len(one)]) for one, other in pairwise(by_shard)]
    return np.concatenate([one * other for one, other in pairs])


def _alone(kind: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    dense, alive, _ = releases(kind)
    return dense, alive


def _bits(dense: list[np.ndarray], rows: list[np.ndarray]) -> bytes:
    return b"".join(one.tobytes() for one in dense) + b"".join(np.sort(one).tobytes() for one in rows)


def test_two_ranks_draw_every_variate_once() -> None:
    assert all(verdicts("sound").values()), verdicts("sound")


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        ("rank", "one process"),
        ("key", "shards"),
        ("survivors", "untouched"),
        ("dense", "dense"),
        ("slices", "independent"),
    ],
)
def test_an_engine_that_draws_by_rank_or_twice_is_told_apart(kind: str, broken: str) -> None:
    assert not verdicts(kind)[broken]


@pytest.mark.parametrize("kind", ["sound", "key"])
def test_the_noise_of_rows_is_drawn_from_each_shards_own_stream(kind: str) -> None:
    """The release is the sum of one process without noise, and noise that is drawn here, shard by shard."""
    (plan, _), key, step = small.planned(DPSGD()), NoiseKey.from_seed(3), 2
    examples, asked = np.arange(0, small.EXAMPLES, 5), {"expected_batch_size": float(plan.batch_size)}
    model = small.Clicks()
    silent = PrivateEngine(model, DPSGD(), small.losses, key, cost=None, **asked)
    sums, _ = silent.gradient(small.read(examples), step)
    places = shard_tables(model, SHARDS)
    rows = partial(ROWS_OF.get(kind, RankRows), places=places, group=Group(), parts=4)
    engine = PrivateEngine(model, DPSGD(), small.losses, key, cost=plan.step(), rows=rows, **asked)
    found, _ = engine.gradient(PartReader(small.read, 4)(examples, b""), step)
    agree = []
    for shard, layout in enumerate(places.layouts):
        drawn = torch.zeros(layout.coordinates, dtype=torch.float64)
        add_gaussian(drawn, key.derive("shard", shard).stream("row noise", step), engine.noise.deviation)
        sizes = [rows * dim for rows, dim in zip(layout.rows, layout.dims, strict=True)]
        for table, own in enumerate(drawn.split(sizes)):
            sum_of = sums.tables[table].values[torch.from_numpy(places.local_rows(table, shard))]
            expected = sum_of + own.view(sum_of.shape) / plan.batch_size
            released = found.tables[table].values[places.part(table, shard)].double()
            agree.append(torch.allclose(released, expected.double(), rtol=1e-5, atol=1e-6))
    assert all(agree) == (kind == "sound")


LAZY_ROWS, RATE = 3000, 0.5


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(LAZY_ROWS, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(1)


class HalfTheVariance(ShardLazyNoise):
    def apply(self, gradients: Any, deviation: float, learning_rates: Any) -> None:
        super().apply(gradients, deviation * 0.5**0.5, learning_rates)


class Never(ShardLazyNoise):
    def _draw(self, shard: int, slots: Any) -> None:
        pass


class OneStream(ShardLazyNoise):
    def _draw(self, shard: int, slots: Any) -> None:
        derive, key = NoiseKey.derive, self._key
        self._key = type("Alike", (), {"derive": lambda self, name, number: derive(key, name, 0)})()
        super()._draw(shard, slots)
        self._key = key


LAZY = {"sound": ShardLazyNoise, "half": HalfTheVariance, "never": Never, "stream": OneStream}


def accumulated(kind: str, flushes: tuple[int, ...], steps: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Own global rows, what their weights gained in some steps of zero gradients, and a step's claimed deviation."""
    group, model = Group(), Rows()
    places = shard_tables(model, SHARDS, group.world, group.rank)
    rows_in = type("Rows", (RankRows,), {"lazy_noise": lambda self: LAZY[kind](
        self.places, ["table"], self.tables, self.key
    )})  # fmt: skip
    engine = engine_with(
        model, DPSGD(noise="lazy"), nothing, NoiseKey.from_seed(1),
        rows=partial(rows_in, places=places, group=group, parts=2),
        gradient_noise_multiplier=SIGMA, expected_batch_size=10.0,
    )  # fmt: skip
    optimizer = torch.optim.SGD([model.table.weight], lr=RATE)
    before = model.table.weight.detach().clone()
    for step in range(steps):
        examples = np.arange(step * 100, step * 100 + 400)  # some rows are read again, most never
        mine = examples[examples % 2 % group.world == group.rank]
        parts = [MicroBatch(one, torch.from_numpy(one)) for one in (mine[mine % 2 == 0], mine[mine % 2 == 1])]
        with engine.lazy.private():
            release, _ = engine.gradient(parts, step)
            engine.update(release, [optimizer])
        if step in flushes:
            engine.lazy.flush()
    engine.lazy.flush()
    rows = np.concatenate([places.local_rows(0, shard) for shard in places.own])
    claimed = RATE * SIGMA * (1 + ROUNDING_ALLOWANCE) / 10.0
    return rows, (model.table.weight.detach() - before).double().numpy(), claimed


@pytest.mark.parametrize("flushes", [(), (1, 3)], ids=["at the end", "in between"])
@pytest.mark.parametrize("kind", list(LAZY))
def test_lazy_noise_has_the_law_of_dense_noise_once_it_is_flushed(kind: str, flushes: tuple[int, ...]) -> None:
    steps = 5
    ranks = together(accumulated, 2, kind, flushes, steps) if kind == "sound" else [accumulated(kind, flushes, steps)]
    rows, gained = (np.concatenate([one[part] for one in ranks]) for part in range(2))
    standard = gained / (np.sqrt(steps) * ranks[0][2])
    chi = float((standard**2).sum())
    p_value = 2 * min(stats.chi2.cdf(chi, standard.size), stats.chi2.sf(chi, standard.size))
    products = _products(rows, standard)
    holds = p_value > SURE, abs(float(products.sum())) < 6 * np.sqrt(products.size)
    assert (
        holds == {"sound": (True, True), "half": (False, True), "never": (False, True), "stream": (True, False)}[kind]
    )
