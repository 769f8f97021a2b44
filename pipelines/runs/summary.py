"""summary.json: settings, utility and privacy cost of a run; the contract that reports read.

It may be published, so it contains only what :mod:`pipelines.runs.release` lists: functions of the settings, of the
number of examples, of released quantities and of rows that are never trained on.  Times depend on the batches drawn and
are in ``private/timings.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpfest.accounting.accountant import Event, to_record
from dpfest.planning.ledger import Ledger
from dpfest.planning.periods import Period
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.planning.unproven import epsilon_at_own_rates
from pipelines.config.settings import Config
from pipelines.runs.identity import weights_digest
from pipelines.runs.release import SUMMARY_SCHEMA
from pipelines.runs.schedule import Schedule
from pipelines.tasks.low_rank_table import EmbeddingSize

PLATT = ("scale", "shift")
"""The two numbers of a Platt scaling (:class:`pipelines.tasks.calibration.Platt`), fitted on validation rows."""


def summarize(
    config: Config,
    schedule: Schedule,
    ledger: Ledger,
    *,
    size: EmbeddingSize,
    table_names: Sequence[str],
    mean_rows: Sequence[float],
    metric: str,
    evaluations: Sequence[Mapping[str, dict[str, float | None]]],
    settings: Mapping[str, Any],
    tensors: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the summary of a finished run.

    Args:
        mean_rows: rows with a noised gradient per table, averaged over steps.
        evaluations: metrics after each period, on `validation` (rows on which settings are chosen) and `following`
            (held-out rows of the next period's days); after the last on `test` (rows that are only reported).
        settings: settings that may be published (:func:`pipelines.runs.release.released_settings`).
        tensors: type and shape of each released tensor by name; None if the weights are not kept.
    """
    plan, validation, test = schedule.plan, evaluations[-1]["validation"], evaluations[-1]["test"]
    sections = ["algorithm", "optimizer", "train", *(["stream"] if schedule.is_stream else [])]
    sections += ["unit"] if config.unit_matters else []
    layout, coordinates = size.layout, size.coordinates(mean_rows)
    tables = zip(table_names, layout.rows, layout.dims, mean_rows, strict=True)
    return {
        "schema": SUMMARY_SCHEMA,
        "dataset": config.data.name,
        "model": config.model.name,
        "weights": weights_digest(config.model.identity()),
        "algorithm": config.algorithm.name,
        "seed": config.seed,
        "profile": config.profile,
        "examples": plan.examples,
        "batch_size": plan.batch_size,
        "steps": plan.steps,
        "utility": {
            "metric": metric,
            "value": test[metric],
            "split": "test",
            "standard_error": test["standard_error"],
            "validation": validation[metric],
            "validation_standard_error": validation["standard_error"],
            "loss": test["loss"],
            **{name: test[name] for name in ("constant_loss", "calibrated_loss", "reliability") if name in test},
            **({"calibration": {name: validation[name] for name in PLATT}} if PLATT[0] in validation else {}),
        },
        "embedding_gradient": {
            "parameters": size.whole,
            "coordinates_mean": coordinates,
            "reduction": size.whole / coordinates if coordinates else None,
            "tables": [{"name": name, "rows": rows, "dim": dim, "rows_mean": mean} for name, rows, dim, mean in tables],
        },
        "privacy": _privacy(schedule, ledger) if config.algorithm.private else None,
        "periods": _periods(schedule, evaluations) if schedule.is_stream else None,
        "hyperparameters": {name: settings[name] for name in sections},
        "tensors": None if tensors is None else dict(tensors),
    }


def _periods(schedule: Schedule, evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return days, examples and evaluation of each period of a stream, without the reliability curves: they would make
    up most of a summary."""
    ended = enumerate(zip(schedule.plan.periods, evaluations, strict=True), 1)
    return [
        {
            **{"period": number, "days": list(period.days or ()), "examples": period.examples},
            **{split: _but(found, "reliability") for split, found in evaluation.items()},
        }
        for number, (period, evaluation) in ended
    ]


def _but(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _privacy(schedule: Schedule, ledger: Ledger) -> dict[str, Any]:
    """Return privacy cost and noise: enough to recompute epsilon."""
    plan, spent, stream = schedule.plan, ledger.to_json(), schedule.is_stream
    steps = [plan.step(number) for number in range(len(plan.periods))]
    selection = replace(plan.selections[0], part=()) if plan.selections else None
    return {
        **{name: spent[name] for name in ("epsilon", "sound_epsilon", "delta", "fidelity", "sampling")},
        "step": None if stream else _record(steps[0]),
        "selection": _record(selection),
        **_noise(plan),
        "periods": [_period(*each) for each in zip(plan.periods, steps, strict=True)] if stream else None,
        "histograms": [_record(event) for event in plan.selections] if stream else None,
        "epsilon_at_own_rates": epsilon_at_own_rates(plan) if stream else None,
        "public_vocabulary": not schedule.data_dependent_vocabulary,
        **({"unit": plan.unit.name} if plan.unit else {}),
    }


def _period(period: Period, step: Event | None) -> dict[str, Any]:
    """Return the cost of a period's steps, and their noise."""
    return {"examples": period.examples, "steps": period.steps, "step": _record(step), **_noise(step)}


def _noise(noised: PrivacyPlan | Event | None) -> dict[str, float | None]:
    names = ("noise_multiplier", "map_noise_multiplier", "gradient_noise_multiplier")
    return {name: getattr(noised, name, None) for name in names}


def _record(event: Event | None) -> dict[str, Any] | None:
    return None if event is None else to_record(event)
