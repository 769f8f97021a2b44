"""Private training of any supported model in one call.

training = dpfest.make_private(
    model, optimizer, dataset, loss_fn, algorithm=dpfest.AdaFEST(threshold=3), epsilon=3.0, delta=1e-6,
    batch_size=1_000, epochs=2)
for batch in training:
    training.step(batch)
print(training.epsilon())
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.algorithms import Algorithm
from dpfest.errors import UserError
from dpfest.noise import NoiseKey
from dpfest.privacy_plan import plan
from dpfest.reading import DatasetReader
from dpfest.tables import parameter_groups
from dpfest.topk import Selection
from dpfest.training import PrivateTraining
from dpfest.units import Units
from dpfest.validation import check_model


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    dataset: Any,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    *,
    algorithm: Algorithm,
    epsilon: float | None = None,
    delta: float | None = None,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    sampling: str = "poisson",
    max_batch_size: int | None = None,
    units: Units | None = None,
    selected: Selection | None = None,
    micro_batch_size: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
    sum_dtype: torch.dtype | None = None,
    noise_seed: int | None = None,
) -> PrivateTraining:
    """Wrap a model for private training: calibrate the noise to ``epsilon``, check the model, prepare its batches.

    Args:
        model: trained in place; its trainable parameters lie in embeddings, linear layers, convolutions within an
            example or normalisations (:func:`dpfest.validate` says what cannot be trained, and why).
        optimizer: one or several of ``torch.optim`` that together cover all trainable parameters.
        dataset: a map-style ``torch.utils.data.Dataset``; an item is an example, the unit of the guarantee unless
            ``units`` are given.
        loss_fn: ``loss_fn(model, batch)`` runs the model and returns per-example losses ``[b]``.
        algorithm: which rows survive a step: ``dpfest.AdaFEST(threshold=...)``, ``dpfest.DPSGD()``, ...
        epsilon: target epsilon.
        delta: target delta; None for 1 / N, or 1 over the number of units.
        batch_size: B, the expected size of a batch: examples, or units.
        epochs: training length in passes over the data set. Give this or ``steps``.
        steps: training length in steps.
        sampling: ``poisson``; ``truncated_poisson``, whose batches have at most ``max_batch_size`` examples (None for a
            size that they would hardly ever exceed); ``balls_in_bins``, every example once an epoch.
        max_batch_size: see ``sampling``.
        units: which examples belong to one person, household, ...: ``dpfest.Units(ids, name="household")``. Then
            epsilon is that of adding or removing all examples of one; None for one example.
        selected: from :func:`dpfest.select`, for FEST and AdaFESTPlus.
        micro_batch_size: maximum number of examples run at once; None for all.
        collate_fn: as in ``torch.utils.data.DataLoader``, like the next two.
        num_workers: processes that read.
        pin_memory: whether batches are read into pinned memory.
        sum_dtype: see :class:`PrivateTraining`.
        noise_seed: None for a key from the operating system; a number makes a run reproducible, on public data only.

    Raises:
        UserError: a ``ValueError`` that names the argument or the layer, and the remedy.
    """
    if not isinstance(algorithm, Algorithm):
        raise UserError(
            f"algorithm={algorithm!r} must be an algorithm with its settings, as dpfest.AdaFEST(threshold=3)."
        )
    read = DatasetReader(dataset, collate_fn, micro_batch_size)
    check_model(model)
    if not hasattr(dataset, "__len__"):
        raise UserError("dataset must have a length: the number of examples is part of the plan.")
    if units is not None:
        units.refuse_other(len(dataset))
    privacy_plan = plan(
        algorithm,
        epsilon=epsilon,
        delta=delta,
        examples=len(dataset) if units is None else units.count,
        unit=None if units is None else units.config,
        batch_size=batch_size,
        steps=steps,
        epochs=epochs,
        sampling=sampling,
        max_batch_size=max_batch_size,
        features=_table_sizes(model) if algorithm.selection else None,
        fixed_noise_seed=noise_seed is not None,
    )
    key = None if noise_seed is None else NoiseKey.from_seed(noise_seed, "training")
    return PrivateTraining(
        model, loss_fn, optimizer, privacy_plan, read, units=units,
        selected=selected, key=key, sum_dtype=sum_dtype, num_workers=num_workers, pin_memory=pin_memory,
    )  # fmt: skip


def _table_sizes(model: nn.Module) -> list[int]:
    return [len(table) for table in parameter_groups(model)[1]]
