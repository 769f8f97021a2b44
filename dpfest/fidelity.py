"""Fidelity: how epsilon is counted, ``rigorous`` (proven) or as the paper does (``dpfest.unproven``, not proven)."""

from __future__ import annotations

from collections.abc import Sequence

from dpfest import accounting
from dpfest.accounting import Event
from dpfest.errors import UserError
from dpfest.sampling import BallsInBins, Poisson, Sampler, TruncatedPoisson
from dpfest.unproven import Paper, Shuffled


class Rigorous:
    """Batches are sampled as they are accounted, from the data they are drawn from, and all releases are composed.

    Formal guarantee: ``cost`` is a proven epsilon.
    """

    samplings = (Poisson.name, TruncatedPoisson.name, BallsInBins.name)  # the first is the default
    own_rates = True  # a period's batches are accounted for as samples of its own examples
    selects_rows_by = "gaussian"  # the mechanism of a selection that names none
    splits_rows = "joint"  # among features, by a selection that does not say how
    counts_of_gumbel = "true cost"
    cost = staticmethod(accounting.epsilon)

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
SAMPLERS: dict[str, type[Sampler]] = {kind.name: kind for kind in (Poisson, TruncatedPoisson, BallsInBins, Shuffled)}
"""Every sampler by name."""


def sampling_of(fidelity: str, sampling: str | None) -> str:
    """Return the name of a sampler that fits the fidelity, which None leaves to it. Raises UserError for another."""
    fitting = FIDELITIES[fidelity].samplings
    if sampling not in (None, *fitting):
        raise UserError(f"sampling={sampling!r} does not fit fidelity={fidelity!r}: choose {' or '.join(fitting)}.")
    return sampling or fitting[0]
