"""Text files as blocks of lines: none is lost, and a .gz that breaks is named with the last line that it gave."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfest.errors import UserError
from pipelines.data.clicks.blocks import LineBlocks
from tests.pipelines.data.criteo_text import some_lines

TEXT = b"".join(line + b"\n" for line in some_lines(2_000))
PACKED = gzip.compress(TEXT)
SIZES = pytest.mark.parametrize("block_bytes", [1_000, 50_000, 16 << 20])


def _lines(folder: Path, content: bytes, block_bytes: int) -> bytes:
    (folder / "train.gz").write_bytes(content)
    reader = LineBlocks(folder / "train.gz", block_bytes)
    text = b"".join(reader)
    assert reader.lines == text.count(b"\n") and reader.bytes_read == len(content)
    assert reader.sha256 == hashlib.sha256(content).hexdigest()
    return text


def _break(folder: Path, content: bytes, block_bytes: int) -> tuple[int, bytes]:
    """The line that the message names, and the text that was given out before it."""
    (folder / "train.gz").write_bytes(content)
    given: list[bytes] = []
    with pytest.raises(UserError, match=r"train\.gz is a truncated or corrupt \.gz: line \d+ is") as caught:
        given.extend(LineBlocks(folder / "train.gz", block_bytes))
    found = re.search(r"line (\d+) is the last", str(caught.value))
    assert found is not None
    return int(found[1]), b"".join(given)


@SIZES
@pytest.mark.parametrize(
    "content",
    [
        PACKED,
        PACKED + b"\0" * 5_000,
        gzip.compress(TEXT[:1_234]) + gzip.compress(b"") + b"\0\0" + gzip.compress(TEXT[1_234:]),
        TEXT,
    ],
    ids=["one member", "zero padding", "several members", "plain"],
)
def test_every_line_is_given_out_once(tmp_path: Path, content: bytes, block_bytes: int) -> None:
    assert _lines(tmp_path, content, block_bytes) == TEXT


@SIZES
@pytest.mark.parametrize("share", [0.001, 0.5, 0.99])
def test_a_truncated_file_is_read_to_its_last_whole_line(tmp_path: Path, share: float, block_bytes: int) -> None:
    cut = PACKED[: int(share * len(PACKED))]
    readable = zlib.decompressobj(31).decompress(cut)
    line, given = _break(tmp_path, cut, block_bytes)
    assert line == readable.count(b"\n") and given == readable[: readable.rfind(b"\n") + 1]
    assert line > 0 or share < 0.01


def test_a_file_much_longer_than_a_block_is_too(tmp_path: Path) -> None:
    # Repetitive text shrinks a hundredfold: one read of the file fills several blocks.
    text = b"0123456789\n" * 300_000
    line, given = _break(tmp_path, gzip.compress(text)[:-8], 1 << 16)
    assert line == 300_000 and given == text


@SIZES
@pytest.mark.parametrize(
    ("spoil", "lines"),
    [
        (lambda packed: packed[:-8] + b"\0\0\0\0" + packed[-4:], 2_000),
        (lambda packed: packed[:-4] + b"\0\0\0\0", 2_000),
        (lambda packed: packed[:-3], 2_000),
        (lambda packed: packed + b"\0\0junk", 2_000),
        (lambda packed: packed + packed[:12], 2_000),
        (lambda packed: packed + gzip.compress(TEXT)[:-8], 4_000),
        (lambda packed: packed[:12], 0),
    ],
    ids=["checksum", "length", "inside the trailer", "junk", "half a header", "a member cut short", "no data"],
)
def test_what_precedes_the_break_counts(
    tmp_path: Path, spoil: Callable[[bytes], bytes], lines: int, block_bytes: int
) -> None:
    line, given = _break(tmp_path, spoil(PACKED), block_bytes)
    assert line == lines and given == (TEXT + TEXT)[: len(given)]


@pytest.mark.parametrize("block_bytes", [20_000, 16 << 20])
@pytest.mark.parametrize("place", [200, len(PACKED) // 3, len(PACKED) // 2, len(PACKED) - 2_000])
def test_corrupt_bytes_are_placed(tmp_path: Path, place: int, block_bytes: int) -> None:
    corrupt = PACKED[:place] + bytes(255 - byte for byte in PACKED[place : place + 50]) + PACKED[place + 50 :]
    readable, member = b"", zlib.decompressobj(31)
    with pytest.raises(zlib.error):
        for byte in corrupt:
            readable += member.decompress(bytes([byte]))
    line, given = _break(tmp_path, corrupt, block_bytes)
    assert line == readable.count(b"\n") and given == readable[: readable.rfind(b"\n") + 1]
