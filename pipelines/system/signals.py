"""SIGINT, SIGTERM and SIGHUP (a closed terminal) as a request to stop at the next safe place."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether somebody asked the process to stop; a second request stops it at once."""

    def __init__(self) -> None:
        self._signal: int | None = None

    @property
    def requested(self) -> bool:
        """True from the first signal on."""
        return self._signal is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        if self._signal is not None:
            raise SystemExit(128 + number)
        self._signal = number
        print("Stopping after this step; once more to stop at once.", file=sys.stderr, flush=True)

    def exit_if_requested(self) -> None:
        """Raise SystemExit with the shell's code for the signal, if there was one."""
        if self._signal is not None:
            raise SystemExit(128 + self._signal)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP into a :class:`StopRequest` while the block runs.

    Outside of the main thread, where Python delivers no signals, the request never comes.  A SIGHUP that is ignored,
    as under nohup, stays ignored.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    before = {number: signal.signal(number, stop.receive) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
