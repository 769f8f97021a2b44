"""320-bit arithmetic, for the few variates that float64 cannot round with certainty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import mpmath

from dpfest.noise.keystream import Keystream

_CONTEXT = mpmath.MPContext()
_CONTEXT.prec = 320
_LOCK = Lock()  # mpmath caches pi and ln 2, and its cache is not thread-safe


@contextmanager
def precise() -> Iterator[Any]:
    """A context with the functions of mpmath at 320 bits, for one thread at a time."""
    with _LOCK:
        yield _CONTEXT


def exponential(stream: Keystream, word: int, position: int) -> Any:
    """Return ``-ln U`` to 320 bits, for the 192-bit U of ``word``, at ``position`` in the stream, and 128 more bits.

    Call it within :func:`precise`.
    """
    return -_CONTEXT.log(_CONTEXT.ldexp(2 * stream.extended(word, position) + 1, -193))
