"""The logical batch of a step: one or several micro-batches of which a step releases one sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpfest.errors import UserError
from dpfest.gradients.capture import Recorder, Recording
from dpfest.gradients.contributions import Contributions
from dpfest.gradients.embeddings import Lookups
from dpfest.gradients.padding import capacity_for
from dpfest.gradients.reading import MicroBatch


class LogicalBatch:
    """A logical batch that algorithms can query; each query costs a pass over it.

    A single micro-batch is run once and its recording kept; several are rerun in each pass, so that only one
    micro-batch's activations are in memory at a time.

    Args:
        recorder: of the model.
        microbatches: none for an empty batch.
        step: step number.
        pads: whether its passes are padded where the recorder has a capacity (:mod:`dpfest.gradients.padding`).

    Attributes:
        examples: number of examples.
        identities: what is clipped as one, in the order of its numbers: examples, or units; int64 ``[u]``.

    Raises:
        UserError: examples lack units, are not in their order, or have them though the recorder has none; a unit lies
            in two micro-batches.
    """

    def __init__(self, recorder: Recorder, microbatches: Sequence[MicroBatch], step: int, pads: bool = False) -> None:
        self.recorder, self.step, self._usual = recorder, step, recorder.usual if pads else None
        self._parts = [(part, recorder.groups(part)) for part in microbatches if len(part.examples)]
        self.examples = sum(len(part.examples) for part, _ in self._parts)
        clipped = [part.examples if groups is None else groups.units for part, groups in self._parts]
        self.identities = np.concatenate([np.empty(0, np.int64), *clipped])
        if recorder.unit and len(np.unique(self.identities)) < len(self.identities):
            raise UserError(
                f"A {recorder.unit.name} is in two micro-batches of a batch: its parts would be clipped apart."
            )
        self._only: Recording | None = None
        self._contributions: Contributions | None = None

    def _record(self, number: int, backward: bool = True) -> Recording:
        part, groups = self._parts[number]
        capacity = self._usual and capacity_for(len(part.examples), self._usual)
        return self.recorder.record(
            part.data, part.examples, self.step, backward=backward, groups=groups, capacity=capacity
        )

    def _recorded(self, backward: bool = True) -> Iterator[Recording]:
        if len(self._parts) == 1:
            self._only = self._only or self._record(0)
            yield self._only
        else:
            yield from (self._record(number, backward) for number in range(len(self._parts)))

    @property
    def units(self) -> int:
        """Number of examples, or units, that are clipped as one."""
        return len(self.identities)

    def recordings(self) -> Iterator[Recording]:
        """Yield the recording of each micro-batch, in order, after its backward pass."""
        for recording in self._recorded():
            recording.backward()
            yield recording

    def contributions(self) -> Contributions:
        """Return which example (or unit) touched which rows; the pass is made once."""
        if self._contributions is None:
            found = [contributions(one.lookups, len(one)) for one in self._recorded(backward=False)]
            only = len(self._parts) == 1
            self._contributions = found[0] if only else Contributions.joined(found, self.recorder.device)
        return self._contributions


def contributions(lookups: Lookups, examples: int) -> Contributions:
    """Return the contribution map of one micro-batch's look-ups."""
    return Contributions(lookups.rows, lookups.row_of, lookups.example, examples)
