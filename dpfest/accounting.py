"""What was spent (events), how it is counted (privacy loss distributions), and the noise a target asks for.

Events are plain records. They are counted by `dp_accounting`'s own constructors, pessimistically, with its
accountant's default grid, so that `dp_accounting.pld.PLDAccountant` returns the same number for the same
Gaussian and Laplace events; only exponential selection and repeated pure-DP draws, for which it has no event,
use the pair of `dpfest.dominating_pair`.

Neighbouring relation: one example more or less. Composition is adaptive (Zhu, Dong and Wang 2022, Theorem
10).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.optimize import brentq

from dpfest import dominating_pair
from dpfest.errors import UserError

INTERVAL = 1e-4
"""Spacing of the grid of privacy losses: the default of dp_accounting's PLDAccountant."""

COARSE_INTERVAL = 1e-3
"""A grid for quick answers that need not be tight: they are still upper bounds."""

# Calibration stops this far (relative) under the target: composition by FFT is exact to about 1e-11 in delta,
# which at delta = 2e-8 is 1e-5 in epsilon, and another machine may round the other way.
_MARGIN = 5e-5
_NOISE_RANGE = (2.0**-4, 2.0**16)


@dataclass(frozen=True, kw_only=True)
class _Event:
    what: str
    count: int = 1

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.what}: count must be at least 1, not {self.count}")
        for key, value in asdict(self).items():
            if key == "sampling_probability" and value is not None and not 0 < value <= 1:
                raise ValueError(f"{self.what}: {key} must lie in (0, 1], not {value}")
            if isinstance(value, float) and not 0 < value < math.inf:
                raise ValueError(f"{self.what}: {key} must be positive and finite, not {value}")

    def once(self, interval: float) -> PrivacyLossDistribution:
        """Privacy loss distribution of one of the `count`, on a grid of spacing `interval`."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class GaussianEvent(_Event):
    """Gaussian mechanism, `count` times, each on a fresh Poisson sample if `sampling_probability` is given.

    `noise_multiplier` is the standard deviation of the noise over the l2-sensitivity, of the combined
    mechanism where one sample serves two releases; `map_noise_multiplier` and `gradient_noise_multiplier`
    then record the two (they do not enter the count: `split_noise` ties them to `noise_multiplier`).
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float
    sampling_probability: float | None = None
    map_noise_multiplier: float | None = None
    gradient_noise_multiplier: float | None = None

    def once(self, interval: float) -> PrivacyLossDistribution:
        return pld.from_gaussian_mechanism(
            self.noise_multiplier,
            value_discretization_interval=interval,
            sampling_prob=1.0 if self.sampling_probability is None else self.sampling_probability,
        )


@dataclass(frozen=True, kw_only=True)
class LaplaceEvent(_Event):
    """Laplace mechanism, `count` times; `noise_multiplier` is the noise's scale over the l1-sensitivity."""

    kind: ClassVar[str] = "laplace"
    noise_multiplier: float

    def once(self, interval: float) -> PrivacyLossDistribution:
        return pld.from_laplace_mechanism(self.noise_multiplier, value_discretization_interval=interval)


@dataclass(frozen=True, kw_only=True)
class PureEvent(_Event):
    """`draws` adaptive draws, each (`epsilon`, 0)-DP, and that `count` times: randomised response dominates.

    `claimed_epsilon` is what a source claims for all `draws` of a release, where that is less than they cost.
    """

    kind: ClassVar[str] = "pure"
    epsilon: float
    draws: int = 1
    claimed_epsilon: float | None = None

    def once(self, interval: float) -> PrivacyLossDistribution:
        return dominating_pair.privacy_loss(self.epsilon, self.draws, math.inf, 1.0, interval)


@dataclass(frozen=True, kw_only=True)
class ExponentialSelectionEvent(_Event):
    """`count` steps that draw rows by gradient norm and add Gaussian noise there: see `dominating_pair`."""

    kind: ClassVar[str] = "exponential_selection"
    rows_per_step: int
    epsilon_per_row: float
    noise_multiplier: float
    sampling_probability: float

    def once(self, interval: float) -> PrivacyLossDistribution:
        return dominating_pair.privacy_loss(
            self.epsilon_per_row,
            self.rows_per_step,
            self.noise_multiplier,
            self.sampling_probability,
            interval,
        )


