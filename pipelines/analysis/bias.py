"""Section `bias`: the quantities of the paper's bias-variance inequality (section 3.4), measured during training.

    sqrt(L² (1 + γ)² + h σ²) + γ L sqrt(T)  <  sqrt(L² + D σ²)

DP-AdaFEST truncates a fraction γ of the gradient and noises h coordinates; DP-SGD truncates nothing and noises all D.

- A model is trained by DP-AdaFEST as configured and examined MOMENTS times, on separate batches.
- γ is the norm of the part of the mean clipped gradient that the mask removes, relative to that gradient's norm. Both
  are averaged over BATCHES batches at the same weights, without noise (the bias is that of the expectation; the
  sampling error that remains makes γ look larger).
- h counts the noised coordinates of a step, dense parameters included; D counts all parameters.
- σ is the standard deviation of a coordinate's noise, C₂ σ₂ / B, of each algorithm; T is the number of steps.
- L bounds the gradient's norm: C₂, by clipping. The norm of the mean clipped gradient is far smaller and has no bound
  known beforehand, but the inequality can be evaluated with it too.

These are diagnostics of the data, not a release: nothing here is private.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from dpfest.algorithm import Algorithm
from dpfest.algorithms import DPSGD, AdaFEST
from dpfest.batches import PoissonBatches
from dpfest.engine import PrivateEngine
from dpfest.errors import UserError
from dpfest.noise import NoiseKey
from dpfest.privacy_plan import PrivacyPlan
from dpfest.step_noise import Independent
from dpfest.training import PrivateTraining
from pipelines.bench.records import Record
from pipelines.budget import planned
from pipelines.config.settings import Config
from pipelines.data.dataset import Dataset
from pipelines.data.rows import RowReader
from pipelines.preprocess import preprocess
from pipelines.system.progress import progress
from pipelines.tasks.optimizers import optimizers, set_learning_rates
from pipelines.tasks.task import Task, TaskReader, device_of, task_of

MOMENTS = 3
BATCHES = 4
MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Thresholds to examine, as multiples of the one used in training."""


@dataclass(frozen=True)
class Measured:
    """γ, h and the norm of the mean clipped gradient at one threshold, averaged over moments."""

    truncated: float
    coordinates: float
    norm: float


def bench(config: Config, repeats: int) -> list[Record]:
    """Return a record per threshold; nothing is timed, so nothing is repeated."""
    algorithm = config.algorithm
    if not isinstance(algorithm, AdaFEST) or algorithm.selection is not None or config.data.is_stream:
        raise UserError("dpfest bench bias measures DP-AdaFEST on a dataset that is no stream: use algorithm=adafest.")
    dataset = Dataset.open(preprocess(config))
    plan = planned(config, dataset.examples, dataset.vocabulary_sizes)
    dense = planned(
        replace(config, algorithm=DPSGD(clipping_norm=algorithm.clipping_norm)),
        dataset.examples,
        dataset.vocabulary_sizes,
    )
    task = task_of(config, dataset, device_of(config.device))
    thresholds = [multiple * algorithm.threshold for multiple in MULTIPLES]
    measurements = measure(task, dataset.split("train"), algorithm, plan, thresholds, config)
    parameters = sum(parameter.numel() for parameter in task.model.parameters())
    return [
        Record(
            section="bias",
            case=f"{config.data.name}, {plan.steps} steps",
            competitor=f"adafest, threshold {threshold:g}",
            reference="dpsgd",
            batch_size=plan.batch_size,
            values={
                "threshold": threshold,
                "noise_ratio": algorithm.noise_ratio,
                "epsilon": plan.target_epsilon,
                "steps": plan.steps,
                "clipping_norm": algorithm.clipping_norm,
                "parameters": parameters,
                "coordinates": measured.coordinates,
                "truncated": measured.truncated,
                "gradient_norm": measured.norm,
                "noise_multiplier": plan.gradient_noise_multiplier,
                "dpsgd_noise_multiplier": dense.noise_multiplier,
            },
            note=f"γ {measured.truncated:.4f}, h {measured.coordinates:,.0f} of D {parameters:,}, "
            f"‖mean gradient‖ {measured.norm:.3g}",
        )
        for threshold, measured in zip(thresholds, measurements, strict=True)
    ]


