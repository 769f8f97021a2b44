"""Private search: one epsilon for the best of several runs (Liu and Talwar 2019; Papernot and Steinke 2022).

A search makes K runs, K random and secret. Each draws its setting uniformly from a grid and its noise from a key of its
own, and has a score. The best run leaves, with its setting and score; nothing of the others does, not even their
number. ``dpfest.search_cost`` bounds what that costs.

The scores are not noised. They may depend on what the run releases and on data that epsilon does not cover, such as
validation rows: for a fixed set of those, a run and its score are post-processing of what the run paid for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from dpfest import accounting
from dpfest.accounting import Event, from_record, to_record
from dpfest.distributions import distinct
from dpfest.errors import UserError
from dpfest.noise import Keystream, NoiseKey
from dpfest.precise import precise
from dpfest.privacy_plan import PrivacyPlan
from dpfest.search_cost import Floats, Repeats, by_profile, by_renyi

DISTRIBUTIONS = ("negative_binomial", "poisson")
MOST_RUNS = 10_000
_TOLERANCE = 2e-3  # of a planned search below its target


@dataclass(frozen=True)
class Search:
    """The law of the number of runs K of a private search.

    Attributes:
        mean: the expected number of runs, E[K].
        distribution: ``negative_binomial``, truncated to K >= 1, or ``poisson`` (K may be 0: then nothing leaves).
        shape: of the negative binomial distribution: 1 is the geometric, 0 the logarithmic distribution. Smaller shapes
            spread more and cost less. Without effect for ``poisson``.

    Raises:
        UserError: a setting out of range.
    """

    mean: float
    distribution: str = "negative_binomial"
    shape: float = 0.0

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise UserError(f"distribution={self.distribution!r} must be one of {', '.join(DISTRIBUTIONS)}.")
        if not 1 <= self.mean <= MOST_RUNS:
            raise UserError(f"mean={self.mean}, the expected number of runs, must lie between 1 and {MOST_RUNS:,}.")
        if not 0 <= self.shape <= 100:
            raise UserError(f"shape={self.shape} must lie between 0 (logarithmic) and 100; 1 is geometric.")

    @cached_property
    def gamma(self) -> float:
        """The parameter of the negative binomial distribution, in 0 .. 1, at which E[K] is ``mean``."""

        def excess(log_gamma: float) -> float:
            return math.log(_mean(log_gamma, self.shape) / self.mean)

        return math.exp(brentq(excess, -700 / max(1.0, self.shape), 0.0, xtol=1e-15, rtol=1e-14))

    @cached_property
    def repeats(self) -> Repeats:
        """What the bounds on the cost need of K."""
        mean = self.mean * (1 + 1e-9)  # above the mean at the gamma that was found

        def poisson(x: Floats) -> Floats:
            return mean * np.exp(-mean * x)

        def negative_binomial(x: Floats) -> Floats:
            return mean * (1 + (1 - self.gamma) / self.gamma * x) ** -(1 + self.shape)

        if self.distribution == "poisson":
            return Repeats(mean, poisson)
        return Repeats(mean, negative_binomial, self.gamma, self.shape)

    def number(self, stream: Keystream) -> int:
        """Draw K.

        Formal guarantee: within 2^-100 in total variation of the law of the float64 ``mean`` (or ``gamma``): the least
        k whose cumulative probability, in 320-bit arithmetic, reaches a uniform number of 192 bits.
        """
        first = stream.reserve(2)
        word = int(stream.at(first, 1)[0])
        with precise() as mp:
            left = mp.ldexp(2 * stream.extended(word, first) + 1, -193)
            if self.distribution == "poisson":
                k, mean = 0, mp.mpf(self.mean)
                term = mp.exp(-mean)
                while left > term:
                    left, k = left - term, k + 1
                    term *= mean / k
                return k
            if self.gamma == 1:
                return 1
            k, gamma, shape = 1, mp.mpf(self.gamma), mp.mpf(self.shape)
            term = (1 - gamma) / (mp.log(1 / gamma) if shape == 0 else (gamma**-shape - 1) / shape)
            while left > term:
                left -= term
                term *= (1 - gamma) * (k + shape) / (k + 1)
                k += 1
            return k

    def epsilon(self, runs: Sequence[Sequence[Event]], delta: float, interval: float = accounting.INTERVAL) -> float:
        """Return the epsilon of a search at ``delta``; inf if ``delta`` cannot be met.

        Args:
            runs: for each setting of the grid, what one run of it pays.
            delta: of the whole search.
            interval: spacing of the grid of privacy losses; a coarser one is quicker and less tight.

        Formal guarantee: an upper bound, the smaller of the two of :mod:`dpfest.search_cost`.
        """
        return min(by_profile(self.repeats, runs, delta, interval), by_renyi(self.repeats, runs, delta))


@dataclass(frozen=True)
class SearchPlan:
    """A search and the plan of a run of each setting, so that neither can be used with another.

    Attributes:
        search: the law of the number of runs.
        plans: one for each setting, drawn with equal probability.
        target_epsilon: of the whole search, at the plans' delta.

    Raises:
        UserError: no plan; or plans that have no common guarantee: without privacy, accounted as the paper does, of
            other data or another delta.
    """

    search: Search
    plans: tuple[PrivacyPlan, ...]
    target_epsilon: float

    def __post_init__(self) -> None:
        if not self.plans:
            raise UserError("The grid is empty: a search needs one setting or more.")
        for plan in self.plans:
            if not plan.algorithm.private or plan.fidelity != "rigorous":
                raise UserError(
                    f"{plan.algorithm.name} with fidelity={plan.fidelity} has no proven epsilon, so a search that may "
                    "choose it has none: leave it out of the grid."
                )
            if (plan.examples, plan.delta) != (self.plans[0].examples, self.plans[0].delta):
                raise UserError(
                    f"The settings of a search share the examples and delta: {plan.examples:,} at {plan.delta:.4g} and "
                    f"{self.plans[0].examples:,} at {self.plans[0].delta:.4g} cannot be compared."
                )
            if plan.unit != self.plans[0].unit:
                raise UserError("The settings of a search protect one unit of privacy: leave the others out.")
            if plan.fixed_noise_seed != self.plans[0].fixed_noise_seed:
                raise UserError("Either all settings of a search have a fixed noise seed, or none has.")

    @property
    def delta(self) -> float:
        """Delta of the whole search."""
        return self.plans[0].delta

    @cached_property
    def epsilon(self) -> float:
        """What the search costs, at ``delta``."""
        return self.search.epsilon([plan.events for plan in self.plans], self.delta)

    @property
    def epsilon_of_run(self) -> float:
        """What a single run costs, at ``delta``: the largest of the grid."""
        return max(plan.epsilon or 0.0 for plan in self.plans)

    @property
    def epsilon_of_all(self) -> float:
        """What a run of each setting costs by plain composition, at ``delta``; quick, an upper bound within 1%."""
        events = [event for plan in self.plans for event in plan.events]
        if len({len(plan.periods) for plan in self.plans}) > 1:  # a period of one is not the same days as of another
            events = [replace(event, part=()) for event in events]
        return accounting.epsilon(events, self.delta, accounting.COARSE_INTERVAL)

    def draws(self, key: NoiseKey) -> list[int]:
        """Return the setting of each of the K runs, a function of the key alone; secret, and so is their number."""
        number = self.search.number(key.stream("number of runs"))
        return [int(distinct(key.stream("setting", run), len(self.plans), 1)[0]) for run in range(number)]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object from which a reviewer can recompute epsilon: it depends on no draw."""
        return {
            "distribution": self.search.distribution,
            "mean": self.search.mean,
            "shape": self.search.shape if self.search.distribution == "negative_binomial" else None,
            "settings": len(self.plans),
            "target_epsilon": self.target_epsilon,
            "epsilon": self.epsilon,
            "epsilon_of_run": self.epsilon_of_run,
            "runs": [list(map(to_record, run)) for run in dict.fromkeys(tuple(plan.events) for plan in self.plans)],
        }


