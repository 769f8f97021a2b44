"""The unit of privacy in the configuration: settings, and what it cannot be combined with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpfest.planning.ledger import EXAMPLE
from pipelines.config.schema import nearest
from pipelines.system.ranges import Count

if TYPE_CHECKING:
    from pipelines.config.settings import Config


@dataclass
class UnitSettings:
    """What a unit of several examples contributes; without effect where ``privacy.unit`` is an example, but recorded.

    Attributes:
        max_examples: examples of a unit that a step reads, at most, chosen at random; also the rows of one feature in
            which a row selection counts a unit, at most (of a bag, so many times those of an example).
        combine: ``mean`` or ``sum`` of their gradients, which is then clipped.
    """

    max_examples: Count = 32
    combine: Literal["mean", "sum"] = "mean"


def check_unit(config: Config) -> None:
    """Refuse a unit that the data do not have, or that cannot be combined with other settings.

    Raises:
        ValueError: names the keys.
    """
    unit, data = config.privacy.unit, config.data
    if unit == EXAMPLE:
        return
    if unit not in data.units:
        has = f"which has {' and '.join(data.units)}" if data.units else "which has none: leave it at example"
        guess = nearest(unit, (*data.units, EXAMPLE)) if data.units else None
        meant = f"; did you mean privacy.unit={guess}?" if guess else "."
        raise ValueError(f"privacy.unit={unit} is no column of units of data={data.name}, {has}{meant}")
    if config.privacy.fidelity != "rigorous":
        raise ValueError(f"privacy.unit={unit} needs privacy=rigorous: the paper counts examples alone.")
    if config.over_ranks:
        raise ValueError(
            f"privacy.unit={unit} cannot be trained over ranks, which divide a batch by example: start it without "
            "torchrun, or set distributed=off."
        )
    most, at_once = config.unit.max_examples, config.train.micro_batch_size
    if at_once is not None and at_once < most:
        raise ValueError(
            f"train.micro_batch_size={at_once} must be at least unit.max_examples={most}: the examples of a unit are "
            "clipped together."
        )
