"""Decompress gzip in pieces: all that can be decompressed is yielded before an error is raised.

At a corrupt byte ``gzip.GzipFile`` discards what it has decompressed of the current read, and with it the position.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

MAGIC = b"\x1f\x8b"
_GZIP_FORMAT = 16 + zlib.MAX_WBITS


class BrokenGzipError(ValueError):
    """The compressed file is truncated or corrupt; the text gives the reason."""


def unpacked(stream: io.RawIOBase, piece_bytes: int) -> Iterator[bytes]:
    """Yield the content of a gzip file: its members end to end, without zeros between and after them.

    Args:
        stream: The compressed file, at its start.
        piece_bytes: Largest size of a piece.

    Raises:
        BrokenGzipError: The file ends inside a member, a checksum is wrong, or a member is followed by something other
            than another member or zeros. Everything before the error has been yielded then.
    """
    member = zlib.decompressobj(_GZIP_FORMAT)
    inside = False
    # Click logs compress to about a third: a quarter of a piece decompresses to about one piece.
    while packed := stream.read(max(1, piece_bytes // 4)):
        while packed := packed if inside else packed.lstrip(b"\0"):
            if not inside:
                member, inside = zlib.decompressobj(_GZIP_FORMAT), True
            before = member.copy()
            try:
                piece = member.decompress(packed, piece_bytes)
            except zlib.error as error:
                yield from _until_the_break(before, packed)
                raise BrokenGzipError(str(error)) from error
            if piece:
                yield piece
            packed = member.unused_data if member.eof else member.unconsumed_tail
            inside = not member.eof
    if inside:
        yield member.flush()
        raise BrokenGzipError("the file ends inside compressed data")


def _until_the_break(member: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """Yield what a member decompresses of bytes on which it fails, up to the failing byte, found by bisection."""
    while len(packed) > 1:
        half, probe = len(packed) // 2, member.copy()
        try:
            piece = probe.decompress(packed[:half])
        except zlib.error:
            packed = packed[:half]
        else:
            yield piece
            member, packed = probe, packed[half:]