Event = GaussianEvent | LaplaceEvent | PureEvent | ExponentialSelectionEvent
_EVENTS: dict[str, type[Event]] = {
    event.kind: event for event in (GaussianEvent, LaplaceEvent, PureEvent, ExponentialSelectionEvent)
}


def to_record(event: Event) -> dict[str, Any]:
    """The event as a JSON object, its kind first."""
    return {"kind": event.kind, **asdict(event)}


def from_record(record: Mapping[str, Any]) -> Event:
    """The event of `to_record`. Raises ValueError for a kind or a value that no event has."""
    fields = dict(record)
    kind = fields.pop("kind", None)
    if kind not in _EVENTS:
        raise ValueError(f"no privacy event is of kind {kind!r}; there are {', '.join(_EVENTS)}")
    try:
        return _EVENTS[kind](**fields)
    except TypeError as error:
        raise ValueError(f"not a {kind} event: {error}") from error


@lru_cache(maxsize=16)
def _once(event: Event, interval: float) -> PrivacyLossDistribution:
    return event.once(interval)


@lru_cache(maxsize=16)
def _privacy_loss(event: Event, interval: float) -> PrivacyLossDistribution:
    if isinstance(event, GaussianEvent) and event.sampling_probability in (None, 1):
        # Unsampled Gaussians compose exactly (Dong, Roth and Su 2022, Corollary 3.3).
        merged = replace(event, noise_multiplier=event.noise_multiplier / math.sqrt(event.count), count=1)
        return merged.once(interval)
    once = _once(replace(event, count=1), interval)
    return once if event.count == 1 else once.self_compose(event.count)


def _composed(events: Sequence[Event], interval: float) -> PrivacyLossDistribution:
    parts = [_privacy_loss(event, interval) for event in events]
    return reduce(lambda left, right: left.compose(right), parts)


def epsilon(events: Sequence[Event], delta: float, interval: float = INTERVAL) -> float:
    """The epsilon at `delta` of all events together: 0 for none, inf where `delta` is out of reach."""
    return float(_composed(events, interval).get_epsilon_for_delta(delta)) if events else 0.0


def delta(events: Sequence[Event], epsilon: float, interval: float = INTERVAL) -> float:
    """The delta at `epsilon` of all events together."""
    return float(_composed(events, interval).get_delta_for_epsilon(epsilon)) if events else 0.0


def split_noise(noise_multiplier: float, ratio: float) -> tuple[float, float]:
    """Noise multipliers (sigma1, sigma2) of map and gradient whose combination has `noise_multiplier`.

    Formal guarantee: sigma1 = ratio * sigma2 and 1/sigma1^2 + 1/sigma2^2 = 1/noise_multiplier^2, so the two
    releases from one sample are together one Gaussian mechanism of `noise_multiplier` (Dong, Roth and Su
    2022, Corollary 3.3), which Poisson sampling then amplifies once. (The exponent -2 in the paper's appendix
    is a misprint of -1/2.)
    """
    if not 0 < ratio < math.inf:
        raise UserError(f"algorithm.noise_ratio must be positive and finite, not {ratio}.")
    gradient = noise_multiplier * math.sqrt(1 + 1 / ratio**2)
    return ratio * gradient, gradient


