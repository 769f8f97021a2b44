"""The training and evaluation rows of a run, period by period; an ordinary dataset has one period."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from dpfest.gradients.units import Units
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.planning.unproven import epsilon_at_own_rates
from pipelines.config.settings import Config
from pipelines.data.clicks.split import record_uniforms
from pipelines.data.dataset import Dataset
from pipelines.data.rows import ChunkedRows, JoinedRows, PartOfRows, RowReader, Rows
from pipelines.data.stream import Stream
from pipelines.data.units import identifiers
from pipelines.runs.recount import rates_statement

VALIDATION_SHARE = 1 / 8
"""Share of the rows of a stream's held-out days on which settings are chosen; the others are only reported."""


@dataclass(frozen=True)
class Schedule:
    """Training and evaluation rows of a run, with its plan.

    Attributes:
        days: the training days.
        plan: the run's privacy plan, with its periods.
        rows: training rows of each period.
        held_out: rows of each period's days that are never trained on.
        validation, test: rows on which settings are chosen, and rows that are only reported.
        selection: maps the days of a period to its selected rows (sorted, global); None for all rows.
        identifiers: the unit of each training row, by day; None if the unit of privacy is an example.
    """

    days: Sequence[Dataset]
    plan: PrivacyPlan
    rows: Sequence[RowReader]
    held_out: Sequence[ChunkedRows]
    validation: ChunkedRows
    test: ChunkedRows
    selection: Callable[[range], NDArray[np.int64]] | None
    identifiers: Sequence[NDArray[np.int64]] | None = None

    def units(self, period: int) -> Units | None:
        """Return the units of the rows of a period (from 0); None if the unit of privacy is an example."""
        unit = self.plan.unit
        if unit is None or self.identifiers is None:
            return None
        of = np.concatenate([self.identifiers[day] for day in self.plan.periods[period].days or range(1)])
        return Units(of, unit.name, unit.max_examples, unit.combine)

    @property
    def is_stream(self) -> bool:
        """Whether the periods consist of days of a stream."""
        return self.plan.periods[0].days is not None

    def selected(self, period: int) -> NDArray[np.int64] | None:
        """Return the selected rows of a period (from 0), or None; to be called for periods in order."""
        return self.selection(self.plan.periods[period].days or range(1)) if self.selection else None

    def following(self, period: int) -> ChunkedRows | None:
        """Return the held-out rows of the next period's days, on which a period is evaluated; None after the last.

        The other rows of those days are trained on next, so measurements on them would be private.
        """
        return self.held_out[period + 1] if period + 1 < len(self.held_out) else None

    @property
    def data_dependent_vocabulary(self) -> bool:
        """Whether the vocabulary was built from the training rows, which no epsilon covers."""
        return self.days[0].data_dependent_vocabulary

    @property
    def statements(self) -> list[str]:
        """Qualifications of epsilon that the ledger cannot know, as full sentences."""
        statements = [self.days[0].description["vocabulary"]["note"]] if self.data_dependent_vocabulary else []
        plan = self.plan
        if self.is_stream and plan.fidelity == "paper" and plan.target_epsilon is not None:
            statements.append(rates_statement(plan.batch_size / plan.examples, epsilon_at_own_rates(plan)))
        return statements


def schedule(
    config: Config, stream: Stream, plan: PrivacyPlan, selection: Callable[[range], NDArray[np.int64]] | None = None
) -> Schedule:
    """Return the schedule of `config` on its data, under its plan.

    Raises:
        UserError: no day of a stream is left to hold out; rows are damaged; or their vocabulary is not the plan's.
    """
    training, last = stream.split_days(config.stream.train_days)
    for day in (*training, *last):
        day.verify()
    released = training[0].vocabulary_release
    if released != plan.vocabulary:
        raise UserError(
            f"The vocabulary of {training[0].folder} was released as {released}, and the run would pay for "
            f"{plan.vocabulary}: delete the folder and preprocess again."
        )
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
    units = identifiers(training, config.privacy.unit) if plan.unit else None
    return Schedule(training, plan, rows, held_out, validation, test, selection, units)


def _chooses(rows: Rows, seed: int) -> NDArray[np.bool_]:
    """Return which rows of held-out days are for choosing settings."""
    return record_uniforms(rows, seed) < VALIDATION_SHARE
