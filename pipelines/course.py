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
from pipelines.data.dataset import Dataset
from pipelines.data.joined import ChunkedRows, JoinedRows, PartOfRows, RowReader
from pipelines.data.stream import Stream, split_days
from pipelines.data.writer import DATA_DEPENDENT_NOTE
from pipelines.select import StreamSelection, selected_rows

VALIDATION_EVERY = 8
"""Of the held-out days of a stream, every so many-th row chooses settings; the others are only reported."""


@dataclass(frozen=True)
class Period:
    """Examples that are trained on together.

    Attributes:
        budget: what training on them may spend.
        rows: the examples.
        following: the examples of the next period, which the model has not seen at its end; None for the last.
        days: of the stream, from 0; None where the data are none.
    """

    budget: Budget
    rows: RowReader
    following: RowReader | None = None
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
    training, held_out = split_days(stream, config.stream.train_days)
    plan = planned_stream(config, [day.examples for day in training], stream.vocabulary_sizes)
    rows = [JoinedRows([training[day].split("train") for day in days]) for days in plan.days]
    selection = StreamSelection(config, stream) if config.algorithm.selection else None
    last = JoinedRows([day.split("train") for day in held_out])
    return Course(
        stream,
        plan.whole,
        [Period(*each) for each in zip(plan.periods, rows, [*rows[1:], None], plan.days, strict=True)],
        validation=PartOfRows(last, lambda numbers: numbers % VALIDATION_EVERY == 0),
        test=PartOfRows(last, lambda numbers: numbers % VALIDATION_EVERY != 0),
        selected=lambda number: selection.rows(plan.days[number]) if selection else None,
        ledger=plan.ledger,
        key=period_key,
        plan=plan,
    )
