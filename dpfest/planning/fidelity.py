"""Fidelity: how epsilon is counted, ``rigorous`` (proven) or as the paper does (:mod:`~dpfest.planning.unproven`)."""

from __future__ import annotations

from collections.abc import Sequence

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import fewer
from dpfest.errors import UserError, whole_number
from dpfest.planning.other_samplers import BallsInBins, CyclicPoisson, TruncatedPoisson, default_max_batch_size
from dpfest.planning.periods import Period
from dpfest.planning.sampling import Poisson, Sampler
from dpfest.planning.unproven import Paper, Shuffled


class Rigorous:
    """Batches are sampled as they are accounted, from the data they are drawn from, and all releases are composed.

    Formal guarantee: ``cost`` is a proven epsilon.
    """

    samplings = (Poisson.name, TruncatedPoisson.name, BallsInBins.name, CyclicPoisson.name)  # the first is the default
    own_rates = True  # a period's batches are accounted for as samples of its own examples
    selects_rows_by = "gaussian"  # the mechanism of a selection that names none
    splits_rows = "joint"  # among features, by a selection that does not say how
    counts_of_gumbel = "true cost"
    cost = staticmethod(accountant.epsilon)

    @staticmethod
    def sound(events: Sequence[Event]) -> Sequence[Event]:
        """Return the events without unproven claims: unchanged."""
        return events

    @staticmethod
    def to_compose(target: float, selections: list[Event]) -> tuple[float, list[Event]]:
        """Return the target of the steps, and the selections to compose with them: both unchanged."""
        return target, selections


FIDELITIES: dict[str, type[Rigorous] | type[Paper]] = {"rigorous": Rigorous, "paper": Paper}
"""Every fidelity by name."""
SAMPLERS: dict[str, type[Sampler]] = {
    kind.name: kind for kind in (Poisson, TruncatedPoisson, BallsInBins, CyclicPoisson, Shuffled)
}
"""Every sampler by name."""


def sampling_of(fidelity: str, sampling: str | None) -> str:
    """Return the name of a sampler that fits the fidelity, which None leaves to it. Raises UserError for another."""
    fitting = FIDELITIES[fidelity].samplings
    if sampling not in (None, *fitting):
        raise UserError(f"sampling={sampling!r} does not fit fidelity={fidelity!r}: choose {' or '.join(fitting)}.")
    return sampling or fitting[0]


def sampling_for(bands: int | None, fidelity: str, name: str | None) -> str:
    """Return the name of a plan's sampler; that of correlated noise for it alone.

    Args:
        bands: of the algorithm's noise.
        fidelity: how epsilon is counted.
        name: of the sampler that is asked for; None leaves it open.

    Raises:
        UserError: they do not go together.
    """
    if bands is None:
        if name == CyclicPoisson.name:
            raise UserError(
                f"sampling={name} is for noise that is correlated over steps: give the algorithm bands, or choose "
                "sampling=poisson."
            )
        return sampling_of(fidelity, name)
    if fidelity != "rigorous":
        raise UserError(
            f"bands={bands} needs batches of groups in turn, and fidelity={fidelity} shuffles: leave bands out, "
            "or choose fidelity=rigorous."
        )
    if name not in (None, CyclicPoisson.name):
        raise UserError(
            f"bands={bands} is accounted for sampling={CyclicPoisson.name} alone, not for sampling={name}: "
            "leave sampling out."
        )
    return CyclicPoisson.name


def sampler_for(
    bands: int | None, name: str, largest: int | None, periods: Sequence[Period], batch_size: int, delta: float
) -> Sampler:
    """Return the sampler of a name from :func:`sampling_for`, for these periods.

    Raises:
        UserError: a size, or a number of bands, does not fit.
    """
    if name != TruncatedPoisson.name:
        if largest is not None:
            raise UserError(f"max_batch_size={largest} applies to sampling=truncated_poisson alone: leave it out.")
        if bands is None:
            return SAMPLERS[name]()
        _refuse_more_bands(bands, periods, batch_size)
        return CyclicPoisson(bands)
    if largest is None:
        largest = default_max_batch_size([(one.examples, one.steps) for one in periods], batch_size, delta)
    if whole_number("max_batch_size", largest) < batch_size:
        raise UserError(f"max_batch_size={largest} must be at least batch_size={batch_size}, the expected size.")
    return TruncatedPoisson(int(largest))


def _refuse_more_bands(bands: int, periods: Sequence[Period], batch_size: int) -> None:
    """Refuse more bands than a period has steps, or groups of fewer examples than a batch."""
    of, longer = "", ""
    for number, one in enumerate(periods):
        if len(periods) > 1:
            of, longer = f" in period {number + 1} of {len(periods)}", ", or longer periods"
        if bands > one.steps:
            raise UserError(f"bands={bands} exceeds the number of steps{of}, {one.steps}: {fewer(one.steps)}{longer}.")
        if bands * batch_size > one.examples:
            raise UserError(
                f"bands={bands} samples {batch_size:,} a step from one in {bands} of {one.examples:,}{of}, which are "
                f"fewer: {fewer(one.examples // batch_size)}, or smaller batches{longer}."
            )
