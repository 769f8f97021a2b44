"""Correlated noise: its strategy, its law over steps, its bits, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest.accounting import bands
from dpfest.accounting.bands import Strategy, strategy
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.exponential import Exponential
from dpfest.algorithms.rules import DPSGD, FEST, Threshold
from dpfest.errors import UserError
from dpfest.gradients.parts import RowSums, Shard
from dpfest.gradients.tables import Survivors, TableLayout
from dpfest.noise.box_muller import BLOCK
from dpfest.noise.key import NoiseKey
from dpfest.selection.topk import SelectionConfig
from dpfest.step import correlated
from dpfest.step.correlated import Correlated
from tests.dpfest.reference import filtered

KEY = NoiseKey.from_seed(41)
FALSE_ALARM = 1e-4
PUBLIC = SelectionConfig(mechanism="public", prior="a test")


def dense(one: Strategy, steps: int) -> np.ndarray:
    """C / c_0 as a matrix, ``[steps, steps]``."""
    found = np.zeros((steps, steps))
    for k, a in enumerate(one.coefficients):
        found += np.diag(np.full(max(steps - k, 0), a / one.coefficients[0]), -k) if k < steps else 0
    return found


def shard(rows: int, key: NoiseKey = KEY) -> Shard:
    return Shard(TableLayout(("t",), (rows,), (1,)), key, torch.device("cpu"), None, lambda: torch.empty(0))


def noise_of(own: Correlated, at: Shard, step: int) -> np.ndarray:
    """What a step adds to sums of zero."""
    rows = at.layout.total_rows
    sums = RowSums(Survivors(at.layout, None), torch.zeros(rows, dtype=torch.float64))
    own.settle([at], at.key)
    own.on_rows(at, sums, step)
    return sums.flat.numpy()


@pytest.mark.parametrize(("number", "steps"), [(2, 9), (4, 144), (8, 144), (16, 500)])
def test_a_strategy_accumulates_what_its_matrix_says_and_little_more_than_the_best(number: int, steps: int) -> None:
    one = strategy(number, steps)
    assert one.bands == number and strategy.__wrapped__(number, steps) == one  # type: ignore[attr-defined]
    matrix = dense(one, steps)
    prefix = np.tril(np.ones((steps, steps))) @ np.linalg.inv(matrix)
    columns = np.linalg.norm(matrix, axis=0)
    independent = np.sqrt((steps + 1) / 2)
    accumulated = np.sqrt((prefix**2).sum(1).mean()) * columns.max() / independent
    assert one.accumulated(steps) == pytest.approx(accumulated, rel=1e-9)
    assert columns.max() <= one.norm <= columns.max() * (1 + 1e-12)
    assert np.allclose(one.response(steps), np.linalg.inv(matrix)[:, 0])
    best = min(
        bands._accumulated(np.append(1.0, np.array(one.coefficients[1:]) / 16 + step), steps)
        for step in np.random.default_rng(0).normal(0, 0.03, (300, number - 1))
    )
    assert accumulated < 1.003 * best and accumulated < 0.9


def test_the_filter_of_every_strategy_keeps_to_its_whole_numbers() -> None:
    for number in (2, 3, 8, 32, 64):
        for steps in (number, 144, 20_000):
            Correlated(1.0, strategy(number, max(number, steps)), steps)
    with pytest.raises(ValueError, match="must decrease"):
        Strategy((16, 16))
    with pytest.raises(ValueError, match="must decrease"):
        Strategy((16, 3, 4))


def test_noise_over_steps_has_the_covariance_of_the_inverse_strategy() -> None:
    """C n is independent over steps and coordinates, of deviation s |a|; other coefficients are told apart."""
    steps, rows, deviation = 7, 20_000, 1.7
    own = Correlated(deviation, strategy(3, steps), steps)
    noise = np.stack([noise_of(own, shard(rows), step) for step in range(steps)])

    def chances(one: Strategy) -> list[float]:
        fresh = dense(one, steps) @ noise / (deviation * one.norm)
        spread = [2 * min(stats.chi2.cdf(x, rows), stats.chi2.sf(x, rows)) for x in (fresh**2).sum(1)]
        related = np.sqrt(rows) * np.corrcoef(fresh)[np.triu_indices(steps, 1)]
        return [*spread, stats.chi2.sf((related**2).sum(), len(related)), stats.kstest(fresh.ravel(), "norm").pvalue]

    assert min(chances(own.strategy)) > FALSE_ALARM
    first, second, third = own.strategy.coefficients
    for wrong in ((first, second - 1, third), (first, second, third - 1)):
        assert min(chances(Strategy(wrong))) < 1e-6
    between = np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]
    assert abs(between) * np.sqrt(noise[:, 1:].size) < 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_that_of_exact_fractions_and_sums_lie_on_its_grid(dtype: torch.dtype) -> None:
    steps, rows, deviation = 9, 37, 0.3
    own = Correlated(deviation, strategy(4, steps), steps)
    size, generator = own.strategy.grid(deviation), torch.Generator().manual_seed(2)
    for step in range(steps):
        sums = (3 * torch.randn(rows, generator=generator, dtype=torch.float64)).to(dtype)
        want = (sums.double() / size).round() * size
        want += torch.from_numpy(
            size * filtered(KEY, step, [(row, 1) for row in range(rows)], own.strategy.coefficients, deviation)
        )
        got = RowSums(Survivors(shard(rows).layout, None), sums.clone())
        own.on_rows(shard(rows), got, step)
        assert torch.equal(got.flat, want.to(dtype))


def whole_numbers(units: np.ndarray, past: np.ndarray, slot: int, weights: np.ndarray) -> list[int]:
    """What the filter writes to a slot, in Python's integers."""
    columns, shares = past.T.tolist(), [int(weight) for weight in weights]
    taken = [sum(a * n for a, n in zip(shares, column, strict=True)) for column in columns]
    return [(int(unit) - total + 8) // 16 for unit, total in zip(units.tolist(), taken, strict=True)]


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("count", [1, 31, 32, 33, 200])
@pytest.mark.parametrize("slots", [1, 2, 3, 15, 63])
def test_the_filter_is_that_of_whole_numbers(slots: int, count: int) -> None:
    """Of random histories, of those at the limits of 32 bits, and of results a half below and above a whole number."""
    generator = np.random.default_rng(count)
    for most in (2**23, 2**31 - 1):
        past = generator.integers(-most - 1, most, (slots, count + 9), dtype=np.int32, endpoint=True)
        past[:, 4], past[:, 5 % count + 4] = -(2**31), 2**31 - 1
        weights = np.sort(generator.integers(0, 15, slots, endpoint=True)).astype(float)
        slot = int(generator.integers(slots))
        weights = np.roll(weights, slot + 1)  # of slot, the least
        want = generator.integers(-most - 1, most, count, endpoint=True)
        want[0], want[count // 2] = -(2**31), 2**31 - 1
        rest = generator.choice([-8, -7, -1, 0, 7], count)  # -8 is a half, which goes up
        part = past[:, 4 : 4 + count]
        units = (16 * want + rest + (weights @ part.astype(float)).astype(np.int64)).astype(float)
        expected = past.copy()
        expected[slot, 4 : 4 + count] = want
        assert whole_numbers(units, part, slot, weights) == want.tolist()
        correlated._filter_units(units, past, 4, slot, weights)
        assert np.array_equal(past, expected)


@pytest.mark.usefixtures("loops")
def test_noise_of_many_blocks_is_that_of_the_filter_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is drawn ahead, for whichever shares of the blocks, by however many threads, and after a failure."""
    steps, rows, one = 8, 2 * BLOCK + 77, strategy(4, 8)
    past = np.zeros((one.bands - 1, rows), dtype=np.int64)  # the latest first
    whole = np.array(one.coefficients[1:])
    own, other = Correlated(1.0, one, steps), Correlated(1.0, one, steps)
    monkeypatch.setattr(dpfest.noise.gaussian, "_PER_THREAD", BLOCK)
    for step in range(steps):
        fresh = noise_fresh(step, rows, one.norm).astype(np.int64)
        past = np.vstack([(fresh - whole @ past + 8) // 16, past[:-1]])
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=1 + step % 3: threads)
        want = past[0] * one.grid(1.0)
        assert np.array_equal(noise_of(own, shard(rows), step), want)
        if step == 3:
            assert np.array_equal(noise_of(other, shard(rows), step), want)
            with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
                broken.setattr(correlated, "_filter_units", Interrupted(correlated._filter_units, after=2))
                for later in (4, 5):
                    noise_of(other, shard(rows), later)
        if step >= 4:
            assert np.array_equal(noise_of(other, shard(rows), step), want)


class Interrupted:
    """A function that fails once, after so many calls."""

    def __init__(self, function: Any, after: int) -> None:
        self.function, self.left = function, after

    def __call__(self, *given: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        self.function(*given)


def test_the_bits_of_correlated_noise_do_not_move() -> None:
    """Runs under a fixed seed are what they were with the first version of the filter."""
    digest = hashlib.sha256()
    for number, rows in ((2, 50), (8, 70_001)):
        own = Correlated(0.7, strategy(number, 20), 20)
        for step in range(12):
            digest.update(noise_of(own, shard(rows), step).tobytes())
    assert digest.hexdigest()[:16] == "c8d05e850db3f563"


def test_what_is_released_follows_from_the_rounded_release_of_the_filtered_sums() -> None:
    """X + n is a function of Y = (C / c_0) X + z, rounded, and of outputs before, in halves (one in 16) as well."""
    steps, rows, deviation = 8, 50, 1.0
    one = strategy(3, steps)
    own, size = Correlated(deviation, one, steps), one.grid(deviation)
    generator = np.random.default_rng(3)
    sums = generator.integers(-(2**20), 2**20, (steps, rows))
    noise = np.stack([noise_of(own, shard(rows), step) for step in range(steps)]) / size
    outputs = sums + noise
    whole = np.array(one.coefficients)
    for step in range(steps):
        past = [number for number in range(1, one.bands) if number <= step]
        fresh = noise_fresh(step, rows, deviation * one.norm)  # in units of size / 16
        release = fresh + sum(whole[k] * sums[step - k] for k in (0, *past))
        again = np.floor((release - sum(whole[k] * outputs[step - k] for k in past)) / whole[0] + 0.5)
        assert np.array_equal(again, outputs[step])


def noise_fresh(step: int, rows: int, deviation: float) -> np.ndarray:
    return dpfest.noise.gaussian.draw_units(KEY.stream("row noise", step), rows, deviation)


def test_a_repeated_step_or_one_out_of_turn_repeats_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, rows = 12, 30
    own = Correlated(1.0, strategy(4, steps), steps)
    in_turn = [noise_of(own, shard(rows), step) for step in range(steps)]
    drawn = []
    original = correlated.blocks_of
    monkeypatch.setattr(correlated, "blocks_of", lambda *given: (drawn.append(1), original(*given))[1])
    assert np.array_equal(noise_of(own, shard(rows), 11), in_turn[11]) and not drawn  # it is still there
    for step in (5, 6, 2, 10):
        assert np.array_equal(noise_of(own, shard(rows), step), in_turn[step])
    anew = Correlated(1.0, strategy(4, steps), steps)
    assert np.array_equal(noise_of(anew, shard(rows), 7), in_turn[7])
    other = noise_of(own, shard(rows, KEY.derive("other")), 7)
    assert not np.isclose(other, in_turn[7]).any()


def test_other_rows_than_in_the_steps_before_are_refused() -> None:
    own, at = Correlated(1.0, strategy(2, 4), 4), shard(9)
    for step, rows in enumerate((torch.tensor([1, 4]), torch.tensor([1, 4]), torch.tensor([1, 5]))):
        sums = RowSums(Survivors(at.layout, rows), torch.zeros(2))
        if step < 2:
            own.on_rows(at, sums, step)
            continue
        with pytest.raises(UserError, match="for a fixed set of rows, and this step has other rows"):
            own.on_rows(at, sums, step)


def trained(algorithm: Any, optimizer: Any = torch.optim.SGD, **settings: Any) -> dpfest.PrivateTraining:
    torch.manual_seed(1)
    model = nn.Sequential(nn.EmbeddingBag(40, 3, mode="sum"), nn.Linear(3, 1))
    ids = torch.randint(0, 40, (120, 2), generator=torch.Generator().manual_seed(1))
    arguments: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-3, "batch_size": 20, "steps": 9} | settings
    return dpfest.make_private(
        model, optimizer(model.parameters(), lr=0.1), TensorDataset(ids, ids.sum(1).float() / 40),
        lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square(),
        algorithm=algorithm, noise_seed=3, selected=np.arange(0, 40, 3) if algorithm.selection else None, **arguments,
    )  # fmt: skip


def weights(training: dpfest.PrivateTraining) -> list[torch.Tensor]:
    return [value.clone() for value in training.model.state_dict().values()]


@pytest.mark.parametrize("algorithm", [DPSGD(bands=4), FEST(bands=4, selection=PUBLIC)])
def test_a_resumed_training_goes_on_to_the_same_bits(algorithm: Any) -> None:
    whole, first = trained(algorithm), trained(algorithm)
    for batch in whole:
        whole.step(batch)
    for batch, _ in zip(first, range(5), strict=False):
        first.step(batch)
    second = trained(algorithm)
    second.load_state_dict(first.state_dict())
    assert not any("past" in key for key in first.state_dict())
    for batch in second:
        second.step(batch)
    assert all(map(torch.equal, weights(second), weights(whole)))
    assert whole.epsilon() == pytest.approx(4.0, rel=1e-3) and second.epsilon() == whole.epsilon()


def test_a_step_that_failed_is_taken_again_with_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = trained(DPSGD(bands=3)), trained(DPSGD(bands=3))
    for batch in whole:
        whole.step(batch)
    on_dense = Correlated.on_dense

    def fails(self: Correlated, sums: Any, key: NoiseKey, step: int) -> None:
        monkeypatch.setattr(Correlated, "on_dense", on_dense)
        raise KeyboardInterrupt

    for step in range(9):
        if step == 4:
            monkeypatch.setattr(Correlated, "on_dense", fails)
            with pytest.raises(KeyboardInterrupt):
                broken.step(broken.read(broken.request(step)))
        broken.step(broken.read(broken.request(step)))
    assert all(map(torch.equal, weights(broken), weights(whole)))


def test_dense_parameters_have_independent_noise_of_the_joint_releases_deviation() -> None:
    training = trained(DPSGD(bands=4))
    noise, cost = training.engine.noise, training.plan.step()
    assert isinstance(noise, Correlated) and cost is not None
    assert noise.deviation == pytest.approx(cost.gradient_noise_multiplier * (1 + 2**-10), rel=1e-4)  # type: ignore[operator]
    assert noise.deviation > cost.gradient_noise_multiplier * (1 + 2**-10) + noise.strategy.grid(1.0)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        (lambda: DPSGD(bands=1), {}, "bands=1 must be a whole number from 2 to 64"),
        (lambda: DPSGD(bands=True), {}, "bands=True must be"),
        (lambda: FEST(bands=2.0), {}, r"bands=2.0 must be"),  # type: ignore[arg-type]
        (lambda: DPSGD(bands=65), {}, "bands=65 must be"),
        (lambda: DPSGD(bands=4, noise="lazy"), {}, "noise=lazy draws a row's when it is next read"),
        (lambda: DPSGD(bands=8), {}, "bands=8 samples 20 a step from one in 8 of 120, which are fewer: choose bands=6"
         " or fewer, or smaller batches."),
        (lambda: DPSGD(bands=4), {"batch_size": 90}, "leave bands out"),
        (lambda: DPSGD(bands=4), {"steps": 3}, "bands=4 exceeds the number of steps, 3: choose bands=3 or fewer"),
        (lambda: DPSGD(bands=2), {"steps": 1}, "bands=2 exceeds the number of steps, 1: leave bands out"),
        (lambda: DPSGD(bands=4), {"sampling": "poisson"}, "accounted for sampling=cyclic_poisson alone, not for"),
        (lambda: DPSGD(), {"sampling": "cyclic_poisson"}, "give the algorithm bands"),
    ],
)  # fmt: skip
def test_what_correlated_noise_cannot_be_combined_with_is_refused(algorithm: Any, settings: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        trained(algorithm(), **settings)


def test_a_period_that_is_too_short_for_bands_is_named() -> None:
    days: dict[str, Any] = {"epsilon": 1.0, "examples": [200, 50, 200]}
    with pytest.raises(UserError, match=r"exceeds the number of steps in period 2 of 3, 5: .*, or longer periods\."):
        dpfest.plan(DPSGD(bands=8), batch_size=10, epochs=1.0, **days)
    with pytest.raises(UserError, match=r"from one in 8 of 50 in period 2 of 3, which are fewer: choose bands=2 or"):
        dpfest.plan(DPSGD(bands=8), batch_size=20, epochs=4.0, **days)


def test_an_optimiser_that_subtracts_independent_noise_does_not_step_tables() -> None:
    with pytest.raises(UserError, match="AdamBC subtracts the variance of independent noise, and with bands"):
        trained(DPSGD(bands=4), optimizer=dpfest.AdamBC)
    assert trained(DPSGD(), optimizer=dpfest.AdamBC).optimizers[0].param_groups[0]["noise_deviation"] > 0


def test_no_branch_is_advised_where_none_is_allowed() -> None:
    state = trained(DPSGD(bands=4)).state_dict()
    with pytest.raises(UserError, match=r"under another strategy, plan\. .*Restore what differs\.$"):
        trained(DPSGD(bands=2)).load_state_dict(state)


@pytest.mark.parametrize("kind", [AdaFEST, Threshold, Exponential])
def test_algorithms_whose_rows_change_have_no_bands(kind: type) -> None:
    with pytest.raises(TypeError, match="bands"):
        kind(bands=4)


def test_a_plan_of_other_bands_or_of_the_papers_accounting_is_refused() -> None:
    plan = trained(DPSGD(bands=4)).plan
    with pytest.raises(UserError, match="dpsgd has bands=3, and batches are sampled for bands=4"):
        replace(plan, algorithm=DPSGD(bands=3))
    arguments: dict[str, Any] = {"epsilon": 1.0, "examples": 1000, "batch_size": 10, "steps": 20}
    with pytest.raises(UserError, match="bands=4 needs batches of groups in turn, and fidelity=paper shuffles"):
        dpfest.plan(DPSGD(bands=4), fidelity="paper", **arguments)
    days = [np.arange(500), np.arange(500)]
    with pytest.raises(UserError, match="a household may take part in several periods: leave bands out"):
        dpfest.plan(DPSGD(bands=4), **arguments | {"examples": days}, unit=dpfest.Units([0], name="household").config)
    engine = trained(DPSGD(bands=4)).engine
    cost = replace(engine.cost, bands=2)  # type: ignore[type-var]
    with pytest.raises(UserError, match="bands=4 of the noise are not those of the event"):
        engine._noise(cost, 9)
    with pytest.raises(UserError, match="need the number of steps"):
        engine._noise(engine.cost, None)


def test_an_unused_setting_leaves_no_trace_in_plan_or_ledger() -> None:
    plan = trained(DPSGD()).plan
    assert "bands" not in repr(plan) and "bands" not in str(plan.ledger().to_json())
    banded = trained(DPSGD(bands=4)).plan
    assert "bands=4" in repr(banded) and banded.ledger().to_json()["planned"][0]["bands"] == 4
    assert banded.ledger().to_json()["run"]["settings"]["bands"] == 4
