"""Section `small`: steps of a few milliseconds, in which what a private step costs besides arithmetic shows most.

Two models of docs/LIBRARY.md, in the sizes of their papers' examples: a DLRM (Naumov et al., 2019) with eight bags and
three small layers, and a two-tower recommender with sampled softmax; each against its ordinary step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from dpfest.gradients.reading import MicroBatch
from pipelines.bench.algorithms import COMPETITORS, private_step
from pipelines.bench.measure import Turn, steps, take_turns
from pipelines.bench.records import Record, records
from pipelines.config.settings import Config
from pipelines.system.progress import progress
from pipelines.tasks.optimizers import OptimizerConfig, optimizers
from pipelines.tasks.task import device_of

ORDINARY = "pytorch sparse"
"""The floor: the same model without privacy, with sparse embedding gradients and the defaults of torch.optim."""

ROWS, FEATURES, DIMENSION, NUMBERS, NEGATIVES = 20_000, 8, 16, 13, 10
_BATCHES = 8


class Dlrm(nn.Module):
    """Numbers ``[b, 13]`` and rows ``[b, 8, 2]`` to scores ``[b]``."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, DIMENSION), nn.ReLU())
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, DIMENSION, mode="sum", sparse=sparse) for _ in range(FEATURES))
        pairs = (FEATURES + 1) * FEATURES // 2
        self.top = nn.Sequential(nn.Linear(DIMENSION + pairs, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.triu_indices(FEATURES + 1, FEATURES + 1, offset=1))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(numbers)
        vectors = torch.stack([bottom, *(bag(ids[:, place]) for place, bag in enumerate(self.bags))], dim=1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]  # type: ignore[index]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


class TwoTowers(nn.Module):
    """Users ``[b]`` and candidates ``[b, c]`` to scores ``[b, c]``."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(FEATURES * ROWS, DIMENSION, sparse=sparse)
        self.items = nn.Embedding(ROWS, DIMENSION, sparse=sparse)
        self.user_tower, self.item_tower = nn.Linear(DIMENSION, DIMENSION), nn.Linear(DIMENSION, DIMENSION)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        towers = self.user_tower(self.users(users)).unsqueeze(2)
        return (self.item_tower(self.items(items)) @ towers).squeeze(2)


def _clicks(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    numbers, ids, labels = batch
    return binary_cross_entropy_with_logits(model(numbers, ids), labels, reduction="none")


def _sampled_softmax(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    users, items = batch
    return cross_entropy(model(users, items), torch.zeros_like(users), reduction="none")


def _click_batch(size: int, generator: torch.Generator) -> list[Tensor]:
    ids = (ROWS ** torch.rand(size, FEATURES, 2, generator=generator)).long()
    labels = torch.randint(2, (size,), generator=generator).float()
    return [torch.randn(size, NUMBERS, generator=generator), ids, labels]


def _pair_batch(size: int, generator: torch.Generator) -> list[Tensor]:
    users = torch.randint(FEATURES * ROWS, (size,), generator=generator)
    return [users, (ROWS ** torch.rand(size, 1 + NEGATIVES, generator=generator)).long()]


CASES: dict[str, tuple[Callable[[bool], nn.Module], Callable[..., Tensor], Callable[..., list[Tensor]]]] = {
    "DLRM": (Dlrm, _clicks, _click_batch),
    "two towers": (TwoTowers, _sampled_softmax, _pair_batch),
}
"""Model, loss and batch of each case."""


def bench(config: Config, repeats: int) -> list[Record]:
    """Time every competitor on both models."""
    device, size, results = device_of(config.device), config.train.batch_size, list[Record]()
    names = [ORDINARY, *COMPETITORS]
    with progress("small") as report:
        for number, case in enumerate(CASES):
            report(number, len(CASES), case)
            turns = {name: competitor(name, case, size, device) for name in names}
            times = take_turns(turns, ORDINARY, repeats=repeats, seconds=config.bench.seconds)
            rows = sum(table.num_embeddings for table in _tables(CASES[case][0](False)))
            described = {"case": f"{case}, {rows:,} rows", "table_rows": rows, "batch_size": size}
            results += records(times, ORDINARY, section="small", **described)
    return results


def competitor(name: str, case: str, size: int, device: torch.device) -> Turn:
    """Return training steps of a competitor on its own model."""
    make, losses, draw = CASES[case]
    torch.manual_seed(0)
    model, generator = make(name == ORDINARY).to(device), torch.Generator().manual_seed(0)
    batches = [[part.to(device) for part in draw(size, generator)] for _ in range(_BATCHES)]
    if name == ORDINARY:
        return steps(_ordinary(model, losses, batches), device)
    read = [[MicroBatch(np.arange(size), batch)] for batch in batches]
    return steps(private_step(name, model, losses, read, size), device)


def _ordinary(model: nn.Module, losses: Callable[..., Tensor], batches: list[list[Tensor]]) -> Callable[[int], None]:
    updates = optimizers(model, OptimizerConfig())

    def step(number: int) -> None:
        losses(model, batches[number % len(batches)]).mean().backward()
        for optimizer in updates:
            optimizer.step()
            optimizer.zero_grad()

    return step


def _tables(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
