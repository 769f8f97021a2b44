"""The pCTR model at any number of rows, and its competitors: plain PyTorch and our algorithms.

Embedding dimensions, and therefore the network, are those of the published vocabularies at every size: only the tables
grow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.gradients.reading import MicroBatch
from pipelines.bench.algorithms import private_step
from pipelines.bench.measure import Turn, steps
from pipelines.data.clicks.criteo import PUBLISHED_SIZES
from pipelines.data.rows import NUMERIC_FEATURES
from pipelines.tasks.clicks import Batch, Evaluation
from pipelines.tasks.optimizers import OptimizerConfig
from pipelines.tasks.pctr import PctrConfig, PctrModel, embedding_dim

ORDINARY = "pytorch sparse"
"""The floor: the same model without privacy, with sparse embedding gradients and the defaults of torch.optim."""

FUSED = "pytorch sparse, fused Adam"
PRODUCTS = "matrix products"
"""Below the floor: only the matrix products of the step's forward and backward pass."""

EVALUATION = "evaluation"
"""Not a step: the evaluation of as many examples, from which `dpfest report --list` estimates whole runs."""

PUBLISHED_ROWS = sum(PUBLISHED_SIZES)
SCALES = (1, 5, 50)
"""Multiples of the published vocabularies: 338,782, 1.7 million and 17 million rows."""

DIMENSIONS = tuple(embedding_dim(size) for size in PUBLISHED_SIZES)
COORDINATES_PER_ROW = sum(v * d for v, d in zip(PUBLISHED_SIZES, DIMENSIONS, strict=True)) / PUBLISHED_ROWS
_BATCHES, _ZIPF = 8, 1.1


def vocabularies(rows: int) -> list[int]:
    """Return the published sizes scaled to about `rows` rows in total."""
    return [max(1, round(size * rows / PUBLISHED_ROWS)) for size in PUBLISHED_SIZES]


def tables(rows: int, device: torch.device) -> list[Tensor]:
    """Return weights of the 26 tables, which competitors share in turns."""
    sizes = zip(vocabularies(rows), DIMENSIONS, strict=True)
    return [torch.empty(size, dim, device=device).fill_(0.01) for size, dim in sizes]


def model_on(weights: Sequence[Tensor], config: PctrConfig, sparse: bool = False) -> PctrModel:
    """Return a pCTR model with these tables and its own network."""
    model = PctrModel(PUBLISHED_SIZES, NUMERIC_FEATURES, config, 0).to(weights[0].device)
    for place, weight in enumerate(weights):
        model.tables[place] = nn.Embedding(len(weight), weight.shape[1], _weight=weight, sparse=sparse)
    return model


def batches(sizes: Sequence[int], batch_size: int, device: torch.device) -> list[Batch]:
    """Return batches as skewed as the generated click logs (Zipf), the same for every competitor."""
    generator = np.random.default_rng(0)
    shape = (_BATCHES, batch_size)
    ids = np.empty((*shape, len(sizes)), np.int64)
    for feature, size in enumerate(sizes):
        shares = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -_ZIPF)
        places = np.searchsorted(shares, generator.random(shape) * shares[-1], side="right")
        ids[:, :, feature] = np.minimum(places, size - 1)
    numeric = generator.standard_normal((*shape, NUMERIC_FEATURES), dtype=np.float32)
    labels = generator.integers(0, 2, shape).astype(np.float32)
    parts = [torch.from_numpy(part).to(device) for part in (numeric, ids, labels)]
    return [(numeric, ids, label) for numeric, ids, label in zip(*parts, strict=True)]


def alone(name: str, rows: int, batch_size: int, config: PctrConfig, device: str) -> Turn:
    """Return a competitor with its own tables."""
    return competitor(name, tables(rows, torch.device(device)), batch_size, config)


def competitor(name: str, weights: Sequence[Tensor], batch_size: int, config: PctrConfig) -> Turn:
    """Return training steps of a competitor, with updates, on tables that others share in turns."""
    device = weights[0].device
    if name == PRODUCTS:
        return steps(_products(batch_size, config, device), device)
    model = model_on(weights, config, sparse=name in (ORDINARY, FUSED))
    data = batches([len(weight) for weight in weights], batch_size, device)

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2], reduction="none")

    examples = np.arange(batch_size)
    if name == EVALUATION:
        evaluation = Evaluation()
        return steps(lambda number: evaluation.add(model, data[number % len(data)]), device)
    if name in (ORDINARY, FUSED):
        return steps(_ordinary(model, losses, data, fused=name == FUSED), device)
    return steps(
        private_step(name, model, losses, [[MicroBatch(examples, batch)] for batch in data], batch_size), device
    )


def _ordinary(
    model: PctrModel, losses: Callable[[nn.Module, Batch], Tensor], data: list[Batch], fused: bool
) -> Callable[[int], None]:
    settings = OptimizerConfig()
    dense = torch.optim.Adam(model.network.parameters(), lr=settings.dense.learning_rate, fused=fused or None)
    sparse = torch.optim.SGD(model.tables.parameters(), lr=settings.tables.learning_rate)

    def step(number: int) -> None:
        dense.zero_grad()
        sparse.zero_grad()
        losses(model, data[number % len(data)]).mean().backward()
        dense.step()
        sparse.step()

    return step


def _products(batch_size: int, config: PctrConfig, device: torch.device) -> Callable[[int], None]:
    widths = [NUMERIC_FEATURES + sum(DIMENSIONS), *config.hidden, 1]
    layers = [
        (
            torch.randn(batch_size, wide, device=device),
            torch.randn(narrow, wide, device=device),
            torch.randn(batch_size, narrow, device=device),
        )
        for wide, narrow in itertools.pairwise(widths)
    ]

    def step(number: int) -> None:
        for inputs, weight, arriving in layers:
            inputs @ weight.T
            arriving.T @ inputs
            arriving @ weight

    return step
