"""How a run's epsilon is counted: `rigorous`, which is proven, or the paper's way (`dpfest.unproven`), which is not."""

from __future__ import annotations

from collections.abc import Sequence

from dpfest import accounting
from dpfest.accounting import Event
from dpfest.batches import PoissonBatches
from dpfest.unproven import Paper


class Rigorous:
    """Batches are Poisson samples of what they are drawn from, and every release is composed with all others.

    Formal guarantee: `cost` is a proven epsilon.
    """

    sampling, batches = "poisson", PoissonBatches
    own_rates = True  # a period's batches count as samples of its own examples
    statement = "Each batch is a Poisson sample, and is accounted as one."
    counts_of_gumbel = "true cost"
    cost = staticmethod(accounting.epsilon)

    @staticmethod
    def sound(events: Sequence[Event]) -> Sequence[Event]:
        """The events with nothing unproven claimed of them: as they are."""
        return events

    @staticmethod
    def to_compose(target: float, selections: list[Event]) -> tuple[float, list[Event]]:
        """The target of the steps, and the selections that are composed with them: both as they are."""
        return target, selections

    @staticmethod
    def as_sampled(step: Event, examples: int, batch_size: int) -> Event:
        """A period's step, of so many examples, with what counting it takes: nothing else."""
        return step


FIDELITIES: dict[str, type[Rigorous] | type[Paper]] = {"rigorous": Rigorous, "paper": Paper}
"""Every way of counting, by its name."""
