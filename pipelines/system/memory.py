"""Memory that a process frees, kept in it, and garbage that it looks for."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_freed_memory() -> None:
    """Tell glibc to keep up to 1 GiB of freed memory, and to serve blocks of up to 32 MiB from it.

    Affects performance only: a private step frees and reallocates some 50 MB of activations, which by default go back
    to the system in between, and must be faulted in again, page by page.  No effect with another C library.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, 1 << 30)


@contextmanager
def uncollected() -> Iterator[None]:
    """A context without searches for garbage, for reading much that is kept: each would walk through all of it again,
    and so would each later one, which is spared that as well until something else is read."""
    gc.unfreeze()
    gc.collect()  # what an earlier reading kept may be garbage by now
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
