"""Which algorithm trains on which path: small trainings of each, made and stepped; `docs/` prints their table.

A path is a way through the library (one process, micro-batches, ranks, units, a sampler, ...). An algorithm that is
added to :data:`dpfest.algorithms.rules.ALGORITHMS` appears by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.units import UnitConfig, Units
from dpfest.noise.key import AES, CHACHA, NoiseKey
from dpfest.planning.plan import plan
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.planning.unproven import Nonprivate
from dpfest.ranks.group import Group
from dpfest.ranks.table import shard_tables
from dpfest.ranks.training import RankTraining
from dpfest.selection.topk import SelectionConfig
from dpfest.training.loop import PrivateTraining

ROWS, DIMS = (5, 40), (2, 3)
EXAMPLES, BATCH, STEPS, RATE = 60, 20, 4, 0.1
SELECTED = np.array([0, 3, 5, 6, 9, 17, 30, 31, 44])
SHARDS, PARTS = 4, 4
UNIT = UnitConfig(name="person", max_examples=2)
BANDS = 2
_PUBLIC = SelectionConfig(mechanism="public", prior="a table of paths")
_SETTINGS: dict[str, Any] = {"false_rate": 0.3, "threshold": 1.0, "rows_per_step": 9}


@dataclass(frozen=True)
class Path:
    """A way through the library.

    Attributes:
        words: its heading in a table.
        micro_batch_size: largest micro-batch; None for one.
        sampling: arguments of :func:`dpfest.plan`.
        unit: whether a unit of privacy has several examples.
        ranks: whether tables lie in shards.
        bags: whether an example looks up any number of rows of a table, or none.
        periods: number of periods of a stream, of which the last is trained.
        options: arguments of the training.
        autocast: whether the forward pass computes in bfloat16.
        before: how a training starts: ``resume`` or ``branch`` from the state of another one; None by itself.
        cipher: of the key.
    """

    words: str
    micro_batch_size: int | None = None
    sampling: Mapping[str, Any] | None = None
    unit: bool = False
    ranks: bool = False
    bags: bool = False
    periods: int = 1
    options: Mapping[str, Any] | None = None
    autocast: bool = False
    before: str | None = None
    cipher: str = AES


PATHS: dict[str, Path] = {
    "one process": Path("one process"),
    "micro-batches": Path("micro-batches", micro_batch_size=7),
    "units": Path("units of several examples", unit=True),
    "bags": Path("bags", bags=True),
    "ranks": Path("ranks", ranks=True),
    "ranks, bags": Path("ranks, with bags", ranks=True, bags=True),
    "ranks, units": Path("ranks, with units", ranks=True, unit=True),
    "ranks, stream": Path("ranks, on a stream", ranks=True, periods=2),
    "stream": Path("a stream's period", periods=2),
    "truncated Poisson": Path(
        "truncated Poisson batches", sampling={"sampling": "truncated_poisson", "max_batch_size": 22}
    ),
    "balls-in-bins": Path("balls-in-bins batches", sampling={"sampling": "balls_in_bins"}),
    "workers": Path("workers that read", options={"num_workers": 1}),
    "autocast": Path("autocast", autocast=True),
    "float64 sums": Path("float64 sums", options={"sum_dtype": torch.float64}),
    "resumed": Path("resumed", before="resume"),
    "branch": Path("a branch", before="branch"),
    "chacha20": Path("noise from chacha20", cipher=CHACHA),
    "chacha20, ranks": Path("noise from chacha20, over ranks", cipher=CHACHA, ranks=True),
}


class Model(nn.Module):
    """Two tables, of which a batch touches most of one and little of the other, and a linear layer.

    Args:
        dtype: of its parameters.
        bags: whether the tables give the sum, and the mean, of several rows.
    """

    def __init__(self, dtype: torch.dtype, bags: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        weights = [torch.randn(size, generator=generator) for size in zip(ROWS, DIMS, strict=True)]
        self.tables = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode=mode)
            if bags
            else nn.Embedding.from_pretrained(weight, freeze=False)
            for weight, mode in zip(weights, ("sum", "mean"), strict=True)
        )
        self.network = nn.Linear(sum(DIMS), 1)
        with torch.no_grad():
            self.network.weight.copy_(torch.randn(1, sum(DIMS), generator=generator))
            self.network.bias.zero_()
        self.to(dtype)

    def forward(self, look_ups: Sequence[tuple[Tensor, ...]]) -> Tensor:
        """Return the logits ``[b]`` of each table's look-ups."""
        embedded = [table(*of_table) for table, of_table in zip(self.tables, look_ups, strict=True)]
        return self.network(torch.cat(embedded, dim=1)).squeeze(1)


Batch = tuple[Sequence[tuple[Tensor, ...]], Tensor]
"""Arguments of each table, and labels ``[b]``."""


