"""What `dpfest budget` says of noise that is correlated over steps: how much of it accumulates in a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from dpfest.accounting.bands import MOST_BANDS, strategy
from dpfest.planning.privacy_plan import PrivacyPlan
from pipelines.config.settings import Config

PROMISE = "computed for SGD at a constant rate; what it gained in utility, and where nothing: docs/FINDINGS.md"


def accumulated(correlated: PrivacyPlan, independent: PrivacyPlan, period: int = 0) -> float:
    """Return the noise that accumulates in a row under correlated noise, relative to independent noise.

    The root mean square over the first 1, 2, ..., T steps of a period, at a constant learning rate of SGD.
    """
    bands, steps = correlated.algorithm.bands, correlated.periods[period].steps
    with_bands, without = (plan.step(period) for plan in (correlated, independent))
    assert bands is not None and with_bands is not None and without is not None
    sigma, other = with_bands.gradient_noise_multiplier, without.gradient_noise_multiplier
    assert sigma is not None and other is not None
    return sigma * strategy(bands, steps).accumulated(steps) / other


def may_be_correlated(config: Config) -> bool:
    """Return whether correlated noise is an option that is left out; of one period alone."""
    algorithm, privacy = config.algorithm, config.privacy
    known = any(setting.name == "bands" for setting in fields(algorithm)) and algorithm.bands is None
    may = known and not algorithm.lazy and privacy.fidelity == "rigorous" and privacy.sampling in (None, "poisson")
    return may and not config.data.is_stream


def with_bands(config: Config, bands: int | None) -> Config:
    """Return a configuration with so many bands, None for independent noise, and the sampling that goes with them."""
    if bands == config.algorithm.bands:
        return config
    algorithm, privacy = replace(config.algorithm, bands=bands), replace(config.privacy, sampling=None)
    return replace(config, algorithm=algorithm, privacy=privacy)


def by_bands(independent: PrivacyPlan, plan_with: Callable[[int], PrivacyPlan]) -> dict[int, float]:
    """Return what would accumulate in a row, relative to a plan's independent noise, for powers of two of bands.

    Up to the number from which on more bands accumulate more.

    Args:
        independent: the plan.
        plan_with: returns that with so many bands.
    """
    found: dict[int, float] = {}
    most = min(MOST_BANDS, independent.steps, independent.examples // independent.batch_size)
    for number in (2**power for power in range(1, most.bit_length())):
        found[number] = accumulated(plan_with(number), independent)
        if found[number] > 1.1 * min(found.values()):
            break
    return found


def advice(found: Mapping[int, float]) -> str:
    """Return which number of bands leaves least; "" where none leaves less than independent noise."""
    best = min(found, key=found.__getitem__, default=None)
    if best is None or found[best] >= 1:
        return ""
    return f"algorithm.bands={best} would leave {found[best]:.2f} of the noise that accumulates in a row"
