"""The pCTR model at any number of rows, and its competitors: plain PyTorch and our algorithms.

Embedding dimensions, and therefore the network, are those of the published vocabularies at every size: only the tables
grow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.bench.case import Case, sizes_up_to
from pipelines.bench.measure import Turn, steps
from pipelines.bench.training import ORDINARY, click_losses, ordinary_step, training_step, whole
from pipelines.config.settings import Config
from pipelines.data.clicks.criteo import PUBLISHED_SIZES
from pipelines.data.rows import NUMERIC_FEATURES
from pipelines.tasks.clicks import Batch, Evaluation
from pipelines.tasks.optimizers import DenseOptimizerConfig, OptimizerConfig
from pipelines.tasks.pctr import PctrConfig, PctrModel, embedding_dim
from pipelines.tasks.task import device_of

FUSED = "pytorch sparse, fused Adam"
ORDINARY_OPTIMIZERS = {
    ORDINARY: OptimizerConfig(dense=DenseOptimizerConfig(options={"fused": None})),
    FUSED: OptimizerConfig(),
}
"""The floor has the defaults of torch.optim."""

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

Maker = Callable[[str, int, PctrConfig, Sequence[Tensor]], Turn]
"""Makes the turns of a competitor by name, at a batch size, of a model's settings, on tables."""


def sizes(config: Config) -> tuple[int, ...]:
    """Return total numbers of rows, published and scaled, up to `bench.largest_rows`."""
    return sizes_up_to(config.bench.largest_rows, tuple(scale * PUBLISHED_ROWS for scale in SCALES))


def case(rows: int, config: Config, makers: Mapping[str, Maker], **how: Any) -> Case:
    """Return the case of a size, of competitors on the same tables; ``how`` are the case's other attributes."""
    device, size = device_of(config.device), config.train.batch_size
    return Case(
        name=f"pCTR, {rows:,} rows",
        competitors={name: partial(make, name, size, config.model) for name, make in makers.items()},
        shared=partial(tables, rows, device),
        device=device,
        fields={"table_rows": rows, "batch_size": size},
        **how,
    )


def vocabularies(rows: int) -> list[int]:
    """Return the published sizes scaled to about `rows` rows in total."""
    return [max(1, round(size * rows / PUBLISHED_ROWS)) for size in PUBLISHED_SIZES]


def tables(rows: int, device: torch.device) -> list[Tensor]:
    """Return weights of the 26 tables, which competitors share in turns."""
    sizes = zip(vocabularies(rows), DIMENSIONS, strict=True)
    return [torch.empty(size, dim, device=device).fill_(0.01) for size, dim in sizes]


def model_on(weights: Sequence[Tensor], config: PctrConfig) -> PctrModel:
    """Return a pCTR model with these tables and its own network."""
    model = PctrModel(PUBLISHED_SIZES, NUMERIC_FEATURES, config, 0).to(weights[0].device)
    for place, weight in enumerate(weights):
        model.tables[place] = nn.Embedding(len(weight), weight.shape[1], _weight=weight)
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


def competitor(name: str, batch_size: int, config: PctrConfig, weights: Sequence[Tensor]) -> Turn:
    """Return training steps of a competitor, with updates, on tables that others share in turns."""
    device = weights[0].device
    if name == PRODUCTS:
        return steps(_products(batch_size, config, device), device)
    model = model_on(weights, config)
    data = batches([len(weight) for weight in weights], batch_size, device)
    if name == EVALUATION:
        evaluation = Evaluation()
        return steps(lambda number: evaluation.add(model, data[number % len(data)]), device)
    read = whole(data, batch_size)
    if name in ORDINARY_OPTIMIZERS:
        return steps(ordinary_step(model, click_losses, read, batch_size, ORDINARY_OPTIMIZERS[name]), device)
    return steps(training_step(name, model, click_losses, read, batch_size), device)


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
