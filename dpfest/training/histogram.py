"""Row selection for DP-FEST and DP-AdaFEST+: count which rows a data set touches, then select the top k privately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.algorithms.algorithm import Algorithm
from dpfest.errors import UserError
from dpfest.gradients.capture import Recorder
from dpfest.gradients.reading import Batches, DatasetReader, request_of
from dpfest.gradients.units import Units
from dpfest.gradients.validation import loss_fn_faults, refuse
from dpfest.noise.alone import PROCESS_STATE
from dpfest.noise.key import NoiseKey
from dpfest.selection.topk import RowsPerExample, Selection, each_feature, select_rows
from dpfest.training.trial import check_alone

_AT_ONCE = 1024  # default number of examples run at once


@PROCESS_STATE
def select(
    model: nn.Module,
    dataset: Any,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    algorithm: Algorithm,
    *,
    rows_per_example: RowsPerExample,
    batch_size: int = _AT_ONCE,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    noise_seed: int | None = None,
    units: Units | None = None,
) -> Selection:
    """Select the rows that ``algorithm`` trains, privately, by how many examples look each one up.

    One pass of the model over the data, without gradients, finds which example looks up which rows, in all tables and
    through all layers; an example's distinct rows of one table are cut to ``rows_per_example``, so that its sensitivity
    is what the mechanism assumes.

    Formal guarantee: see :func:`dpfest.selection.topk.select_rows`; one example moves each table's histogram by at most
    1 in at most ``rows_per_example`` rows, whatever the model looks up. With ``units``, so does one unit with all its
    examples: it counts once in each row that any of them looks up, in at most so many rows of a table.

    Args:
        model: as for :func:`dpfest.make_private`, like ``dataset``, ``loss_fn`` and ``collate_fn``.
        dataset: the examples to count.
        loss_fn: runs the model.
        algorithm: ``dpfest.FEST(...)`` or ``dpfest.AdaFESTPlus(...)``, whose ``selection`` sets mechanism and size.
        rows_per_example: maximum number of distinct rows of one table in which an example is counted: 1 for a feature
            with one category; for bags and texts a typical number per example (more adds noise, fewer loses counts). A
            sequence gives a number for each table, in the model's order.
        batch_size: number of examples run at once.
        collate_fn: turns a list of examples into a batch.
        noise_seed: None for noise from the operating system's entropy.
        units: the units of the data set, each counted as one; None for examples.

    Raises:
        UserError: the algorithm selects no rows; an argument is out of range; the model cannot be trained privately.
    """
    if not isinstance(algorithm, Algorithm) or algorithm.selection is None:
        raise UserError("algorithm must be one that selects rows first: dpfest.FEST() or dpfest.AdaFESTPlus().")
    if algorithm.selection.prior is not None:
        raise UserError("select() counts the data set; rows of public counts come from select_rows(counts, ...).")
    if units is not None:
        units.refuse_other(len(dataset))
    refuse(loss_fn_faults(loss_fn))
    key = NoiseKey.fresh() if noise_seed is None else NoiseKey.from_seed(noise_seed, "selection")
    read = DatasetReader(dataset, collate_fn)
    recorder = Recorder(model, loss_fn, key)
    first = request_of(key, 0, np.arange(min(batch_size, len(dataset))), check=batch_size)
    check_alone(recorder, Batches(read)[first])  # look-ups must be an example's own
    total, most = recorder.layout.total_rows, each_feature(rows_per_example, len(recorder.layout.rows))
    counts = np.zeros(total, dtype=np.int64)
    pairs = [np.empty(0, dtype=np.int64)]  # unit * total + row, distinct within an item
    for step, start in enumerate(range(0, len(dataset), batch_size)):
        examples = np.arange(start, min(start + batch_size, len(dataset)))
        for part in read(examples, key.derive("data set", step).secret):
            lookups = recorder.record(part.data, part.examples, step, backward=False).lookups
            rows, example = lookups.rows[lookups.row_of].cpu().numpy(), lookups.example.cpu().numpy()
            if units is not None:
                pairs.append(np.unique(units.of[part.examples[example]] * total + rows))
            else:
                counts += counted(example, rows, recorder.layout.offsets, most)
    if units is not None:
        distinct = np.unique(np.concatenate(pairs))
        counts += counted(distinct // total, distinct % total, recorder.layout.offsets, most)
    histograms = np.split(counts, recorder.layout.offsets[1:-1])
    # Counts of the same data under another noise multiplier must not share its noise, if the seed does.
    noise = key.derive(f"rows of {algorithm.selection!r}, {most}, {units and units.config!r}")
    chosen = select_rows(
        histograms,
        algorithm.selection,
        noise.stream("selection"),
        examples=len(dataset) if units is None else units.count,
        rows_per_example=most,
    )
    return replace(chosen, fixed=key.fixed, unit=None if units is None else units.config)


def counted(
    example: NDArray[np.int64], rows: NDArray[np.int64], offsets: Sequence[int], rows_per_example: Sequence[int]
) -> NDArray[np.int64]:
    """Return in how many examples (or units) each row occurs; of a table each counts in so many of its rows at most.

    Args:
        example: the example of each pair, ``[p]``.
        rows: the global row of each pair, ``[p]``; pairs are distinct.
        offsets: first row of each table, and the number of rows at the end.
        rows_per_example: number of rows of each table in which an example counts, at most.

    Formal guarantee: an example moves at most ``rows_per_example[t]`` counts of table t, each by 1; which ones depends
    on its own rows alone.
    """
    tables = np.searchsorted(np.asarray(offsets), rows, side="right") - 1
    kept = rows[_within(example * len(offsets) + tables, rows, np.asarray(rows_per_example)[tables])]
    return np.bincount(kept, minlength=offsets[-1])


def _within(group: NDArray[np.int64], rows: NDArray[np.int64], most: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which pairs stay when each group keeps ``most`` of its rows, chosen by a hash: bool ``[pairs]``.

    ``most [pairs]`` is the same for all pairs of a group.
    """
    spread = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    order = np.lexsort((spread, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    kept = np.zeros(len(order), dtype=bool)
    kept[order[rank < most[order]]] = True
    return kept
