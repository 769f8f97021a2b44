"""The click-through task: a click model on tabular rows, its loss, and its AUC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.tables import TableLayout
from pipelines.data.rows import ChunkedRows, RowReader, Rows
from pipelines.tasks.auc import RocAuc
from pipelines.tasks.calibration import FIT, Calibration, Platt
from pipelines.tasks.click_model import ClickModelConfig
from pipelines.tasks.diverged import refuse_infinite_loss
from pipelines.tasks.low_rank_table import EmbeddingSize
from pipelines.tasks.rows_on_gpu import RowsOnGpu
from pipelines.tasks.smaller_tables import SmallerTables

Batch = tuple[Any, ...]
"""Arguments of the model, then labels ``[b]``, on its device: numbers ``[b, n]``, table rows ``[b, F]`` and, of data
with bags, a list of (table rows ``[m]``, where each example's begin ``[b]``), one for each bag feature."""

EVALUATION_BATCH = 8192


class Features(Protocol):
    """What a click model must know of its data: a dataset, or the reader of other rows with the same features."""

    @property
    def vocabulary_sizes(self) -> Sequence[int]:
        """Table rows of each categorical feature, bags last."""

    @property
    def categorical_names(self) -> Sequence[str]:
        """Name of each categorical feature."""

    @property
    def numeric_names(self) -> Sequence[str]:
        """Name of each numeric feature."""

    @property
    def bag_combiners(self) -> Sequence[str]:
        """``mean`` or ``sum`` of each bag."""


class Evaluation:
    """Accumulates AUC and mean loss of a model over batches.

    Attributes:
        auc: counts of scores, in memory independent of their number.
        losses: sum of the losses of each batch.
    """

    def __init__(self) -> None:
        self.auc, self.losses = RocAuc(), list[float]()

    @torch.no_grad()
    def add(self, model: nn.Module, batch: Batch) -> None:
        """Add the examples of a batch.

        Raises:
            Diverged: their scores or loss are not finite.
        """
        *features, labels = batch
        logits = model(*features)
        self.losses.append(float(nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")))
        self.auc.add(labels.cpu().numpy(), logits.cpu().numpy())
        refuse_infinite_loss(self.losses[-1])

    def values(self, calibration: Calibration = None) -> dict[str, Any]:
        """Return AUC, its standard error, the mean loss and that of the best constant; see :meth:`ClickTask.evaluate`.

        None stands for those that too few rows leave undefined.
        """
        examples, scores = self.auc.examples, self.auc.scores
        auc, error = self.auc.estimate
        loss = sum(self.losses) / examples if examples else None
        values: dict[str, Any] = {
            "auc": auc,
            "standard_error": error,
            "loss": loss,
            "constant_loss": scores.constant_loss,
        }
        if calibration == FIT:
            platt = scores.platt()
            return values if platt is None else values | {"scale": platt.scale, "shift": platt.shift}
        if isinstance(calibration, Platt):
            values |= {"calibrated_loss": scores.loss(calibration), "reliability": scores.reliability(calibration)}
        return values


class ClickTask:
    """Model, batches, losses and metric of click-through prediction.

    Args:
        data: whose features the model reads.
        config: which model, and its shape.
        seed: seed of its initial weights.
        device: device to train on.
        smaller, whole: see :class:`pipelines.tasks.click_model.ClickModel`; `whole` is False on the CPU alone.
    """

    metric = "auc"

    def __init__(
        self,
        data: Features,
        config: ClickModelConfig,
        seed: int,
        device: torch.device,
        *,
        smaller: SmallerTables | None = None,
        whole: bool = True,
    ) -> None:
        self.device = device
        self._held: tuple[RowReader, RowsOnGpu | None] | None = None  # a period's rows, and where they lie on a GPU
        sizes, numbers = data.vocabulary_sizes, len(data.numeric_names)
        bags = data.bag_combiners
        model = config.make(sizes, numbers, seed, smaller=smaller, whole=whole, bags=bags)
        self._whole = sum(size * config.columns(size) for size in sizes) if smaller else None
        self.model = model.to(device) if whole else model
        self.table_names = list(data.categorical_names)

    def embedding_size(self, layout: TableLayout) -> EmbeddingSize:
        return EmbeddingSize(layout, layout.coordinates if self._whole is None else self._whole)

    def batches(self, rows: RowReader, indices: NDArray[np.int64], size: int | None) -> list[MicroBatch]:
        """Return the examples at ``indices`` of ``rows``, in micro-batches of at most ``size``."""
        size = size or max(len(indices), 1)
        parts = (indices[start : start + size] for start in range(0, len(indices), size))
        if self._held is None or self._held[0] is not rows:
            self._held = rows, RowsOnGpu.of(rows, self.device)
        _, held = self._held
        return [MicroBatch(part, held.batch(part) if held else self.to_device(rows.gather(part))) for part in parts]

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of each example, ``[b]``."""
        *features, labels = batch
        logits = model(*features)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def evaluate(self, rows: ChunkedRows, calibration: Calibration = None) -> dict[str, Any]:
        """Return the AUC, its standard error, the mean loss and that of the best constant over rows.

        Args:
            rows: the rows.
            calibration: to fit a Platt scaling on them (``scale`` and ``shift`` of the result), or one that was fitted
                on others, for ``calibrated_loss`` and ``reliability``
                (:meth:`~pipelines.tasks.calibration.Scores.reliability`).
        """
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        evaluation = Evaluation()
        for chunk in rows.chunks(EVALUATION_BATCH):
            evaluation.add(self.model, self.to_device(chunk))
        for module, mode in modes:  # one of the user's own may hold layers that stay in eval()
            module.training = mode
        return evaluation.values(calibration)

    @torch.no_grad()
    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """Return the logarithm of each row's odds under the model as it is, ``[b]``."""
        *features, _ = self.to_device(rows)
        return self.model(*features).double().cpu().numpy()

    def to_device(self, rows: Rows) -> Batch:
        """Return rows as a batch on the model's device."""
        parts = (rows.numeric, rows.categorical.astype(np.int64), rows.labels)
        numeric, categorical, labels = (torch.from_numpy(part).to(self.device) for part in parts)
        bags = [tuple(torch.from_numpy(part).to(self.device) for part in bag) for bag in rows.flat_bags()]
        return (numeric, categorical, bags, labels) if bags else (numeric, categorical, labels)
