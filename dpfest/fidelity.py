"""Fidelity: how epsilon is counted, ``rigorous`` (proven) or as the paper does (``dpfest.unproven``, not proven)."""

from __future__ import annotations

from collections.abc import Sequence

from dpfest import accounting
from dpfest.accounting import Event
from dpfest.batches import PoissonBatches
from dpfest.unproven import Paper


class Rigorous:
    """Batches are Poisson samples of the data they are drawn from, and all releases are composed.

    Formal guarantee: ``cost`` is a proven epsilon.
    """

    sampling, batches = "poisson", PoissonBatches
    own_rates = True  # a period's batches are accounted for as samples of its own examples
    statement = "Each batch is a Poisson sample, and is accounted as one."
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

    @staticmethod
    def as_sampled(step: Event, examples: int, batch_size: int) -> Event:
        """Return a period's step with whatever its accounting needs besides: unchanged."""
        return step


FIDELITIES: dict[str, type[Rigorous] | type[Paper]] = {"rigorous": Rigorous, "paper": Paper}
"""Every fidelity by name."""
