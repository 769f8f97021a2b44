"""Privacy accounting: events, their privacy loss distributions, and what they cost together.

Events are plain records, counted pessimistically by ``dp_accounting`` on its accountant's default grid: its
``PLDAccountant`` gives the same number for the same Gaussian and Laplace events (``dpfest.accounting.sampled_gaussian``
is its constructor, faster). Only those for which it has no event are computed here: exponential selection and repeated
pure-DP draws (``dpfest.accounting.dominating_pair``), and steps on batches that examples are allocated to
(``dpfest.accounting.allocation``); and Gaussian steps whose number is so large, or delta so small, that rounding would
have a share of it (``dpfest.accounting.tilted``).

Adjacency is add-or-remove-one example. Composition is adaptive (Zhu, Dong and Wang 2022, Theorem 10), and parallel over
disjoint parts of the examples (McSherry 2009, Theorem 4): an example pays for the parts that contain it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy.stats import binom

from dpfest.accounting import allocation, dominating_pair, sampled_gaussian, tilted
from dpfest.errors import UserError

INTERVAL = 1e-4
"""Spacing of the grid of privacy losses: the default of dp_accounting's PLDAccountant."""
COARSE_INTERVAL = 1e-3
"""A coarser grid for quick upper bounds that need not be tight."""
LEAST_DELTA = 1e-14
"""Of Gaussian steps alone; of others, rounding sets it (`least_delta`)."""
# Rounding error in delta per fold of dp_accounting's FFT: three times the largest measured against the Gaussian's
# closed form, at 10^2 to 10^7 folds. Charged on top of delta, so that small deltas stay upper bounds.
_ROUNDING = 2.0**-52
# Where it would be a larger share of delta, Gaussian steps are composed without it (dpfest.accounting.tilted).
_LARGE_SHARE = 1e-3
_LOG_TAIL = -50.0  # log of the probability that dp_accounting cuts off a loss distribution, and counts as delta
# Fields that an event of each kind must have.
_STATED = {
    "gaussian": ("noise_multiplier",),
    "laplace": ("noise_multiplier",),
    "pure": ("epsilon_per_draw", "draws"),
    "exponential_selection": ("epsilon_per_draw", "draws", "noise_multiplier"),
    "failure": ("probability",),
}


