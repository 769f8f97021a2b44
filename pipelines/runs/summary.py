"""summary.json: settings, utility and privacy cost of a run; the contract that reports read.

It may be published, so it contains only what :mod:`pipelines.runs.published` lists: functions of the settings, of the
number of examples, of released quantities and of rows that are never trained on.  Times depend on the batches drawn and
are in ``private/timings.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from dpfest.accounting.accountant import Event, to_record
from dpfest.planning.ledger import Ledger
from dpfest.planning.periods import Period
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.planning.unproven import epsilon_at_own_rates
from pipelines.config.settings import Config
from pipelines.runs.identity import weights_digest
from pipelines.runs.published import (
    SUMMARY_SCHEMA,
    EmbeddingGradient,
    EventRecord,
    Metrics,
    Noise,
    PeriodCost,
    PeriodResult,
    Privacy,
    Summary,
    Utility,
)
from pipelines.runs.schedule import Schedule
from pipelines.tasks.low_rank_table import EmbeddingSize


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
    plan = schedule.plan
    sections = ["algorithm", "optimizer", "train", *(["stream"] if schedule.is_stream else [])]
    sections += ["unit"] if config.unit_matters else []
    summary: Summary = {
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
        "utility": _utility(metric, evaluations[-1]["validation"], evaluations[-1]["test"]),
        "embedding_gradient": _embedding_gradient(size, table_names, mean_rows),
        "privacy": _privacy(schedule, ledger) if config.algorithm.private else None,
        "periods": _periods(schedule, evaluations) if schedule.is_stream else None,
        "hyperparameters": {name: settings[name] for name in sections},
        "tensors": None if tensors is None else dict(tensors),
    }
    if (vocabulary := schedule.days[0].vocabulary_sha256) is not None:
        summary["vocabulary_sha256"] = vocabulary
    return dict(summary)


def _utility(metric: str, validation: Mapping[str, Any], test: Mapping[str, Any]) -> Utility:
    found: Utility = {
        "metric": metric,
        "value": test[metric],
        "split": "test",
        "standard_error": test["standard_error"],
        "validation": validation[metric],
        "validation_standard_error": validation["standard_error"],
        "loss": test["loss"],
    }
    if "constant_loss" in test:
        found["constant_loss"] = test["constant_loss"]
    if "calibrated_loss" in test:
        found["calibrated_loss"] = test["calibrated_loss"]
    if "reliability" in test:
        found["reliability"] = test["reliability"]
    if "scale" in validation:
        found["calibration"] = {"scale": validation["scale"], "shift": validation["shift"]}
    return found


def _embedding_gradient(size: EmbeddingSize, names: Sequence[str], mean_rows: Sequence[float]) -> EmbeddingGradient:
    layout, coordinates = size.layout, size.coordinates(mean_rows)
    tables = zip(names, layout.rows, layout.dims, mean_rows, strict=True)
    return {
        "parameters": size.whole,
        "coordinates_mean": coordinates,
        "reduction": size.whole / coordinates if coordinates else None,
        "tables": [{"name": name, "rows": rows, "dim": dim, "rows_mean": mean} for name, rows, dim, mean in tables],
    }


def _periods(schedule: Schedule, evaluations: Sequence[Mapping[str, Any]]) -> list[PeriodResult]:
    """Return days, examples and evaluation of each period of a stream, without the reliability curves: they would make
    up most of a summary."""
    found = []
    for number, (period, evaluation) in enumerate(zip(schedule.plan.periods, evaluations, strict=True), 1):
        result: PeriodResult = {"period": number, "days": list(period.days or ()), "examples": period.examples}
        for split, values in evaluation.items():
            kept = {name: value for name, value in values.items() if name != "reliability"}
            result[split] = cast(Metrics, kept)  # type: ignore[literal-required]
        found.append(result)
    return found


def _privacy(schedule: Schedule, ledger: Ledger) -> Privacy:
    plan, spent, stream = schedule.plan, ledger.to_json(), schedule.is_stream
    steps = [plan.step(number) for number in range(len(plan.periods))]
    selection = replace(plan.selections[0], part=()) if plan.selections else None
    cost: Privacy = {
        "epsilon": spent["epsilon"],
        "sound_epsilon": spent["sound_epsilon"],
        "delta": spent["delta"],
        "fidelity": spent["fidelity"],
        "sampling": spent["sampling"],
        "step": None if stream else _record(steps[0]),
        "selection": _record(selection),
        **_noise(plan),
        "periods": [_period(*each) for each in zip(plan.periods, steps, strict=True)] if stream else None,
        "histograms": [to_record(event) for event in plan.selections] if stream else None,
        "epsilon_at_own_rates": epsilon_at_own_rates(plan) if stream else None,
        "public_vocabulary": not schedule.data_dependent_vocabulary,
    }
    if plan.unit:
        cost["unit"] = plan.unit.name
    if plan.vocabulary:
        cost["vocabulary"] = [to_record(event) for event in plan.vocabulary.events]
    return cost


def _period(period: Period, step: Event | None) -> PeriodCost:
    return {"examples": period.examples, "steps": period.steps, "step": _record(step), **_noise(step)}


def _noise(noised: PrivacyPlan | Event | None) -> Noise:
    return {
        "noise_multiplier": getattr(noised, "noise_multiplier", None),
        "map_noise_multiplier": getattr(noised, "map_noise_multiplier", None),
        "gradient_noise_multiplier": getattr(noised, "gradient_noise_multiplier", None),
    }


def _record(event: Event | None) -> EventRecord | None:
    return None if event is None else to_record(event)
