"""The text task: classification by an encoder, its loss and accuracy."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.tables import TableLayout
from pipelines.data.dataset import Dataset
from pipelines.data.rows import ChunkedRows, RowReader, TextRows
from pipelines.tasks.auc import refuse_not_finite
from pipelines.tasks.calibration import Calibration
from pipelines.tasks.diverged import refuse_infinite_loss
from pipelines.tasks.low_rank_table import EmbeddingSize, LowRankTable
from pipelines.tasks.roberta import RobertaConfig, text_classifier

Batch = tuple[Tensor, Tensor, Tensor]
"""Token ids ``[b, L]``, attention mask ``[b, L]`` (0 for padding) and labels ``[b]``, on the model's device."""

EVALUATION_CHUNK, EVALUATION_BATCH = 4096, 128


class TextTask:
    """Model, batches, losses and metric of text classification.

    Args:
        data: dataset whose texts the model reads.
        config: the model's settings.
        seed: seed of the weights that are not pretrained.
        device: device to train on.
        table_rank: rank of the factors trained in place of the word embedding; None for the embedding itself.
    """

    metric = "accuracy"

    def __init__(
        self, data: Dataset, config: RobertaConfig, seed: int, device: torch.device, table_rank: int | None = None
    ) -> None:
        self.device, self._half = device, config.precision == "bfloat16"
        self.model = text_classifier(config, data, seed, table_rank).to(device)
        if self._half and device.type == "cpu":  # fused attention's backward pass is a slow loop there: half of a step
            self.model.set_attn_implementation("eager")  # type: ignore[operator]
            if _emulates_bfloat16():
                print(
                    "model.precision=bfloat16: this CPU has no bfloat16 instructions (AMX or AVX512-BF16) and emulates "
                    "them. float32, the default, is several times faster here; it is another run.",
                    file=sys.stderr,
                    flush=True,
                )
        self.table_names = data.categorical_names
        self._separator = data.description["text"].get("separator")

    def embedding_size(self, layout: TableLayout) -> EmbeddingSize:
        table = self.model.get_input_embeddings()  # type: ignore[operator]
        return table.size(layout) if isinstance(table, LowRankTable) else EmbeddingSize(layout, layout.coordinates)

    def batches(self, rows: RowReader, indices: NDArray[np.int64], size: int | None) -> list[MicroBatch]:
        """Return the examples at ``indices`` of ``rows``, in micro-batches of at most ``size``.

        Texts are sorted by length, so that a micro-batch is padded to its own longest text only.
        """
        parts = self._batches(rows.gather(indices), size or max(len(indices), 1))
        return [MicroBatch(indices[part], batch) for part, batch in parts]

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of each example, ``[b]``."""
        ids, mask, labels = batch
        return nn.functional.cross_entropy(self._logits(model, ids, mask), labels, reduction="none")

    @torch.no_grad()
    def evaluate(self, rows: ChunkedRows, calibration: Calibration = None) -> dict[str, float | None]:
        """Return accuracy, its standard error and the mean loss over rows; None without rows."""
        right, examples, loss = 0, 0, 0.0
        for chunk in rows.chunks(EVALUATION_CHUNK):
            for _, (ids, mask, labels) in self._batches(chunk, EVALUATION_BATCH):
                logits = self._logits(self.model, ids, mask)
                refuse_not_finite(logits.cpu().numpy())
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
                right += int((logits.argmax(1) == labels).sum())
                examples += len(labels)
        refuse_infinite_loss(loss)
        if not examples:
            return {"accuracy": None, "standard_error": None, "loss": None}
        accuracy = right / examples
        error = math.sqrt(accuracy * (1 - accuracy) / examples)
        return {"accuracy": accuracy, "standard_error": error, "loss": loss / examples}

    @torch.no_grad()
    def scores(self, rows: TextRows) -> NDArray[np.float64]:
        """Return the logit of each class, ``[b, classes]``."""
        parts = [(part, self._logits(self.model, *batch[:2])) for part, batch in self._batches(rows, EVALUATION_BATCH)]
        found = np.empty((len(rows.labels), parts[0][1].shape[1]))
        for part, logits in parts:
            found[part] = logits.double().cpu().numpy()
        return found

    def _logits(self, model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._separator is not None:  # of a pair: which tokens are the second text's
            ends = ids == self._separator
            inputs["token_type_ids"] = ((ends.cumsum(1) - ends.long()) > 0).long() * mask
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._half):
            logits = model(**inputs).logits
        return logits.float() if self._half else logits

    def _batches(self, rows: TextRows, size: int) -> list[tuple[NDArray[np.int64], Batch]]:
        order = np.argsort(rows.lengths, kind="stable")
        parts = (order[start : start + size] for start in range(0, len(order), size))
        return [(part, self._to_device(rows, part)) for part in parts]

    def _to_device(self, rows: TextRows, chosen: NDArray[np.int64]) -> Batch:
        lengths = rows.lengths[chosen]
        ids = rows.ids[chosen, : lengths.max()].astype(np.int64)
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        labels = rows.labels[chosen].astype(np.int64)
        tensors = [torch.from_numpy(part).to(self.device) for part in (ids, mask, labels)]
        return tensors[0], tensors[1], tensors[2]


def _emulates_bfloat16() -> bool:
    """Return whether this CPU is known to have no bfloat16 instructions."""
    able: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch lack it
    return able.get("architecture") == "x86_64" and not (able.get("amx_bf16") or able.get("avx512_bf16"))