def measure(
    task: Task,
    rows: RowReader,
    algorithm: AdaFEST,
    plan: PrivacyPlan,
    thresholds: Sequence[float],
    config: Config,
) -> list[Measured]:
    """Train by `algorithm` and measure each threshold at MOMENTS evenly spaced steps, first and last included."""
    seed = config.privacy.noise_seed
    key = NoiseKey.fresh() if seed is None else NoiseKey.from_seed(seed, "bias")
    read = TaskReader(task, rows, config.train.micro_batch_size)
    updates = optimizers(task.model, config.optimizer)
    training = PrivateTraining(task.model, task.losses, updates, plan, read, key=key)
    looks = {round(place * plan.steps / (MOMENTS - 1)) for place in range(MOMENTS)}
    seen: list[list[Measured]] = []
    with progress("bias") as report:
        for step in range(plan.steps + 1):
            report(step, plan.steps, f"{len(seen)} of {len(looks)} looks")
            if step in looks:
                seen.append(_look(task, rows, algorithm, plan, thresholds))
            if step < plan.steps:
                set_learning_rates(updates, config.optimizer, step / plan.steps)
                training.step(training.read(training.request(step)))
    return [_mean(of_threshold) for of_threshold in zip(*seen, strict=True)]


def _look(
    task: Task, rows: RowReader, algorithm: AdaFEST, plan: PrivacyPlan, thresholds: Sequence[float]
) -> list[Measured]:
    """Return the mean gradient at the current weights, on fresh batches, and the mean part that each mask removes."""
    algorithms: list[Algorithm] = [DPSGD(clipping_norm=algorithm.clipping_norm)]
    algorithms += [replace(algorithm, threshold=threshold) for threshold in thresholds]
    key = NoiseKey.fresh()
    draws = PoissonBatches(plan.examples, plan.batch_size, key)
    engines = [
        PrivateEngine(
            task.model, each, task.losses, key, cost=plan.step(), expected_batch_size=float(plan.batch_size),
            noise=Independent(0.0),
        )
        for each in algorithms
    ]  # fmt: skip
    sums, noised = [torch.zeros(1)] * len(engines), [0] * len(engines)
    for number in range(BATCHES):
        batch = task.batches(rows, draws.indices(number), None)
        for place, engine in enumerate(engines):
            gradient, coordinates = _flat(engine, batch, number)
            sums[place], noised[place] = sums[place] + gradient, noised[place] + coordinates
    whole, norm = sums[0], float(sums[0].norm())
    return [
        Measured(float((whole - kept).norm()) / norm if norm else 0.0, count / BATCHES, norm / BATCHES)
        for kept, count in zip(sums[1:], noised[1:], strict=True)
    ]


def _flat(engine: PrivateEngine, batch: list, number: int) -> tuple[Tensor, int]:
    """Return a step's gradient as one vector over all parameters, and the number of noised coordinates."""
    released, parts = engine.gradient(batch, number)[0], []
    noised = sum(gradient.numel() for gradient in released.dense.values())
    for rows, dim, table in zip(engine.layout.rows, engine.layout.dims, released.tables, strict=True):
        noised += table.values.numel()
        values = table.values
        if table.rows is not None:
            values = values.new_zeros(rows, dim).index_copy_(0, table.rows, values)
        parts.append(values.flatten())
    return torch.cat([*parts, *(gradient.flatten() for gradient in released.dense.values())]).cpu(), noised


def _mean(of_moments: Sequence[Measured]) -> Measured:
    truncated, coordinates, norm = (
        math.fsum(values) / len(of_moments) for values in zip(*map(astuple, of_moments), strict=True)
    )
    return Measured(truncated, coordinates, norm)
