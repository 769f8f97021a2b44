"""The results of a benchmark: the machine, and a record for each competitor at each size."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpfest import devices
from pipelines.bench.measure import Times
from pipelines.bench.worker import Peak
from pipelines.system.files import write_json


@dataclass(frozen=True, kw_only=True)
class Record:
    """One competitor at one size. Values that were not measured are null, and `note` gives the reason.

    Attributes:
        case: description of the setting that all competitors of a run share.
        table_rows, batch_size: null where no table is trained.
        median_seconds, min_seconds, max_seconds: of one step, over `repeats` turns.
        reference, ratio: the median, over turns, of its time to the reference's in the same turn.
        peak_bytes: peak memory of a separate process: allocated on a GPU, else resident.
        working_bytes: part of the peak in addition to the memory before the first step (tables, data).
        rows, bytes: rows and bytes that one step of `preprocess` reads.
        values: other measurements of a section, by name.
    """

    section: str
    competitor: str
    case: str
    reference: str
    table_rows: int | None = None
    batch_size: int | None = None
    median_seconds: float | None = None
    min_seconds: float | None = None
    max_seconds: float | None = None
    repeats: int = 0
    ratio: float | None = None
    peak_bytes: int | None = None
    working_bytes: int | None = None
    rows: int | None = None
    bytes: int | None = None
    values: dict[str, Any] | None = None
    note: str | None = None


def records(
    times: Times,
    reference: str,
    *,
    peaks: Mapping[str, Peak] | None = None,
    notes: Mapping[str, str] | None = None,
    values: Mapping[str, dict[str, Any]] | None = None,
    **common: Any,
) -> list[Record]:
    """Return a record of each competitor in `times` or `notes`; `common` are the shared fields."""
    results, peaks, notes = [], peaks or {}, notes or {}
    for name in [*times, *(name for name in notes if name not in times)]:
        taken = times.get(name, {})
        shared = [seconds / times[reference][turn] for turn, seconds in taken.items() if turn in times[reference]]
        peak = peaks.get(name)
        results.append(
            Record(
                competitor=name,
                reference=reference,
                median_seconds=statistics.median(taken.values()) if taken else None,
                min_seconds=min(taken.values(), default=None),
                max_seconds=max(taken.values(), default=None),
                repeats=len(taken),
                ratio=statistics.median(shared) if shared else None,
                peak_bytes=peak.total if peak else None,
                working_bytes=peak.working if peak else None,
                values=(values or {}).get(name),
                note=notes.get(name),
                **common,
            )
        )
    return results


def write(report: Path, section: str, results: Sequence[Record], device: torch.device) -> Path:
    """Write ``<report>/bench/<section>.json``."""
    path = report / "bench" / f"{section}.json"
    write_json(path, {"machine": machine(device), "records": [dataclasses.asdict(record) for record in results]})
    return path


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine of the measurements."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cuda": torch.version.cuda,
        "tf32": torch.backends.cuda.matmul.allow_tf32 or os.environ.get("NVIDIA_TF32_OVERRIDE", "0") != "0",
        "kernels": devices.build(device),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
