"""Section `small`: steps of a few milliseconds, in which what a private step costs besides arithmetic shows most.

Two models of docs/LIBRARY.md, in the sizes of their papers' examples: a DLRM (Naumov et al., 2019) with eight bags and
three small layers, and a two-tower recommender with sampled softmax; each against its ordinary step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pipelines.bench.case import Case
from pipelines.bench.measure import Turn, steps
from pipelines.bench.training import COMPETITORS, ORDINARY, click_losses, trained_rows, training_step, whole
from pipelines.config.settings import Config
from pipelines.tasks.task import device_of

ROWS, FEATURES, DIMENSION, NUMBERS, NEGATIVES = 20_000, 8, 16, 13, 10
_BATCHES = 8


class Dlrm(nn.Module):
    """Numbers ``[b, 13]`` and rows ``[b, 8, 2]`` to scores ``[b]``."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, DIMENSION), nn.ReLU())
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, DIMENSION, mode="sum") for _ in range(FEATURES))
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

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(FEATURES * ROWS, DIMENSION)
        self.items = nn.Embedding(ROWS, DIMENSION)
        self.user_tower, self.item_tower = nn.Linear(DIMENSION, DIMENSION), nn.Linear(DIMENSION, DIMENSION)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        towers = self.user_tower(self.users(users)).unsqueeze(2)
        return (self.item_tower(self.items(items)) @ towers).squeeze(2)


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


MODELS: dict[str, tuple[type[nn.Module], Callable[..., Tensor], Callable[..., list[Tensor]]]] = {
    "DLRM": (Dlrm, click_losses, _click_batch),
    "two towers": (TwoTowers, _sampled_softmax, _pair_batch),
}
"""Each model, its losses and its batches."""


def cases(config: Config) -> list[Case]:
    """Return both models."""
    device, size = device_of(config.device), config.train.batch_size
    found = []
    for name, (make, *_) in MODELS.items():
        rows = trained_rows(make())
        found.append(
            Case(
                name=f"{name}, {rows:,} rows",
                reference=ORDINARY,
                competitors={one: partial(competitor, one, name, size, device) for one in COMPETITORS},
                fields={"table_rows": rows, "batch_size": size},
            )
        )
    return found


def competitor(name: str, on: str, size: int, device: torch.device) -> Turn:
    """Return training steps of a competitor on its own model."""
    make, losses, draw = MODELS[on]
    torch.manual_seed(0)
    model, generator = make().to(device), torch.Generator().manual_seed(0)
    batches = [[part.to(device) for part in draw(size, generator)] for _ in range(_BATCHES)]
    return steps(training_step(name, model, losses, whole(batches, size), size), device)
