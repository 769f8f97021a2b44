"""What a run has counted so far: a checkpoint holds it beside the state of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpfest.errors import UserError


@dataclass
class Record:
    """A run's counts.

    Attributes:
        period: number of the current period.
        rows: rows with a noised gradient per table, summed over steps, float64; None before the first.
        evaluations: metrics after each period, by split.
        seconds: time in training steps.
        waited: seconds of these spent waiting for batches.
        evaluating: seconds in evaluations.
        evaluated: examples that these read.
    """

    period: int = 0
    rows: Tensor | None = None
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    waited: float = 0.0
    evaluating: float = 0.0
    evaluated: int = 0

    @classmethod
    def of_state(cls, state: Mapping[str, Any], folder: Path) -> Record:
        """Return the record that :meth:`state` put into a state.

        Raises:
            UserError: the state of the run in this folder is of another version, and lacks some of it.
        """
        names = [one.name for one in fields(cls)]
        if missing := sorted(set(names) - state.keys()):
            raise UserError(
                f"{folder} cannot resume from its checkpoint, which another version of dpfest wrote: it lacks "
                f"{', '.join(missing)}. Finish the run with that version, or delete that folder and start again, "
                "which spends the budget a second time."
            )
        return cls(**{name: state[name] for name in names})

    def state(self) -> dict[str, Any]:
        """Return it as tensors and plain values."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def add_rows(self, of_tables: Sequence[int]) -> None:
        """Add a step's number of rows with a noised gradient in each table."""
        added = torch.tensor(of_tables, dtype=torch.float64)
        self.rows = added if self.rows is None else self.rows + added

    def mean_rows(self, steps: int) -> list[float]:
        """Return the mean of so many steps for each table."""
        assert self.rows is not None
        return (self.rows / steps).tolist()

    def timings(self, examples: int) -> dict[str, float | None]:
        """Return what ``timings.json`` tells; ``examples`` is what all steps read at the expected batch size."""
        return {
            "wall_seconds": self.seconds,
            "waited_for_data_seconds": self.waited,
            "examples_per_second": examples / self.seconds if self.seconds else None,
            "evaluation_seconds": self.evaluating,
            "evaluated_examples": self.evaluated,
        }
