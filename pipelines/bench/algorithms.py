"""Private steps of every algorithm on a whole model, for benchmarks: settings for any size, batches in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import ALGORITHMS, DPSGD
from dpfest.gradients.reading import MicroBatch
from dpfest.noise.key import NoiseKey
from dpfest.planning.unproven import Nonprivate
from dpfest.step.engine import PrivateEngine
from dpfest.step.local import LocalRows
from pipelines.bench.embedding import step_cost, threshold
from pipelines.tasks.optimizers import OptimizerConfig, optimizers

LAZY = "dpsgd lazy"
COMPETITORS: dict[str, Callable[[], Algorithm]] = {
    "nonprivate": Nonprivate,
    **ALGORITHMS,
    LAZY: lambda: DPSGD(noise="lazy"),
}
"""Algorithms by name."""

SELECTED, MAP_NOISE = 10_000, 5.0


def private_step(
    name: str,
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    batches: Sequence[Sequence[MicroBatch]],
    batch_size: int,
    rows_in: Callable[..., Any] = LocalRows,
) -> Callable[[int], None]:
    """Return numbered training steps of an algorithm, with updates, with rows where ``rows_in`` puts them.

    ``batches`` holds each batch as micro-batches.
    """
    algorithm = COMPETITORS[name]()
    rows = sum(
        m.num_embeddings
        for m in model.modules()
        if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.weight.requires_grad
    )
    selected = torch.arange(0, rows, -(-rows // SELECTED)) if algorithm.selection else None
    if isinstance(algorithm, AdaFEST):
        universe = rows if selected is None else len(selected)
        tau = threshold(universe, MAP_NOISE * algorithm.contribution_clipping_norm)
        algorithm = replace(algorithm, threshold=tau)
    engine = PrivateEngine(
        model,
        algorithm,
        loss_fn,
        NoiseKey.fresh(),
        cost=step_cost(algorithm, MAP_NOISE),
        expected_batch_size=float(batch_size),
        selected=selected,
        rows=rows_in,
    )
    updates = optimizers(model, OptimizerConfig())

    def step(number: int) -> None:
        with engine.lazy.private() if engine.lazy else nullcontext():
            release, _ = engine.gradient(batches[number % len(batches)], number)
            engine.update(release, updates)

    return step
