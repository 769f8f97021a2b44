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
from dpfest.stream import StreamPlan, plan_stream
from pipelines.config import Config
from pipelines.data.dataset import Dataset
from pipelines.data.source import CATEGORICAL_FEATURES
from pipelines.data.stream import Stream, split_days
from pipelines.files import write_json
from pipelines.preprocess import dataset_folder


@dataclass(frozen=True)
class Budget:
    """A plan, printed as a table; of a stream, its periods under it."""

    plan: dpfest.budget.Budget
    stream: StreamPlan | None = None

    def __str__(self) -> str:
        plan = self.plan
        spent = self.stream.epsilon if self.stream else plan.epsilon
        lines = {
            "algorithm": plan.algorithm,
            "examples N": f"{plan.examples:,}",
            "batch size B": f"{plan.batch_size:,}",
            "steps T": f"{plan.steps:,}",
        }
        if self.stream is None or plan.fidelity == "paper":
            lines["sampling probability q"] = f"{plan.sampling_probability:.6g}"
        if plan.target_epsilon is None:
            lines["privacy"] = "none: nothing is guaranteed"
        else:
            lines["epsilon"] = (
                f"{spent:.6g} of {plan.target_epsilon:g} ({plan.fidelity}, "
                f"{plan.sampling} batches; one example more or less)"
            )
            if self.stream and plan.fidelity == "paper":
                lines["epsilon at each period's own q"] = f"{self.stream.epsilon_at_own_rates():.6g}"
            lines["delta"] = f"{plan.delta:.4g}"
            lines |= {name: f"{value:.6g}" for name, value in noise(plan).items()}
            if plan.selection is not None:
                claim = plan.selection.claimed_epsilon
                cost = f"{accounting.epsilon([plan.selection], plan.delta):.6g}"
                claimed = f" (the paper claims {claim:g})" if claim is not None else ""
                lines["epsilon of selection alone"] = cost + claimed
        width = max(map(len, lines))
        table = [f"{name:<{width}}  {value}" for name, value in lines.items()]
        return "\n".join([*table, *(self._periods(self.stream) if self.stream else ())])

    @staticmethod
    def _periods(stream: StreamPlan) -> list[str]:
        """A line of headings, and one for each period."""
        rows = [
            {
                "period": str(number),
                "days": f"{days[0]}-{days[-1]}",
                "N": f"{period.examples:,}",
                "T": f"{period.steps:,}",
                "q": f"{period.sampling_probability:.6g}",
                **{name: f"{value:.6g}" for name, value in noise(period).items()},
            }
            for number, (days, period) in enumerate(zip(stream.days, stream.periods, strict=True), 1)
        ]
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]


def noise(plan: dpfest.budget.Budget) -> dict[str, float]:
    """The noise of a step, by its name and sign; empty where the plan has none."""
    named = {
        "noise multiplier σ": plan.noise_multiplier,
        "map σ1": plan.map_noise_multiplier,
        "gradient σ2": plan.gradient_noise_multiplier,
        "epsilon of one drawn row": plan.epsilon_per_row,
    }
    return {name: value for name, value in named.items() if value is not None}


def budget(config: Config) -> Budget:
    """What `train` would spend and add as noise under this configuration.

    N is `budget.examples`, or else the training rows of the processed dataset or stream. Calibrations are kept in
    `paths.runs`, where `train` finds them.

    Raises:
      UserError: N is unknown, or no noise meets the target.
    """
    folder = _folder(config)
    if config.data.is_stream:
        days = Stream.open(folder) if folder else None
        stream = planned_stream(config, _examples_of_days(config, days), _features(config, days))
        return Budget(stream.whole, stream)
    dataset = Dataset.open(folder) if folder else None
    examples = config.budget.examples or (dataset.examples if dataset else None)
    if examples is None:
        raise UserError(
            "The number of training examples is not known: set budget.examples, or make the dataset first "
            f"(dpfest preprocess data={config.data.name})."
        )
    return Budget(planned(config, examples, _features(config, dataset)))


def planned(config: Config, examples: int, features: int | Sequence[int]) -> dpfest.budget.Budget:
    """The budget of a run on so many examples, see `dpfest.budget.plan`."""
    train = config.train
    return dpfest.budget.plan(
        config.algorithm,
        config.privacy,
        examples=examples,
        batch_size=train.batch_size,
        steps=dpfest.budget.training_steps(examples, train.batch_size, train.epochs, train.steps),
        features=features,
        calibrate=remembered_calibration(config),
    )


def planned_stream(config: Config, examples: Sequence[int], features: int | Sequence[int]) -> StreamPlan:
    """The plan of a run on a stream of days of so many examples, see `dpfest.stream.plan_stream`."""
    return plan_stream(
        config.algorithm,
        config.privacy,
        examples=examples,
        period=config.stream.period,
        batch_size=config.train.batch_size,
        epochs=config.train.epochs,
        steps=config.train.steps,
        features=features,
        calibrate=remembered_calibration(config),
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


def _folder(config: Config) -> Path | None:
    """Where the data lie, None where they are not made yet."""
    try:
        folder = dataset_folder(config)
    except UserError:
        # Its source is not here; budget.examples may say all that is needed.
        return None
    return folder if folder.exists() else None


def _examples_of_days(config: Config, stream: Stream | None) -> list[int]:
    """Of each day that is trained on: `budget.examples` in equal days, or else the processed stream's."""
    days, examples = config.stream.train_days, config.budget.examples
    if examples is not None:
        return [examples // days + (day < examples % days) for day in range(days)]
    if stream is None:
        raise UserError(
            f"The rows of each day are not known: set budget.examples to those of all {days} days that are trained on "
            f"(stream.train_days), or make the stream first (dpfest preprocess data={config.data.name})."
        )
    return [day.examples for day in split_days(stream, days)[0]]


def _features(config: Config, data: Dataset | Stream | None) -> list[int] | int:
    """Vocabulary sizes where they are known, else the number of features; a text is one."""
    if data is None and config.data.task == "text":
        return 1
    sizes = data.vocabulary_sizes if data else config.data.vocabulary.sizes
    return list(sizes) if sizes else CATEGORICAL_FEATURES
