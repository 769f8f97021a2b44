"""Decompress gzip in pieces: all that can be decompressed is yielded before an error is raised.

``gzip.GzipFile`` loses what it had unpacked of a read when it meets a break, and with it the place of the break.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

MAGIC = b"\x1f\x8b"
_GZIP_FORMAT = 16 + zlib.MAX_WBITS


class BrokenGzipError(ValueError):
    """The compressed file is cut short or corrupt; the text says how."""


def unpacked(stream: io.RawIOBase, piece_bytes: int) -> Iterator[bytes]:
    """The content of a gzip file: its members end to end, zeros between and after them left out.

    Args:
        stream: The compressed file, at its start.
        piece_bytes: The most bytes of a piece.

    Raises:
        BrokenGzipError: The file ends inside a member, a checksum is wrong, or what follows a member is neither
            another one nor zeros. All that precedes the break has been given out then.
    """
    member = zlib.decompressobj(_GZIP_FORMAT)
    inside = False
    # A click log shrinks to a third: a quarter of a piece makes about a piece.
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
    """What a member makes of bytes on which it fails, up to the one where it does: found by halving."""
    while len(packed) > 1:
        half, probe = len(packed) // 2, member.copy()
        try:
            piece = probe.decompress(packed[:half])
        except zlib.error:
            packed = packed[:half]
        else:
            yield piece
            member, packed = probe, packed[half:]
