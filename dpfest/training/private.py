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

from dpfest.algorithms.algorithm import Algorithm
from dpfest.errors import UserError
from dpfest.gradients.reading import DatasetReader
from dpfest.gradients.tables import parameter_groups
from dpfest.gradients.units import Units
from dpfest.gradients.validation import check_training
from dpfest.noise.key import NoiseKey
from dpfest.planning.plan import plan as planned
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.selection.topk import Selection
from dpfest.selection.vocabulary import OpenVocabulary
from dpfest.training import binding
from dpfest.training.arguments import cipher_for
from dpfest.training.loop import PrivateTraining


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    dataset: Any,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    *,
    algorithm: Algorithm | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    sampling: str | None = None,
    max_batch_size: int | None = None,
    vocabulary: OpenVocabulary | None = None,
    plan: PrivacyPlan | None = None,
    units: Units | None = None,
    selected: Selection | None = None,
    micro_batch_size: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
    sum_dtype: torch.dtype | None = None,
    noise_seed: int | None = None,
    key: NoiseKey | None = None,
    cipher: str | None = None,
) -> PrivateTraining:
    """Wrap a model for private training: calibrate the noise to ``epsilon``, check the model, prepare its batches.

    Give ``algorithm``, ``batch_size`` and the other settings of the plan, or a finished ``plan`` in their place.

    Args:
        model: trained in place; any that treats examples separately (:func:`dpfest.validate` says what cannot be
            trained, and why). Tables of ``nn.Embedding`` and ``nn.EmbeddingBag`` keep sparse gradients.
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
        sampling: None for ``poisson``, and for ``cyclic_poisson`` where the algorithm has ``bands``;
            ``truncated_poisson``, whose batches have at most ``max_batch_size`` examples (None for a
            size that they would hardly ever exceed); ``balls_in_bins``, every example once an epoch.
        max_batch_size: see ``sampling``.
        vocabulary: the release of values' noised counts from which the tables were made, which this training pays for.
        plan: from :func:`dpfest.plan`, of one period, with the number of this data set's examples (or units).
        units: which examples belong to one person, household, ...: ``dpfest.Units(ids, name="household")``. Then
            epsilon is that of adding or removing all examples of one; None for one example.
        selected: from :func:`dpfest.select`, for FEST and AdaFESTPlus.
        micro_batch_size: maximum number of examples run at once; None for all.
        collate_fn: as in ``torch.utils.data.DataLoader``, like the next two.
        num_workers: processes that read.
        pin_memory: whether batches are read into pinned memory.
        sum_dtype: see :class:`PrivateTraining`.
        noise_seed: None for a key from the operating system; a number makes a run reproducible, on public data only
            (two trainings of one seed share their noise).
        key: in place of a seed, the secret key of this run alone: of :func:`dpfest.select_best`, or
            ``NoiseKey.fresh()``. The noise is also a function of all that decides the gradients: plan, model, initial
            weights, loss function, data, optimisers, units and selected rows.
        cipher: of the key: ``aes256-ctr`` or ``chacha20/1`` (:mod:`dpfest.noise.key`); None for that of ``key``, or the
            default of the model's device.

    Raises:
        UserError: a ``ValueError`` that names the argument or the layer, and the remedy.
    """
    settings: dict[str, Any] = {
        "epsilon": epsilon, "delta": delta, "batch_size": batch_size, "epochs": epochs, "steps": steps,
        "max_batch_size": max_batch_size, "vocabulary": vocabulary,
    }  # fmt: skip
    if plan is not None:
        _refuse_beside_a_plan(plan, algorithm=algorithm, sampling=sampling, **settings)
    elif not isinstance(algorithm, Algorithm):
        raise UserError(
            f"algorithm={algorithm!r} must be an algorithm with its settings, as dpfest.AdaFEST(threshold=3)."
        )
    elif batch_size is None:
        raise UserError("Give batch_size=, the expected size of a batch, or a plan= that has one.")
    if key is not None and noise_seed is not None:
        raise UserError("Give make_private a key= or a noise_seed=, not both.")
    if key is not None and cipher not in (None, key.cipher):
        raise UserError(f"cipher={cipher!r} is not the cipher of key=, {key.cipher!r}: leave it out.")
    given = key is not None
    if noise_seed is not None:
        key = NoiseKey.from_seed(noise_seed, "training", cipher or cipher_for(model))
    elif cipher is not None and key is None:
        key = NoiseKey.fresh(cipher)
    read = DatasetReader(dataset, collate_fn, micro_batch_size)
    trained = algorithm if plan is None else plan.algorithm
    assert trained is not None
    check_training(model, loss_fn, optimizer, sparse=trained.sparse, lazy=trained.lazy)
    if not hasattr(dataset, "__len__"):
        raise UserError("dataset must have a length: the number of examples is part of the plan.")
    if units is not None:
        units.refuse_other(len(dataset))
    examples = len(dataset) if units is None else units.count
    if plan is None:
        assert algorithm is not None
        plan = planned(
            algorithm,
            **settings,
            examples=examples,
            unit=None if units is None else units.config,
            sampling=sampling,
            features=_table_sizes(model) if algorithm.selection else None,
            fixed_noise_seed=key is not None and key.fixed,
        )
    elif len(plan.periods) > 1 or plan.examples != examples:
        raise UserError(
            f"The plan is for {plan.examples:,} examples in {len(plan.periods)} periods, and the data set has "
            f"{examples:,}: plan with examples={examples}, or train a stream by dpfest.PrivateTraining(..., period=)."
        )
    if given and key is not None:
        rows = selected.rows if isinstance(selected, Selection) else selected
        of_units = None if units is None else (units.of, units.config)
        decides = (plan, model, loss_fn, read, optimizer, of_units, rows, sum_dtype)
        key = key.derive(f"training {binding.training_of(*decides)}")
    return PrivateTraining(
        model, loss_fn, optimizer, plan, read, units=units,
        selected=selected, key=key, sum_dtype=sum_dtype, num_workers=num_workers, pin_memory=pin_memory,
    )  # fmt: skip


def _refuse_beside_a_plan(plan: Any, **settings: Any) -> None:
    if not isinstance(plan, PrivacyPlan):
        raise UserError(f"plan must be what dpfest.plan(...) returns, not a {type(plan).__name__}.")
    if given := [name for name, value in settings.items() if value is not None]:
        raise UserError(f"The plan says {', '.join(given)} already: give make_private either these or plan=.")


def _table_sizes(model: nn.Module) -> list[int]:
    return [len(table) for table in parameter_groups(model)[1]]
