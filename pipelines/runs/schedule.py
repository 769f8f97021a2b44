"""The rows that a run trains on and is evaluated on, period by period; one period for an ordinary dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfest.privacy_plan import PrivacyPlan
from dpfest.unproven import epsilon_at_own_rates
from pipelines.config.settings import Config
from pipelines.data.clicks.split import record_uniforms
from pipelines.data.dataset import Dataset
from pipelines.data.rows import ChunkedRows, JoinedRows, PartOfRows, RowReader, Rows
from pipelines.data.stream import Stream

VALIDATION_SHARE = 1 / 8
"""Of the rows of a stream's held-out days, so many choose settings; the others are only reported."""


@dataclass(frozen=True)
class Schedule:
    """What a run trains on, and is judged by.

    Attributes:
        days: those that are trained on.
        plan: what the run may spend, in its periods.
        rows: the examples of each period.
        held_out: the rows of each period's days that are never trained on.
        validation, test: rows that settings are chosen on, and rows that are only reported.
        selection: from the days of a period to the sorted global rows that it trains within; None for all rows.
    """

    days: Sequence[Dataset]
    plan: PrivacyPlan
    rows: Sequence[RowReader]
    held_out: Sequence[ChunkedRows]
    validation: ChunkedRows
    test: ChunkedRows
    selection: Callable[[range], NDArray[np.int64]] | None

    @property
    def is_stream(self) -> bool:
        """Whether its periods are days of a stream."""
        return self.plan.periods[0].days is not None

    def selected(self, period: int) -> NDArray[np.int64] | None:
        """The rows that a period (from 0) trains within, or None; periods are asked for in their order."""
        return self.selection(self.plan.periods[period].days or range(1)) if self.selection else None

    def following(self, period: int) -> ChunkedRows | None:
        """The held-out rows of the next period's days, which judge the model at a period's end; None after the last.

        The other rows of those days are trained on next: what is measured on them is private.
        """
        return self.held_out[period + 1] if period + 1 < len(self.held_out) else None

    @property
    def data_dependent_vocabulary(self) -> bool:
        """Whether the vocabulary was read off the training rows, which no epsilon covers."""
        return self.days[0].data_dependent_vocabulary

    @property
    def statements(self) -> list[str]:
        """What the ledger cannot know of its epsilon, in full sentences."""
        statements = [self.days[0].description["vocabulary"]["note"]] if self.data_dependent_vocabulary else []
        plan = self.plan
        if self.is_stream and plan.fidelity == "paper" and plan.target_epsilon is not None:
            statements.append(
                f"Every step is counted at the whole stream's rate q = {plan.batch_size / plan.examples:.4g}, as the "
                "paper does. An example is there in one period only: counted at each period's own rate, the same "
                f"noise is worth epsilon {epsilon_at_own_rates(plan):.4g}."
            )
        return statements


def schedule(
    config: Config, stream: Stream, plan: PrivacyPlan, selection: Callable[[range], NDArray[np.int64]] | None = None
) -> Schedule:
    """What `config` trains on, of data and under a plan that fit it.

    Raises:
        UserError: no day of a stream would be held out.
    """
    training, last = stream.split_days(config.stream.train_days)
    rows, held_out = (
        [JoinedRows([training[day].split(part) for day in period.days or range(1)]) for period in plan.periods]
        for part in ("train", "validation")
    )
    validation: ChunkedRows
    test: ChunkedRows
    if last:
        judging = JoinedRows([day.split(part) for day in last for part in day.rows])
        validation = PartOfRows(judging, lambda rows: _chooses(rows, config.data.split.seed))
        test = PartOfRows(judging, lambda rows: ~_chooses(rows, config.data.split.seed))
    else:
        validation, test = (training[0].split(part) for part in ("validation", "test"))
    return Schedule(training, plan, rows, held_out, validation, test, selection)


def _chooses(rows: Rows, seed: int) -> NDArray[np.bool_]:
    """Which rows of held-out days settings are chosen on."""
    return record_uniforms(rows, seed) < VALIDATION_SHARE
