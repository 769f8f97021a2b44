"""`dpfest budget`: the noise that a privacy budget asks for, without training; a reader of configurations.

The reckoning is in `dpfest.budget`, which `train` calls too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import dpfest.budget
from dpfest import accounting
from dpfest.accounting import Event, to_record
from dpfest.errors import UserError
from pipelines.config import Config
from pipelines.data.dataset import Dataset
from pipelines.data.source import CATEGORICAL_FEATURES
from pipelines.files import write_json
from pipelines.preprocess import dataset_folder


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
                f"{plan.sampling} batches; one example more or less)"
            )
            lines["delta"] = f"{plan.delta:.4g}"
            lines["noise multiplier σ"] = f"{plan.noise_multiplier:.6g}"
            if plan.map_noise_multiplier is not None:
                lines["map σ1"] = f"{plan.map_noise_multiplier:.6g}"
            lines["gradient σ2"] = f"{plan.gradient_noise_multiplier:.6g}"
            if plan.epsilon_per_row is not None:
                lines["epsilon of one drawn row"] = f"{plan.epsilon_per_row:.6g}"
            if plan.selection is not None:
                claim = plan.selection.claimed_epsilon
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
            calibrate=remembered_calibration(config),
        )
    )


def remembered_calibration(config: Config) -> Callable[..., float]:
    """`accounting.calibrate` that keeps its answers in `paths.runs`, where later runs and commands find them.

    An answer is believed only if it meets the target; one that cannot be read, or does not, is computed again.
    """
    folder = Path(config.paths.runs) / ".calibration"

    def calibrate(make_events: Callable[[float], Sequence[Event]], target: float, delta: float) -> float:
        probes = [[to_record(event) for event in make_events(sigma)] for sigma in (1.0, 2.0)]
        question = {"events": probes, "epsilon": target, "delta": delta, "dp_accounting": version("dp_accounting")}
        name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
        entry = folder / f"{name}.json"
        try:
            sigma = json.loads(entry.read_text(encoding="utf-8"))["noise_multiplier"]
            if accounting.epsilon(make_events(sigma), delta) <= target:
                return sigma
        except (OSError, ValueError, KeyError, TypeError):
            pass
        sigma = accounting.calibrate(make_events, target, delta)
        write_json(entry, {**question, "noise_multiplier": sigma})
        return sigma

    return calibrate


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
