"""Flaws that an audit must detect: each changes an engine's noise and not the claim.

dpfest/ is unaware of them: they change the arguments of an engine, or its release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import Strategy
from dpfest.algorithms.algorithm import Algorithm
from dpfest.gradients.parts import NoisedGradient
from dpfest.step.correlated import Correlated
from dpfest.step.engine import PrivateEngine
from pipelines.audit.pair import After

_NEXT_TO_NOTHING = 1e-9  # an engine may refuse noise of exactly zero


@dataclass(frozen=True)
class Sabotage:
    """One flaw.

    Attributes:
        name: name in results.
        applies: whether an algorithm has the noise that this removes.
        noise: replaces the event whose noise an engine adds.
        after: changes its release.
        ignores_unit: whether its engine clips and counts each example of a unit on its own.
        spoil: changes its engine.
        every_step: whether an example takes part in consecutive steps, under noise that is correlated over them.
    """

    name: str
    applies: Callable[[Algorithm], bool]
    noise: Callable[[Event], Event] = lambda event: event
    after: After | None = None
    ignores_unit: bool = False
    spoil: Callable[[PrivateEngine], None] | None = None
    every_step: bool = False


def _scaled(event: Event, gradient: float, choice: float) -> Event:
    """Scale the noise of the gradient and of the choice of rows."""
    scaled: dict[str, Any] = {}
    for name, factor in (
        ("gradient_noise_multiplier", gradient),
        ("map_noise_multiplier", choice),
        ("epsilon_per_draw", 1 / choice),  # the noise of a draw is inverse to its cost
    ):
        if (value := getattr(event, name)) is not None:
            scaled[name] = value * factor
    return replace(event, **scaled)


def _silence_untouched(gradient: NoisedGradient, touched: Tensor) -> None:
    """Noise only rows that the batch touched, the typical mistake of a sparse optimiser."""
    (table,) = gradient.tables
    rows = torch.arange(len(table.values), device=touched.device) if table.rows is None else table.rows
    table.values[~torch.isin(rows, touched)] = 0


class _Unnormalised(Strategy):
    """A strategy whose columns are longer than is accounted for."""

    norm = 1.0


def _lengthen_columns(engine: PrivateEngine) -> None:
    noise = engine.noise
    assert isinstance(noise, Correlated)
    coefficients = noise.strategy.coefficients
    engine.noise = Correlated(noise.deviation, _Unnormalised(coefficients), len(coefficients))


SABOTAGES = (
    Sabotage("columns of the strategy too long", lambda algorithm: bool(algorithm.bands), spoil=_lengthen_columns),
    Sabotage("groups ignored", lambda algorithm: bool(algorithm.bands), every_step=True),
    Sabotage("gradient noise halved", lambda algorithm: True, lambda event: _scaled(event, 0.5, 1)),
    Sabotage(
        "no noise on the choice of rows",
        lambda algorithm: type(algorithm).measure is not Algorithm.measure,  # a batch decides on rows
        lambda event: _scaled(event, 1, _NEXT_TO_NOTHING),
    ),
    Sabotage("no noise on untouched rows", lambda algorithm: algorithm.name != "frozen", after=_silence_untouched),
    Sabotage("no noise", lambda algorithm: True, lambda event: _scaled(event, _NEXT_TO_NOTHING, _NEXT_TO_NOTHING)),
)
"""From the subtle to the gross."""

UNIT_IGNORED = Sabotage("unit ignored", lambda algorithm: True, ignores_unit=True)
"""Applies where the unit of privacy is no example."""
