"""Arrays derived from a dataset's training rows, in files beside them, each with a checksum of its own.

``histogram.npy`` and the units of the rows decide results as much as the rows do, and are written when they are first
asked for. ``<name>.npy.sha256`` holds the file's SHA-256 and that of the rows that it was derived from: a file that is
damaged, or of other rows, counts as missing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.system.checksum import read_sha256, sha256_of
from pipelines.system.files import save_array, write_atomically


def write_derived(path: Path, array: NDArray[np.int64], rows: str) -> None:
    """Write an array and its checksum; ``rows`` is the checksum of the rows that it was derived from.

    Two processes may write the same array at once: each hashes its own bytes before they get their name.
    """
    checksums = []

    def write(partial: Path) -> None:
        save_array(partial, array)
        checksums.append(read_sha256(partial))

    write_atomically(path, write)
    text = _text(path, checksums[0], rows)
    write_atomically(_seal(path), lambda partial: partial.write_text(text, encoding="utf-8"))


def read_derived(path: Path, rows: str) -> NDArray[np.int64] | None:
    """Return the array, mapped into memory; None if it is missing, damaged, or was derived from other rows."""
    try:
        if _seal(path).read_text(encoding="utf-8") != _text(path, sha256_of(path), rows):
            return None
        found: NDArray[np.int64] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, UserError):
        return None
    return found


def _seal(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _text(path: Path, checksum: str, rows: str) -> str:
    return f"{checksum}  {path.name}\n{rows}  train.rows\n"