@dataclass(frozen=True, kw_only=True)
class Event:
    """A privacy event, spent ``count`` times on the examples in ``part``, each time on a sample of them.

    The sample is a Poisson sample unless the last attributes state another.

    Attributes:
        kind: ``gaussian`` or ``laplace`` noise; ``pure``, adaptive draws, each (epsilon_per_draw, 0)-DP;
            ``exponential_selection``, such draws and Gaussian noise on the drawn rows (see ``dominating_pair``); or
            ``failure``: with a ``probability``, at most, anything about the example is released, and nothing else.
        part: a path of nested subsets, as ("period 2", "day 7"); () is all examples. Parts overlap only if one is a
            prefix of the other.
        noise_multiplier: standard deviation over l2-sensitivity (laplace: scale over l1-sensitivity); if one sample
            serves two releases, that of both combined (``split_noise``), which alone enters the accounting.
        claimed_epsilon: what a source claims for all ``draws``, if that is less than they cost.
        steps_per_epoch: steps between two visits to an example, if batches are really shuffled and of fixed size.
        max_batch_size, dataset_size: the size to which larger samples are cut, and the number of examples they are
            drawn from, if the Poisson sample is truncated (``dpfest.planning.other_samplers.TruncatedPoisson``).
        bins: steps in an epoch, of which each example takes part in one, if examples are allocated to batches
            (``dpfest.planning.other_samplers.BallsInBins``); the ``count`` steps are consecutive, from the start of
            an epoch on.
        bands: number of groups of examples, of which each step samples the next one, if noise is correlated over as
            many steps (``dpfest.planning.other_samplers.CyclicPoisson``); the ``count`` steps are consecutive, from the
            first on.

    Raises:
        ValueError: an unknown kind; a value that is missing, superfluous or out of range.
    """

    kind: str
    what: str
    count: int = 1
    part: tuple[str, ...] = ()
    sampling_probability: float = 1.0
    noise_multiplier: float | None = None
    map_noise_multiplier: float | None = None
    gradient_noise_multiplier: float | None = None
    draws: int | None = None
    epsilon_per_draw: float | None = None
    claimed_epsilon: float | None = None
    probability: float | None = None
    steps_per_epoch: int | None = None
    max_batch_size: int | None = None
    dataset_size: int | None = None
    bins: int | None = None
    bands: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in _STATED:
            raise ValueError(f"no privacy event is of kind {self.kind!r}; the kinds are {', '.join(_STATED)}")
        for name in ("noise_multiplier", "draws", "epsilon_per_draw", "probability"):
            if (getattr(self, name) is not None) != (name in _STATED[self.kind]):
                raise ValueError(f"{self.what}: a {self.kind} event needs {' and '.join(_STATED[self.kind])} alone")
        for name, value in vars(self).items():
            if name in ("kind", "what", "part") or (value is None and name not in ("count", "sampling_probability")):
                continue
            most = 1.0 if name in ("sampling_probability", "probability") else 1e300
            if not (isinstance(value, int | float) and 0 < value <= most):
                raise ValueError(f"{self.what}: {name} must be a number in (0, {most:g}], not {value!r}")
        ways = [self.steps_per_epoch, self.max_batch_size, self.bins, self.bands]
        if len(ways) - ways.count(None) > 1 or (self.max_batch_size is None) != (self.dataset_size is None):
            raise ValueError(f"{self.what}: examples are sampled in one way, stated in full")
        if (self.max_batch_size or self.bins or self.bands) and self.kind != "gaussian":
            raise ValueError(f"{self.what}: a {self.kind} event is accounted on Poisson samples alone")
        if self.bins and self.sampling_probability != 1 / self.bins:
            raise ValueError(f"{self.what}: an example is in one of {self.bins} bins with probability 1 / {self.bins}")

    @property
    def sampling(self) -> str | None:
        """Name of the sampler that the event is accounted for; None for all examples."""
        ways = {
            "balls_in_bins": self.bins,
            "cyclic_poisson": self.bands,
            "truncated_poisson": self.max_batch_size,
            "shuffled": self.steps_per_epoch,
        }
        named = [name for name, stated in ways.items() if stated]
        return named[0] if named else "poisson" if self.sampling_probability < 1 else None

    def __str__(self) -> str:
        return f"{self.count} x {self.what}" + (f" on {', '.join(self.part)}" if self.part else "")

    def once(self, interval: float) -> PrivacyLossDistribution:
        """Return the privacy loss distribution of one of the ``count``, on a grid of spacing ``interval``."""
        q, sigma = self.sampling_probability, self.noise_multiplier
        if self.probability is not None:
            revealed = DifferentialPrivacyParameters(0.0, q * self.probability)
            return pld.from_privacy_parameters(revealed, value_discretization_interval=interval)
        if self.draws is not None and self.epsilon_per_draw is not None:
            return dominating_pair.privacy_loss(self.epsilon_per_draw, self.draws, sigma or math.inf, q, interval)
        make = pld.from_laplace_mechanism if self.kind == "laplace" else pld.from_gaussian_mechanism
        if self.kind == "gaussian" and sigma is not None and q < 1:
            loss = sampled_gaussian.privacy_loss(sigma, q, interval)
        else:
            loss = make(sigma, value_discretization_interval=interval, sampling_prob=q)
        if self.max_batch_size is None or self.dataset_size is None:
            return loss
        chance = chance_of_truncation(self.dataset_size, q, self.max_batch_size)
        if chance == 0:
            return loss
        doubled = make(
            (sigma or 0.0) / 2,
            value_discretization_interval=interval,
            sampling_prob=q,
            log_mass_truncation_bound=min(_LOG_TAIL - math.log(chance), -1.0),  # of which the chance is a share
        )
        return doubled.compute_mixture(loss, chance)


