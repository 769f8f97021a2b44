"""Output that survives its reader: `dpfest train ... 2>&1 | head` continues, and a closed terminal ends no run.

One that was closed before the start (`>&-`) is no other; a full disk ends the command with a sentence.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, TextIO

from dpfest.errors import UserError


def outlive_readers() -> None:
    """Discard output to a closed pipe or terminal from now on."""
    sys.stdout, sys.stderr = (_Outliving(stream or open(os.devnull, "w")) for stream in (sys.stdout, sys.stderr))  # noqa: SIM115


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
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        if error.errno not in (errno.EPIPE, errno.EIO):  # a full disk is not forgiven
            raise UserError(f"Output cannot be written ({error.strerror}): send it elsewhere.") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
