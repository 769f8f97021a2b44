"""Read the results of `dpfest bench` from the report's folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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


def read(report: Path, section: str) -> Section | None:
    """Read a section's complete records; None if it is missing, unreadable or has none."""
    try:
        content = json.loads((report / "bench" / f"{section}.json").read_text(encoding="utf-8"))
        records = [record for record in content["records"] if _whole(record)]
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


def _whole(record: Mapping[str, Any]) -> bool:
    """Whether a record is complete: all fields, times positive or null."""
    return record.keys() >= _NEEDED and all(record[name] is None or 0 < record[name] < math.inf for name in _TIMES)
