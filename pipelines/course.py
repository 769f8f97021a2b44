"""What a run trains on and is judged by: one dataset, or the periods of a stream. An ordinary run has one period."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfest.budget import Budget
from dpfest.ledger import Ledger
from dpfest.noise import NoiseKey
from dpfest.stream import StreamPlan, period_key
from pipelines.budget import planned, planned_stream
from pipelines.config import Config
from pipelines.data.dataset import Dataset, Rows
from pipelines.data.joined import ChunkedRows, JoinedRows, PartOfRows, RowReader
from pipelines.data.split import record_uniforms
from pipelines.data.stream import Stream, split_days
from pipelines.data.writer import DATA_DEPENDENT_NOTE
from pipelines.select import StreamSelection, selected_rows

VALIDATION_SHARE = 1 / 8
"""Of the rows of a stream's held-out days, so many choose settings; the others are only reported."""


@dataclass(frozen=True)
class Period:
    """Examples that are trained on together.

    Attributes:
        budget: what training on them may spend.
        rows: the examples.
        following: of the next period's days, the rows that are held out, which judge the model at this period's end;
            None for the last. The others are trained on next: what is measured on them is private.
        days: of the stream, from 0; None where the data are none.
    """

    budget: Budget
    rows: RowReader
    following: ChunkedRows | None = None
    days: range | None = None


@dataclass(frozen=True)
class Course:
    """Periods in their order, and what belongs to all of them.

    Attributes:
        data: whose features the model reads.
        budget: what the whole run may spend.
        validation, test: rows that settings are chosen on, and rows that are only reported.
        selected: sorted global rows that a period (from 0) trains within, or None.
        ledger: a ledger in which so many periods are spent.
        key: of a period, from the run's.
        plan: of a stream; None where the data are none.
    """

    data: Dataset | Stream
    budget: Budget
    periods: list[Period]
    validation: ChunkedRows
    test: ChunkedRows
    selected: Callable[[int], NDArray[np.int64] | None]
    ledger: Callable[[int], Ledger]
    key: Callable[[NoiseKey, int], NoiseKey]
    plan: StreamPlan | None = None

    @property
    def data_dependent_vocabulary(self) -> bool:
        """Whether the vocabulary was read off the training rows, which no epsilon covers."""
        return isinstance(self.data, Dataset) and self.data.data_dependent_vocabulary

    @property
    def statements(self) -> list[str]:
        """What the ledger cannot know of its epsilon, in full sentences."""
        said = [DATA_DEPENDENT_NOTE] if self.data_dependent_vocabulary else []
        if self.plan and self.budget.fidelity == "paper" and self.budget.target_epsilon is not None:
            said.append(
                f"Every step is counted at the whole stream's rate q = {self.budget.sampling_probability:.4g}, as the "
                "paper does. An example is there in one period only: counted at each period's own rate, the same "
                f"noise is worth epsilon {self.plan.epsilon_at_own_rates():.4g}."
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
    budget = planned(config, dataset.examples, dataset.vocabulary_sizes)
    return Course(
        dataset,
        budget,
        [Period(budget, dataset.split("train"))],
        validation=dataset.split("validation"),
        test=dataset.split("test"),
        selected=lambda _: selected_rows(config, dataset),
        ledger=lambda _: Ledger(budget),
        key=lambda key, _: key,
    )


def _of_stream(config: Config, stream: Stream) -> Course:
    training, last_days = split_days(stream, config.stream.train_days)
    plan = planned_stream(config, [day.examples for day in training], stream.vocabulary_sizes)
    rows, held_out = (
        [JoinedRows([training[day].split(part) for day in days]) for days in plan.days]
        for part in ("train", "validation")
    )
    selection = StreamSelection(config, stream) if config.algorithm.selection else None
    last = JoinedRows([day.split(part) for day in last_days for part in day.rows])

    def chooses(rows: Rows) -> NDArray[np.bool_]:
        return record_uniforms(rows, config.data.split.seed) < VALIDATION_SHARE

    return Course(
        stream,
        plan.whole,
        [Period(*each) for each in zip(plan.periods, rows, [*held_out[1:], None], plan.days, strict=True)],
        validation=PartOfRows(last, chooses),
        test=PartOfRows(last, lambda rows: ~chooses(rows)),
        selected=lambda number: selection.rows(plan.days[number]) if selection else None,
        ledger=plan.ledger,
        key=period_key,
        plan=plan,
    )
