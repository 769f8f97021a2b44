"""Noise of the next step, drawn by a thread while this step is computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from dpfest.gaussian import Floats, add_gaussian, add_units, draw_units
from dpfest.noise import NoiseKey

_LEAST = 1 << 18  # values, below which a thread is not worth its messages


class NoiseAhead:
    """Adds the noise of a purpose, step by step, to as many values in each.

    Noise is a function of key, purpose and step alone, and takes no part of the batch. Drawn ahead or not, it is the
    same. On two cores, both busy, it costs nothing; a core that is idle takes it over. Between steps it holds 8 bytes a
    value.

    Args:
        purpose: of the keystream.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[tuple[bytes, int, int, float], Future[Floats]] | None = None

    def add(self, values: Tensor, key: NoiseKey, step: int, deviation: float) -> None:
        """Add a step's noise to contiguous ``values``, in place; see :func:`dpfest.gaussian.add_gaussian`."""
        if len(values) < _LEAST or values.device.type != "cpu":
            return add_gaussian(values, key.stream(self._purpose, step), deviation)
        due, drawn, self._next = (key.secret, step, len(values), deviation), self._next, None
        if drawn is not None and drawn[0] == due:
            add_units(values, drawn[1].result(), deviation)
        else:  # the first step, or another than was to be expected
            add_gaussian(values, key.stream(self._purpose, step), deviation)
        self._pool = self._pool or ThreadPoolExecutor(1)
        stream = key.stream(self._purpose, step + 1)
        self._next = (due[0], step + 1, *due[2:]), self._pool.submit(draw_units, stream, len(values), deviation)
