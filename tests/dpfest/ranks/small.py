"""A small click-through model, its data, and its training over ranks."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import ALGORITHMS, DPSGD
from dpfest.gradients.reading import Batch, MicroBatch
from dpfest.gradients.tables import parameter_groups
from dpfest.noise.key import NoiseKey
from dpfest.planning.ledger import Ledger
from dpfest.planning.plan import plan
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.planning.unproven import Nonprivate
from dpfest.ranks.group import Group
from dpfest.ranks.table import shard_tables
from dpfest.ranks.training import RankTraining
from dpfest.selection.topk import SelectionConfig

ROWS = (7, 40, 4, 1)
EXAMPLES, BATCH = 300, 60
SELECTED = np.array([0, 2, 7, 8, 20, 33, 40, 41, 47, 51])
PUBLIC = SelectionConfig(mechanism="public", prior="a test")

SETTINGS: dict[str, dict[str, Any]] = {
    "threshold": {"false_rate": 0.2},
    "fest": {"selection": PUBLIC},
    "adafest": {"threshold": 2.0, "noise_ratio": 1.0},
    "adafest_plus": {"threshold": 2.0, "noise_ratio": 1.0, "selection": PUBLIC},
}
REFUSED = ("exponential",)
"""Refused over ranks, with the reason. Every other algorithm of the library trains there, and is tested."""
RULES: dict[str, Algorithm] = {
    **{name: kind(**SETTINGS.get(name, {})) for name, kind in ALGORITHMS.items() if name not in REFUSED},
    "lazy": DPSGD(noise="lazy"),
    "bands": DPSGD(bands=3),
    "fest, bands": ALGORITHMS["fest"](selection=PUBLIC, bands=2),  # type: ignore[call-arg]
    "soft": ALGORITHMS["threshold"](false_rate=0.2, rule="soft"),  # type: ignore[call-arg]
    "nonprivate": Nonprivate(),
}


class Clicks(nn.Module):
    """Four features, one of a single row, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.tables = nn.ModuleList([nn.Embedding(rows, dim) for rows, dim in zip(ROWS, (2, 3, 1, 2), strict=True)])
            self.network = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 1))

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        embedded = [table(ids[:, feature]) for feature, table in enumerate(self.tables)]
        return self.network(torch.cat([numeric, *embedded], dim=1)).squeeze(1)


def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    *features, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(model(*features), labels, reduction="none")


def data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    numeric = torch.randn(EXAMPLES, 2, generator=generator)
    ids = torch.stack([torch.randint(0, rows, (EXAMPLES,), generator=generator) for rows in ROWS], 1)
    return numeric, ids, (ids[:, 0] % 2).float()


def read(indices: np.ndarray, seed: bytes = b"") -> list[MicroBatch]:
    chosen = torch.from_numpy(indices)
    return [MicroBatch(indices, tuple(part[chosen] for part in data()))]  # type: ignore[arg-type]


Planned = tuple[PrivacyPlan, Ledger]


def planned(algorithm: Algorithm, steps: int = 4) -> Planned:
    """A plan and its ledger, which was verified once and for all ranks; sigma is 1, not calibrated."""
    made = plan(
        algorithm, epsilon=20.0 if algorithm.private else None, delta=1e-3, examples=EXAMPLES, batch_size=BATCH,
        steps=steps, features=list(ROWS) if algorithm.selection else None, fixed_noise_seed=True,
        calibrate=lambda *question: 1.0,
    )  # fmt: skip
    return made, made.ledger()


def training(
    planned: Planned, shards: int = 8, parts: int = 4, kind: Any = None, reader: Any = None, **options: Any
) -> RankTraining:
    """A training of :class:`Clicks`, or of another kind of model with the same tables and its own reader."""
    privacy_plan, ledger = planned
    model, group = (kind or Clicks)(), Group()
    places = shard_tables(model, shards, group.world, group.rank)
    tables = [table.weight for table in model.tables]
    optimizers = [torch.optim.SGD(tables, lr=0.5), torch.optim.Adam(parameter_groups(model)[0], lr=0.01)]
    selected = SELECTED if privacy_plan.algorithm.selection else None
    return RankTraining(
        model, losses, optimizers, privacy_plan, reader or read,
        places=places, group=group, parts=parts, selected=selected,
        key=options.pop("key", NoiseKey.from_seed(3)), ledger=copy.deepcopy(ledger), **options,
    )  # fmt: skip


def batches(own: RankTraining, steps: int) -> Iterator[Batch]:
    """The next batches, so many."""
    for _ in range(steps):
        yield own.read(own.request(own.steps_done))


def weights(own: RankTraining) -> dict[str, Tensor]:
    """The whole model, on every rank: for tests alone."""
    own.flush()
    rows = np.arange(own.engine.layout.total_rows)
    found = {f"{n}.weight": v for n, v in zip(own.engine.layout.names, own.engine.rows.fetch(rows), strict=True)}
    return found | {n: p.detach() for n, p in own.engine.recorder.dense_parameters.items()}


def digest(own: RankTraining) -> str:
    """Every bit of the weights."""
    state = sorted(weights(own).items())
    return hashlib.sha256(b"".join(name.encode() + value.numpy().tobytes() for name, value in state)).hexdigest()
