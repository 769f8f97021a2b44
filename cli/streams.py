"""Output that survives its reader: `dpfest train ... 2>&1 | head` continues, and a closed terminal ends no run."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, TextIO


def outlive_readers() -> None:
    """Discard output to a closed pipe or terminal from now on."""
    sys.stdout, sys.stderr = _Outliving(sys.stdout), _Outliving(sys.stderr)


class _Outliving:
    """A text stream that switches to the null device once its file is closed at the other end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno not in (errno.EPIPE, errno.EIO):  # a full disk is not forgiven
            raise error
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
