"""summary.json: what a run was, what came of it, and what it cost; the contract that reports read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dpfest.accounting import to_record
from dpfest.budget import Budget
from dpfest.ledger import Ledger
from pipelines.config import Config
from pipelines.course import Course
from pipelines.models.low_rank_table import EmbeddingSize

SCHEMA = 1


def summarize(
    config: Config,
    course: Course,
    ledger: Ledger,
    *,
    size: EmbeddingSize,
    table_names: Sequence[str],
    mean_rows: Sequence[float],
    metric: str,
    evaluations: Sequence[Mapping[str, dict[str, float | None]]],
    seconds: float,
    waited: float,
) -> dict[str, Any]:
    """The summary of a run that is done.

    Args:
        mean_rows: rows with a noised gradient, the mean over steps, for each table.
        evaluations: after each period, metrics on `validation`, the rows that settings are chosen on, and on
            `following`, the held-out rows of the next period's days; after the last on `test`, those that are only
            reported.
        seconds: time in training steps.
        waited: of that, time in which a step waited for its batch.
    """
    budget, validation, test = course.budget, evaluations[-1]["validation"], evaluations[-1]["test"]
    sections = ("algorithm", "optimizer", "train", *(["stream"] if course.plan else []))
    layout, coordinates = size.layout, size.coordinates(mean_rows)
    tables = zip(table_names, layout.rows, layout.dims, mean_rows, strict=True)
    return {
        "schema": SCHEMA,
        "dataset": config.data.name,
        "model": config.model.name,
        "weights": _weights(config),
        "algorithm": config.algorithm.name,
        "seed": config.seed,
        "profile": config.profile,
        "examples": budget.examples,
        "batch_size": budget.batch_size,
        "steps": budget.steps,
        "utility": {
            "metric": metric,
            "value": test[metric],
            "split": "test",
            "standard_error": test["standard_error"],
            "validation": validation[metric],
            "validation_standard_error": validation["standard_error"],
            "loss": test["loss"],
        },
        "embedding_gradient": {
            "parameters": size.whole,
            "coordinates_mean": coordinates,
            "reduction": size.whole / coordinates if coordinates else None,
            "tables": [{"name": name, "rows": rows, "dim": dim, "rows_mean": mean} for name, rows, dim, mean in tables],
        },
        "privacy": _privacy(course, ledger) if config.algorithm.private else None,
        "periods": _periods(course, evaluations) if course.plan else None,
        "hyperparameters": {name: asdict(getattr(config, name)) for name in sections},
        "throughput": {
            "wall_seconds": seconds,
            "waited_for_data_seconds": waited,
            # By the expected batch size: how many examples were drawn is private.
            "examples_per_second": budget.steps * budget.batch_size / seconds if seconds else None,
        },
    }


def _weights(config: Config) -> str | None:
    """Eight hexadecimal digits for the content of pretrained weights, wherever they lie; None of random ones."""
    files = config.model.identity().get("path")
    return None if files is None else hashlib.sha256(json.dumps(files).encode()).hexdigest()[:8]


def _periods(course: Course, evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Which days each period of a stream took, and how the model stood at its end."""
    ended = enumerate(zip(course.periods, evaluations, strict=True), 1)
    return [
        {"period": number, "days": list(period.days or ()), "examples": period.budget.examples, **evaluation}
        for number, (period, evaluation) in ended
    ]


def _privacy(course: Course, ledger: Ledger) -> dict[str, Any]:
    """What was spent and the noise that it bought: enough to count epsilon again."""
    budget, spent = course.budget, ledger.to_json()
    kept = ("epsilon", "sound_epsilon", "delta", "fidelity", "sampling", "step", "selection")
    return {
        **{name: spent[name] for name in kept},
        **_noise(budget),
        "periods": [_period(period.budget) for period in course.periods] if course.plan else None,
        "histograms": [to_record(event) for event in course.plan.histograms] if course.plan else None,
        "epsilon_at_own_rates": course.plan.epsilon_at_own_rates() if course.plan else None,
        "public_vocabulary": not course.data_dependent_vocabulary,
    }


def _noise(budget: Budget) -> dict[str, float | None]:
    names = ("noise_multiplier", "map_noise_multiplier", "gradient_noise_multiplier")
    return {name: getattr(budget, name) for name in names}


def _period(budget: Budget) -> dict[str, Any]:
    """What the steps of a period spent, and their noise."""
    step = budget.step and to_record(budget.step)
    return {"examples": budget.examples, "steps": budget.steps, "step": step, **_noise(budget)}