def chance_of_truncation(examples: int, sampling_probability: float, max_batch_size: int) -> float:
    """Return an upper bound on the probability that a Poisson sample of ``examples`` has ``max_batch_size`` or more."""
    return min(1.0, float(binom.sf(max_batch_size - 1, examples, sampling_probability)) * (1 + 2.0**-20))


def to_record(event: Event) -> dict[str, Any]:
    """Return the event as a JSON object, without unset fields."""
    return {name: value for name, value in (asdict(event) | {"part": list(event.part)}).items() if value is not None}


def from_record(record: Mapping[str, Any]) -> Event:
    """Return the event of a ``to_record`` object. Raises ValueError for invalid values."""
    try:
        return Event(**{**record, "part": tuple(record.get("part", ()))})
    except TypeError as error:
        raise ValueError(f"not a privacy event: {error}") from error


def epsilon(events: Sequence[Event], delta: float, interval: float = INTERVAL) -> float:
    """Return the epsilon at ``delta`` of all events together: 0 for none, inf if ``delta`` cannot be met."""
    paid_for = (tuple(map(cost_alone, paid)) for paid in by_example(events))
    return max((_epsilon(paid, delta, interval) for paid in paid_for), default=0.0)


def delta(events: Sequence[Event], epsilon: float, interval: float = INTERVAL) -> float:
    """Return the delta at ``epsilon`` of all events together."""

    def cost(paid: Sequence[Event]) -> float:
        return float(_composed(paid, interval).get_delta_for_epsilon(epsilon)) + _rounding(paid)

    return max(map(cost, dict.fromkeys(by_example(events))), default=0.0)


def deltas(events: Sequence[Event], epsilons: NDArray[np.float64], interval: float = INTERVAL) -> NDArray[np.float64]:
    """Return the ``delta`` at each of these epsilons, none of them negative, of all events together."""

    def costs(paid: Sequence[Event]) -> NDArray[np.float64]:
        found = _composed(paid, interval)
        directions = [found._pmf_remove, *([] if found._symmetric else [found._pmf_add])]
        return np.max([_deltas(pmf.to_dense_pmf(), epsilons) for pmf in directions], axis=0) + _rounding(paid)

    return np.max([costs(paid) for paid in by_example(events)], axis=0, initial=0.0)


def split_noise(noise_multiplier: float, ratio: float) -> tuple[float, float]:
    """Return noise multipliers (sigma1, sigma2) of map and gradient whose combination has ``noise_multiplier``.

    Formal guarantee: sigma1 = ratio * sigma2 and 1/sigma1^2 + 1/sigma2^2 = 1/noise_multiplier^2, so the two releases
    from one sample are together one Gaussian mechanism of ``noise_multiplier`` (Dong, Roth and Su 2022, Corollary 3.3),
    which Poisson sampling then amplifies once. (The exponent -2 in the paper's appendix is a misprint of -1/2.)
    """
    if not 0 < ratio < math.inf:
        raise UserError(f"noise_ratio={ratio} must be positive and finite.")
    gradient = noise_multiplier * math.sqrt(1 + 1 / ratio**2)
    return ratio * gradient, gradient


def least_delta(events: Sequence[Event]) -> float:
    """Return the least delta at which these events are accounted without most of it being rounding."""
    return LEAST_DELTA if _tilted_steps(events) else 2 * _rounding(events)


def by_example(events: Sequence[Event]) -> list[tuple[Event, ...]]:
    """Return what each kind of example pays for: for every part, the events on it and on the parts that contain it.

    Raises:
        ValueError: an event states less noise of its releases than it is charged for.
    """
    for event in events:
        _refuse_undercharged(event)
    return [
        tuple(rounds_of(replace(event, part=())) for event in events if event.part == part[: len(event.part)])
        for part in dict.fromkeys(event.part for event in events)
    ]


