"""What a population is called: its data, model, accounting and profile, and what else tells it from another."""

from __future__ import annotations

from collections.abc import Sequence

from reports.comparison import Population
from reports.texts import vocabulary


def heading(population: Population, among: Sequence[Population]) -> str:
    """A name that no other population in `among` has: with the rows of the largest table, the number of examples, or
    the fingerprint of data and model where the shorter ones are shared."""

    def names(of: Population) -> list[str]:
        short = ", ".join(filter(None, (of.dataset, of.model, of.fidelity, of.profile)))
        rows = f"largest table of {vocabulary(of):,} rows"
        return [short, f"{short}, {rows}", f"{short}, N = {of.examples:,}", f"{short}, data and model {of.material}"]

    own, others = names(population), [names(other) for other in among if other is not population]
    return next((name for i, name in enumerate(own) if all(other[i] != name for other in others)), own[-1])
