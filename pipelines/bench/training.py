"""Training steps of any model, for benchmarks: ordinary ones, and those of every algorithm; batches in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from dpfest.accounting.accountant import Event
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import ALGORITHMS, DPSGD
from dpfest.gradients.reading import MicroBatch
from dpfest.noise.key import NoiseKey
from dpfest.planning.unproven import Nonprivate
from dpfest.step.engine import PrivateEngine
from dpfest.step.local import LocalRows
from dpfest.training.arguments import cipher_for
from pipelines.tasks.optimizers import OptimizerConfig, optimizers

ORDINARY = "pytorch sparse"
"""The floor: the same model without privacy, with sparse embedding gradients."""
LAZY = "dpsgd lazy"
ALGORITHM: dict[str, Callable[[], Algorithm]] = {
    "nonprivate": Nonprivate,
    **ALGORITHMS,
    LAZY: lambda: DPSGD(noise="lazy"),
}
"""The algorithm of each private competitor, and of the engine's steps without noise."""
COMPETITORS = (ORDINARY, *ALGORITHM)

SELECTED, MAP_NOISE = 10_000, 5.0
SURVIVORS = 0.5
"""Expected number of untouched rows that survive a step of DP-AdaFEST."""
STEPS = 1 << 14
"""Of a training with correlated noise: more than are taken."""

Losses = Callable[[nn.Module, Any], Tensor]
"""Returns the loss of each example of a batch, ``[b]``."""
Batches = Sequence[Sequence[MicroBatch]]
"""Each batch as micro-batches."""
Step = Callable[[int], None]
"""Takes the training step of this number, with its update."""


def whole(batches: Iterable[Any], size: int) -> Batches:
    """Return batches of so many examples as one micro-batch each."""
    return [[MicroBatch(np.arange(size), batch)] for batch in batches]


def click_losses(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return the cross-entropy of each example, ``[b]``; the labels are the last of a batch's tensors."""
    return nn.functional.binary_cross_entropy_with_logits(model(*batch[:-1]), batch[-1], reduction="none")


def training_step(name: str, model: nn.Module, losses: Losses, batches: Batches, size: int) -> Step:
    """Return the steps of a competitor by name."""
    if name == ORDINARY:
        return ordinary_step(model, losses, batches, size)
    return private_step(ALGORITHM[name](), model, losses, batches, size)


def ordinary_step(
    model: nn.Module,
    losses: Losses,
    batches: Batches,
    size: int,
    settings: OptimizerConfig | None = None,
    sparse: bool = True,
) -> Step:
    """Return the steps of plain PyTorch, whose tables' gradients are sparse or not."""
    for table in _tables(model):
        table.sparse = sparse
    updates = optimizers(model, settings or OptimizerConfig())

    def step(number: int) -> None:
        for batch in batches[number % len(batches)]:
            (losses(model, batch.data).sum() / size).backward()
        for optimizer in updates:
            optimizer.step()
            optimizer.zero_grad()

    return step


def private_step(
    algorithm: Algorithm,
    model: nn.Module,
    losses: Losses,
    batches: Batches,
    size: int,
    map_noise: float = MAP_NOISE,
    rows_in: Callable[..., Any] = LocalRows,
) -> Step:
    """Return the steps of an algorithm, with rows where ``rows_in`` puts them.

    DP-AdaFEST's threshold is that at which ``SURVIVORS`` untouched rows are expected to survive.
    """
    rows = trained_rows(model)
    selected = torch.arange(0, rows, -(-rows // SELECTED)) if algorithm.selection else None
    if isinstance(algorithm, AdaFEST):
        universe = rows if selected is None else len(selected)
        tau = threshold(universe, map_noise * algorithm.contribution_clipping_norm)
        algorithm = replace(algorithm, threshold=tau)
    engine = PrivateEngine(
        model,
        algorithm,
        losses,
        NoiseKey.fresh(cipher_for(model)),
        cost=_cost(algorithm, map_noise),
        expected_batch_size=float(size),
        selected=selected,
        rows=rows_in,
        steps=None if algorithm.bands is None else STEPS,
    )
    updates = optimizers(model, OptimizerConfig())

    def step(number: int) -> None:
        with engine.lazy.private() if engine.lazy else nullcontext():
            release, _ = engine.gradient(batches[number % len(batches)], number)
            engine.update(release, updates)

    return step


def trained_rows(model: nn.Module) -> int:
    """Return the number of rows of all trained tables."""
    return sum(table.num_embeddings for table in _tables(model))


def threshold(rows: int, deviation: float) -> float:
    """Return ``tau`` at which SURVIVORS of `rows` untouched rows are expected to survive noise of this deviation."""
    return -deviation * float(special.ndtri(min(SURVIVORS / rows, 0.5)))


def _tables(model: nn.Module) -> list[Any]:
    kinds = nn.Embedding | nn.EmbeddingBag
    return [module for module in model.modules() if isinstance(module, kinds) and module.weight.requires_grad]


def _cost(algorithm: Algorithm, map_noise: float) -> Event | None:
    """Return an event with noise multipliers for a step, of no epsilon in particular; None for a step without noise."""
    event = algorithm.step_event(1.0, 0.01)
    if event is None:
        return None
    on_map = None if event.map_noise_multiplier is None else map_noise
    return replace(event, gradient_noise_multiplier=1.0, map_noise_multiplier=on_map, bands=algorithm.bands)
