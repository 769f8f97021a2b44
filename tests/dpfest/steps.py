"""Steps of a bare engine: micro-batches without a data set, losses without a model argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpfest.accounting.accountant import Event
from dpfest.algorithms.algorithm import Algorithm
from dpfest.gradients.parts import NoisedGradient
from dpfest.gradients.reading import MicroBatch
from dpfest.noise.key import NoiseKey
from dpfest.step.engine import PrivateEngine
from dpfest.step.step_noise import Independent


def by_batch(losses: Callable[[Any], Any]) -> Callable[[nn.Module, Any], Any]:
    """A loss function of a model and a batch, from one of the batch alone."""
    return lambda _, batch: losses(batch)


def micro_batches(parts: Sequence[Any], count: Callable[[Any], int] | None = None) -> list[MicroBatch]:
    """Micro-batches whose examples are numbered from 0; a part has as many as its last tensor, unless `count` says."""
    found, first = [], 0
    for part in parts:
        size = count(part) if count else len(tree_leaves(part)[-1])
        found.append(MicroBatch(np.arange(first, first + size), part))
        first += size
    return found


def released(engine: PrivateEngine, parts: Sequence[Any], step: int) -> NoisedGradient:
    """What a step of the engine on these micro-batches releases."""
    return engine.gradient(micro_batches(parts), step)[0]


def clipped(engine: PrivateEngine, part: Any) -> dict[str, Tensor]:
    """A step's gradient by parameter, tables dense."""
    release = released(engine, [part], 0)
    found = dict(release.dense)
    for (name, table), rows in zip(engine.recorder.tables.items(), release.tables, strict=True):
        values = found.setdefault(f"{name}.weight", table.weight.detach().new_zeros(table.weight.shape))
        values[slice(None) if rows.rows is None else rows.rows] = rows.values
    return found


def step_cost(
    gradient_noise_multiplier: float,
    map_noise_multiplier: float | None = None,
    epsilon_per_draw: float | None = None,
) -> Event:
    """An event with noise multipliers of a test's own choice."""
    gaussian = Event(
        kind="gaussian", what="step", noise_multiplier=1.0, gradient_noise_multiplier=gradient_noise_multiplier,
        map_noise_multiplier=map_noise_multiplier,
    )  # fmt: skip
    if epsilon_per_draw is None:
        return gaussian
    return replace(gaussian, kind="exponential_selection", draws=1, epsilon_per_draw=epsilon_per_draw)


def engine_with(
    model: nn.Module,
    algorithm: Algorithm,
    losses: Any,
    key: NoiseKey,
    *,
    gradient_noise_multiplier: float,
    map_noise_multiplier: float | None = None,
    epsilon_per_draw: float | None = None,
    **options: Any,
) -> PrivateEngine:
    """An engine with such multipliers; 0 for no noise on the gradient."""
    cost = step_cost(gradient_noise_multiplier or 1.0, map_noise_multiplier, epsilon_per_draw)
    noise = None if gradient_noise_multiplier else Independent(0.0)
    return PrivateEngine(model, algorithm, losses, key, cost=cost, noise=noise, **options)
