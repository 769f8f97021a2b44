"""What `dpfest bench` left in the report's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NEEDED = {"competitor", "case", "reference", "table_rows", "median_seconds", "ratio", "working_bytes", "note"}


@dataclass(frozen=True)
class Section:
    """The records of one section, and the machine in words."""

    records: list[Mapping[str, Any]]
    machine: str

    def at(self, competitor: str) -> dict[int, Mapping[str, Any]]:
        """A competitor's records by table rows; one without a time is left out."""
        mine = [record for record in self.records if record["competitor"] == competitor]
        return {record["table_rows"]: record for record in mine if record["median_seconds"] is not None}


def read(report: Path, section: str, values: set[str] | None = None) -> Section | None:
    """A section as `dpfest bench` wrote it, of records with all of these `values`; None where it is not there, cannot
    be read or has none."""
    try:
        text = (report / "bench" / f"{section}.json").read_text(encoding="utf-8")
        found = json.loads(text)
        records = [record for record in found["records"] if record.keys() >= _NEEDED]
        records = [record for record in records if not values or (record.get("values") or {}).keys() >= values]
        machine = found["machine"]
        words = f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}"
        if machine["device"] != "cpu":
            words = f"{machine['device']}, torch {machine['torch']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Section(records, words) if records else None