def _refuse_undercharged(event: Event) -> None:
    drawn = [value for value in (event.map_noise_multiplier, event.gradient_noise_multiplier) if value is not None]
    if event.kind == "gaussian" and drawn and event.noise_multiplier is not None:
        combined = sum(value**-2 for value in drawn) ** -0.5
        if event.noise_multiplier > combined * (1 + 1e-9):
            raise ValueError(
                f"{event.what}: noise of multipliers {drawn} is together one of {combined:.6g}, and is charged as one "
                f"of {event.noise_multiplier}"
            )


def rounds_of(event: Event) -> Event:
    """Return steps on groups in turn as what they cost: one step on a Poisson sample in each round of the groups."""
    return event if event.bands is None else replace(event, count=math.ceil(event.count / event.bands), bands=None)


def cost_alone(event: Event) -> Event:
    """Return the event without what its privacy loss does not depend on, so that equal losses are known as equal."""
    return replace(
        rounds_of(event),
        what="",
        map_noise_multiplier=None,
        gradient_noise_multiplier=None,
        claimed_epsilon=None,
        steps_per_epoch=None,
    )


def _rounding(events: Sequence[Event]) -> float:
    return _ROUNDING * sum(event.count for event in events)


@lru_cache(maxsize=1024)  # caches numbers, not distributions: of many parts, only those that changed are recounted
def _epsilon(events: tuple[Event, ...], delta: float, interval: float) -> float:
    if _rounding(events) > _LARGE_SHARE * delta > 0 and (steps := _tilted_steps(events)):
        return tilted.epsilon(steps, delta)
    exact = delta - _rounding(events)
    return float(_composed(events, interval).get_epsilon_for_delta(exact)) if exact > 0 else math.inf


def _tilted_steps(events: Sequence[Event]) -> list[tilted.Steps]:
    """Return the events for :mod:`dpfest.accounting.tilted`; none if one of them is no Gaussian on a Poisson sample."""
    if not all(event.kind == "gaussian" and event.bins is None and event.noise_multiplier for event in events):
        return []
    found = []
    for event in events:
        count, sigma, q = event.count, event.noise_multiplier or 0.0, event.sampling_probability
        chance = 0.0
        if event.max_batch_size is not None and event.dataset_size is not None:
            chance = chance_of_truncation(event.dataset_size, q, event.max_batch_size)
        exact = q == 1 and chance == 0  # unsampled Gaussians compose exactly
        found.append(tilted.Steps(1, sigma / math.sqrt(count), q) if exact else tilted.Steps(count, sigma, q, chance))
    return found


def _composed(events: Sequence[Event], interval: float) -> PrivacyLossDistribution:
    return reduce(lambda left, right: left.compose(right), [_privacy_loss(event, interval) for event in events])


def _deltas(pmf: DensePLDPmf, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what ``get_delta_for_epsilon`` does, hundreds of times as fast."""
    losses = (np.arange(pmf.size) + pmf._lower_loss) * pmf._discretization
    positive = losses > 0
    losses, chances = losses[positive], np.asarray(pmf._probs)[positive]
    above = np.append(np.cumsum(chances[::-1])[::-1], 0.0)
    other = np.append(np.cumsum((chances * np.exp(-losses))[::-1])[::-1], 0.0)
    first = np.searchsorted(losses, epsilons, side="right")
    return pmf._infinity_mass + np.maximum(above[first] - np.exp(epsilons) * other[first], 0.0)


@lru_cache(maxsize=16)
def _privacy_loss(event: Event, interval: float) -> PrivacyLossDistribution:
    if event.bins is not None and event.noise_multiplier:
        return allocation.privacy_loss(event.noise_multiplier, event.bins, event.count, interval)
    one = replace(event, count=1)
    if event.kind == "gaussian" and event.noise_multiplier and event.sampling_probability == 1:
        # Unsampled Gaussians compose exactly (Dong, Roth and Su 2022, Corollary 3.3).
        return replace(one, noise_multiplier=event.noise_multiplier / math.sqrt(event.count)).once(interval)
    return one.once(interval) if event.count == 1 else _privacy_loss(one, interval).self_compose(event.count)
