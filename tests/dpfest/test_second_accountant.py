"""Epsilon of every kind of event that a ledger may hold, by two other methods than the library's.

``tests/dpfest/contour.py`` integrates moment generating functions; Opacus's PRV accountant (Gopi, Lee and Wutschitz,
2021) knows sampled Gaussians. Both must agree with dpfest's privacy loss distributions within 1%; the numbers of
docs/PRIVACY.md are those of this test.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.exponential import Exponential
from dpfest.algorithms.rules import DPSGD, Threshold
from dpfest.selection.topk import SelectionConfig, selection_events
from dpfest.selection.vocabulary import OpenVocabulary
from tests.dpfest import contour

KAGGLE, BATCH, EPOCH = 45_840_617, 2_048, 22_384
JOURNEY, LARGE, STEPS = 1_000_000, 8_192, 123


def steps(algorithm: Algorithm, sigma: float, q: float, count: int, part: tuple[str, ...] = ()) -> Event:
    event = algorithm.step_event(sigma, q)
    assert event is not None
    return replace(event, count=count, part=part)


def selection(**settings: object) -> list[Event]:
    return selection_events(SelectionConfig(**settings), [100_000] * 26)  # type: ignore[arg-type]


def stream() -> list[Event]:
    """Two periods at their own rates, and a noised histogram for each day."""
    (histogram,) = selection(mechanism="gaussian", noise_multiplier=8.0)
    events = [replace(histogram, part=("period 1", "day 0")), replace(histogram, part=("period 2", "day 1"))]
    for number, examples in enumerate((60_000, 90_000), 1):
        events.append(steps(DPSGD(), 1.0, 1024 / examples, 100, (f"period {number}",)))
    return events


Q, LARGE_Q = BATCH / KAGGLE, LARGE / JOURNEY
LEDGERS: dict[str, tuple[list[Event], float]] = {
    "DP-SGD, Criteo Kaggle, one epoch": ([steps(DPSGD(), 0.5765, Q, EPOCH)], 1 / KAGGLE),
    "DP-SGD, σ = 5, q = 0.01": ([steps(DPSGD(), 5.0, 0.01, EPOCH)], 1 / KAGGLE),
    "threshold, 10⁶ examples, B = 8,192": ([steps(Threshold(), 0.7, LARGE_Q, STEPS)], 1 / JOURNEY),
    "DP-AdaFEST, r = 1": ([steps(AdaFEST(noise_ratio=1.0), 0.7, LARGE_Q, STEPS)], 1 / JOURNEY),
    "DP-AdaFEST, r = 5": ([steps(AdaFEST(noise_ratio=5.0), 1.1, LARGE_Q, 10 * STEPS)], 1 / JOURNEY),
    "DP-FEST, Gaussian selection": (
        [*selection(mechanism="gaussian", noise_multiplier=8.0), steps(DPSGD(), 0.8, LARGE_Q, STEPS)], 1e-6
    ),
    "DP-FEST, Laplace selection": (
        [*selection(mechanism="laplace", epsilon=0.5), steps(DPSGD(), 0.8, LARGE_Q, STEPS)], 1e-6
    ),
    "DP-FEST, Gumbel selection at its true cost": (
        [*selection(mechanism="gumbel", epsilon=0.01, rows=10_000), steps(DPSGD(), 0.8, LARGE_Q, STEPS)], 1e-6
    ),
    "exponential selection, m = 8": (
        [steps(Exponential(rows_per_step=8, noise_ratio=1.0), 0.8, LARGE_Q, STEPS)], 1e-6
    ),
    "truncated Poisson batches, at most 8,650": (
        [replace(steps(DPSGD(), 0.7, LARGE_Q, STEPS), max_batch_size=8_650, dataset_size=JOURNEY)], 1 / JOURNEY
    ),
    "unsampled steps (audit)": ([steps(DPSGD(), 2.0, 1.0, 3)], 1e-2),
    "a stream of two periods": (stream(), 1 / 150_000),
    "a vocabulary of noised counts": (
        [*OpenVocabulary(5.0, 2e-7, 8).events, steps(DPSGD(), 0.8, LARGE_Q, STEPS)], 1e-6
    ),
}  # fmt: skip
LONG = (
    "DP-SGD, Criteo Kaggle, one epoch", "exponential selection, m = 8", "truncated Poisson batches, at most 8,650",
    "a stream of two periods",
)  # fmt: skip
"""Whose integrals take long; small ones of their kinds, and `tests.dpfest.test_stream`, stand for them by default."""
SMALL: dict[str, tuple[list[Event], float]] = {
    "exponential selection": ([steps(Exponential(rows_per_step=1, noise_ratio=1.0), 1.0, 0.05, 100)], 1e-5),
    "truncated Poisson batches": (
        [replace(steps(DPSGD(), 1.0, 0.05, 100), max_batch_size=65, dataset_size=1_000)], 1e-5
    ),
}  # fmt: skip
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "PRIVACY.md").read_text(encoding="utf-8")


def documented(name: str) -> list[float | None]:
    (row,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", DOCUMENT, flags=re.M)
    return [float(cell) if cell.strip() else None for cell in row.split("|")]


def opacus(events: list[Event], delta: float) -> float | None:
    """Epsilon by Opacus, of ledgers that hold Gaussians on all examples alone."""
    if any(event.kind != "gaussian" or event.part or event.max_batch_size for event in events):
        return None
    accountants = pytest.importorskip("opacus.accountants")
    accountant = accountants.PRVAccountant()
    accountant.history = [(event.noise_multiplier, event.sampling_probability, event.count) for event in events]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta, eps_error=0.002))


def agreed(events: list[Event], delta: float) -> tuple[float, float, float | None]:
    """Epsilon by the library, by the contour and by Opacus, once they agree."""
    ours = accountant.epsilon(events, delta)
    exact, bound = contour.epsilon(events, delta, near=ours), opacus(events, delta)
    assert exact == pytest.approx(ours, rel=0.01)
    assert exact <= ours * (1 + 1e-6), "ours is an upper bound, and this one is exact"
    assert bound is None or bound == pytest.approx(ours, rel=0.01)
    return ours, exact, bound


@pytest.mark.parametrize("name", SMALL)
def test_epsilon_of_a_small_event_is_another_accountants(name: str) -> None:
    agreed(*SMALL[name])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in LEDGERS]
)
def test_epsilon_of_every_event_is_another_accountants(name: str) -> None:
    """Slow where the integrals are; their results are those that docs/PRIVACY.md shows."""
    for found, told in zip(agreed(*LEDGERS[name]), documented(name), strict=True):
        assert (found is None) == (told is None)
        assert found is None or told is None or abs(found - told) <= 0.6 * 10 ** -len(f"{told}".partition(".")[2])


def test_the_second_accountant_is_right_where_there_is_a_closed_form() -> None:
    """One Gaussian: Balle and Wang (2018); and its answer does not depend on the guess that it starts from."""
    from scipy.stats import norm

    for sigma, epsilon in ((1.0, 1.0), (0.5, 3.0), (4.0, 0.2)):
        delta = norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * norm.cdf(-0.5 / sigma - epsilon * sigma)
        event = Event(kind="gaussian", what="x", noise_multiplier=sigma)
        for near in (0.8 * epsilon, 1.3 * epsilon):
            assert contour.epsilon([event], float(delta), near) == pytest.approx(epsilon, rel=1e-7)


def test_every_kind_of_event_is_among_them() -> None:
    kinds = {event.kind for events, _ in LEDGERS.values() for event in events}
    assert kinds == set(accountant._STATED)
