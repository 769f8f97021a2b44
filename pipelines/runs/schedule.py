"""What a run trains on and is judged by: one dataset, or the periods of a stream. An ordinary run has one period."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfest.privacy_plan import PrivacyPlan
from dpfest.unproven import epsilon_at_own_rates
from pipelines.budget import planned
from pipelines.config.settings import Config
from pipelines.data.clicks.writer import DATA_DEPENDENT_NOTE
from pipelines.data.dataset import Dataset, Rows
from pipelines.data.rows import ChunkedRows, JoinedRows, PartOfRows, RowReader
from pipelines.data.split import record_uniforms
from pipelines.data.stream import Stream, split_days
from pipelines.select import StreamSelection, selected_rows

VALIDATION_SHARE = 1 / 8
"""Of the rows of a stream's held-out days, so many choose settings; the others are only reported."""


@dataclass(frozen=True)
class Course:
    """What a run trains on, and is judged by.

    Attributes:
        data: whose features the model reads.
        plan: what the run may spend, in its periods.
        rows: the examples of each period.
        validation, test: rows that settings are chosen on, and rows that are only reported.
        selected: sorted global rows that a period (from 0) trains within, or None.
        held_out: of a stream, rows of each period's days that are never trained on; empty where the data are none.
    """

    data: Dataset | Stream
    plan: PrivacyPlan
    rows: Sequence[RowReader]
    validation: ChunkedRows
    test: ChunkedRows
    selected: Callable[[int], NDArray[np.int64] | None]
    held_out: Sequence[ChunkedRows] = ()

    @property
    def is_stream(self) -> bool:
        """Whether its periods are days of a stream."""
        return self.plan.periods[0].days is not None

    def following(self, period: int) -> ChunkedRows | None:
        """The held-out rows of the next period's days, which judge the model at a period's end; None after the last.

        The other rows of those days are trained on next: what is measured on them is private.
        """
        return self.held_out[period + 1] if period + 1 < len(self.held_out) else None

    @property
    def data_dependent_vocabulary(self) -> bool:
        """Whether the vocabulary was read off the training rows, which no epsilon covers."""
        return isinstance(self.data, Dataset) and self.data.data_dependent_vocabulary

    @property
    def statements(self) -> list[str]:
        """What the ledger cannot know of its epsilon, in full sentences."""
        said = [DATA_DEPENDENT_NOTE] if self.data_dependent_vocabulary else []
        plan = self.plan
        if self.is_stream and plan.fidelity == "paper" and plan.target_epsilon is not None:
            said.append(
                f"Every step is counted at the whole stream's rate q = {plan.batch_size / plan.examples:.4g}, as the "
                "paper does. An example is there in one period only: counted at each period's own rate, the same "
                f"noise is worth epsilon {epsilon_at_own_rates(plan):.4g}."
            )
        return said


def course(config: Config, folder: Path) -> Course:
    """What `config` trains on, its data in `folder`.

    Raises:
        UserError: the data cannot be used, or no noise meets the target.
    """
    if config.data.is_stream:
        return _of_stream(config, Stream.open(folder))
    return _of_dataset(config, Dataset.open(folder))


def _of_dataset(config: Config, dataset: Dataset) -> Course:
    return Course(
        dataset,
        planned(config, dataset.examples, dataset.vocabulary_sizes),
        [dataset.split("train")],
        validation=dataset.split("validation"),
        test=dataset.split("test"),
        selected=lambda _: selected_rows(config, dataset),
    )


def _of_stream(config: Config, stream: Stream) -> Course:
    training, last_days = split_days(stream, config.stream.train_days)
    plan = planned(config, [day.examples for day in training], stream.vocabulary_sizes)
    days = [period.days or range(0) for period in plan.periods]
    rows, held_out = (
        [JoinedRows([training[day].split(part) for day in of_period]) for of_period in days]
        for part in ("train", "validation")
    )
    selection = StreamSelection(config, stream) if config.algorithm.selection else None
    last = JoinedRows([day.split(part) for day in last_days for part in day.rows])

    def chooses(rows: Rows) -> NDArray[np.bool_]:
        return record_uniforms(rows, config.data.split.seed) < VALIDATION_SHARE

    return Course(
        stream,
        plan,
        rows,
        held_out=held_out,
        validation=PartOfRows(last, chooses),
        test=PartOfRows(last, lambda rows: ~chooses(rows)),
        selected=lambda number: selection.rows(days[number]) if selection else None,
    )
