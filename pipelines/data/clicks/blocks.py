"""Read whole lines of a text file, plain or gzipped, in blocks of bounded size.

A thread reads and decompresses one block ahead while the previous block is parsed.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpfest.errors import UserError
from pipelines.data.clicks.gzip_pieces import MAGIC, BrokenGzipError, unpacked
from pipelines.system.ahead import ahead

BLOCK_BYTES = 16 << 20


def count_bytes(block: bytes, byte: bytes) -> int:
    """Count one byte; several times as fast as bytes.count if the byte is frequent."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == byte[0]))


class _HashedFile(io.RawIOBase):
    """A file that computes the SHA-256 of its bytes as they are read, in order."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("rb", buffering=0)
        self.digest = hashlib.sha256()
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer) or 0
        self.digest.update(memoryview(buffer)[:count])
        self.bytes_read += count
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


class LineBlocks:
    """The lines of one file, in blocks of whole lines.

    Attributes:
        path: The file.
        bytes_read: Bytes of the file (compressed bytes of a .gz) read so far.
        lines: Lines yielded so far.
    """

    unit = "line"

    def __init__(self, path: Path, block_bytes: int = BLOCK_BYTES) -> None:
        self.path = path
        self.bytes_read = 0
        self.lines = 0
        self._block_bytes = block_bytes
        self._sha256 = ""

    @property
    def sha256(self) -> str:
        """SHA-256 of the whole file on disk, available once all of it has been read."""
        return self._sha256

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of whole lines, each ended by a line feed (added to the last line if it has none).

        Raises:
            UserError: The file is missing, empty, a truncated or corrupt .gz, or has no lines at all.
        """
        try:
            raw = _HashedFile(self.path)
            with raw, self.path.open("rb") as start:
                packed = start.read(2) == MAGIC  # by content: names can be wrong
                pieces = unpacked(raw, self._block_bytes) if packed else self._read(raw)
                yield from self._whole_lines(pieces, raw)
                self.bytes_read, self._sha256 = raw.bytes_read, raw.digest.hexdigest()
        except BrokenGzipError as error:
            raise UserError(
                f"{self.path} is a truncated or corrupt .gz: line {self.lines} is the last that can be read "
                f"({error}). Fetch it again; such a file is never used in part."
            ) from error
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        if self.lines == 0:
            raise UserError(f"{self.path} is empty: it holds no line.")

    def _read(self, raw: _HashedFile) -> Iterator[bytes]:
        while chunk := raw.read(self._block_bytes):
            yield chunk

    def _whole_lines(self, pieces: Iterator[bytes], raw: _HashedFile) -> Iterator[bytes]:
        rest = b""
        for chunk in ahead(pieces):
            self.bytes_read = raw.bytes_read
            cut = chunk.rfind(b"\n") + 1
            if cut == 0 and len(rest) + len(chunk) > 4 * self._block_bytes:
                raise UserError(
                    f"{self.path} has no line ending in {len(rest) + len(chunk):,} bytes after line "
                    f"{self.lines}: this is not a text file of one example a line."
                )
            block = rest + chunk[:cut] if cut else b""
            rest = chunk[cut:] if cut else rest + chunk
            if block:
                yield self._counted(block)
        if rest:
            yield self._counted(rest + b"\n")

    def _counted(self, block: bytes) -> bytes:
        self.lines += count_bytes(block, b"\n")
        return block
