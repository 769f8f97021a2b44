"""Parse lines of Criteo's text format: ``parse_line`` defines the format, ``parse_block`` parses it fast.

A line has 40 tab-separated fields: a label 0 or 1, 13 counts (decimal integers, possibly negative, or blank) and 26
categories (8 hexadecimal digits in either case, or blank). Lines may end in CR LF, which some tools write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.data.clicks.blocks import count_bytes
from pipelines.data.hashing import BLANK_KEY
from pipelines.data.rows import CATEGORICAL_FEATURES, NUMERIC_FEATURES
from pipelines.data.source import BadLineError

FIELDS = 1 + NUMERIC_FEATURES + CATEGORICAL_FEATURES
_ALPHABET = b"0123456789abcdefABCDEF-\t\n"
_COUNT = re.compile(rb"-?[0-9]+")
_CATEGORY = re.compile(rb"[0-9a-fA-F]{8}")
_INTEGERS = [f"integer_{i}" for i in range(1, NUMERIC_FEATURES + 1)]
_CATEGORIES = [f"category_{i}" for i in range(1, CATEGORICAL_FEATURES + 1)]
_SCHEMA = {name: pl.String for name in ["label", *_INTEGERS, *_CATEGORIES]}


@dataclass(frozen=True)
class ParsedLines:
    """The good lines of a block and the bad ones, n and m of them.

    Attributes:
        line: Position of each good line in the block, from 0, increasing, shape [n].
        label: 0 or 1, shape [n].
        integers: The counts, blanks as 0, shape [n, 13].
        keys: Keys of the categories, shape [n, 26].
        bad: Position in the block and error of each bad line, by increasing position.
    """

    line: NDArray[np.int64]
    label: NDArray[np.float32]
    integers: NDArray[np.int64]
    keys: NDArray[np.uint64]
    bad: list[tuple[int, BadLineError]]


def parse_line(line: bytes) -> tuple[int, list[int], list[int]]:
    """Return label, 13 counts (blank is 0) and 26 category keys of one line without its line ending.

    Raises:
        BadLineError: The line is not in the format.
    """
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLineError("invalid UTF-8", f"invalid UTF-8 at byte {error.start + 1} of the line") from error
    fields = line.split(b"\t")
    if len(fields) != FIELDS:
        raise BadLineError("wrong number of fields", f"{len(fields)} fields between tabs, {FIELDS} wanted")
    if fields[0] not in (b"0", b"1"):
        raise BadLineError("label neither 0 nor 1", f"label {_shown(fields[0])}, 0 or 1 wanted")
    integers = [_count(field, place) for place, field in enumerate(fields[1 : 1 + NUMERIC_FEATURES], 2)]
    keys = [_key(field, place) for place, field in enumerate(fields[1 + NUMERIC_FEATURES :], 2 + NUMERIC_FEATURES)]
    return int(fields[0]), integers, keys


def _count(field: bytes, place: int) -> int:
    if not field:
        return 0
    digits = field.lstrip(b"-").lstrip(b"0") or b"0"
    # The length comes first: Python refuses to read digits by the thousand.
    if _COUNT.fullmatch(field) and len(digits) <= 19:
        value = -int(digits) if field.startswith(b"-") else int(digits)
        if -(2**63) <= value < 2**63:
            return value
    raise BadLineError("count not a 64-bit integer", f"field {place} is {_shown(field)}, an integer wanted")


def _key(field: bytes, place: int) -> int:
    if not field:
        return BLANK_KEY
    if not _CATEGORY.fullmatch(field):
        wanted = "8 hexadecimal digits wanted"
        raise BadLineError("category not 8 hexadecimal digits", f"field {place} is {_shown(field)}, {wanted}")
    return int(field, 16)


def _shown(field: bytes) -> str:
    text = field.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "…")


def parse_block(block: bytes) -> ParsedLines:
    """Parse whole lines at once, with exactly the results of ``parse_line`` and many times faster.

    Polars reads the lines that are certainly 40 fields of plain characters; ``parse_line`` parses every other line.
    """
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    lines = count_bytes(block, b"\n")
    plain = count_bytes(block, b"\t") == lines * (FIELDS - 1) and not block.translate(None, _ALPHABET)
    frame = _read_frame(block, lines) if plain else None
    line = np.arange(lines)
    odd = line[:0]
    if frame is None:
        split = block.split(b"\n")[:-1]
        regular = [text.count(b"\t") == FIELDS - 1 and not text.translate(None, _ALPHABET) for text in split]
        line, odd = np.flatnonzero(regular), np.flatnonzero(~np.array(regular))
        frame = _read_frame(b"".join(split[i] + b"\n" for i in line), len(line))
        if frame is None:
            raise AssertionError("Polars does not find 40 fields in lines that hold 39 tabs")
    values = _values(frame)
    good = _surely_good(frame, values)
    parsed = ParsedLines(
        line=line,
        label=values["label"].fill_null(False).to_numpy().astype(np.float32),
        integers=values.select(pl.col(_INTEGERS).fill_null(0)).to_numpy(),
        keys=values.select(pl.col(_CATEGORIES).cast(pl.UInt64).fill_null(BLANK_KEY)).to_numpy(),
        bad=[],
    )
    if len(odd) == 0 and good.all():
        return parsed
    return _mend(parsed, good, np.sort(np.concatenate([odd, line[~good]])), block.split(b"\n"))


def _read_frame(lines: bytes, count: int) -> pl.DataFrame | None:
    """Return ``count`` lines as 40 columns of text, blanks as null; None if they do not fit."""
    if count == 0:
        return pl.DataFrame(schema=_SCHEMA)
    try:
        frame = pl.read_csv(lines, separator="\t", has_header=False, quote_char=None, schema=_SCHEMA)
    except (pl.exceptions.ComputeError, pl.exceptions.SchemaError):
        return None
    return frame if frame.height == count else None


def _values(text: pl.DataFrame) -> pl.DataFrame:
    """Convert text to numbers; blanks and invalid numbers become null."""
    return text.select(
        label=pl.col("label") == "1",
        **{name: pl.col(name).cast(pl.Int64, strict=False) for name in _INTEGERS},
        **{name: pl.col(name).str.to_integer(base=16, dtype=pl.UInt32, strict=False) for name in _CATEGORIES},
    )


def _surely_good(text: pl.DataFrame, values: pl.DataFrame) -> NDArray[np.bool_]:
    """Return whether each line is certainly valid, shape [n]."""
    checks = [pl.col("label").is_in(["0", "1"])]
    checks += [pl.col(name).str.len_bytes() == 8 for name in _CATEGORIES]
    passed = text.select(pl.all_horizontal([check.all() for check in checks])).item()
    # Invalid numbers are null in the values only, so that equal totals prove all lines valid.
    if passed and text["label"].null_count() == 0 and values.null_count().equals(text.null_count()):
        return np.ones(text.height, bool)
    good = text.select(pl.all_horizontal([check.fill_null(True) for check in checks])).to_series().to_numpy().copy()
    good &= text["label"].is_not_null().to_numpy()
    for name in [*_INTEGERS, *_CATEGORIES]:
        good &= (values[name].is_not_null() | text[name].is_null()).to_numpy()
    return good


def _mend(parsed: ParsedLines, good: NDArray[np.bool_], doubtful: NDArray[np.int64], text: list[bytes]) -> ParsedLines:
    """Merge the good rows of ``parsed`` with the results of ``parse_line`` for the doubtful lines, in file order."""
    mended: list[tuple[int, int, list[int], list[int]]] = []
    bad: list[tuple[int, BadLineError]] = []
    for place in doubtful.tolist():
        try:
            mended.append((place, *parse_line(text[place])))
        except BadLineError as error:
            bad.append((place, error))
    line = np.concatenate([parsed.line[good], np.array([row[0] for row in mended], dtype=np.int64)])
    order = np.argsort(line)

    def merged(fast: NDArray[np.generic], slow: list[int] | list[list[int]]) -> NDArray[np.generic]:
        added = np.array(slow, dtype=fast.dtype).reshape(len(mended), *fast.shape[1:])
        return np.concatenate([fast[good], added])[order]

    return ParsedLines(
        line=line[order],
        label=merged(parsed.label, [row[1] for row in mended]),  # type: ignore[arg-type]
        integers=merged(parsed.integers, [row[2] for row in mended]),  # type: ignore[arg-type]
        keys=merged(parsed.keys, [row[3] for row in mended]),  # type: ignore[arg-type]
        bad=bad,
    )
