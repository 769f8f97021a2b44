"""The noise of a step's gradient: independent in every coordinate and step, and when it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from dpfest.gradients.parts import DenseSums, Due, RowSums, Shard
from dpfest.noise.gaussian import Floats, add_gaussian, add_units, draw_units, gaussian_grid
from dpfest.noise.key import NoiseKey
from dpfest.noise.keystream import Keystream
from dpfest.noise.places import DensePlaces

_LEAST = 1 << 18  # values, below which a thread is not worth its messages


class Independent:
    """Noise that is drawn in the step, on every coordinate of every surviving row and dense parameter.

    Args:
        deviation: of the noise in every coordinate; 0 for none.
    """

    deferred = False

    def __init__(self, deviation: float) -> None:
        self.deviation = deviation
        self._ahead = NoiseAhead("dense noise")

    @property
    def grid(self) -> float:
        """See :class:`dpfest.gradients.parts.Noise`."""
        return gaussian_grid(self.deviation) if self.deviation > 0 else 0.0

    def settle(self, shards: Sequence[Shard], key: NoiseKey) -> None:
        """Do nothing: no noise is due."""

    def on_rows(self, shard: Shard, sums: RowSums, step: int) -> None:
        """See :meth:`dpfest.gradients.parts.Noise.on_rows`: one draw of the shard's key for all of its tables."""
        if self.deviation > 0:
            add_gaussian(sums.flat, shard.key.stream("row noise", step), self.deviation, sums.places)

    def on_dense(self, sums: DenseSums, key: NoiseKey, step: int) -> None:
        """See :meth:`dpfest.gradients.parts.Noise.on_dense`: one draw of the run's key, by coordinate."""
        if self.deviation > 0:
            self._ahead.add(sums.flat, key, step, self.deviation, sums.first)


class Deferred(Independent):
    """Noise of which the tables' part is drawn when a row is next read (:mod:`dpfest.step.lazy`).

    Args:
        deviation: of the noise in every coordinate.
        due: what keeps account of it.
    """

    deferred = True

    def __init__(self, deviation: float, due: Due) -> None:
        super().__init__(deviation)
        self._due = due

    def settle(self, shards: Sequence[Shard], key: NoiseKey) -> None:
        """Draw what earlier steps owe to the rows that the batch touches."""
        self._due.use(key)
        self._due.settle(shards)

    def on_rows(self, shard: Shard, sums: RowSums, step: int) -> None:
        """Do nothing: every row of every table is owed the noise from now on (``NoisedGradient.pending``)."""


class NoiseAhead:
    """Adds the noise of a purpose, step by step, to as many values in each; a thread draws that of the next step.

    Noise is a function of key, purpose and step alone, and takes no part of the batch. Drawn ahead or not, it is the
    same. On two cores, both busy, it costs nothing; a core that is idle takes it over. Between steps it holds 8 bytes a
    value.

    Args:
        purpose: of the keystream.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[tuple[NoiseKey, int, int, float, int], Future[Floats]] | None = None

    def add(self, values: Tensor, key: NoiseKey, step: int, deviation: float, first: int = 0) -> None:
        """Add the noise of values number ``first`` and those after it to contiguous ``values``, in place.

        See :func:`dpfest.noise.gaussian.add_gaussian`.
        """
        places = DensePlaces(first)

        def stream(step: int) -> Keystream:
            found = key.stream(self._purpose, step)
            found.position = first
            return found

        if len(values) < _LEAST or values.device.type != "cpu":
            return add_gaussian(values, stream(step), deviation, places)
        due, drawn, self._next = (key, step, len(values), deviation, first), self._next, None
        if drawn is not None and drawn[0] == due:
            add_units(values, drawn[1].result(), deviation)
        else:  # the first step, or another than was to be expected
            add_gaussian(values, stream(step), deviation, places)
        self._pool = self._pool or ThreadPoolExecutor(1)
        self._next = (
            (due[0], step + 1, *due[2:]),
            self._pool.submit(draw_units, stream(step + 1), len(values), deviation, places),
        )
