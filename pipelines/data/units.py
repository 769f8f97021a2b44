"""Units of privacy in processed data: the value of a column of the source for each training row.

``train.<column>.npy``, beside the rows, is written when a unit is first asked for: int64, an identifier of each
training row's unit, which means the same unit in every day of a stream. Raw data, like the rows, and the guarantee of a
unit rests on it: it is compared with its checksum before each use (:mod:`pipelines.data.derived`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from dpfest.training.histogram import counted
from pipelines.data.dataset import Dataset
from pipelines.data.derived import read_derived, write_derived
from pipelines.data.rows import NO_ROW
from pipelines.data.source import DataConfig
from pipelines.data.stream import Stream

Identifiers = NDArray[np.int64]


def write_identifiers(data: DataConfig, stream: Stream, days: int, column: str) -> None:
    """Write the units of the first ``days`` days unless they are there and whole, by reading the source of each again.

    Raises:
        UserError: the source is missing, or has other rows than when the day was written.
    """
    for number, day in zip(stream.day_numbers[:days], stream.days[:days], strict=True):
        path = _file(day, column)
        if read_derived(path, day.training_rows) is None:
            write_derived(path, data.units_of_rows(number, column, day), day.training_rows)


def identifiers(days: Sequence[Dataset], column: str) -> list[Identifiers]:
    """Return the unit of each training row, an array for each day.

    Raises:
        UserError: they were not written.
    """
    return [_read(day, column) for day in days]


def histogram(
    days: Sequence[Dataset], units: Sequence[Identifiers], rows_per_unit: Sequence[int]
) -> list[NDArray[np.int64]]:
    """Count in how many units each table row occurs, on all of these days together: ``[V_f]`` for each feature.

    Formal guarantee: a unit moves at most ``rows_per_unit[f]`` counts of feature f, each by 1, whatever rows it has.
    """
    offsets = np.cumsum([0, *days[0].vocabulary_sizes])
    total, pairs = int(offsets[-1]), [np.empty(0, np.int64)]
    _, numbers = np.unique(np.concatenate(list(units)), return_inverse=True)
    first = 0
    for day in days:
        for chunk in day.split("train").chunks(100_000):
            unit, singles = numbers[first : first + len(chunk)].astype(np.int64), chunk.categorical.shape[1]
            found = [(unit[:, None] * total + chunk.categorical + offsets[:singles]).ravel()]
            for bag, start in zip(chunk.bags, offsets[singles:-1], strict=True):
                example, place = np.nonzero(bag != NO_ROW)
                found.append(unit[example] * total + bag[example, place] + start)
            pairs.append(np.unique(np.concatenate(found)))
            first += len(chunk)
    distinct = np.unique(np.concatenate(pairs))
    return np.split(counted(distinct // total, distinct % total, offsets.tolist(), rows_per_unit), offsets[1:-1])


def _file(day: Dataset, column: str) -> Path:
    return day.folder / f"train.{column}.npy"


def _read(day: Dataset, column: str) -> Identifiers:
    path = _file(day, column)
    found = read_derived(path, day.training_rows)
    if found is None:
        wrong = f"{path} is damaged" if path.exists() else f"these data were prepared without {column} as a unit"
        raise UserError(f"{wrong}: `dpfest preprocess privacy.unit={column}` with the same data adds it.")
    if found.shape != (day.examples,) or found.dtype != np.int64:
        raise UserError(f"{path} does not hold a unit for each of {day.examples:,} training rows: delete it.")
    return found
