"""The click-through task: the pCTR model on tabular rows, its loss, and its AUC."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from pipelines.data.dataset import Dataset, RowFile, Rows
from pipelines.models.pctr import PctrConfig, PctrModel

Batch = tuple[Tensor, Tensor, Tensor]
"""Numbers ``[b, 13]``, bucket ids ``[b, 26]`` and labels ``[b]``, on the model's device."""

EVALUATION_BATCH = 8192


class ClickTask:
    """Model, batches, losses and metric of click-through prediction.

    Args:
        dataset: where the rows are.
        config: shape of the model.
        seed: of its initial weights.
        device: where it is trained.
    """

    metric = "auc"

    def __init__(self, dataset: Dataset, config: PctrConfig, seed: int, device: torch.device) -> None:
        self.dataset, self.device = dataset, device
        sizes = dataset.vocabulary_sizes
        self.model = PctrModel(sizes, len(dataset.numeric_names), config, seed).to(device)
        self.table_names = dataset.categorical_names
        self._train = dataset.split("train")

    def batches(self, indices: NDArray[np.int64], size: int | None) -> list[Batch]:
        """The training examples at ``indices``, in micro-batches of at most ``size``."""
        size = size or max(len(indices), 1)
        starts = range(0, len(indices), size)
        return [self._to_device(self._train.gather(indices[start : start + size])) for start in starts]

    def losses(self, batch: Batch) -> Tensor:
        """Cross-entropy of each example, ``[b]``."""
        numeric, categorical, labels = batch
        logits = self.model(numeric, categorical)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    @torch.no_grad()
    def evaluate(self, split: str) -> dict[str, float | None]:
        """AUC, its standard error and the mean loss over a split; None for what the split is too small to tell."""
        rows = self.dataset.split(split)
        if not len(rows):
            return {"auc": None, "standard_error": None, "loss": None}
        self.model.eval()
        labels, logits = [], []
        for numeric, categorical, label in self._chunks(rows):
            logits.append(self.model(numeric, categorical).cpu())
            labels.append(label.cpu())
        self.model.train()
        truth, score = torch.cat(labels), torch.cat(logits)
        loss = nn.functional.binary_cross_entropy_with_logits(score, truth).item()
        positives, examples = int(truth.sum()), len(truth)
        if not 0 < positives < examples:
            return {"auc": None, "standard_error": None, "loss": loss}
        auc = float(roc_auc_score(truth.numpy(), score.numpy()))
        error = auc_standard_error(auc, positives, examples - positives)
        return {"auc": auc, "standard_error": error, "loss": loss}

    def _chunks(self, rows: RowFile) -> Iterator[Batch]:
        return (self._to_device(chunk) for chunk in rows.chunks(EVALUATION_BATCH))

    def _to_device(self, rows: Rows) -> Batch:
        parts = (rows.numeric, rows.categorical.astype(np.int64), rows.labels)
        numeric, categorical, labels = (torch.from_numpy(part).to(self.device) for part in parts)
        return numeric, categorical, labels


def auc_standard_error(auc: float, positives: int, negatives: int) -> float:
    """Standard error of an AUC over a finite sample (Hanley and McNeil, 1982, equation 1)."""
    both_positive, both_negative = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc)
    variance += (positives - 1) * (both_positive - auc**2) + (negatives - 1) * (both_negative - auc**2)
    return math.sqrt(variance / (positives * negatives))