def losses(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of each example, ``[b]``."""
    look_ups, labels = batch
    logits = model(look_ups)
    return nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none") * 8


def losses_in_half(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses, of a forward pass in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch[0])
    return nn.functional.binary_cross_entropy_with_logits(logits.float(), batch[1].float(), reduction="none") * 8


def data(in_bags: bool = False) -> list[list[NDArray[np.int64]]]:
    """Return the ids of each example in each table, most of them small: one, or in bags up to four, of some none."""
    generator = np.random.default_rng(8)
    lengths = np.ones((len(ROWS), EXAMPLES), dtype=np.int64)
    if in_bags:
        lengths = np.maximum(generator.integers(-1, 5, lengths.shape), 0)
    few, many = lengths.sum(1).tolist()
    drawn = generator.integers(0, ROWS[0], few), generator.geometric(0.2, many) % ROWS[1]
    return [np.split(ids, np.cumsum(of)[:-1]) for ids, of in zip(drawn, lengths, strict=True)]


def batch_of(examples: NDArray[np.int64], in_bags: bool = False) -> Batch:
    """Return these examples' look-ups and labels."""
    look_ups, labels = [], [int(data()[1][example][0]) % 2 for example in examples]
    for of_table in data(in_bags):
        own = [of_table[example] for example in examples]
        starts = np.cumsum([0, *map(len, own)])[:-1]
        ids = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *own]))
        look_ups.append((ids, torch.from_numpy(starts)) if in_bags else (ids,))
    return look_ups, torch.tensor(labels)


class Reader:
    """Reads examples in micro-batches.

    Args:
        size: of the largest; None for one.
        in_bags: see :func:`batch_of`.
    """

    def __init__(self, size: int | None, in_bags: bool = False) -> None:
        self.size, self.in_bags = size, in_bags

    def __call__(self, indices: np.ndarray, seed: bytes = b"") -> list[MicroBatch]:
        """Return the micro-batches of these examples."""
        cuts = range(self.size, len(indices), self.size) if self.size else []
        parts = np.split(indices, cuts)
        return [MicroBatch(part, batch_of(part, self.in_bags)) for part in parts]


def variants() -> dict[str, Algorithm]:
    """Return every algorithm of the library, with settings for these trainings, and in each way that it has."""
    found: dict[str, Algorithm] = {"nonprivate": Nonprivate()}
    for name, kind in ALGORITHMS.items():
        known = {field.name for field in fields(kind)}
        settings = {key: value for key, value in _SETTINGS.items() if key in known}
        found[name] = kind(**settings | ({"selection": _PUBLIC} if "selection" in known else {}))
        ways: list[tuple[str, Any, str]] = [
            ("noise", "lazy", "lazy"),
            ("rule", "soft", "soft"),
            ("bands", BANDS, "bands"),
        ]
        for field, value, words in ways:
            if field in known:
                found[f"{name}, {words}"] = replace(found[name], **{field: value})
    return found


def planned(algorithm: Algorithm, path: Path) -> PrivacyPlan:
    """Return a plan at noise multiplier 1, whatever epsilon that is below 20."""
    sizes: Any = EXAMPLES
    if path.periods > 1:
        sizes = [EXAMPLES] * path.periods
    if path.unit:
        sizes = units().count
    return plan(
        algorithm, epsilon=20.0 if algorithm.private else None, delta=1e-3, examples=sizes, batch_size=BATCH,
        steps=None if path.periods > 1 else STEPS, epochs=1.0 if path.periods > 1 else None,
        period=1 if path.periods > 1 else None, unit=UNIT if path.unit else None,
        features=list(ROWS) if algorithm.selection else None, fixed_noise_seed=True, calibrate=lambda *question: 1.0,
        **path.sampling or {},
    )  # fmt: skip


def units() -> Units:
    """Return whose example each is: 40 persons have one or two."""
    return Units(np.arange(EXAMPLES) % 40, name=UNIT.name, max_examples=UNIT.max_examples)


def training(algorithm: Algorithm, path: Path) -> PrivateTraining:
    """Return a small training of an algorithm on a path.

    Raises:
        UserError: the library refuses it, and says why.
    """
    made = planned(algorithm, path)
    model = Model(torch.float32 if path.autocast else torch.float64, path.bags)
    options = dict(path.options or {}) | {"period": path.periods - 1, "key": NoiseKey.from_seed(3, cipher=path.cipher)}
    options |= {"selected": SELECTED} if algorithm.selection else {}
    reader, loss_fn = Reader(path.micro_batch_size, path.bags), losses_in_half if path.autocast else losses
    if path.ranks:
        group = Group()
        places = shard_tables(model, SHARDS, group.world, group.rank)
        options |= {"places": places, "group": group, "parts": PARTS}
    elif path.unit:
        options["units"] = units()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    kind: Callable[..., PrivateTraining] = RankTraining if path.ranks else PrivateTraining
    return kind(model, loss_fn, optimizer, made, reader, **options)


def started(algorithm: Algorithm, path: Path) -> PrivateTraining:
    """Return a training that has taken a step, and is about to take its second as the path says.

    Raises:
        UserError: as :func:`training`.
    """
    first = training(algorithm, path)
    first.step(next(iter(first)))
    if path.before is None:
        return first
    second = training(algorithm, path)
    if path.before == "branch":
        second.load_state_dict(first.fork(2), steps=2)
    else:
        second.load_state_dict(first.state_dict())
    return second


def refusal(algorithm: Algorithm, path: Path) -> str | None:
    """Return why an algorithm is refused on a path; None if it trains."""
    try:
        started(algorithm, path)
    except UserError as error:
        return str(error)
    return None
