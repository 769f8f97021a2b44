"""Whole trainings on thousands of canaries, of which each is an example with an embedding row of its own.

A fair coin includes or leaves out each canary.  An included one looks up its row with a gradient far beyond the
clipping norm, and no dense parameter: its clipped gradient is C2 in that row, always in the same direction, and its
contribution to the map is that row alone.  No other example touches the row.  One left out looks up padding, which is
neither a look-up nor a gradient: the release is that of a data set without it, and the number of examples, which is
public, does not tell.  Ordinary examples with rows of their own and dense features train beside them.

What is attacked is what leaves: the rows' weights after every step (under lazy noise, at the end).  From them follows
which rows each step moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.gradients.reading import MicroBatch
from dpfest.noise.key import NoiseKey
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.selection.topk import SelectionConfig, most_frequent, noisy_counts
from dpfest.training.loop import PrivateTraining

ORDINARY = 256
"""Ordinary examples of a period."""
ORDINARY_ROWS = 64
"""Rows that they touch."""
_FEATURES = 4
_PADDING = 0
_OVERSHOOT = 1e5  # a canary's loss over an ordinary one
_MOVE = 0.01  # how far one visit of a canary moves its row: far from where the loss saturates


class Model(nn.Module):
    """A logistic regression on one embedding and a few dense features."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1, padding_idx=_PADDING)
        self.dense = nn.Linear(_FEATURES, 1, bias=False)
        nn.init.zeros_(self.table.weight)

    def forward(self, row: Tensor, features: Tensor) -> Tensor:
        """Return one logit per example, ``[b]``."""
        return (self.table(row) + self.dense(features)).squeeze(1)


def losses(model: nn.Module, batch: Any) -> Tensor:
    """Return the weighted cross-entropy of each example, ``[b]``."""
    row, features, label, weight = batch
    return weight * nn.functional.binary_cross_entropy_with_logits(model(row, features), label, reduction="none")


class Examples:
    """The training examples: canaries, then ordinary examples, one period after another.

    Args:
        canaries: number of canaries in each period.
        key: source of the coins and of the ordinary examples.
        copies: examples of each canary; more than one is a unit of several examples.

    Attributes:
        present: bool ``[m]``, the coins of all periods' canaries.
        period: period of each canary, ``[m]``.
        rows: row of each canary, ``[m]``.
        table_rows: rows of the table.
    """

    def __init__(self, canaries: Sequence[int], key: NoiseKey, copies: int = 1) -> None:
        total = sum(canaries)
        self.present = key.stream("audit coins").words(total) < np.uint64(1 << 63)
        self.period = np.repeat(np.arange(len(canaries)), canaries)
        self.rows = np.arange(1, total + 1)
        self.table_rows = 1 + total + ORDINARY_ROWS
        seen = np.where(self.present, self.rows, _PADDING)
        self._parts = [self._part(np.repeat(seen[self.period == p], copies), p, key) for p in range(len(canaries))]

    def _part(self, rows: NDArray[np.int64], period: int, key: NoiseKey) -> tuple[Tensor, ...]:
        words = key.stream("audit ordinary examples", period).words(ORDINARY * (_FEATURES + 2))
        uniform = torch.from_numpy((words >> np.uint64(40)).astype(np.float32) / 2**24).view(ORDINARY, -1)
        ordinary = self.table_rows - 1 - (uniform[:, 0] * ORDINARY_ROWS).long()
        canaries = torch.zeros(len(rows), _FEATURES)
        return (
            torch.cat([torch.from_numpy(rows), ordinary]),
            torch.cat([canaries, uniform[:, 2:] - 0.5]),
            torch.cat([torch.ones(len(rows)), (uniform[:, 1] < 0.5).float()]),
            torch.cat([torch.full((len(rows),), _OVERSHOOT), torch.ones(ORDINARY)]),
        )

    @property
    def sizes(self) -> list[int]:
        """Examples of each period, included or left out."""
        return [len(part[0]) for part in self._parts]

    def histogram(self, period: int) -> NDArray[np.int64]:
        """Return how many examples of a period touch each row, int64 ``[rows]``."""
        counts = np.bincount(self._parts[period][0].numpy(), minlength=self.table_rows)
        counts[_PADDING] = 0
        return counts

    def reader(self, period: int) -> Callable[[NDArray[np.int64], bytes], list[MicroBatch]]:
        """Return what reads examples of a period by index."""
        part = self._parts[period]

        def read(indices: NDArray[np.int64], seed: bytes) -> list[MicroBatch]:
            at = torch.from_numpy(indices)
            return [MicroBatch(indices, tuple(one[at] for one in part))] if len(indices) else []

        return read