def recount(ledger: Mapping[str, Any]) -> float:
    """Return the epsilon of a search from the JSON form of its best run's ledger, which holds that of its plan.

    Raises:
        ValueError, KeyError: not such a ledger; or the search is not one that could have made the run.
    """

    def counted(records: Sequence[Mapping[str, Any]]) -> Counter[Event]:
        counts: Counter[Event] = Counter()
        for event in map(from_record, records):
            counts[replace(event, count=1)] += event.count
        return counts

    record = ledger["search"]
    if counted(ledger["planned"]) not in list(map(counted, record["runs"])):
        raise ValueError("the search that it describes cannot have made this run.")
    search = Search(record["mean"], record["distribution"], record["shape"] or 0.0)
    return search.epsilon([[from_record(event) for event in run] for run in record["runs"]], ledger["delta"])


def plan_search(
    search: Search, settings: Sequence[Callable[..., PrivacyPlan]], *, epsilon: float, delta: float | None = None
) -> SearchPlan:
    """Calibrate the noise of a run so that the whole search meets (epsilon, delta).

    Args:
        search: the law of the number of runs.
        settings: for each setting of the grid, :func:`dpfest.plan` with all of its arguments but epsilon and delta, as
            ``functools.partial(dpfest.plan, dpfest.DPSGD(), examples=..., batch_size=..., epochs=...)``.
        epsilon: target of the whole search.
        delta: target of the whole search; None for 1 / N.

    Formal guarantee: :func:`select_best` under the plan is (epsilon, delta)-DP.

    Raises:
        UserError: no noise meets the target; or the settings have no common guarantee.
    """
    first = _calibrated(search, settings[:1], epsilon, delta, epsilon / 3)  # quick, and nearly right for all
    return _calibrated(search, settings, epsilon, delta, first.epsilon_of_run) if len(settings) > 1 else first


