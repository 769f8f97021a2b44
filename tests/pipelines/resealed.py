"""Processed rows that a test changed, under the checksums of what they are now."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.data.dataset import sealed_text
from pipelines.system.checksum import read_sha256


def reseal(folder: Path) -> None:
    """Write the checksums of a dataset's rows, so that they are taken for rows that were written so."""
    path = folder / "dataset.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    for name, split in description["splits"].items():
        split["sha256"] = read_sha256(folder / f"{name}.rows")
    del description["seal"]
    path.write_text(sealed_text(description), encoding="utf-8")