@dataclass
class Observed:
    """What left a run, as far as it concerns the canaries' rows.

    Attributes:
        change: how far each release moved each canary's row, in contributions of one canary, float64 ``[releases, m]``.
        moved: whether it did at all.
        period, step: period of each release, and its number there: equal steps of one period are one step repeated.
        selected: whether each canary's row was selected for the canary's period, bool ``[m]``; None without selection.
        steps_in_one: steps that each release sums up.
    """

    change: NDArray[np.float64]
    moved: NDArray[np.bool_]
    period: NDArray[np.int64]
    step: NDArray[np.int64]
    selected: NDArray[np.bool_] | None = None
    steps_in_one: int = 1


class Run:
    """A training over all periods of a plan, watched from outside.

    Args:
        plan: what is really run (an audit may claim another).
        examples: the data.
        key: noise key.
        kind: the training loop, or one with a flaw.
        spoil: changes a training before its first step.
        selection: how rows are really selected; None for the plan's.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        examples: Examples,
        key: NoiseKey,
        kind: type[PrivateTraining] = PrivateTraining,
        spoil: Callable[[PrivateTraining], None] = lambda training: None,
        selection: SelectionConfig | None = None,
    ) -> None:
        self.plan, self.examples, self.key, self.kind, self._spoil = plan, examples, key, kind, spoil
        self._selection = selection or plan.algorithm.selection
        self.model = Model(examples.table_rows)
        rate = _MOVE * plan.batch_size / plan.algorithm.clipping_norm
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self._counts: NDArray[np.float64] | int = 0
        self._rows = torch.from_numpy(examples.rows)
        self._last = self._weights()
        self._seen: list[tuple[NDArray[np.float64], int, int]] = []
        self._selected: list[NDArray[np.bool_]] = []

    def observed(self) -> Observed:
        """Train, and return what left."""
        ledger = self.plan.ledger()
        for period in range(len(self.plan.periods)):
            training = self.training(period, ledger)
            self.take(training, training.steps_left, period)
        return self.gathered()

    def training(self, period: int = 0, ledger: Any = None) -> PrivateTraining:
        """Return the training of a period on the current weights."""
        training = self.kind(
            self.model,
            losses,
            self._optimizer,
            self.plan,
            self.examples.reader(period),
            period=period,
            selected=self._select(period),
            key=self.key,
            ledger=ledger,
        )
        self._spoil(training)
        return training

    def take(self, training: PrivateTraining, steps: int, period: int = 0) -> None:
        """Take some steps of a period, and record how each moved the canaries' rows."""
        end = training.steps_done + steps
        while training.steps_done < end:
            step = training.steps_done
            training.step(training.read(training.request(step)))
            if training.engine.lazy is None or training.steps_done == end:
                training.flush()
                weights = self._weights()
                self._seen.append((weights - self._last, period, step))
                self._last = weights

    def forget(self) -> None:
        """Measure the next release from the weights as they are now: a checkpoint was loaded."""
        self._last = self._weights()

    def gathered(self) -> Observed:
        """Return everything recorded so far."""
        moves, periods, steps = zip(*self._seen, strict=True)
        change = np.stack(moves)
        return Observed(
            change=change / _MOVE,
            moved=change != 0,
            period=np.array(periods),
            step=np.array(steps),
            selected=np.any(self._selected, axis=0) if self._selected else None,
            steps_in_one=self.plan.periods[0].steps if self.plan.algorithm.lazy else 1,
        )

    def _select(self, period: int) -> NDArray[np.int64] | None:
        """Return the rows selected for a period: the most frequent ones by the sum of the noised counts so far."""
        selection = self._selection
        if selection is None:
            return None
        sizes = [self.examples.table_rows]
        noisy = noisy_counts(
            [self.examples.histogram(period)],
            selection,
            self.key.stream("selection", period),
            examples=self.examples.sizes[period],
            rows_per_example=1,
        )
        self._counts = self._counts + np.concatenate([block for _, block in noisy])
        rows = most_frequent(enumerate([np.asarray(self._counts)]), selection, sizes)
        self._selected.append(np.isin(self.examples.rows, rows) & (self.examples.period == period))
        return rows

    def _weights(self) -> NDArray[np.float64]:
        return self.model.table.weight.detach()[self._rows, 0].double().numpy().copy()
