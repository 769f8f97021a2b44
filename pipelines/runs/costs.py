"""What a summary says of privacy must be what the ledger's events give, and a private search the same in all files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpfest.accounting.accountant import to_record
from dpfest.errors import UserError
from dpfest.planning.ledger import EXAMPLE
from dpfest.selection.vocabulary import OF_COUNTS, OF_ONE_EXAMPLE
from pipelines.data.clicks.vocabulary import DATA_DEPENDENT_NOTE, VocabularyConfig

Record = Mapping[str, Any]
STEP = "training step"
VOCABULARY = (OF_COUNTS, OF_ONE_EXAMPLE)
_NOISE = ("noise_multiplier", "map_noise_multiplier", "gradient_noise_multiplier")
_LAW = ("distribution", "mean", "shape")


def refuse_other_costs(settings: Record, ledger: Record, summary: Record) -> None:
    """Refuse a summary whose costs, noise, unit or search are not those of the ledger and the settings.

    Raises:
        UserError: names the first.
    """
    spent = summary["privacy"]
    steps = [event for event in ledger["planned"] if event["what"] == STEP]
    of_vocabulary = [event for event in ledger["planned"] if event["what"] in VOCABULARY]
    selections = [event for event in ledger["planned"] if event["what"] not in (STEP, *VOCABULARY)]
    stream = summary["periods"] is not None
    for name in ("periods", "histograms", "epsilon_at_own_rates"):
        if (spent.get(name) is not None) != stream:
            raise UserError(
                f"privacy.{name} of the summary does not fit {'a stream' if stream else 'a run of one day'}"
            )
    if stream:
        _periods(spent, summary, steps, selections, ledger)
    else:
        _same("privacy.step", spent.get("step"), {**steps[0], "count": 1} if len(steps) == 1 else None)
        _noise("privacy", spent, spent["step"])
    but = "count", "part"
    _among("privacy.selection", spent.get("selection"), _bare(selections, *but), *but)
    _same("privacy.public_vocabulary", spent.get("public_vocabulary"), DATA_DEPENDENT_NOTE not in ledger["statements"])
    _same("privacy.vocabulary", spent.get("vocabulary"), of_vocabulary or None)
    _vocabulary(settings, summary, of_vocabulary)
    unit = settings["privacy"].get("unit", EXAMPLE)
    _same("privacy.unit", spent.get("unit"), None if unit == EXAMPLE else unit.removesuffix("_id"))
    _search(settings, ledger, spent)


def _vocabulary(settings: Record, summary: Record, events: Sequence[Record]) -> None:
    """Refuse a ledger whose run does not pay for the vocabulary that its settings release."""
    vocabulary, digest = settings["data"].get("vocabulary") or {}, summary.get("vocabulary_sha256")
    config = VocabularyConfig(**{name: vocabulary[name] for name in ("policy", "noise_multiplier", "delta")
                                 if name in vocabulary})  # fmt: skip
    released = config.release(summary["examples"], 1)
    due = [] if released is None else [to_record(event) for event in released.events]
    _same("what the ledger pays for the vocabulary", list(events), due)
    if (digest is not None) != bool(due) or (digest is not None and not re.fullmatch("[0-9a-f]{64}", str(digest))):
        raise UserError(f"vocabulary_sha256 of the summary is {str(digest)[:80]}")


def _periods(
    spent: Record, summary: Record, steps: Sequence[Record], selections: Sequence[Record], ledger: Record
) -> None:
    periods, steps, selections = spent["periods"], _bare(steps, "count"), _bare(selections, "count")
    for number, (period, told) in enumerate(zip(periods, summary["periods"], strict=True), 1):
        where = f"privacy.periods[{number}]"
        _among(f"{where}.step", period["step"], steps, "count")
        _noise(where, period, period["step"])
        _same(f"{where}.examples", period["examples"], told["examples"])
    _same("the steps of privacy.periods", sum(period["steps"] for period in periods), summary["steps"])
    for name in _NOISE:
        values = {period.get(name) for period in periods}
        _same(f"privacy.{name}", spent.get(name), values.pop() if len(values) == 1 else None)
    for number, histogram in enumerate(spent["histograms"], 1):
        _among(f"privacy.histograms[{number}]", histogram, selections, "count")
    apart, whole = spent["epsilon_at_own_rates"], ledger["epsilon"]
    if ledger["fidelity"] == "rigorous" and "search" not in ledger and not math.isclose(apart, whole, rel_tol=1e-3):
        raise UserError(f"privacy.epsilon_at_own_rates is {apart}, and epsilon {whole}")


def _search(settings: Record, ledger: Record, spent: Record) -> None:
    made, asked, told = ledger.get("search"), settings.get("search"), spent.get("search")
    if asked is not None and made is None and told is None:
        raise UserError("it is one run of a private search, of which the best alone may leave, in its own folder")
    if (made is None) != (told is None) or (made is None) != (asked is None):
        raise UserError(
            "the settings, the ledger and the summary do not agree on whether a private search chose the run"
        )
    if made is None:
        return
    for name in _LAW:
        _same(f"search.{name} of the ledger", made[name], asked[name])  # type: ignore[index]
    for name, value in told.items():  # type: ignore[union-attr]
        _same(f"privacy.search.{name} of the summary", value, made[name])
    _same("search.target_epsilon of the ledger", made["target_epsilon"], settings["privacy"]["epsilon"])
    _same("search.epsilon of the ledger", made["epsilon"], ledger["epsilon"])
    of_run = made["epsilon_of_run"]
    if isinstance(of_run, bool) or not isinstance(of_run, int | float) or not 0 <= of_run <= made["epsilon"]:
        raise UserError(f"search.epsilon_of_run of the ledger is {str(of_run)[:80]}, not a number up to its epsilon")


def _noise(where: str, stated: Record, step: Record) -> None:
    for name in _NOISE:
        _same(f"{where}.{name}", stated.get(name), step.get(name))


def _bare(events: Sequence[Record], *but: str) -> list[Record]:
    """Return events without the parts named."""
    return [{name: value for name, value in event.items() if name not in but} for event in events]


def _among(where: str, event: Record | None, events: Sequence[Record], *but: str) -> None:
    """Refuse an event that, without the parts named, is none of these; None is right where there are none."""
    if (event is None) != (not events) or (event is not None and _bare([event], *but)[0] not in events):
        raise UserError(f"{where} of the summary is {str(event)[:80]}, which is not planned by the ledger")


def _same(what: str, value: Any, expected: Any) -> None:
    if type(value) is not type(expected) or value != expected:
        raise UserError(f"{what} is {str(value)[:80]}, where {str(expected)[:80]} is due")
