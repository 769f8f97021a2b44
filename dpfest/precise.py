"""Arithmetic of 320 bits, for the few variates that float64 cannot round with certainty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import mpmath

from dpfest.noise import Keystream

_CONTEXT = mpmath.MPContext()
_CONTEXT.prec = 320
_LOCK = Lock()  # mpmath keeps pi and ln 2 in a cache that threads must not race for


@contextmanager
def precise() -> Iterator[Any]:
    """The functions of mpmath at 320 bits, to one thread at a time."""
    with _LOCK:
        yield _CONTEXT


def exponential(stream: Keystream, word: int, position: int) -> Any:
    """``-ln U`` to 320 bits, U of 192: of ``word``, which stands at ``position`` of the stream, and 128 bits more.

    To be called within :func:`precise`.
    """
    return -_CONTEXT.log(_CONTEXT.ldexp(2 * stream.extended(word, position) + 1, -193))
