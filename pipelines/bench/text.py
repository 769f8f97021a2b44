"""Section `text`: an encoder's step in micro-batches, every algorithm, against the same model's ordinary step.

The trainable set is the same for all: LoRA, classifier and word embedding.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pipelines.bench.case import Case
from pipelines.bench.measure import Turn, steps
from pipelines.bench.training import COMPETITORS, ORDINARY, training_step
from pipelines.config.settings import Config
from pipelines.data.dataset import Dataset
from pipelines.preprocess import preprocess
from pipelines.tasks.task import device_of
from pipelines.tasks.texts import TextTask

with suppress(ImportError):  # the model reports a missing package
    import peft  # noqa: F401  here, so that the fork server of the measured processes imports it once

_BATCHES = 4


def cases(config: Config) -> list[Case]:
    """Return the configured texts and model."""
    folder, device, size = preprocess(config), device_of(config.device), config.train.batch_size
    rows, micro = Dataset.open(folder).vocabulary_sizes[0], config.train.micro_batch_size or size
    return [
        Case(
            name=f"{config.data.name}, {rows:,} rows, {size} texts in micro-batches of {micro}",
            reference=ORDINARY,
            competitors={name: partial(competitor, name, config, folder, device) for name in COMPETITORS},
            memory=COMPETITORS,
            device=device,
            fields={"table_rows": rows, "batch_size": size},
        )
    ]


def competitor(name: str, config: Config, folder: Path, device: torch.device) -> Turn:
    """Return training steps of a competitor on its own model."""
    data, size = Dataset.open(folder), config.train.batch_size
    task = TextTask(data, config.model, config.seed, device)
    order = np.random.default_rng(0).permutation(data.examples)[: _BATCHES * size]
    parts = (order[start : start + size] for start in range(0, len(order), size))
    batches = [task.batches(data.split("train"), part, config.train.micro_batch_size) for part in parts]
    return steps(training_step(name, task.model, task.losses, batches, size), device)
