"""Section `text`: an encoder's step in micro-batches, every algorithm, against the same model's ordinary step.

The trainable set is the same for all: LoRA, classifier and word embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from dpfest.gradients.reading import MicroBatch
from pipelines.bench.algorithms import COMPETITORS, private_step
from pipelines.bench.measure import Turn, steps, take_turns
from pipelines.bench.records import Record, records
from pipelines.bench.worker import peak_of
from pipelines.config.settings import Config
from pipelines.data.dataset import Dataset
from pipelines.preprocess import preprocess
from pipelines.system.progress import progress
from pipelines.tasks.optimizers import OptimizerConfig, optimizers
from pipelines.tasks.task import device_of
from pipelines.tasks.texts import TextTask

with suppress(ImportError):  # the model reports a missing package
    import peft  # noqa: F401  here, so that the fork server of the measured processes imports it once

ORDINARY = "pytorch sparse"
"""The floor: plain PyTorch on the same micro-batches, the word embedding's gradient sparse."""

_BATCHES = 4


def bench(config: Config, repeats: int) -> list[Record]:
    """Time every competitor on the configured texts and model."""
    folder, device = preprocess(config), device_of(config.device)
    names, rows = [ORDINARY, *COMPETITORS], Dataset.open(folder).vocabulary_sizes[0]
    with progress("text") as report:
        report(0, 2, f"{rows:,} rows: times")
        turns = {name: competitor(name, config, folder, str(device)) for name in names}
        times = take_turns(turns, ORDINARY, repeats=repeats, seconds=config.bench.seconds)
        del turns
        report(1, 2, f"{rows:,} rows: memory")
        peaks = {name: peak_of(competitor, name, config, folder, str(device), device=device) for name in names}
    size = config.train.batch_size
    micro = config.train.micro_batch_size or size
    case = f"{config.data.name}, {rows:,} rows, {size} texts in micro-batches of {micro}"
    return records(times, ORDINARY, peaks=peaks, section="text", case=case, table_rows=rows, batch_size=size)


def competitor(name: str, config: Config, folder: Path, device: str) -> Turn:
    """Return training steps of a competitor on its own model."""
    data, size, on = Dataset.open(folder), config.train.batch_size, device_of(device)
    task = TextTask(data, config.model, config.seed, on)
    order = np.random.default_rng(0).permutation(data.examples)[: _BATCHES * size]
    parts = (order[start : start + size] for start in range(0, len(order), size))
    batches = [task.batches(data.split("train"), part, config.train.micro_batch_size) for part in parts]
    if name == ORDINARY:
        return steps(_ordinary(task, batches, size), on)
    return steps(private_step(name, task.model, task.losses, batches, size), on)


def _ordinary(task: TextTask, batches: Sequence[Sequence[MicroBatch]], size: int) -> Callable[[int], None]:
    task.model.get_input_embeddings().sparse = True  # type: ignore[operator]
    updates = optimizers(task.model, OptimizerConfig())

    def step(number: int) -> None:
        for batch in batches[number % len(batches)]:
            (task.losses(task.model, batch.data).sum() / size).backward()
        for optimizer in updates:
            optimizer.step()
            optimizer.zero_grad()

    return step
