"""`dpfest budget`: the noise that a privacy budget asks for, without training; a reader of configurations.

The reckoning is in `dpfest.budget`, which `train` calls too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import dpfest.budget
from dpfest import accounting
from dpfest.errors import UserError
from dpfest.privacy import FIDELITIES
from pipelines.config import Config
from pipelines.data.dataset import Dataset
from pipelines.data.source import CATEGORICAL_FEATURES
from pipelines.preprocess import dataset_folder

CALIBRATIONS = ".calibration"
"""Folder of earlier calibrations, under `paths.runs`."""


@dataclass(frozen=True)
class Budget:
    """A plan, printed as a table."""

    plan: dpfest.budget.Budget

    def __str__(self) -> str:
        plan = self.plan
        lines = {
            "algorithm": plan.algorithm,
            "examples N": f"{plan.examples:,}",
            "batch size B": f"{plan.batch_size:,}",
            "steps T": f"{plan.steps:,}",
            "sampling probability q": f"{plan.sampling_probability:.6g}",
        }
        if plan.target_epsilon is None:
            lines["privacy"] = "none: nothing is guaranteed"
        else:
            lines["epsilon"] = (
                f"{plan.epsilon:.6g} of {plan.target_epsilon:g} ({plan.fidelity}, "
                f"{FIDELITIES[plan.fidelity]} batches; one example more or less)"
            )
            lines["delta"] = f"{plan.delta:.4g}"
            lines["noise multiplier σ"] = f"{plan.noise_multiplier:.6g}"
            if plan.map_noise_multiplier is not None:
                lines["map σ1"] = f"{plan.map_noise_multiplier:.6g}"
            lines["gradient σ2"] = f"{plan.gradient_noise_multiplier:.6g}"
            if plan.epsilon_per_row is not None:
                lines["epsilon of one drawn row"] = f"{plan.epsilon_per_row:.6g}"
            if plan.selection is not None:
                claim = getattr(plan.selection, "claimed_epsilon", None)
                cost = f"{accounting.epsilon([plan.selection], plan.delta):.6g}"
                claimed = f" (the paper claims {claim:g})" if claim is not None else ""
                lines["epsilon of selection alone"] = cost + claimed
        width = max(map(len, lines))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())


def budget(config: Config) -> Budget:
    """What `train` would spend and add as noise under this configuration.

    N is `budget.examples`, or else the training rows of the processed dataset. Calibrations are kept in
    `paths.runs`, where `train` finds them.

    Raises:
      UserError: N is unknown, or no noise meets the target.
    """
    dataset = _dataset(config)
    examples = config.budget.examples or (dataset.examples if dataset else None)
    if examples is None:
        raise UserError(
            "The number of training examples is not known: set budget.examples, or make the dataset first "
            f"(dpfest preprocess data={config.data.name})."
        )
    train = config.train
    return Budget(
        dpfest.budget.plan(
            config.algorithm,
            config.privacy,
            examples=examples,
            batch_size=train.batch_size,
            steps=dpfest.budget.training_steps(examples, train.batch_size, train.epochs, train.steps),
            features=_features(config, dataset),
            cache=Path(config.paths.runs) / CALIBRATIONS,
        )
    )


def _dataset(config: Config) -> Dataset | None:
    try:
        folder = dataset_folder(config)
    except UserError:
        # Its source is not here; budget.examples may say all that is needed.
        return None
    return Dataset.open(folder) if folder.exists() else None


def _features(config: Config, dataset: Dataset | None) -> list[int] | int:
    """Vocabulary sizes where they are known, else the number of features."""
    sizes = dataset.vocabulary_sizes if dataset else config.data.vocabulary.sizes
    return list(sizes) if sizes else CATEGORICAL_FEATURES
