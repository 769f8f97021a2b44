"""summary.json: what a run was, what came of it, and what it cost; the contract that reports read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dpfest.budget import Budget
from dpfest.ledger import Ledger
from dpfest.tables import TableLayout
from pipelines.config import Config

SCHEMA = 1


def summarize(
    config: Config,
    budget: Budget,
    ledger: Ledger,
    *,
    layout: TableLayout,
    table_names: Sequence[str],
    mean_rows: Sequence[float],
    metric: str,
    validation: dict[str, float | None],
    test: dict[str, float | None],
    seconds: float,
    examples_seen: int,
    public_vocabulary: bool,
) -> dict[str, Any]:
    """The summary of a run that is done.

    Args:
        mean_rows: rows with a noised gradient, the mean over steps, for each table.
        validation: metrics on the split that settings are chosen on.
        test: metrics on the split that is only reported.
        seconds: time in training steps.
        examples_seen: sum of the batch sizes.
        public_vocabulary: False where it was taken from the training data, which no epsilon covers.
    """
    coordinates = layout.coordinates_of(mean_rows)
    tables = zip(table_names, layout.rows, layout.dims, mean_rows, strict=True)
    return {
        "schema": SCHEMA,
        "dataset": config.data.name,
        "model": config.model.name,
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
            "parameters": layout.coordinates,
            "coordinates_mean": coordinates,
            "reduction": layout.coordinates / coordinates if coordinates else None,
            "tables": [{"name": name, "rows": rows, "dim": dim, "rows_mean": mean} for name, rows, dim, mean in tables],
        },
        "privacy": {**_privacy(budget, ledger), "public_vocabulary": public_vocabulary} if budget.step else None,
        "hyperparameters": {name: asdict(getattr(config, name)) for name in ("algorithm", "optimizer", "train")},
        "throughput": {
            "wall_seconds": seconds,
            "examples_per_second": examples_seen / seconds if seconds else None,
        },
    }


def _privacy(budget: Budget, ledger: Ledger) -> dict[str, Any]:
    """What was spent and the noise that it bought: enough to count epsilon again."""
    spent = ledger.to_json()
    kept = ("epsilon", "sound_epsilon", "delta", "fidelity", "sampling", "step", "selection")
    return {
        **{name: spent[name] for name in kept},
        "noise_multiplier": budget.noise_multiplier,
        "map_noise_multiplier": budget.map_noise_multiplier,
        "gradient_noise_multiplier": budget.gradient_noise_multiplier,
        "periods": None,
    }
