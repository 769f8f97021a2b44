"""The card of a dataset: its rows and labels, the use of its tables, and its origin.

The numbers are exact and not private: they are for the owner of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from pipelines.data.dataset import Dataset
from pipelines.data.provenance import Provenance
from pipelines.data.stream import Stream

FREQUENT = 0.01


@dataclass(frozen=True)
class TableUse:
    """The use of a table's rows by the training examples.

    Attributes:
        name: name of the feature.
        rows: rows of the table.
        used: rows that occur.
        top_share: share of all occurrences on the most frequent hundredth of the rows used.
        zipf_exponent: s of the law rank**-s that fits best (maximum likelihood); None if fewer than two rows occur.
        new: in a stream, share of the last day's occurrences on rows that the first day does not use; else None.
    """

    name: str
    rows: int
    used: int
    top_share: float
    zipf_exponent: float | None
    new: float | None

    @classmethod
    def of(cls, name: str, days: Sequence[NDArray[np.int64]]) -> TableUse:
        """Compute from the number of occurrences of each row on each day: one array of shape [rows] per day."""
        counts = np.sum(days, axis=0)
        ranked = np.sort(counts[counts > 0])[::-1]
        top = ranked[: math.ceil(FREQUENT * len(ranked))].sum() / max(1, ranked.sum())
        unseen = days[-1][days[0] == 0].sum() / max(1, days[-1].sum()) if len(days) > 1 else None
        return cls(name, len(counts), len(ranked), float(top), zipf_exponent(ranked), unseen)


def zipf_exponent(ranked: NDArray[np.int64]) -> float | None:
    """Return the maximum-likelihood exponent s of shares ∝ rank**-s for counts in decreasing order.

    At the maximum, the mean logarithm of the rank equals its expectation under the law.
    """
    if len(ranked) < 2:
        return None
    log_rank = np.log(np.arange(1, len(ranked) + 1))
    observed = float(log_rank @ ranked / ranked.sum())

    def excess(exponent: float) -> float:
        weights = np.exp(-exponent * log_rank)
        return float(log_rank @ weights / weights.sum()) - observed

    if excess(0.0) <= 0:
        return 0.0  # all equally frequent
    return float(brentq(excess, 0.0, 50.0)) if excess(50.0) < 0 else 50.0


def card(stream: Stream, provenance: Provenance | None) -> str:
    """Return the card of an opened dataset or stream as lines of text.

    Args:
        stream: the dataset; its training rows are read once, and their counts are cached beside them.
        provenance: origin of the data, if known.
    """
    lines = [f"{stream.days[0].name}: {_size(stream)}"]
    if provenance is not None:
        lines.append(str(provenance))
    lines += ["", *_tables(stream), "", *_numbers(stream.days)]
    lines.append("Counts and means are those of the training rows, exact and not private.")
    return "\n".join(lines)


def _size(stream: Stream) -> str:
    parts = [day.description["splits"] for day in stream.days]
    splits = [f"{sum(part[name]['rows'] for part in parts):,} {name}" for name in parts[0]]
    words = f"{sum(stream.rows_of_day):,} rows ({', '.join(splits)})"
    if all("positives" in split for part in parts for split in part.values()):
        positives = sum(split["positives"] for part in parts for split in part.values())
        words += f"; {positives:,} with label 1 ({positives / sum(stream.rows_of_day):.2%})"
    if stream.is_stream:
        words += f"; {len(stream.days)} days of {min(stream.rows_of_day):,} to {max(stream.rows_of_day):,} rows"
    return words + "."


def _tables(stream: Stream) -> list[str]:
    histograms = [day.histogram() for day in stream.days]
    uses = [
        TableUse.of(name, [histogram[feature] for histogram in histograms])
        for feature, name in enumerate(stream.days[0].categorical_names)
    ]
    width = max(len("table"), *(len(use.name) for use in uses))
    heads = ("rows", "used", "top 1%", "Zipf", *(("new",) if stream.is_stream else ()))
    lines = [f"{'table':{width}}" + "".join(f"{head:>11}" for head in heads)]
    for use in uses:
        zipf = "-" if use.zipf_exponent is None else f"{use.zipf_exponent:.2f}"
        cells = [f"{use.rows:,}", f"{use.used:,}", f"{use.top_share:.1%}", zipf]
        cells += [] if use.new is None else [f"{use.new:.1%}"]
        lines.append(f"{use.name:{width}}" + "".join(f"{cell:>11}" for cell in cells))
    total, used = sum(use.rows for use in uses), sum(use.used for use in uses)
    lines.append(f"{len(uses)} tables of {total:,} rows, of which training examples use {used:,}.")
    lines.append("top 1%: share of occurrences on the most frequent hundredth of the rows used.")
    lines.append("Zipf: exponent of the best-fitting power law of the ranks.")
    if stream.is_stream:
        lines.append("new: share of the last day's occurrences on rows that the first day does not use.")
    return lines


def _numbers(days: Sequence[Dataset]) -> list[str]:
    names = days[0].numeric_names
    if not names:
        return []
    count, sums, squares = 0, np.zeros(len(names)), np.zeros(len(names))
    for day in days:
        for rows in day.split("train").chunks(100_000):
            numeric = rows.numeric.astype(np.float64)
            count, sums, squares = count + len(numeric), sums + numeric.sum(0), squares + (numeric**2).sum(0)
    means = sums / count
    deviations = np.sqrt(np.maximum(0, squares / count - means**2))
    each = (f"{name} {mean:.2f} ± {spread:.2f}" for name, mean, spread in zip(names, means, deviations, strict=True))
    return [f"Numbers, mean ± standard deviation: {', '.join(each)}."]