def calibrate(
    make_events: Callable[[float], Sequence[Event]],
    epsilon: float,
    delta: float,
    *,
    cache: Path | None = None,
) -> float:
    """The smallest noise multiplier, to six digits, whose events meet the target.

    Formal guarantee: `epsilon(make_events(sigma), delta)` at the default grid is at most the target.

    Args:
      make_events: all events that are to be composed, at a given noise multiplier. Those that do not change
        with it (a selection of fixed noise) count as fixed costs. A pure function of the multiplier.
      epsilon: target, positive.
      delta: target, in (0, 1).
      cache: folder of earlier answers, made if need be; an entry that cannot be read is computed again.

    Raises:
      UserError: the fixed costs alone exceed the target, or the target is out of the range of noise
      multipliers.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise UserError(
            f"privacy.epsilon must be positive and finite and privacy.delta must lie in (0, 1), "
            f"not {epsilon} and {delta}."
        )
    probes = [[to_record(event) for event in make_events(sigma)] for sigma in (1.0, 2.0)]
    key = json.dumps([probes, epsilon, delta, INTERVAL, _MARGIN, version("dp_accounting")], sort_keys=True)
    entry = cache and cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    known = entry and _cached(entry, key)
    if known:
        return known
    _refuse_fixed_costs(make_events, epsilon, delta)
    sigma = _search(make_events, epsilon * (1 - _MARGIN), delta)
    if entry:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial = entry.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps({"key": key, "noise_multiplier": sigma}), encoding="utf-8")
        os.replace(partial, entry)
    return sigma


def _cached(entry: Path, key: str) -> float | None:
    try:
        record = json.loads(entry.read_text(encoding="utf-8"))
        sigma = float(record["noise_multiplier"])
        return sigma if record["key"] == key and 0 < sigma < math.inf else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _refuse_fixed_costs(make_events: Callable[[float], Sequence[Event]], target: float, delta: float) -> None:
    noisier = make_events(2.0)
    fixed = [event for event in make_events(1.0) if event in noisier]
    cost = epsilon(fixed, delta)
    if cost >= target:
        names = ", ".join(event.what for event in fixed)
        raise UserError(
            f"{names} alone costs epsilon {cost:.4g} of privacy.epsilon={target:.4g} at delta {delta:.3g}: "
            "raise privacy.epsilon, raise algorithm.selection.noise_multiplier (gaussian), or lower "
            "algorithm.selection.epsilon (laplace, gumbel) or algorithm.selection.rows (gumbel)."
        )


def _search(make_events: Callable[[float], Sequence[Event]], target: float, delta: float) -> float:
    def excess(sigma: float, interval: float = INTERVAL) -> float:
        spent = epsilon(make_events(sigma), delta, interval)
        return min(max(math.log(spent / target), -50.0), 50.0) if spent > 0 else -50.0

    def root(start: float, factor: float, interval: float, tolerance: float) -> float:
        low = high = start
        while excess(high, interval) > 0:
            low, high = high, high * factor
            if high > _NOISE_RANGE[1]:
                raise UserError(
                    f"No noise reaches privacy.epsilon={target:.4g} at delta {delta:.3g}: what is fixed (the "
                    "selection) takes all of it. Raise privacy.epsilon or spend less on algorithm.selection."
                )
        while excess(low, interval) <= 0:
            low, high = low / factor, low
            if low < _NOISE_RANGE[0]:
                raise UserError(
                    f"privacy.epsilon={target:.4g} asks for a noise multiplier under {_NOISE_RANGE[0]}, "
                    "which protects no one: lower privacy.epsilon."
                )
        return brentq(excess, low, high, args=(interval,), xtol=tolerance * low, rtol=tolerance)

    sigma = root(root(1.0, 2.0, COARSE_INTERVAL, 1e-4), 1.003, INTERVAL, 1e-6)
    exponent = math.floor(math.log10(sigma)) - 5
    digits = math.ceil(sigma / 10.0**exponent)
    while excess(sigma := float(f"{digits}e{exponent}")) > 0:
        digits += 1
    return sigma


def without_amplification(events: Sequence[Event], steps_per_epoch: int) -> list[Event]:
    """The events as fixed-size shuffled batches really spend them, nothing claimed for sampling.

    An example is in one batch an epoch, so `count` steps touch it at most ceil(count / steps_per_epoch)
    times, each time unsampled; what other batches release does not depend on it. Neighbours differ in one
    example that is present or zeroed out (batches of a fixed size have no notion of one example more).
    """
    return [
        replace(event, sampling_probability=1.0, count=math.ceil(event.count / steps_per_epoch))
        if isinstance(event, GaussianEvent | ExponentialSelectionEvent) and event.sampling_probability
        else event
        for event in events
    ]


def claimed_epsilon(events: Sequence[Event], delta: float, interval: float = INTERVAL) -> float:
    """Epsilon as the paper counts it: claims are added to what the other events cost (basic composition)."""
    claims, rest = 0.0, []
    for event in events:
        if isinstance(event, PureEvent) and event.claimed_epsilon is not None:
            claims += event.count * event.claimed_epsilon
        else:
            rest.append(event)
    return epsilon(rest, delta, interval) + claims
