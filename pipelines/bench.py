"""`dpfest bench`: what a step costs, against the same model's ordinary step in the same run.

Machines are shared and drift, so competitors take turns step by step and what counts is the ratio within a turn.
Peak memory is that of a process of its own.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.engine import PrivateEngine
from dpfest.errors import UserError
from dpfest.noise import NoiseKey
from dpfest.rules import ALGORITHMS
from pipelines.clicks import Batch
from pipelines.config import Config
from pipelines.data.criteo import PUBLISHED_SIZES
from pipelines.files import write_json
from pipelines.memory import keep_freed_memory
from pipelines.models.pctr import PctrConfig, PctrModel
from pipelines.optimizers import OptimizerConfig, optimizers
from pipelines.train import device_of

ORDINARY = "pytorch sparse"
"""The floor: the same model, sparse embedding gradients, torch.optim, nothing private."""

SECTIONS = ("step",)
WARM_UP, NUMERIC = 3, 13


@dataclasses.dataclass(frozen=True)
class Record:
    """One competitor's time; the ratio is to the ordinary step, the median over turns."""

    section: str
    competitor: str
    table_rows: int
    batch_size: int
    median_seconds: float
    min_seconds: float
    max_seconds: float
    repeats: int
    peak_bytes: int
    ratio: float


def bench(section: str, config: Config, repeats: int = 30) -> tuple[Path, list[Record]]:
    """Run a section and write ``<paths.report>/bench/<section>.json``.

    Raises:
        UserError: there is no such section.
    """
    if section not in SECTIONS:
        raise UserError(f"there is no benchmark {section}; there is {', '.join(SECTIONS)}.")
    if config.model.task != "clicks":
        raise UserError(f"dpfest bench times the click model, and model={config.model.name} is none: use model=pctr.")
    keep_freed_memory()
    device, batch_size = device_of(config.device), config.train.batch_size
    names = [ORDINARY, *ALGORITHMS]
    steps = {name: _step(name, batch_size, config, device) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(WARM_UP + repeats):
        for name, step in steps.items():
            elapsed = _timed(step, turn, device)
            if turn >= WARM_UP:
                seconds[name].append(elapsed)
    del steps
    records = [
        Record(
            section=section,
            competitor=name,
            table_rows=sum(PUBLISHED_SIZES),
            batch_size=batch_size,
            median_seconds=statistics.median(taken),
            min_seconds=min(taken),
            max_seconds=max(taken),
            repeats=repeats,
            peak_bytes=_peak_bytes(name, batch_size, config, device),
            ratio=statistics.median(a / b for a, b in zip(taken, seconds[ORDINARY], strict=True)),
        )
        for name, taken in seconds.items()
    ]
    path = Path(config.paths.report) / "bench" / f"{section}.json"
    write_json(path, {"machine": machine(device), "records": [dataclasses.asdict(record) for record in records]})
    return path, records


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _timed(step: Callable[[int], None], turn: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    step(turn)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _batch(batch_size: int, device: torch.device) -> Batch:
    """Categories as skewed as clicks are (Zipf), the same for every competitor."""
    generator = np.random.default_rng(0)
    ids = [np.minimum(generator.zipf(1.2, batch_size) - 1, size - 1) for size in PUBLISHED_SIZES]
    numeric = generator.standard_normal((batch_size, NUMERIC), dtype=np.float32)
    labels = generator.integers(0, 2, batch_size).astype(np.float32)
    parts = (numeric, np.stack(ids, axis=1), labels)
    first, second, third = (torch.from_numpy(part).to(device) for part in parts)
    return first, second, third


def _step(name: str, batch_size: int, config: Config, device: torch.device) -> Callable[[int], None]:
    """One training step of a competitor, weights updated, on a batch that is in memory."""
    batch = _batch(batch_size, device)
    model = PctrModel(PUBLISHED_SIZES, NUMERIC, PctrConfig(hidden=list(config.model.hidden)), 0).to(device)

    def losses(batch: Batch) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2], reduction="none")

    if name == ORDINARY:
        return _ordinary(model, losses, batch)
    algorithm = ALGORITHMS[name]()
    selected = torch.arange(0, sum(PUBLISHED_SIZES), 34) if algorithm.selection else None
    engine = PrivateEngine(
        model,
        algorithm,
        losses,
        NoiseKey.fresh(),
        gradient_noise_multiplier=1.0 if algorithm.private else 0.0,
        expected_batch_size=batch_size,
        map_noise_multiplier=5.0,
        epsilon_per_row=0.1,
        selected=selected,
    )
    updates = optimizers(model, OptimizerConfig())

    def step(turn: int) -> None:
        engine.fill(engine.gradient([batch], turn))
        for optimizer in updates:
            optimizer.step()

    return step


def _ordinary(model: PctrModel, losses: Callable[[Batch], Tensor], batch: Batch) -> Callable[[int], None]:
    tables = [table for table in model.tables if isinstance(table, nn.Embedding)]
    for table in tables:
        table.sparse = True
    settings = OptimizerConfig()
    dense = torch.optim.Adam(model.network.parameters(), lr=settings.dense.learning_rate)
    sparse = torch.optim.SGD([table.weight for table in tables], lr=settings.tables.learning_rate)

    def step(turn: int) -> None:
        dense.zero_grad()
        sparse.zero_grad()
        losses(batch).mean().backward()
        dense.step()
        sparse.step()

    return step


def _peak_bytes(name: str, batch_size: int, config: Config, device: torch.device) -> int:
    """Peak memory of a process that takes three steps: on the GPU where there is one, else resident."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_peak, args=(sender, name, batch_size, config, str(device)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def _measure_peak(sender: Any, name: str, batch_size: int, config: Config, device: str) -> None:
    step = _step(name, batch_size, config, torch.device(device))
    for turn in range(3):
        step(turn)
    if device.startswith("cuda"):
        sender.send(torch.cuda.max_memory_allocated(device))
    else:
        sender.send(_peak_resident_bytes())


def _peak_resident_bytes() -> int:
    try:  # getrusage's figure would hold the parent's memory at the fork
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
