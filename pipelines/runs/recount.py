"""A ledger counted again: its epsilon, and everything that it says, must be what its own events give."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from dpfest.planning.ledger import Ledger
from dpfest.planning.search import recount, search_statement
from pipelines.data.clicks.vocabulary import DATA_DEPENDENT_NOTE

AGAIN = "Make the run again."
_SEARCH = "search"


def rates_statement(rate: float, epsilon: float) -> str:
    """Return what the paper's accounting of a stream leaves unsaid: the rate that it uses, and what its own give."""
    return (
        f"Every step is accounted at the whole stream's rate q = {rate:.4g}, as in the paper. An example occurs in one "
        f"period only: accounted at each period's own rate, the same noise gives epsilon {epsilon:.4g}."
    )


def refuse_miscounted(path: Path, record: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Refuse a ledger that its own events do not give: another epsilon, sampling or accountant, other statements."""
    try:
        ledger = Ledger.from_json(record)
        given = ledger.to_json()
        if _SEARCH in record:
            given |= dict.fromkeys(("epsilon", "sound_epsilon"), recount(record))
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"The epsilon of {path} cannot be recomputed: {error} {AGAIN}") from error
    for name in ("epsilon", "sound_epsilon"):
        if (given[name] is None) != (record[name] is None) or not math.isclose(
            given[name] or 0.0, record[name] or 0.0, rel_tol=1e-3
        ):
            raise UserError(f"{path} states {name} {record[name]}, but its events cost {given[name]}. {AGAIN}")
    for name in ("schema", "sampling", "neighbours", "value_discretization_interval", "events", "planned"):
        if record[name] != given[name]:
            raise UserError(f"{path} states {name} {str(record[name])[:80]}, but its events give others. {AGAIN}")
    if not re.fullmatch(r"dp_accounting [0-9.]{1,20}, pessimistic privacy loss distributions", record["accountant"]):
        raise UserError(f"{path} names an accountant that did not count it: {record['accountant'][:80]}. {AGAIN}")
    stated = list(record["statements"])
    try:
        due = [*given["statements"], *_further_statements(record, summary)]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"The statements of {path} cannot be made again: {error}. {AGAIN}") from error
    for sentence in due:
        if stated[:1] == [sentence]:
            stated.pop(0)
        elif sentence in given["statements"]:
            raise UserError(f"{path} lacks the statement: {sentence} {AGAIN}")
    if stated:
        raise UserError(f"{path} states what nothing in it gives: {stated[0][:80]}. {AGAIN}")


def _further_statements(record: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield, in their order, the statements that a ledger may have besides those of its own events."""
    spent = summary["privacy"] or {}
    if not spent.get("public_vocabulary"):
        yield DATA_DEPENDENT_NOTE
    if (apart := spent.get("epsilon_at_own_rates")) is not None:
        yield rates_statement(summary["batch_size"] / summary["examples"], apart)
    if _SEARCH in record:
        yield search_statement(record[_SEARCH])
