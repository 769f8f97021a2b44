"""The interface of a learning task; a configuration's data and model must belong to the same one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.tables import TableLayout
from pipelines.config.settings import Config
from pipelines.data.dataset import Dataset
from pipelines.data.rows import ChunkedRows, RowReader
from pipelines.tasks.calibration import Calibration
from pipelines.tasks.low_rank_table import EmbeddingSize, LoraEmbedding
from pipelines.tasks.smaller_tables import SmallerTables


class Task(Protocol):
    """A model with its batches, loss, evaluation and table names.

    Attributes:
        metric: key of :meth:`evaluate` by which settings are chosen; larger is better.
        table_names: names of the embedding tables, in the model's order.
    """

    metric: str
    table_names: list[str]

    @property
    def model(self) -> nn.Module:
        """The model to train."""

    def batches(self, rows: RowReader, indices: NDArray[np.int64], size: int | None) -> list[MicroBatch]:
        """Return the examples at ``indices`` of ``rows``, in micro-batches of at most ``size``."""

    def embedding_size(self, layout: TableLayout) -> EmbeddingSize:
        """Return the size of the embedding gradient; ``layout`` describes the trained tables."""

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of each example of a micro-batch under a model like :attr:`model`, ``[b]``."""

    def evaluate(self, rows: ChunkedRows, calibration: Calibration = None) -> dict[str, Any]:
        """Return the metric, its ``standard_error`` and the mean ``loss`` over rows.

        ``calibration`` is for clicks alone (:meth:`pipelines.tasks.clicks.ClickTask.evaluate`).
        """


@dataclass(frozen=True)
class TaskReader:
    """Reads a task's examples for :class:`dpfest.PrivateTraining`, without random draws."""

    task: Task
    rows: RowReader
    micro_batch_size: int | None

    def __call__(self, indices: NDArray[np.int64], seed: bytes) -> list[MicroBatch]:
        """Return the examples at ``indices``, in micro-batches."""
        return self.task.batches(self.rows, indices, self.micro_batch_size)


def task_of(config: Config, data: Dataset, device: torch.device, *, whole: bool = True) -> Task:
    """Build the task of a configuration on its data, or on any day of them, with the model's initial weights.

    Args:
        config, data, device: what to build, on what and where.
        whole: False, on the CPU alone, where tables of clicks need no memory and weights.
    """
    if config.data.task == "text":
        from pipelines.tasks.texts import TextTask  # imports packages that click data do not need

        rank = config.algorithm.rank if isinstance(config.algorithm, LoraEmbedding) else None
        return TextTask(data, config.model, config.seed, device, rank)
    from pipelines.tasks.clicks import ClickTask

    return ClickTask(data, config.model, config.seed, device, smaller=smaller_tables(config), whole=whole)


def smaller_tables(config: Config) -> SmallerTables | None:
    """Return what makes the tables of a configuration smaller, if anything does."""
    return config.algorithm if isinstance(config.algorithm, SmallerTables) else None


def device_of(name: str) -> torch.device:
    """Return the device that ``auto``, ``cpu``, ``cuda`` or ``cuda:1`` names.

    Raises:
        UserError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(0, device=name).device
        if device.type == "meta":
            raise RuntimeError("it holds no values")
        return device
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={name} cannot be used here ({str(error).splitlines()[0]}); try device=auto."
        ) from error
