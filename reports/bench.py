"""Read the results of `dpfest bench` from the report's folder."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.algorithms import label

_TIMES = ("median_seconds", "min_seconds", "max_seconds", "ratio")
_NEEDED = {*_TIMES, "competitor", "case", "reference", "table_rows", "repeats", "working_bytes", "note"}
_NAMES = {
    "pytorch sparse": "Not private, plain PyTorch",
    "pytorch dense": "Not private, plain PyTorch with dense gradients",
    "pytorch sparse, fused Adam": "Not private, plain PyTorch with fused Adam",
    "matrix products": "Its matrix products only",
    "evaluation": "Evaluation of as many examples",
    "dpsgd lazy": "DP-SGD, lazy noise",
}


@dataclass(frozen=True)
class Section:
    """The records of one section, and a description of the machine."""

    records: list[Mapping[str, Any]]
    machine: str

    def at(self, competitor: str) -> dict[int, Mapping[str, Any]]:
        """Return a competitor's timed records by table rows."""
        timed = (record for record in self.records if record["median_seconds"] is not None)
        return {record["table_rows"]: record for record in timed if record["competitor"] == competitor}


FINDINGS = Path(__file__).with_name("findings")
"""Values that were measured once, for questions that are answered."""
ONCE = " Measured once: the code that did is in the history, at commit 46f4d1b."


def frozen(section: str, values: Collection[str] = ()) -> Section:
    """Read values that were measured once."""
    found = _read(FINDINGS / f"{section}.json", values)
    assert found is not None
    return found


def read(report: Path, section: str, values: Collection[str] = ()) -> Section | None:
    """Read a section's records that have all of these `values`; None if it is missing, unreadable or has none."""
    return _read(report / "bench" / f"{section}.json", values)


def _read(path: Path, values: Collection[str]) -> Section | None:
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        records = [record for record in content["records"] if _whole(record, values)]
        machine = content["machine"]
        words = f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}"
        if machine["device"] != "cpu":
            words = f"{machine['device']}, torch {machine['torch']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Section(records, words) if records else None


def competitor(name: str) -> str:
    """Return the label of a benchmark's competitor."""
    return _NAMES.get(name) or label(name)


def _whole(record: Mapping[str, Any], values: Collection[str]) -> bool:
    """Whether a record is complete: all fields, times positive or null, and these `values`, none of them a list."""
    if not record.keys() >= _NEEDED or not (record.get("values") or {}).keys() >= set(values):
        return False
    times = all(record[name] is None or 0 < record[name] < math.inf for name in _TIMES)
    return times and not any(isinstance(record["values"][name], list | dict) for name in values)
