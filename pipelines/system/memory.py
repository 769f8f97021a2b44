"""Keep freed memory in the process: memory returned to the system must be faulted in again, page by page."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_freed_memory() -> None:
    """Tell glibc to keep up to 1 GiB of freed memory, and to serve blocks of up to 32 MiB from it.

    Affects performance only: a private step frees and reallocates some 50 MB of activations, which by default go back
    to the system in between.  No effect with another C library.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, 1 << 30)