def _calibrated(
    search: Search, settings: Sequence[Callable[..., PrivacyPlan]], epsilon: float, delta: float | None, of_run: float
) -> SearchPlan:
    """Find the epsilon of a run at which the search costs ``epsilon``, or slightly less."""
    best, low, high = None, 0.0, epsilon
    while best is None or (best.epsilon < epsilon * (1 - _TOLERANCE) and high - low > 1e-4 * high):
        if of_run < accounting.LEAST_EPSILON:
            raise UserError(
                f"epsilon={epsilon:g} leaves a run of the search less than {accounting.LEAST_EPSILON:g}: raise it, or "
                f"search less (mean={search.mean:g})."
            )
        found = SearchPlan(search, tuple(make(epsilon=of_run, delta=delta) for make in settings), epsilon)
        if found.epsilon <= epsilon:
            best, low = found, of_run
        else:
            high = of_run
        # A search costs nearly in proportion to what a run may cost.
        of_run *= epsilon * (1 - _TOLERANCE / 2) / found.epsilon if 0 < found.epsilon < math.inf else 0.0
        if not low < of_run < high:
            of_run = (low + high) / 2
    return best


class Best(NamedTuple):
    """What a search releases: the best run's plan, its score, and whatever else it returned."""

    plan: PrivacyPlan
    score: float
    result: Any


def select_best(
    run: Callable[[PrivacyPlan, NoiseKey], tuple[float, Any]], planned: SearchPlan, *, noise_seed: int | None = None
) -> Best | None:
    """Make the runs of a private search, and return the best one.

    Args:
        run: ``run(plan, key)`` trains by one of the plans and returns (score, result); the highest score is the best,
            and NaN the worst. All of its random numbers come from ``key`` (:class:`dpfest.PrivateTraining` takes it),
            and it keeps nothing of earlier calls. The score depends on what the run releases under its plan and on
            data that epsilon does not cover.
        planned: from :func:`plan_search`.
        noise_seed: None for a key from the operating system; a number makes the search reproducible, on public data.

    Returns:
        The best run, of equals the first; None if the search makes none, as a Poisson number of runs may be 0.

    Formal guarantee: the result is ``(planned.epsilon, planned.delta)``-DP, provided that nothing else of the search
    leaves: no other run, no log, neither the number of runs nor the time that they took.

    Raises:
        UserError: the search costs more than its target; or the seed does not fit the plans.
    """
    if not planned.epsilon <= planned.target_epsilon:
        raise UserError(
            f"The search would cost epsilon {planned.epsilon:.6g}, past its target {planned.target_epsilon:.6g}: plan "
            "it with dpfest.plan_search(...)."
        )
    if planned.plans[0].fixed_noise_seed != (noise_seed is not None):
        raise UserError("noise_seed= and the plans' fixed_noise_seed= go together, so that the ledger says so.")
    key = NoiseKey.fresh() if noise_seed is None else NoiseKey.from_seed(noise_seed, "search")
    best: Best | None = None
    for number, setting in enumerate(planned.draws(key)):
        plan = planned.plans[setting]
        score, result = run(plan, key.derive("run", number))
        score = -math.inf if math.isnan(score) else float(score)
        if best is None or score > best.score:
            best = Best(plan, score, result)
    return best


def _mean(log_gamma: float, shape: float) -> float:
    """Return the mean of the truncated negative binomial distribution."""
    if log_gamma == 0:
        return 1.0
    excess = math.expm1(-log_gamma)  # 1 / gamma - 1
    return excess / -log_gamma if shape == 0 else shape * excess / -math.expm1(shape * log_gamma)
