"""Reading the results of `dpfest bench` from the report's folder."""

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
    "pytorch sparse, fused Adam": "Not private, plain PyTorch with fused Adam",
    "matrix products": "Its matrix products alone",
    "evaluation": "Evaluation of as many examples",
    "dpsgd lazy": "DP-SGD, lazy noise",
}


@dataclass(frozen=True)
class Section:
    """The records of one section, and the machine in words."""

    records: list[Mapping[str, Any]]
    machine: str

    def at(self, competitor: str) -> dict[int, Mapping[str, Any]]:
        """A competitor's records by table rows; one without a time is left out."""
        timed = (record for record in self.records if record["median_seconds"] is not None)
        return {record["table_rows"]: record for record in timed if record["competitor"] == competitor}


def read(report: Path, section: str, values: Collection[str] = ()) -> Section | None:
    """A section as `dpfest bench` wrote it, of records with all of these `values`; None where it is not there, cannot
    be read or has none."""
    try:
        text = (report / "bench" / f"{section}.json").read_text(encoding="utf-8")
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
    """The label of what a benchmark times."""
    return _NAMES.get(name) or label(name)


def _whole(record: Mapping[str, Any], values: Collection[str]) -> bool:
    """Whether a record has its fields, each time a positive number or none, and these `values`, none of them a list."""
    if not record.keys() >= _NEEDED or not (record.get("values") or {}).keys() >= set(values):
        return False
    times = all(record[name] is None or 0 < record[name] < math.inf for name in _TIMES)
    return times and not any(isinstance(record["values"][name], list | dict) for name in values)
